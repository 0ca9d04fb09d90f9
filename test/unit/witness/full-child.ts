/**
 * Run by full-disk.test.ts: writes argv[3] entries in mode argv[4] to the log in argv[2], whose disk fills up, and
 * prints what the writer says at the end.
 */
import { writeSync } from 'node:fs';
import { type FailureMode, openWitnessLog } from '../../../witness/index.ts';

/** In modes block and halt a refusal ends the run; what was made until then must be accounted for as well. */
async function fillUp(dir: string, count: number, mode: FailureMode): Promise<void> {
  const log = await openWitnessLog({ dir, mode, commitIntervalMs: 1, blockMsMax: 100 });
  let made = 0;
  try {
    while (made < count) {
      log.append(made % 2 === 0 ? 'even' : 'odd', 'note', { n: made, pad: 'x'.repeat(400) });
      made++;
      if (made % 10 === 0) await log.flush();
    }
  } catch (error) {
    if ((error as { code?: string }).code !== 'log-unwritable') throw error;
  }
  const missing = log.missingOf('even') + log.missingOf('odd');
  await log.close().catch(() => undefined);
  writeSync(1, JSON.stringify({ made, missing, dropped: log.droppedCount }));
}

await fillUp(process.argv[2] as string, Number(process.argv[3]), process.argv[4] as FailureMode);
