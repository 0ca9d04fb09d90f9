/** Rows as comma-separated values (RFC 4180, lines ended by LF): a line of names, then one line a row. */
import { printable } from '../native/index.ts';

/** What a spreadsheet would take for a formula. */
const FORMULA = /^[=+\-@\t\r]/;

/**
 * One line of names and one a row. null is an empty cell, objects and lists are JSON. Text that a spreadsheet would
 * compute is given an apostrophe in front, because names in a log come from files of anybody.
 */
export function csvText(columns: readonly string[], rows: Iterable<readonly unknown[]>): string {
  const lines = [columns.map(cellOf).join()];
  for (const row of rows) lines.push(row.map(cellOf).join());
  return lines.join('\n');
}

function cellOf(value: unknown): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint') return String(value);
  if (value instanceof Date) return value.toISOString();
  const plain = printable(typeof value === 'string' ? value : JSON.stringify(value));
  const text = FORMULA.test(plain) ? `'${plain}` : plain;
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
