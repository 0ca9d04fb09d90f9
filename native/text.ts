/**
 * Text, numbers and tables for people to read. Text from files is made safe to print, and tables are fitted to the
 * width of the terminal. Where there is no terminal, `columns` is Infinity and nothing is cut.
 */

/** The longest line of prose. Longer ones are hard to read, however wide the terminal is. */
const PROSE_COLUMNS_MAX = 100;
/** The width of prose in a file or a pipe, and on a terminal whose width is not known. */
const COLUMNS_DEFAULT = 80;
const COLUMNS_MIN = 20;

/**
 * The number of columns of a stream's terminal, or Infinity for a pipe or a file, because there nothing should be cut.
 */
export function columnsOf(stream: { readonly isTTY?: boolean; readonly columns?: number }): number {
  return stream.isTTY === true ? Math.max(COLUMNS_MIN, stream.columns || COLUMNS_DEFAULT) : Number.POSITIVE_INFINITY;
}

/**
 * All characters that could move the cursor, hide or reverse text or break lines: controls, format characters,
 * separators and lone surrogates.
 */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu;

/**
 * Makes text from a file safe to print: characters that would control the terminal are shown as \x1b or \u{202e}. All
 * text that this project did not write must go through this function before it is printed. `table` and `fields` call it
 * themselves.
 */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, (char) => {
    const code = char.codePointAt(0)!;
    return code < 256 ? `\\x${code.toString(16).padStart(2, '0')}` : `\\u{${code.toString(16)}}`;
  });
}

/** JSON on one line that is safe to print. JSON itself escapes only some of the characters that `printable` does. */
export function jsonText(value: unknown): string {
  return JSON.stringify(value).replace(UNPRINTABLE, (pair) =>
    Array.from({ length: pair.length }, (_, at) => `\\u${pair.charCodeAt(at).toString(16).padStart(4, '0')}`).join(''),
  );
}

const lengthOf = (text: string): number => [...text].length;

const proseColumns = (columns: number): number =>
  Number.isFinite(columns) ? Math.min(columns, PROSE_COLUMNS_MAX) : COLUMNS_DEFAULT;

/**
 * Breaks a paragraph into lines at spaces. Lines after the first begin with `indent`. A word that is too long for a
 * line has one to itself.
 */
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

/**
 * Names and values in two columns. A long value continues below itself and is broken only at spaces, so that digests
 * can be copied.
 */
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
  /** True if the column is aligned to the right or to the left. Right, the default, is for numbers. */
  readonly align?: 'left' | 'right';
  /** To how many characters values may be cut on a narrow terminal. Without it they are never cut. */
  readonly least?: number;
  /**
   * True if the column may be left out on a terminal that is too narrow for all. The last such column is left out
   * first.
   */
  readonly optional?: true;
  /** What the title means, if it is too short to say so. `legend` prints it. */
  readonly means?: string;
}

const gapsOf = (widths: readonly number[], gap: number): number => gap * Math.max(0, widths.length - 1);
const sum = (widths: readonly number[]): number => widths.reduce((total, width) => total + width, 0);

/**
 * Rows below the titles of their columns. If they are too wide, the gaps are narrowed first, then values are cut, then
 * columns left out.
 */
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

/** The meanings of a table's titles, as one paragraph. */
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

/** Writes a whole number with separators: '1,234,567'. */
export const grouped = (value: number): string => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');

/** Writes a number with as many significant digits as a person needs, or '–' for null. */
export function brief(value: number | null, digits = 4): string {
  if (value === null) return '–';
  const size = Math.abs(value);
  if (value === 0 || (size < 1e6 && (Number.isInteger(value) || size >= 10 ** digits))) return grouped(value);
  return size >= 1e-3 && size < 1e6
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(Math.min(2, digits - 1)).replace('e+', 'e');
}

/** Writes 1536 bytes as '1.5 KiB'. */
export function bytesText(bytes: number): string {
  const size = Math.abs(bytes);
  if (size < 1024) return `${bytes} ${size === 1 ? 'byte' : 'bytes'}`;
  const [unit, name] = size < 1024 ** 2 ? [1024, 'KiB'] : size < 1024 ** 3 ? [1024 ** 2, 'MiB'] : [1024 ** 3, 'GiB'];
  return `${Number((bytes / unit).toPrecision(4))} ${name}`;
}

export const percent = (value: number, digits = 1): string => `${(100 * value).toFixed(digits)}%`;

/** Writes a time as '2026-01-31 13:05:09 UTC', or as milliseconds if it is outside the calendar. */
export function timeText(timeMs: number): string {
  const date = new Date(timeMs);
  return Number.isNaN(date.getTime()) ? `${timeMs} ms` : `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

/** Units of numbers that are counted, with what stands behind one. */
const UNITS_OF_ONE: Readonly<Record<string, string>> = {
  tokens: 'token',
  pages: 'page',
  places: 'place',
  rows: 'row',
  bits: 'bit',
  'standard deviations': 'standard deviation',
  'dense halves of a token': 'dense half of a token',
};

/** A unit as it is written behind a number. */
export const unitBehind = (value: number, unit: string): string =>
  value === 1 && Object.hasOwn(UNITS_OF_ONE, unit) ? UNITS_OF_ONE[unit]! : unit;

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${grouped(count)} ${count === 1 ? one : many}`;
