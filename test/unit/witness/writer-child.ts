/** Run by kill.test.ts: appends to the log in argv[2] until it is killed, and prints every seq that was acknowledged. */
import { writeSync } from 'node:fs';
import { openWitnessLog } from '../../../witness/index.ts';

async function writeForever(dir: string): Promise<void> {
  const log = await openWitnessLog({ dir, segmentBytesMax: 20_000, commitIntervalMs: 1 });
  writeSync(1, `open ${log.acknowledgedSeq}\n`);
  for (let n = 0; ; n++) {
    const seq = log.append('s', 'note', { double: 2 * n, n, pad: 'x'.repeat((n * 53) % 700) });
    if (n % 5 === 0) void log.flush().then((acknowledged) => writeSync(1, `have ${acknowledged}\n`));
    if (n % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
    if (seq === null) throw new Error('dropped in mode block');
  }
}

await writeForever(process.argv[2] as string);
