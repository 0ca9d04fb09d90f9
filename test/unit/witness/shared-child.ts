/**
 * Run by shared.test.ts as a process: appends argv[4] entries to the log in argv[2] as session argv[3], in several
 * openings, and reads the log meanwhile.
 */
import { writeSync } from 'node:fs';
import { openWitnessLog, readLog, verifyLog } from '../../../witness/index.ts';

const OPENINGS = 3;

async function writeAndRead(dir: string, session: string, count: number): Promise<void> {
  const seqs: number[] = [];
  for (let opening = 0; opening < OPENINGS; opening++) {
    const log = await openWitnessLog({ dir, segmentBytesMax: 3000, commitIntervalMs: 1 });
    for (let n = 0; n < count; n++) {
      seqs.push(log.append(session, 'note', { n: opening * count + n, pad: 'x'.repeat((n * 53) % 300) }) as number);
      if (n % 20 !== 0) continue;
      await log.flush();
      const own = [...readLog(dir, { session })].map(({ seq }) => seq);
      if (own.length !== seqs.length) throw new Error(`wrote ${seqs.length} entries, reads ${own.length}`);
    }
    await log.close();
    const report = verifyLog(dir);
    if (!report.ok) throw new Error(report.problem?.what);
  }
  writeSync(1, JSON.stringify(seqs));
}

await writeAndRead(process.argv[2] as string, process.argv[3] as string, Number(process.argv[4]));
