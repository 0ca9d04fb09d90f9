/**
 * How words, numbers and tables look to a person, for every room: what came from a file is made harmless, tables follow
 * the width of the terminal, and where there is no terminal nothing is cut. `columns` is Infinity there.
 */

/** Prose in lines longer than this is hard to read, however wide the terminal is. */
const PROSE_COLUMNS_MAX = 100;
/** Width of prose that goes to a file or a pipe, and of a terminal that does not tell its own. */
const COLUMNS_DEFAULT = 80;
const COLUMNS_MIN = 20;

/** Columns of the terminal behind a stream; Infinity when it is a pipe or a file, whose reader wants every character. */
export function columnsOf(stream: { readonly isTTY?: boolean; readonly columns?: number }): number {
  return stream.isTTY === true ? Math.max(COLUMNS_MIN, stream.columns || COLUMNS_DEFAULT) : Number.POSITIVE_INFINITY;
}

/** Everything that moves a cursor, hides, turns around or breaks lines: controls, formatting marks, separators, halves of pairs. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;

/**
 * Text of a file, made safe to print: what would steer the terminal is shown as \x1b or \u{202e}. Everything printed that was not
 * written by this project goes through here; `table` and `fields` do it by themselves.
 */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, (char) => {
    const code = char.codePointAt(0)!;
    return code < 256 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
  });
}

/** JSON on one line that a terminal can show as it is; JSON itself escapes only some of the characters that `printable` does. */
export function jsonText(value: unknown): string {
  return JSON.stringify(value).replace(UNPRINTABLE, (pair) =>
    Array.from({ length: pair.length }, (_, at) => `\\u${pair.charCodeAt(at).toString(16).padStart(4, '0')}`).join(''),
  );
}

const lengthOf = (text: string): number => [...text].length;

const proseColumns = (columns: number): number =>
  Number.isFinite(columns) ? Math.min(columns, PROSE_COLUMNS_MAX) : COLUMNS_DEFAULT;

/** Breaks a paragraph at spaces. Lines after the first begin with `indent`; a word that is longer than a line stands alone. */
export function wrap(text: string, columns = Number.POSITIVE_INFINITY, indent = ''): string {
  const width = proseColumns(columns);
  const lines: string[] = [];
  let line = '';
  for (const word of text.trim().split(/\s+/)) {
    if (line !== '' && lengthOf(line) + 1 + lengthOf(word) > width) {
      lines.push(line);
      line = indent + word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line].join('\n');
}

/** Names and values in two columns. Long values go on under themselves, broken at spaces only, so that digests can be copied. */
export function fields(
  rows: readonly (readonly [name: string, value: string])[],
  columns = Number.POSITIVE_INFINITY,
): string {
  const heads = rows.map(([name]) => printable(name));
  const indent = 2 + Math.max(0, ...heads.map(lengthOf));
  const width = Math.max(COLUMNS_MIN, proseColumns(columns) - indent);
  return rows
    .map(([, value], at) => {
      const lines = wrap(printable(value), width).split('\n');
      return pad(heads[at]!, indent, 'left') + lines.join(`\n${' '.repeat(indent)}`);
    })
    .join('\n');
}

export interface Column<Row> {
  readonly title: string;
  readonly value: (row: Row) => string;
  /** Numbers stand to the right, which is the default. */
  readonly align?: 'left' | 'right';
  /** Characters that it may be cut to on a narrow terminal; without it values stand there whole. */
  readonly least?: number;
  /** Left out, the last one first, on a terminal that is too narrow for all columns. */
  readonly optional?: true;
  /** What a short title means, for `legend`. */
  readonly means?: string;
}

const gapsOf = (widths: readonly number[], gap: number): number => gap * Math.max(0, widths.length - 1);
const sum = (widths: readonly number[]): number => widths.reduce((total, width) => total + width, 0);

/** Rows under their titles. What does not fit is set closer, then cut where a column allows it, then columns are left out. */
export function table<Row>(
  columns: readonly Column<Row>[],
  rows: readonly Row[],
  width = Number.POSITIVE_INFINITY,
): string {
  const cells = columns.map(({ title, value }) => [title, ...rows.map((row) => printable(value(row)))]);
  const widths = cells.map((column) => Math.max(...column.map(lengthOf)));
  const gap = sum(widths) + gapsOf(widths, 2) <= width ? 2 : 1;
  for (let over = sum(widths) + gapsOf(widths, gap) - width; over > 0; over--) {
    const spare = columns.map(({ least, title }, at) =>
      least === undefined ? 0 : widths[at]! - Math.max(least, title.length),
    );
    const widest = spare.indexOf(Math.max(...spare));
    if (spare[widest]! <= 0) {
      const last = columns.findLastIndex(({ optional }) => optional === true);
      if (last >= 0) return table(columns.toSpliced(last, 1), rows, width);
      break;
    }
    widths[widest]! -= 1;
  }
  const draw = (line: number): string =>
    columns
      .map(({ align }, at) => pad(cut(cells[at]![line]!, widths[at]!), widths[at]!, align))
      .join(' '.repeat(gap))
      .trimEnd();
  const rule = widths.map((columnWidth) => '─'.repeat(columnWidth)).join(' '.repeat(gap));
  return [draw(0), rule, ...rows.map((_, at) => draw(at + 1))].join('\n');
}

/** What the short titles of a table mean, as one paragraph. */
export function legend<Row>(columns: readonly Column<Row>[], width?: number): string {
  return wrap(
    columns.flatMap(({ title, means }) => (means === undefined ? [] : [`${title}: ${means}`])).join('; '),
    width,
  );
}

function cut(text: string, width: number): string {
  const chars = [...text];
  return chars.length <= width ? text : `${chars.slice(0, width - 1).join('')}…`;
}

function pad(text: string, width: number, align: Column<never>['align'] = 'right'): string {
  const space = ' '.repeat(width - lengthOf(text));
  return align === 'left' ? text + space : space + text;
}

/** 1234567 → '1,234,567' */
export const grouped = (value: number): string => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');

/** As many significant digits as a person needs; '–' for null. The log has them all. */
export function brief(value: number | null, digits = 4): string {
  if (value === null) return '–';
  const size = Math.abs(value);
  if (value === 0 || (size < 1e6 && (Number.isInteger(value) || size >= 10 ** digits))) return grouped(value);
  return size >= 1e-3 && size < 1e6
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(Math.min(2, digits - 1)).replace('e+', 'e');
}

/** 1536 → '1.5 KiB' */
export function bytesText(bytes: number): string {
  const size = Math.abs(bytes);
  if (size < 1024) return `${bytes} ${size === 1 ? 'byte' : 'bytes'}`;
  const [unit, name] = size < 1024 ** 2 ? [1024, 'KiB'] : size < 1024 ** 3 ? [1024 ** 2, 'MiB'] : [1024 ** 3, 'GiB'];
  return `${Number((bytes / unit).toPrecision(4))} ${name}`;
}

export const percent = (value: number, digits = 1): string => `${(100 * value).toFixed(digits)}%`;

/** '2026-01-31 13:05:09 UTC'; something readable for times that no calendar holds. */
export function timeText(timeMs: number): string {
  const date = new Date(timeMs);
  return Number.isNaN(date.getTime()) ? `${timeMs} ms` : `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${grouped(count)} ${count === 1 ? one : many}`;
