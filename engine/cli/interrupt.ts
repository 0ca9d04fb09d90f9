/** Ctrl-C: the first asks the work to stop where the log is whole, the second does not wait. */
import { KvError } from '../../native/index.ts';
import { outputLost } from './output.ts';

export async function interruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const abort = new AbortController();
  let asked = 0;
  const onSignal = (name: NodeJS.Signals): void => {
    asked++;
    if (asked > 1) {
      // As if there were no handler: an orderly exit would wait for, or tear down, native threads at work.
      process.removeAllListeners(name);
      process.kill(process.pid, name);
      return;
    }
    process.stderr.write('\nstopping where the log is whole; once more to stop at once\n');
    abort.abort();
  };
  const onLost = (): void => abort.abort();
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  outputLost.addEventListener('abort', onLost);
  try {
    await work(abort.signal);
  } catch (error) {
    if (!(abort.signal.aborted && error instanceof KvError && error.code === 'aborted')) throw error;
  } finally {
    process.off('SIGINT', onSignal);
    process.off('SIGTERM', onSignal);
    outputLost.removeEventListener('abort', onLost);
    if (asked > 0) process.exitCode = 130;
  }
}
