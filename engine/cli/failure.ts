/** How a failure looks on stderr, and its exit code: 2 for the caller's and the world's, 1 for ours. */
import { KvError } from '../../native/index.ts';
import { wrap } from './text.ts';

/** Longest value that is printed; the rest is of no help to a person. */
const VALUE_CHARS_MAX = 200;

function valueText(value: unknown): string {
  const plain = typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value);
  return plain.length > VALUE_CHARS_MAX ? `${plain.slice(0, VALUE_CHARS_MAX)}…` : plain;
}

/** Message, values and hint. Control characters of a name or value are shown, not sent to the terminal. */
export function failureText(error: KvError): string {
  const values = Object.entries(error.values)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${key}=${valueText(value)}`);
  const lines = [`palimpsest: ${error.message} [${error.code}]`];
  if (values.length > 0) lines.push(wrap(values.join(' '), 78, '  '));
  if (error.hint !== undefined) lines.push(wrap(error.hint, 78, '  '));
  return lines
    .join('\n')
    .replaceAll(/(?!\n)\p{Cc}/gu, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, '0')}`);
}

const isSystemError = (error: unknown): error is NodeJS.ErrnoException =>
  error instanceof Error && 'syscall' in error && typeof (error as NodeJS.ErrnoException).code === 'string';

/** Says what went wrong; → the exit code. */
export function reportFailure(error: unknown): 1 | 2 {
  if (isSystemError(error))
    return reportFailure(new KvError('io', error.message, { values: { path: error.path }, cause: error }));
  if (error instanceof KvError) {
    process.stderr.write(`${failureText(error)}\n`);
    return 2;
  }
  const detail = error instanceof Error ? (error.stack ?? error.message) : String(error);
  process.stderr.write(`palimpsest: a fault of ours, please report it\n${detail}\n`);
  return 1;
}
