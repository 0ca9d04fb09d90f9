/** What happens when stdout can no longer be written: `| head -1` is not an error, but a full disk is. */
import { KvError } from '../../native/index.ts';
import { reportFailure } from './failure.ts';

const lost = new AbortController();

/** Is aborted when stdout can no longer be written, so that long work stops properly. */
export const outputLost: AbortSignal = lost.signal;

/** Starts to watch the streams. It must be called once, before anything is printed. */
export function guardOutput(): void {
  // Without a listener, an error of either stream would end the process with a stack trace. Errors of stderr cannot be
  // reported at all.
  process.stderr.on('error', () => {});
  process.stdout.on('error', (cause: NodeJS.ErrnoException) => {
    if (lost.signal.aborted) return;
    lost.abort();
    if (cause.code === 'EPIPE') return;
    process.exitCode = reportFailure(new KvError('io', `the output cannot be written: ${cause.message}`, { cause }));
  });
}
