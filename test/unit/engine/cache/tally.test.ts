// The tally of a cache by hand: what became of moves in each layer, and which of the time of deciding is that of
// others.
import { expect, it } from 'vitest';
import { Tally } from '../../../../engine/cache/tally.ts';

it('counts trials, moves and refusals by layer, and keeps the worst error of a move', () => {
  const tally = new Tally(3);
  tally.tried(1, 7);
  tally.tried(1, 1);
  tally.moved(1, 0.2);
  tally.moved(1, 0.1);
  tally.moved(2, null);
  tally.refusedMove(1);
  expect(tally.layer(0)).toEqual({ tried: 0, accepted: 0, refused: 0, epsilonMax: null });
  expect(tally.layer(1)).toEqual({ tried: 8, accepted: 2, refused: 1, epsilonMax: 0.2 });
  expect(tally.layer(2)).toEqual({ tried: 0, accepted: 1, refused: 0, epsilonMax: null });
  expect([tally.decisions, tally.refused]).toEqual([4, 1]);
});

it('leaves out of deciding what trials, moves and entries took, also where deciding fails', () => {
  const tally = new Tally(1);
  tally.trialsTook(3);
  // An hour that has not passed: whatever deciding took beside it is less.
  const hourMs = 3_600_000;
  tally.deciding(() => tally.trialsTook(hourMs));
  tally.deciding(() => tally.moveTook(hourMs));
  const failing = (): void =>
    tally.deciding(() => {
      tally.entryTook(hourMs);
      throw new Error('the disk is full');
    });
  expect(failing).toThrow('the disk is full');
  const { decideMs, ...others } = tally.spent;
  expect(others).toEqual({ trialMs: 3 + hourMs, transcodeMs: hourMs, witnessMs: hourMs });
  expect(decideMs).toBeGreaterThanOrEqual(-3 * hourMs);
  expect(decideMs).toBeLessThan(-2.9 * hourMs);
});
