/**
 * Ctrl-C. The first asks the work to stop at a point where the log is complete; the second ends the process at once.
 */
import { KvError } from '../../native/index.ts';
import { outputLost } from './output.ts';

/** What asks a process to end: Ctrl-C, whoever runs it, and a terminal that is closed. */
export const ENDING = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

export async function interruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const abort = new AbortController();
  let asked = 0;
  const onSignal = (name: NodeJS.Signals): void => {
    asked++;
    if (asked > 1) {
      // The process ends as if there were no handler. process.exit() would wait for native threads that are working, or
      // break them off.
      process.removeAllListeners(name);
      process.kill(process.pid, name);
      return;
    }
    process.stderr.write('\nstopping where the log is whole; once more to stop at once\n');
    abort.abort();
  };
  const onLost = (): void => abort.abort();
  for (const name of ENDING) process.on(name, onSignal);
  outputLost.addEventListener('abort', onLost);
  try {
    await work(abort.signal);
  } catch (error) {
    if (!(abort.signal.aborted && error instanceof KvError && error.code === 'aborted')) throw error;
  } finally {
    for (const name of ENDING) process.off(name, onSignal);
    outputLost.removeEventListener('abort', onLost);
    if (asked > 0) process.exitCode = 130;
  }
}
