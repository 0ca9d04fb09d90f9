/** Prints rows, as aligned columns on a terminal or as Markdown for the README. */
import type { BenchRow } from './rows.ts';

type Cell = string | number | null;

/** Aligns the first column to the left and the figures to the right. */
export function columns(titles: readonly string[], lines: readonly (readonly Cell[])[]): string[] {
  const text = [titles, ...lines.map((line) => line.map((cell) => (cell === null ? '–' : String(cell))))];
  const widths = titles.map((_, column) => Math.max(...text.map((line) => line[column]!.length)));
  return text.map((line) =>
    line
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column]!) : cell.padStart(widths[column]!)))
      .join('  '),
  );
}

export const fixed = (value: number | null, digits: number, unit = ''): string | null =>
  value === null ? null : `${value.toFixed(digits)}${unit}`;
export const percent = (value: number | null): string | null =>
  value === null ? null : `${(100 * value).toFixed(0)}%`;
/** Writes a number with three significant digits. */
export const figure = (value: number | null): string | null =>
  value === null ? null : value >= 1000 ? value.toFixed(0) : value.toPrecision(3);

const NAMES: readonly (readonly [string, (row: BenchRow) => Cell])[] = [
  ['format', (row) => (row.peer === null ? row.format : `${row.peer} ${row.format}`)],
  ['ns/token', (row) => figure(row.nsPerToken)],
  ['GB/s', (row) => fixed(row.gbPerSecond, 1)],
  ['of stream', (row) => percent(row.shareOfStream)],
  ['vs f16', (row) => fixed(row.ratioToF16, 2, '×')],
  ['error', (row) => (row.error === null ? null : row.error.toExponential(1))],
  ['ours is', (row) => fixed(row.peerRatio, 1, '× faster')],
];

/** The columns in which at least one of the rows has a value. */
const used = (rows: readonly BenchRow[]): typeof NAMES =>
  NAMES.filter(([, of]) => rows.some((row) => of(row) !== null));

export function terminalTable(rows: readonly BenchRow[]): string[] {
  const names = used(rows);
  return columns(
    names.map(([name]) => name),
    rows.map((row) => names.map(([, of]) => of(row))),
  );
}

const place = (row: BenchRow): string =>
  `${row.bench}, ${row.shape}, ${row.tokens.toLocaleString('en-US')} tokens, ${row.threads} ${row.threads === 1 ? 'thread' : 'threads'}`;

/** One Markdown table per bench, shape, context and number of threads. */
export function markdown(rows: readonly BenchRow[]): string[] {
  const lines: string[] = [];
  for (const title of new Set(rows.map(place))) {
    const own = rows.filter((row) => place(row) === title);
    const names = used(own);
    lines.push(
      '',
      `**${title}**`,
      '',
      `| ${names.map(([name]) => name).join(' | ')} |`,
      `|${names.map((_, i) => (i === 0 ? '---|' : '---:|')).join('')}`,
    );
    for (const row of own) lines.push(`| ${names.map(([, of]) => of(row) ?? '–').join(' | ')} |`);
  }
  return lines;
}
