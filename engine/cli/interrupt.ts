/** Ctrl-C: the first asks the work to stop where the log is whole, the second does not wait. */
import { KvError } from '../../native/index.ts';

export async function interruptible(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
  const abort = new AbortController();
  let asked = 0;
  const onSignal = (): void => {
    asked++;
    if (asked > 1) process.exit(130);
    abort.abort();
  };
  process.on('SIGINT', onSignal);
  process.on('SIGTERM', onSignal);
  try {
    await work(abort.signal);
  } catch (error) {
    if (!(abort.signal.aborted && (!(error instanceof KvError) || error.code === 'aborted'))) throw error;
  } finally {
    process.off('SIGINT', onSignal);
    process.off('SIGTERM', onSignal);
    if (abort.signal.aborted) process.exitCode = 130;
  }
}
