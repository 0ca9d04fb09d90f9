/** What happens when nobody can read what we print: `| head -1` is the reader's right, a full disk is a failure. */
import { KvError } from '../../native/index.ts';
import { reportFailure } from './failure.ts';

const lost = new AbortController();

/** Aborted when stdout can no longer be written; long work stops in good order then. */
export const outputLost: AbortSignal = lost.signal;

/** Call once, before anything is printed. */
export function guardOutput(): void {
  // Without a listener either stream would end the process with a stack; stderr has nobody left to tell.
  process.stderr.on('error', () => {});
  process.stdout.on('error', (cause: NodeJS.ErrnoException) => {
    if (lost.signal.aborted) return;
    lost.abort();
    if (cause.code === 'EPIPE') return;
    process.exitCode = reportFailure(new KvError('io', `the output cannot be written: ${cause.message}`, { cause }));
  });
}
