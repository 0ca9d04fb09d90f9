/**
 * The state folder of an engine: the witness log, and what earlier sessions taught. Opened once per process that writes;
 * a second writer is refused by the log's lock.
 */
import { join } from 'node:path';
import { openThresholdBook, type ThresholdBook } from '../memory/index.ts';
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

export async function openState(dir: string, mode: FailureMode): Promise<State> {
  const log = await openWitnessLog({ dir: logDir(dir), mode });
  try {
    const book = await openThresholdBook({ dir: memoryDir(dir), logId: log.id, entries: (fromSeq) => readLog(logDir(dir), { fromSeq, kinds: ['open', 'close'] }) });
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
