// What is bounded is computing, not the time of a clock: work that waits, as all work does on a loaded machine, is
// begun anew with more time until it ends, and work that computes without end is ended.
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

test('the computing of other threads does not count, however many are busy', async () => {
  const busy = Array.from({ length: 12 }, () => new Worker('for (;;);', { eval: true }));
  try {
    await Promise.all(busy.map((worker) => new Promise((resolve) => worker.once('online', resolve))));
    // A fifth of the bound, which takes this thread several times as much of the clock.
    let sum = 0;
    const ended = within(150, () => {
      for (let i = 0; i < 4e7; i++) sum += i & 3;
      return 'done';
    });
    expect(ended).toEqual({ value: 'done' });
    expect(sum).toBeGreaterThan(0);
  } finally {
    await Promise.all(busy.map((worker) => worker.terminate()));
  }
});
