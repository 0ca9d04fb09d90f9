/** Run by kill.test.ts as a process or a worker: appends to the log in argv[2] until it is killed, and prints every seq that was acknowledged. */
import { writeSync } from 'node:fs';
import { isMainThread, parentPort } from 'node:worker_threads';
import { openWitnessLog } from '../../../witness/index.ts';

const say = (line: string): void => {
  if (isMainThread) writeSync(1, `${line}\n`);
  else parentPort?.postMessage(line);
};

async function writeForever(dir: string): Promise<void> {
  const log = await openWitnessLog({ dir, segmentBytesMax: 20_000, commitIntervalMs: 1 });
  say(`open ${log.acknowledgedSeq}`);
  for (let n = 0; ; n++) {
    const seq = log.append('s', 'note', { double: 2 * n, n, pad: 'x'.repeat((n * 53) % 700) });
    if (n % 5 === 0) void log.flush().then((acknowledged) => say(`have ${acknowledged}`));
    if (n % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
    if (seq === null) throw new Error('dropped in mode block');
  }
}

await writeForever(process.argv[2] as string);
