/**
 * The row of numbers that fills in the plan of an entry (`plan.ts`), and the texts that its words lie in. Where a value
 * is not what its type says, the row is no good, and the general way finds out what is wrong with the value.
 */
import { assert } from '../native/index.ts';
import { canonicalText } from './canonical.ts';

/** Room for what is the same in every entry of a plan, and behind it room for words. */
const FIXED_BYTES = 8 * 1024;
const WORDS_BYTES = 16 * 1024;
/** What the code of a word has room for. */
const WORD_BYTES_MAX = 255;
/** The binary writes so many answers into the first numbers. */
const ANSWERS = 3;

/** What plans and words lie in. */
export const texts = Buffer.alloc(FIXED_BYTES + WORDS_BYTES);
/** Where texts of plans lie. They stay; words are forgotten when there is no more room. */
const fixed = new Map<string, number>();
let fixedBytes = 0;
let textBytes = FIXED_BYTES;

/** Puts a text there that stays. → where it lies. */
export function fixText(text: string): number {
  const known = fixed.get(text);
  if (known !== undefined) return known;
  const from = fixedBytes;
  assert(Buffer.byteLength(text) <= FIXED_BYTES - from, `${fixed.size} texts of plans take ${from} bytes`);
  fixedBytes += texts.write(text, from, 'utf8');
  fixed.set(text, from);
  return from;
}

/** The row: room for the answers, and for the numbers of any plan. */
const row = new Float64Array(256);

/** The part of the row that a plan of so many numbers takes. */
export function rowOf(count: number): Float64Array {
  assert(ANSWERS + count <= row.length, `a plan has ${count} numbers`);
  return row.subarray(0, ANSWERS + count);
}

/** Words are names of rules, formats, units and the session, and come again with every entry. */
const words = new Map<string, number>();
let at = ANSWERS;
let isSound = true;
let absent = 0;

/** Begins to fill in the row; new words take no more than `bytesMost`. What was filled in before is spelled by now. */
export function beginRow(bytesMost: number): void {
  if (texts.length - textBytes < bytesMost) {
    words.clear();
    textBytes = FIXED_BYTES;
  }
  at = ANSWERS;
  isSound = true;
  absent = 0;
}

/** The fields that are absent, as bits; null where a value was not what its type says. */
export const endRow = (): number | null => (isSound ? absent : null);

/** Says that a field is absent. `place`: its number among those that may be. */
export function putAbsent(place: number): void {
  absent |= 1 << place;
}

export function putNumber(value: unknown): void {
  if (typeof value !== 'number' || !Number.isFinite(value)) isSound = false;
  else row[at] = value;
  at++;
}

export function putNullable(value: unknown): void {
  if (value === null) row[at++] = Number.POSITIVE_INFINITY;
  else putNumber(value);
}

export function putFlag(value: unknown): void {
  if (typeof value !== 'boolean') isSound = false;
  row[at++] = value === true ? 1 : 0;
}

export function putWord(value: string | undefined): void {
  row[at++] = words.get(value as string) ?? newWord(value);
}

function newWord(value: unknown): number {
  const text = typeof value === 'string' ? canonicalText(value) : '';
  const bytes = Buffer.byteLength(text);
  if (bytes === 0 || bytes > WORD_BYTES_MAX || bytes > texts.length - textBytes) {
    isSound = false;
    return 0;
  }
  const code = textBytes * (WORD_BYTES_MAX + 1) + bytes;
  textBytes += texts.write(text, textBytes, 'utf8');
  words.set(value as string, code);
  return code;
}
