// The gate by itself, without an engine: a thread that works in long pieces stops between two of them, one that does
// nothing is not waited for, and a pass through an open gate takes nothing.
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { Gate, GateKeeper } from '../../../../engine/thread/gate.ts';

it('lets pass what is open, and waits for nobody who does nothing', async () => {
  const keeper = new GateKeeper();
  const gate = new Gate(keeper.shared);
  gate.pass();
  expect(await gate.during(async () => 5)).toBe(5);
  await expect(gate.during(() => Promise.reject(new Error('of the work')))).rejects.toThrow('of the work');
  expect(keeper.closeNow()).toBe(true);
  expect(await keeper.close()).toBe(true);
});

it('is waited at until the last of several works is done', async () => {
  const keeper = new GateKeeper();
  const gate = new Gate(keeper.shared);
  const ends: (() => void)[] = [];
  const works = [0, 1].map(() => gate.during(() => new Promise<void>((end) => ends.push(end))));
  let isClosed = false;
  const closing = keeper.close().then((could) => {
    isClosed = could;
  });
  ends[0]!();
  await works[0];
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(isClosed).toBe(false);
  ends[1]!();
  await closing;
  expect(isClosed).toBe(true);
});

it('waits for nobody who needs nothing of the thread, until he does again', async () => {
  const keeper = new GateKeeper();
  const gate = new Gate(keeper.shared);
  const ends: (() => void)[] = [];
  const work = (): Promise<void> => new Promise((end) => ends.push(end));
  const resting = gate.during(async () => {
    await gate.outside(work);
    await work();
  });
  expect(keeper.isBusy).toBe(false);
  const other = gate.during(work);
  expect(keeper.isBusy).toBe(true);
  ends[1]!();
  await other;
  expect(keeper.isBusy).toBe(false);
  ends[0]!();
  await new Promise((resolve) => setImmediate(resolve));
  expect(keeper.isBusy).toBe(true);
  ends[2]!();
  await resting;
  expect(keeper.isBusy).toBe(false);
});

it('holds a thread that comes to it for good', async () => {
  const keeper = new GateKeeper();
  const words = new Int32Array(new SharedArrayBuffer(4));
  // The thread's side once more, in plain JavaScript: 1 is busy, 2 parked, the second word closes.
  const script = `
    const { workerData: { shared, count } } = require('node:worker_threads');
    const words = new Int32Array(shared);
    Atomics.store(words, 0, 1);
    for (;;) {
      Atomics.add(count, 0, 1);
      Atomics.notify(count, 0);
      if (Atomics.load(words, 1) === 1) { Atomics.store(words, 0, 2); Atomics.notify(words, 0); Atomics.wait(words, 0, 2); }
    }`;
  const worker = new Worker(script, { eval: true, workerData: { shared: keeper.shared, count: words } });
  Atomics.wait(words, 0, 0);
  expect(keeper.closeNow()).toBe(true);
  const passed = words[0];
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(words[0]).toBe(passed);
  await worker.terminate();
});
