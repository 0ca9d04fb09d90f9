/**
 * Classes of characters as the library follows them: its classes are of bytes, and those that are negated pass over
 * what is not ASCII. So characters beyond ASCII are written as the bytes of their UTF-8.
 */

/** Code points, both ends included. */
export type Range = readonly [from: number, to: number];

const LAST = 0x10ffff;
const SURROGATES: Range = [0xd800, 0xdfff];
/** Last code points of one, two, three and four bytes. */
const ENDS = [0x7f, 0x7ff, 0xffff, LAST];

/** An expression of one character that is in any of the ranges, or negated in none. */
export function characterClass(ranges: readonly Range[], isNegated: boolean): string {
  if (isNegated && ranges.every(([, to]) => to <= 0x7f)) return `[^${ranges.map(inClass).join('')}]`;
  const wanted = isNegated ? complement(ranges) : ranges;
  const ascii = wanted.filter(([from]) => from <= 0x7f).map(([from, to]): Range => [from, Math.min(to, 0x7f)]);
  const others = wanted.flatMap((range) => sequences(range));
  const parts = [...(ascii.length === 0 ? [] : [`[${ascii.map(inClass).join('')}]`]), ...others];
  return parts.length === 1 && others.length === 0 ? parts[0]! : `(${parts.join(' | ')})`;
}

/** What is in none of the ranges, without halves of characters; in order. */
export function complement(ranges: readonly Range[]): Range[] {
  const left: Range[] = [];
  let from = 0;
  for (const range of [...ranges, SURROGATES].sort(([a], [b]) => a - b)) {
    if (range[0] > from) left.push([from, range[0] - 1]);
    from = Math.max(from, range[1] + 1);
  }
  return from <= LAST ? [...left, [from, LAST]] : left;
}

/** One alternative for each run of characters whose bytes vary independently. */
function sequences([from, to]: Range): string[] {
  const found: string[] = [];
  ENDS.slice(1).forEach((end, index) => {
    const low = Math.max(from, ENDS[index]! + 1);
    const high = Math.min(to, end);
    if (low <= high) found.push(...bytesBetween(low, high, index + 1).map((bytes) => bytes.join(' ')));
  });
  return found;
}

/** The ranges of characters with so many bytes behind the first. */
function bytesBetween(low: number, high: number, behind: number): string[][] {
  const size = 64 ** behind;
  // The first byte says how many follow; those hold six bits each.
  const mark = [0x00, 0xc0, 0xe0, 0xf0][behind]!;
  return split(low, high, size, behind, mark);
}

function split(low: number, high: number, size: number, behind: number, mark: number): string[][] {
  const byte = (first: number, last: number): string => bytes(mark + first, mark + last);
  if (behind === 0) return [[byte(low, high)]];
  const [first, last] = [Math.floor(low / size), Math.floor(high / size)];
  const next = (from: number, to: number): string[][] => split(from, to, size / 64, behind - 1, 0x80);
  if (first === last) return next(low - first * size, high - last * size).map((rest) => [byte(first, first), ...rest]);
  const parts: string[][] = [];
  const isWholeLow = low === first * size;
  const isWholeHigh = high === (last + 1) * size - 1;
  if (!isWholeLow) parts.push(...next(low - first * size, size - 1).map((rest) => [byte(first, first), ...rest]));
  const [from, to] = [isWholeLow ? first : first + 1, isWholeHigh ? last : last - 1];
  if (from <= to) parts.push([byte(from, to), ...Array.from({ length: behind }, () => bytes(0x80, 0xbf))]);
  if (!isWholeHigh) parts.push(...next(0, high - last * size).map((rest) => [byte(last, last), ...rest]));
  return parts;
}

const hex = (byte: number): string => `\\x${byte.toString(16).padStart(2, '0')}`;
/** A class of one byte alone would be read as a character, so it names that byte twice. */
const bytes = (from: number, to: number): string =>
  from === to ? `[${hex(from)}${hex(to)}]` : `[${hex(from)}-${hex(to)}]`;
const inClass = ([from, to]: Range): string => (from === to ? hex(from) : `${hex(from)}-${hex(to)}`);
