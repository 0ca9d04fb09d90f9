// A worker thread that is terminated leaves the lock of a process that lives on: the next writer of the same process
// gets it, while a worker that still runs keeps it. Processes that are killed: test/soak/kills.test.ts.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { lockWriter, openWitnessLog, verifyLog } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';

const folder = scratchFolders();

it('takes over from a terminated worker of the same process', async () => {
  const dir = folder();
  // A worker has to be told how to read TypeScript.
  const boot =
    "import('tsx/esm/api').then(({ register }) => (register(), import(require('node:worker_threads').workerData)))";
  const worker = new Worker(boot, {
    eval: true,
    argv: [dir],
    workerData: pathToFileURL(join(import.meta.dirname, 'writing-worker.ts')).href,
  });
  const acknowledged = await new Promise<number>((resolve, reject) => {
    worker.on('error', reject);
    worker.on('message', resolve);
  });
  expect(() => lockWriter(dir)).toThrowError(
    expect.objectContaining({ code: 'locked', values: expect.objectContaining({ pid: process.pid }) }),
  );
  await worker.terminate();
  const log = await openWitnessLog({ dir });
  expect(log.acknowledgedSeq).toBeGreaterThanOrEqual(acknowledged);
  await log.close();
  expect(verifyLog(dir).ok).toBe(true);
});
