/**
 * The state folder of an engine: the witness log, and what earlier sessions taught. Opened once per process that writes;
 * a second writer is refused by the log's lock.
 */
import { existsSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { openThresholdBook, type ThresholdBook } from '../memory/index.ts';
import { KvError } from '../native/index.ts';
import { type FailureMode, openWitnessLog, readLog, type WitnessLog } from '../witness/index.ts';

export interface State {
  readonly dir: string;
  readonly log: WitnessLog;
  readonly book: ThresholdBook;
  close(): Promise<void>;
}

export const logDir = (stateDir: string): string => join(stateDir, 'log');
export const memoryDir = (stateDir: string): string => join(stateDir, 'memory');
export const sqlDir = (stateDir: string): string => join(stateDir, 'sql');

/** One level after the other: Node's own recursive form never ends where a parent is there but refuses (/proc). */
export function makeFolder(dir: string): void {
  if (existsSync(dir)) return;
  makeFolder(dirname(dir));
  try {
    mkdirSync(dir);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'EEXIST') return;
    throw new KvError('io', `the state folder ${dir} cannot be made: ${(cause as Error).message}`, {
      values: { dir },
      hint: 'check the path, its permissions and the free space, or name another folder',
      cause,
    });
  }
}

export async function openState(dir: string, mode: FailureMode): Promise<State> {
  makeFolder(dir);
  const log = await openWitnessLog({ dir: logDir(dir), mode });
  try {
    const book = await openThresholdBook({
      dir: memoryDir(dir),
      logId: log.id,
      entries: (fromSeq) => readLog(logDir(dir), { fromSeq, kinds: ['open', 'close'] }),
    });
    return {
      dir,
      log,
      book,
      close: async () => {
        await log.close();
        await book.close();
      },
    };
  } catch (error) {
    await log.close();
    throw error;
  }
}
