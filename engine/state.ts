/**
 * The state folder of an engine: the witness log, and what earlier sessions taught. Opened once per process that writes;
 * a second writer is refused by the log's lock.
 */
import { join } from 'node:path';
import { openThresholdBook, type Lookup, type ThresholdBook } from '../memory/index.ts';
import { defaultThresholds, type ThresholdSet } from '../policy/index.ts';
import { type FailureMode, openWitnessLog, readLog, type WitnessLog } from '../witness/index.ts';
import type { Session } from './session.ts';
import type { Runtime } from './runtime.ts';

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
    const book = await openThresholdBook({ dir: memoryDir(dir), logId: log.id, entries: () => readLog(logDir(dir), { kinds: ['open', 'evidence', 'close'] }) });
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
