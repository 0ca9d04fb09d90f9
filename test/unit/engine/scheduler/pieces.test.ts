// How much of a prompt is read beside writers follows from what passes have taken so far.
import { expect, it } from 'vitest';
import { Pieces } from '../../../../engine/scheduler/pieces.ts';

it('is the smallest piece before anything is known, and then what the target leaves beside those who write', () => {
  const pieces = new Pieces(60);
  expect(pieces.tokens).toBe(16);
  pieces.took(5, { written: 1, read: 0 });
  pieces.took(5 + 16 * 1.5, { written: 1, read: 16 });
  // 1.5 ms a token: 32 take 48 ms, 64 would take 96, beside 5 for the answers.
  expect(pieces.tokens).toBe(32);
  for (let i = 0; i < 20; i++) pieces.took(128 * 0.3, { written: 0, read: 128 });
  expect(pieces.tokens).toBe(128);
  for (let i = 0; i < 20; i++) pieces.took(5 + 16 * 20, { written: 4, read: 16 });
  expect(pieces.tokens).toBe(16);
});

it('takes what a pass of writers takes from that of a pass with both', () => {
  const pieces = new Pieces(160);
  expect(pieces.writingMs).toBe(0);
  pieces.took(100, { written: 8, read: 0 });
  expect(pieces.writingMs).toBe(100);
  // 16 tokens add 8 ms, and 60 are left.
  pieces.took(108, { written: 8, read: 16 });
  expect(pieces.tokens).toBe(64);
  pieces.took(110, { written: 8, read: 0 });
  expect(pieces.writingMs).toBeCloseTo(103, 9);
});

it('is the smallest piece where answers alone take all of the time', () => {
  const pieces = new Pieces(60);
  pieces.took(90, { written: 16, read: 0 });
  pieces.took(92, { written: 16, read: 16 });
  expect(pieces.tokens).toBe(16);
});
