/** How numbers and tables look on a terminal 80 columns wide. */

export const bytes = (value: number): string => {
  if (value >= 2 ** 30) return `${(value / 2 ** 30).toFixed(2)} GiB`;
  if (value >= 2 ** 20) return `${(value / 2 ** 20).toFixed(1)} MiB`;
  return value >= 1024 ? `${(value / 1024).toFixed(1)} KiB` : `${value} B`;
};
export const percent = (value: number, digits = 1): string => `${(100 * value).toFixed(digits)}%`;
/** Three significant digits without exponent noise. */
export const small = (value: number | null): string =>
  value === null
    ? '–'
    : value === 0
      ? '0'
      : Math.abs(value) >= 100
        ? value.toFixed(0)
        : Number(value.toPrecision(2)).toString();

/** Right-aligned columns except those named left; no line is longer than the sum of its cells. */
export function table(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  left: readonly number[] = [0],
): string {
  const width = head.map((cell, column) => Math.max(cell.length, ...rows.map((row) => (row[column] ?? '').length)));
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => (left.includes(column) ? cell.padEnd(width[column]!) : cell.padStart(width[column]!)))
      .join('  ')
      .trimEnd();
  return [line(head), width.map((w) => '─'.repeat(w)).join('  '), ...rows.map(line)].join('\n');
}

/** Breaks a paragraph at spaces. */
export function wrap(text: string, columns = 78, indent = ''): string {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(/\s+/)) {
    if (line !== '' && indent.length + line.length + 1 + word.length > columns) {
      lines.push(indent + line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  if (line !== '') lines.push(indent + line);
  return lines.join('\n');
}

/** Names and values in two columns. Long values go on under themselves, broken at spaces only, so that digests can be copied. */
export function fields(rows: readonly (readonly [string, string])[], columns = 80): string {
  const nameWidth = Math.max(0, ...rows.map(([name]) => name.length));
  return rows
    .map(([name, value]) => {
      const lines = wrap(value, Math.max(16, columns - nameWidth - 2)).split('\n');
      return lines.map((line, at) => `${(at === 0 ? name : '').padEnd(nameWidth)}  ${line}`.trimEnd()).join('\n');
    })
    .join('\n');
}
