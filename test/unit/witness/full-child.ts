/** Run by full-disk.test.ts: writes argv[3] entries in mode drop to the log in argv[2], whose disk fills up, and prints what the writer says at the end. */
import { writeSync } from 'node:fs';
import { openWitnessLog } from '../../../witness/index.ts';

async function fillUp(dir: string, count: number): Promise<void> {
  const log = await openWitnessLog({ dir, mode: 'drop', commitIntervalMs: 1 });
  for (let n = 0; n < count; n++) {
    log.append(n % 2 === 0 ? 'even' : 'odd', 'note', { n, pad: 'x'.repeat(400) });
    if (n % 10 === 0) await log.flush();
  }
  const missing = log.missingOf('even') + log.missingOf('odd');
  await log.close();
  writeSync(1, JSON.stringify({ missing, dropped: log.droppedCount }));
}

await fillUp(process.argv[2] as string, Number(process.argv[3]));
