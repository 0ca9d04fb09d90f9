/**
 * Patterns of JSON schemas as expressions of a grammar. A pattern is followed from its beginning to its end, as if it
 * had ^ and $: what it then allows matches it too. What it matches stands in a JSON text, so quotation marks,
 * backslashes and control characters are written as their escapes.
 */
import { KvError } from '../../../native/index.ts';
import { characterClass, type Range } from './characters.ts';
import { literal } from './notation.ts';
import type { Repetitions } from './options.ts';

/** A class, an escape, the beginning of a group, a count, or one character. */
const PART =
  /\[\^?(?:[^\]\\]|\\.)*\]|\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|\(\?.|\{(\d+)(?:,(\d*))?\}\??|[*+?]\??|./gsuy;
const IN_CLASS = /\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)|./gsu;
const SPACE = '" " | "\\\\n" | "\\\\t"';
const DIGITS: Range = [0x30, 0x39];
const CLASSES: Readonly<Record<string, readonly Range[]>> = {
  d: [DIGITS],
  w: [DIGITS, [0x41, 0x5a], [0x5f, 0x5f], [0x61, 0x7a]],
};
/** White space, as far as JSON does not escape it. */
const SPACES: readonly Range[] = [
  ...([0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff].map((code) => [code, code]) as Range[]),
  [0x2000, 0x200a],
  [0x2028, 0x2029],
];
const CONTROLS: Readonly<Record<string, number>> = { n: 10, t: 9, r: 13, f: 12 };
/** What JSON escapes, and the control character behind ASCII: never matched by what is negated. */
const ESCAPED: readonly Range[] = [
  [0x00, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
  [0x7f, 0x7f],
];
const NESTING_MAX = 32;

type Refuse = (what: string) => KvError;

/** Throws 'bad-argument' for what is no pattern, 'unsupported' for one that cannot be followed. */
export function patternExpression(pattern: string, where: string, repetitions: Repetitions): string {
  const refuse: Refuse = (what) =>
    new KvError('unsupported', `the pattern at ${where} has ${what}, which cannot be followed`, {
      values: { pattern, where },
      hint: 'a simpler pattern, or an enum of the texts that there are',
    });
  try {
    new RegExp(pattern, 'u');
  } catch (cause) {
    throw new KvError('bad-argument', `the pattern at ${where} is none: ${(cause as Error).message.slice(0, 200)}`, {
      values: { pattern, where },
      cause,
    });
  }
  let depth = 0;
  let isSplit = false;
  const inner = pattern.replace(/^\^/, '').replace(/(?<!\\)((?:\\\\)*)\$$/, '$1');
  const parts = [...inner.matchAll(PART)].map(([part, least, most]) => {
    if (least !== undefined) repetitions.add(Math.max(Number(least), Number(most ?? 0)), where);
    // Whether a repetition is lazy changes where a match ends, not what matches as a whole.
    if (least !== undefined || /^[*+?]/.test(part)) return part.replace(/(?<=.)\?$/, '');
    if (part === '(' || part === '(?:') {
      if (++depth > NESTING_MAX) throw refuse(`more than ${NESTING_MAX} groups in groups`);
      return ' (';
    }
    if (part.startsWith('(?')) throw refuse('a group that looks ahead, looks back or has a name');
    if (part === ')') {
      depth--;
      return ')';
    }
    isSplit ||= part === '|' && depth === 0;
    return part === '|' ? ' | ' : ` ${single(part, refuse)}`;
  });
  // ^a|b$ says another thing than ^(a|b)$.
  if (isSplit && inner !== pattern) throw refuse('^ or $ in one of several alternatives');
  return emptyAlternatives(parts.join(''));
}

/** An alternative of nothing is written as the empty text. */
const emptyAlternatives = (expression: string): string =>
  expression.replace(/^\s*(?=\||$)|(?<=\()\s*(?=[|)])/g, '""').replace(/(?<=\|\s*)(?=[|)]|$)/g, '""');

/** One character, however it is given. */
function single(part: string, refuse: Refuse): string {
  if (part.startsWith('[')) return classOf(part, refuse);
  if (part === '.') return characterClass(ESCAPED, true);
  if (part === '^' || part === '$') throw refuse(`${part} within`);
  const kind = part.startsWith('\\') ? part.slice(1) : '';
  if (kind === 's') return `(${SPACE})`;
  if (kind === 'S') return characterClass([...SPACES, ...ESCAPED], true);
  if (Object.hasOwn(CLASSES, kind)) return characterClass(CLASSES[kind]!, false);
  if (kind === 'D' || kind === 'W') return characterClass([...CLASSES[kind.toLowerCase()]!, ...ESCAPED], true);
  return escaped(codeOf(part, refuse));
}

/** A character as a JSON text has it. */
const escaped = (code: number): string => literal(JSON.stringify(String.fromCodePoint(code)).slice(1, -1));

function classOf(text: string, refuse: Refuse): string {
  const isNegated = text.startsWith('[^');
  const parts = text.slice(isNegated ? 2 : 1, -1).match(IN_CLASS) ?? [];
  const ranges: Range[] = [];
  const others: string[] = [];
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i]!;
    const kind = part.startsWith('\\') ? part.slice(1) : '';
    if (kind === 's' && isNegated) ranges.push(...SPACES);
    else if (kind === 's') others.push(SPACE);
    else if (Object.hasOwn(CLASSES, kind)) ranges.push(...CLASSES[kind]!);
    else if (/^[DWSbBpP]$/.test(kind)) throw refuse(`\\${kind} in a class`);
    else {
      const isRange = parts[i + 1] === '-' && i + 2 < parts.length;
      const from = codeOf(part, refuse);
      const to = isRange ? codeOf(parts[i + 2]!, refuse) : from;
      const isPlain = !ESCAPED.some(([first, last]) => from <= last && first <= to);
      if (isPlain || isNegated) ranges.push([from, to]);
      else if (from === to) others.push(escaped(from));
      else throw refuse('a range over characters that JSON escapes');
      if (isRange) i += 2;
    }
  }
  if (isNegated) return characterClass([...ranges, ...ESCAPED], true);
  if (ranges.length + others.length === 0) throw refuse('a class of nothing');
  const all = [...(ranges.length === 0 ? [] : [characterClass(ranges, false)]), ...others];
  return all.length === 1 && ranges.length > 0 ? all[0]! : `(${all.join(' | ')})`;
}

/** The one character that a part stands for. */
function codeOf(part: string, refuse: Refuse): number {
  const hex = /^\\[ux]([0-9a-fA-F]+)$/.exec(part)?.[1];
  if (hex !== undefined) {
    const code = Number.parseInt(hex, 16);
    if (code >= 0xd800 && code <= 0xdfff) throw refuse('half a character');
    return code;
  }
  const character = part.startsWith('\\') ? part.slice(1) : part;
  if (character === part) return character.codePointAt(0)!;
  const control = CONTROLS[character];
  if (control === undefined && /[a-zA-Z0-9]/.test(character)) throw refuse(part);
  return control ?? character.codePointAt(0)!;
}
