/** Words and numbers for a terminal 80 columns wide. */

export const COLUMNS = 80;

/** Lines of at most `width` characters; a word longer than that stands alone. Lines after the first begin with `indent`. */
export function wrap(text: string, indent = '', width = COLUMNS): string {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = indent + word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  lines.push(line);
  return lines.join('\n');
}

/** 1234567 → '1,234,567' */
export const grouped = (value: number): string => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');

/** Four digits say enough for a person; the log has them all. */
export function brief(value: number): string {
  if (value === 0 || (Number.isInteger(value) && Math.abs(value) < 1e6)) return grouped(value);
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6
    ? String(Number(value.toPrecision(4)))
    : value.toExponential(2).replace('e+', 'e');
}

/** 1536 → '1.5 KiB' */
export function bytesText(bytes: number): string {
  const size = Math.abs(bytes);
  if (size < 1024) return `${bytes} bytes`;
  const [unit, name] = size < 1024 ** 2 ? [1024, 'KiB'] : size < 1024 ** 3 ? [1024 ** 2, 'MiB'] : [1024 ** 3, 'GiB'];
  return `${Number((bytes / unit).toPrecision(4))} ${name}`;
}

/** '2026-01-31 13:05:09 UTC'; something readable for times that no calendar holds. */
export function timeText(timeMs: number): string {
  const date = new Date(timeMs);
  return Number.isNaN(date.getTime()) ? `${timeMs} ms` : `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${grouped(count)} ${count === 1 ? one : many}`;

export interface Column<Row> {
  readonly title: string;
  readonly right?: boolean;
  /** Widest it may get; longer values are cut with '…'. */
  readonly widthMax?: number;
  value(row: Row): string;
}

/** A table with one space between columns, as wide as its content. */
export function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  const cells = rows.map((row) => columns.map((column) => cut(column.value(row), column.widthMax)));
  const widths = columns.map((column, index) =>
    Math.max(column.title.length, ...cells.map((line) => (line[index] as string).length)),
  );
  const draw = (line: readonly string[]): string =>
    line
      .map((cell, index) =>
        columns[index]?.right ? cell.padStart(widths[index] as number) : cell.padEnd(widths[index] as number),
      )
      .join(' ')
      .trimEnd();
  return [draw(columns.map((column) => column.title)), ...cells.map(draw)].join('\n');
}

function cut(text: string, widthMax = COLUMNS): string {
  // Control characters of a foreign name would move the cursor of whoever reads the table.
  const clean = text.replace(/\p{Cc}/gu, '·');
  return clean.length <= widthMax ? clean : `${clean.slice(0, widthMax - 1)}…`;
}
