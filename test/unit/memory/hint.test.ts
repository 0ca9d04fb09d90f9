// Tries what hints do to what a book finds: they move sessions of other kinds away and nothing nearer, however many
// stand before the right one, and sessions without a hint are found as before.
import { describe, expect, test } from 'vitest';
import {
  fingerprint,
  hintDistance,
  openThresholdBook,
  sessionOf,
  type TextHint,
  type TimedEntry,
} from '../../../memory/index.ts';

const CODE: TextHint = { kind: 'code', share: 1, place: [0, 1] };
const PROSE: TextHint = { kind: 'prose', share: 0.75, place: [1, 0] };
const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 16, tokens: 1000 };

/** Entries of a session whose fingerprint is the farther from the others the larger `tokens`. */
function session(place: number, tokens: number, hint?: unknown): [TimedEntry, TimedEntry] {
  const id = `s${place}`;
  const gains = { k: [1, 1], v: [1, 1] };
  const print = [...fingerprint({ ...SHAPE, tokens })];
  const outcome = { tokens, kvBytes: 1, effectiveBits: 4, decisions: 1, priceThreshold: 1e-6, predictedKld: 0.1 };
  const body = { ...outcome, meanKld: null, fingerprint: print, gains, c: 4, reason: 'done' };
  const model = { digest: 'm', architecture: 'llama' };
  return [
    { seq: 2 * place, session: id, kind: 'open', body: { model, policy: { id: 'price' } } },
    { seq: 2 * place + 1, session: id, kind: 'close', body: { ...body, ...(hint === undefined ? {} : { hint }) } },
  ];
}

const bookOf = (entries: readonly TimedEntry[]) => openThresholdBook({ dir: null, logId: 'l', entries: () => entries });
const query = { modelDigest: 'm', family: 'llama', layers: 2, fingerprint: fingerprint(SHAPE) };

describe('distances of hints', () => {
  test('nothing where one is missing or both are the same', () => {
    expect(hintDistance(undefined, CODE)).toBe(0);
    expect(hintDistance(CODE, undefined)).toBe(0);
    expect(hintDistance(CODE, CODE)).toBe(0);
  });

  test('other kinds count as far as the less sure of both is, and places of another length not at all', () => {
    expect(hintDistance(CODE, { ...PROSE, place: [] })).toBeCloseTo(0.25 * 0.75, 12);
    expect(hintDistance(CODE, { ...CODE, place: [0, -1] })).toBeCloseTo(4 / 64, 12);
  });
});

describe('a book', () => {
  test('finds the session of the kind behind a hundred nearer ones of another, and without a hint the nearest', async () => {
    const others = Array.from({ length: 100 }, (_, i) => session(i, 1000 + i, PROSE)).flat();
    const book = await bookOf([...others, ...session(100, 1300, CODE)]);
    const [first] = (await book.lookup({ ...query, hint: CODE })).neighbours;
    expect(first!.session).toBe('s100');
    expect((await book.lookup(query)).neighbours[0]!.session).toBe('s0');
    await book.close();
  });

  test('has sessions without hints at the distance of their fingerprints', async () => {
    const book = await bookOf([...session(0, 1000), ...session(1, 1010)]);
    expect((await book.lookup({ ...query, hint: CODE })).neighbours).toEqual((await book.lookup(query)).neighbours);
    await book.close();
  });

  test('takes no session whose hint is none', () => {
    for (const hint of [
      { ...CODE, share: 2 },
      { ...CODE, place: [Number.NaN] },
      { ...CODE, kind: 'x'.repeat(41) },
      'code',
    ]) {
      const [open, close] = session(0, 1000, hint);
      expect(sessionOf(open, close, 'l', query.fingerprint.length)).toBeNull();
    }
    const [open, close] = session(0, 1000, CODE);
    expect(sessionOf(open, close, 'l', query.fingerprint.length)?.payload.hint).toEqual(CODE);
  });
});
