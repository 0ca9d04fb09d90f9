// The share of the time that prompts have beside answers, in passes that take as long as they say.
import { expect, it } from 'vitest';
import { Owed } from '../../../../engine/scheduler/owed.ts';

/** The share that prompts have, where a piece adds so much to a pass of writers. */
function share(writers: number, readers: number, pieceMs: number): number {
  const owed = new Owed();
  const [writingMs, spent] = [4, { reading: 0, writing: 0 }];
  for (let pass = 0; pass < 10_000; pass++) {
    const hasPrompt = !owed.isOwed;
    const ms = hasPrompt ? writingMs + pieceMs : writingMs;
    spent.reading += ms - writingMs;
    // A pass with both is the writers' for what it takes without the piece, which nobody owes them.
    if (!hasPrompt) spent.writing += ms;
    owed.took({ ms, writingMs, hasPrompt, writers, readers });
  }
  return spent.reading / (spent.reading + spent.writing);
}

it.each([
  [1, 1, 1 / 2],
  [7, 1, 1 / 8],
  [1, 3, 3 / 4],
  [4, 4, 1 / 2],
  [16, 1, 1 / 17],
])('of %i that write and %i that are read is %f for those', (writers, readers, expected) => {
  for (const pieceMs of [5, 30, 90]) {
    // No more than that, and less by no more than a pass of writers for each piece.
    const found = share(writers, readers, pieceMs);
    expect(found).toBeLessThanOrEqual(expected + 1e-3);
    expect(found).toBeGreaterThan(pieceMs / (pieceMs / expected + 4) - 1e-3);
  }
});

it('is all of it where nobody writes', () => {
  const owed = new Owed();
  owed.took({ ms: 50, writingMs: 0, hasPrompt: true, writers: 0, readers: 1 });
  expect(owed.isOwed).toBe(false);
  owed.took({ ms: 50, writingMs: 0, hasPrompt: true, writers: 2, readers: 1 });
  expect(owed.isOwed).toBe(true);
  owed.clear();
  expect(owed.isOwed).toBe(false);
});
