/** Sets of characters in patterns, as expressions of what JSON writes for one of them. */
import { characterClass, complement, type Range } from './characters.ts';
import { literal } from './notation.ts';

const DIGITS: Range = [0x30, 0x39];
const CLASSES: Readonly<Record<string, readonly Range[]>> = {
  d: [DIGITS],
  w: [DIGITS, [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]],
};
const SPACES: readonly Range[] = [
  [0x09, 0x0d],
  ...([0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff].map((code) => [code, code]) as Range[]),
  [0x2000, 0x200a],
  [0x2028, 0x2029],
];
/** White space that is written. */
const WRITTEN_SPACES: readonly Range[] = [0x09, 0x0a, 0x20].map((code) => [code, code]);
/** What JSON escapes, and the control character behind ASCII: left out of what a pattern does not name. */
const ESCAPED: readonly Range[] = [
  [0x00, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
  [0x7f, 0x7f],
];
/** Of those, what stands for all where any character may be. */
const WRITTEN_ESCAPES = [0x09, 0x0a, 0x22, 0x5c];
/** Properties of Unicode are followed where they have at most so many ranges. */
const RANGES_MAX = 200;

/** Characters that are named one by one, or by range, and those that are left where others are taken out. */
export interface CharacterSet {
  readonly named: readonly Range[];
  readonly left: readonly Range[];
}

/** `.`: what JSON escapes is left out. */
export const ANY = characterClass(ESCAPED, true);

/** `[\s\S]` and its like. */
export const ALL: CharacterSet = { named: [], left: complement([]) };

/** kind: the letter of `\d`, `\S`, …; null: it is none of them. */
export function setOf(kind: string): CharacterSet | null {
  if (kind === 's') return { named: WRITTEN_SPACES, left: [] };
  if (kind === 'S') return { named: [], left: complement(SPACES) };
  if (kind === 'd' || kind === 'w') return { named: CLASSES[kind]!, left: [] };
  return kind === 'D' || kind === 'W' ? { named: [], left: complement(CLASSES[kind.toLowerCase()]!) } : null;
}

/** What is in none of the sets. */
export function negated(sets: readonly CharacterSet[], hasSpace: boolean): CharacterSet {
  const inside = sets.flatMap(({ named, left }) => [...named, ...left]);
  return { named: [], left: complement([...inside, ...(hasSpace ? SPACES : [])]) };
}

const properties = new Map<string, CharacterSet | null>();
const PROPERTIES_KEPT = 100;

/** property: `\p{…}` or `\P{…}` of a pattern with the flag `u`. null: it has too many ranges. */
export function propertySet(property: string): CharacterSet | null {
  const known = properties.get(property);
  if (known !== undefined) return known;
  const set = rangesOf(new RegExp(property, 'u'));
  if (properties.size < PROPERTIES_KEPT) properties.set(property, set);
  return set;
}

function rangesOf(isIn: RegExp): CharacterSet | null {
  const named: [number, number][] = [];
  for (let code = 0; code <= 0x10ffff; code++) {
    if (code === 0xd800) code = 0xe000;
    if (!isIn.test(String.fromCodePoint(code))) continue;
    if (named.at(-1)?.[1] === code - 1) named.at(-1)![1] = code;
    else named.push([code, code]);
    if (named.length > RANGES_MAX) return null;
  }
  return { named, left: [] };
}

/** null: it is empty. */
export function setExpression({ named, left }: CharacterSet): string | null {
  const outside = complement([...named, ...left]);
  const isIn = (code: number, ranges: readonly Range[]): boolean =>
    ranges.some(([from, to]) => code >= from && code <= to);
  const escapes = Array.from({ length: 0x80 }, (_, code) => code).filter(
    (code) => isIn(code, ESCAPED) && (isIn(code, named) || (outside.length === 0 && WRITTEN_ESCAPES.includes(code))),
  );
  const others = [...outside, ...ESCAPED];
  const plain = complement(others);
  const isShort = others.every(([, to]) => to <= 0x7f);
  const parts = [
    ...(plain.length === 0 ? [] : [isShort ? characterClass(others, true) : characterClass(plain, false)]),
    ...escapes.map(escaped),
  ];
  if (parts.length === 0) return null;
  return parts.length === 1 ? parts[0]! : `(${parts.join(' | ')})`;
}

/** A character as a JSON text has it. */
export const escaped = (code: number): string =>
  literal(code === 0x7f ? '\\u007f' : JSON.stringify(String.fromCodePoint(code)).slice(1, -1));
