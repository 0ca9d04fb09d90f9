/**
 * Run by kill-log.ts as a process of its own: appends to the log in argv[2] until it is killed, and prints every seq
 * that was acknowledged. Plain JavaScript on the built files, because it is started ten thousand times.
 */
import { writeSync } from 'node:fs';
import { openWitnessLog } from '../../dist/witness/log.js';

const [dir, form, segmentBytesMax, commitIntervalMs, flushEvery] = process.argv.slice(2);
const log = await openWitnessLog({
  ...{ dir, encrypt: form === 'encrypted', segmentBytesMax: Number(segmentBytesMax) },
  ...{ commitIntervalMs: Number(commitIntervalMs), bufferBytesMax: 1 << 20 },
});
writeSync(1, `${log.acknowledgedSeq}\n`);
let told = log.acknowledgedSeq;
for (let n = 0; ; n++) {
  log.append(`s${n % 3}`, 'note', { n, double: 2 * n, pad: 'x'.repeat((n * 53) % 700) });
  if (n % Number(flushEvery) === 0) void log.flush();
  if (log.acknowledgedSeq > told) writeSync(1, `${(told = log.acknowledgedSeq)}\n`);
  // A kill that comes late must not meet a log that takes long to check.
  if (n > 100 * Number(flushEvery)) await new Promise((resolve) => setTimeout(resolve, 5));
  else if (n % (Number(flushEvery) / 2) === 0) await new Promise((resolve) => setImmediate(resolve));
}
