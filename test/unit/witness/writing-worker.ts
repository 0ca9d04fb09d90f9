/**
 * Run as a worker by terminated-worker.test.ts: appends to the log in argv[2] until it is terminated, and says every
 * seq that was acknowledged.
 */
import { parentPort } from 'node:worker_threads';
import { openWitnessLog } from '../../../witness/index.ts';

const log = await openWitnessLog({ dir: process.argv[2] as string, segmentBytesMax: 20_000, commitIntervalMs: 1 });
for (let n = 0; ; n++) {
  if (log.append('s', 'note', { double: 2 * n, n, pad: 'x'.repeat((n * 53) % 700) }) === null)
    throw new Error('dropped in mode block');
  if (n % 5 === 0) void log.flush().then((acknowledged) => parentPort?.postMessage(acknowledged));
  if (n % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
}
