/**
 * How a failure is printed on stderr, and its exit code: 2 for failures that the caller, a file or the machine caused,
 * 1 for our own.
 */
import { columnsOf, jsonText, KvError, printable, refusedBySystem, show, wrap } from '../../native/index.ts';

/** The longest value that is printed. Longer ones are cut, because the rest would not help anybody. */
const VALUE_CHARS_MAX = 200;

function plainText(value: unknown): string {
  if (typeof value !== 'object') return show(value);
  try {
    return JSON.stringify(value);
  } catch {
    return show(value);
  }
}

function valueText(value: unknown): string {
  const plain = plainText(value);
  return plain.length > VALUE_CHARS_MAX ? `${plain.slice(0, VALUE_CHARS_MAX)}…` : plain;
}

/** The message, values and hint of an error, made safe to print. */
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

/** The same for programs: one line of JSON. Values are cut as in texts. */
const failureJson = ({ code, message, values, hint }: KvError): string =>
  jsonText({ error: { code, message, values: Object.fromEntries(Object.entries(values).map(plainEntry)), hint } });

function plainEntry([key, value]: [string, unknown]): [string, unknown] {
  return [key, typeof value === 'number' || typeof value === 'boolean' ? value : valueText(value)];
}

/** Prints what went wrong, as a text or as a line of JSON, and returns the exit code. */
export function reportFailure(thrown: unknown, asJson = false): 1 | 2 {
  const error = refusedBySystem(thrown) ?? thrown;
  if (error instanceof KvError) {
    process.stderr.write(`${asJson ? failureJson(error) : failureText(error, columnsOf(process.stderr))}\n`);
    return 2;
  }
  const detail = error instanceof Error ? (error.stack ?? error.message) : String(error);
  process.stderr.write(`palimpsest: a fault of ours, please report it\n${detail}\n`);
  return 1;
}
