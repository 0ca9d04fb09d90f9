/** How a failure looks on stderr, and its exit code: 2 for the caller's and the world's, 1 for ours. */
import { columnsOf, KvError, printable, wrap } from '../../native/index.ts';

/** Longest value that is printed; the rest is of no help to a person. */
const VALUE_CHARS_MAX = 200;

function valueText(value: unknown): string {
  const plain = typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value);
  return plain.length > VALUE_CHARS_MAX ? `${plain.slice(0, VALUE_CHARS_MAX)}…` : plain;
}

/** Message, values and hint. What would steer the terminal in a name or value is shown, not sent. */
export function failureText(error: KvError, columns?: number): string {
  const indented = (text: string): string => `  ${wrap(printable(text), columns, '  ')}`;
  const values = Object.entries(error.values)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${key}=${valueText(value)}`);
  const lines = [`palimpsest: ${printable(error.message)} [${error.code}]`];
  if (values.length > 0) lines.push(indented(values.join(' ')));
  if (error.hint !== undefined) lines.push(indented(error.hint));
  return lines.join('\n');
}

const isSystemError = (error: unknown): error is NodeJS.ErrnoException =>
  error instanceof Error && 'syscall' in error && typeof (error as NodeJS.ErrnoException).code === 'string';

/** Says what went wrong; → the exit code. */
export function reportFailure(error: unknown): 1 | 2 {
  if (isSystemError(error))
    return reportFailure(new KvError('io', error.message, { values: { path: error.path }, cause: error }));
  if (error instanceof KvError) {
    process.stderr.write(`${failureText(error, columnsOf(process.stderr))}\n`);
    return 2;
  }
  const detail = error instanceof Error ? (error.stack ?? error.message) : String(error);
  process.stderr.write(`palimpsest: a fault of ours, please report it\n${detail}\n`);
  return 1;
}
