/** `wordwrap`: lines of at most so many letters, as Python's textwrap makes them. */
import type { Bounds } from './bounds.ts';
import { Text } from './text.ts';

/** White space at which textwrap breaks: that of ASCII. */
const S = '[\\t\\n\\v\\f\\r ]';
const WORDS = '[\\p{L}\\p{N}_]';
const PUNCTUATED = `[\\p{L}\\p{N}_!"'&.,?]`;
const LETTER = '(?!\\p{Nd})[\\p{L}\\p{N}_]';
const PIECES = new RegExp(
  `${S}+|(?<=${PUNCTUATED})-{2,}(?=${WORDS})|[^\\t\\n\\v\\f\\r ]+?(?:-(?:(?<=(?:${LETTER}){2}-)|(?<=${LETTER}-${LETTER}-))(?=${LETTER}-?${LETTER})|(?=${S}|$)|(?<=${PUNCTUATED})(?=-{2,}${WORDS}))`,
  'gu',
);
const PLAIN_PIECES = new RegExp(`${S}+|[^\\t\\n\\v\\f\\r ]+`, 'gu');

export interface Wrapping {
  /** Letters of a line. */
  readonly width: number;
  readonly breakLongWords: boolean;
  readonly breakOnHyphens: boolean;
}

/** Lines of one line of a text. */
export function wrapped(line: Text, wrapping: Wrapping, bounds: Bounds): Text[] {
  bounds.letters(16 * line.value.length);
  const { breakOnHyphens, width } = wrapping;
  const pieces = [...line.value.matchAll(breakOnHyphens ? PIECES : PLAIN_PIECES)]
    .map(({ index, 0: piece }) => line.slice(index, index + piece.length).plain)
    .reverse();
  const lines: Text[] = [];
  while (pieces.length > 0) {
    bounds.step();
    if (lines.length > 0 && isBlank(pieces.at(-1)!)) pieces.pop();
    const current: Text[] = [];
    let length = 0;
    while (pieces.length > 0 && length + pieces.at(-1)!.length <= width) {
      const piece = pieces.pop()!;
      current.push(piece);
      length += piece.length;
    }
    if (pieces.length > 0 && pieces.at(-1)!.length > width) breakWord(pieces, current, width - length, wrapping);
    if (current.length > 0 && isBlank(current.at(-1)!)) current.pop();
    if (current.length > 0) lines.push(Text.join(current));
  }
  return lines;
}

const isBlank = (piece: Text): boolean => new RegExp(`^${S}*$`).test(piece.value);

/** Puts as much of a long word on a line as fits there, or all of it on one of its own. */
function breakWord(pieces: Text[], current: Text[], left: number, { breakLongWords, breakOnHyphens }: Wrapping): void {
  const word = pieces.at(-1)!;
  if (!breakLongWords) {
    if (current.length === 0) current.push(pieces.pop()!);
    return;
  }
  let end = left;
  if (breakOnHyphens && word.length > left) {
    const hyphen = [...word.value].lastIndexOf('-', left - 1);
    if (left > 0 && hyphen > 0 && /[^-]/.test(word.value.slice(0, word.unitOf(hyphen)))) end = hyphen + 1;
  }
  current.push(word.slice(0, word.unitOf(end)));
  pieces[pieces.length - 1] = word.slice(word.unitOf(end));
}
