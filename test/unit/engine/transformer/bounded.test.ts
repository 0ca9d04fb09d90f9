// What is bounded is computing, not the time of a clock: work that waits, as all work does on a loaded machine, is
// begun anew with more time until it ends, and work that computes without end is ended.
import { readFileSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { within } from '../../../../engine/transformer/bounded.ts';

test('work that gets hardly any of the time is not ended for it', () => {
  const never = new Int32Array(new SharedArrayBuffer(4));
  let begun = 0;
  const ended = within(200, () => {
    begun++;
    return Atomics.wait(never, 0, 0, 500);
  });
  expect(ended).toEqual({ value: 'timed-out' });
  // 200 and 400 ms are too short for it, 800 ms may be on a busy machine.
  expect(begun).toBeGreaterThan(2);
});

test('work without end is ended, and what comes after it is not', () => {
  expect(
    within(20, () => {
      for (;;);
    }),
  ).toBeNull();
  expect(within(20, () => 7)).toEqual({ value: 7 });
});

test('what it throws is thrown', () => {
  expect(() =>
    within(20, () => {
      throw new RangeError('x');
    }),
  ).toThrow(RangeError);
});

test.runIf(process.platform === 'linux')(
  'the computing of other threads does not count, however many are busy (needs Linux)',
  async () => {
    const busy = Array.from({ length: 12 }, () => new Worker('for (;;);', { eval: true }));
    try {
      await Promise.all(busy.map((worker) => new Promise((resolve) => worker.once('online', resolve))));
      // A fifth of the bound by this thread's own count, which takes it several times as much of the clock. A number
      // of rounds would not do: their compiler waits for its turn too, and interpreted they take ten times as long.
      const ended = within(150, () => {
        const untilMs = computedMs() + 30;
        while (computedMs() < untilMs);
        return 'done';
      });
      expect(ended).toEqual({ value: 'done' });
    } finally {
      await Promise.all(busy.map((worker) => worker.terminate()));
    }
  },
);

/** How long this thread has had a processor, as Linux counts it. */
function computedMs(): number {
  return Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]) / 1e6;
}
