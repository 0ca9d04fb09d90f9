/**
 * Patterns of JSON schemas as expressions of a grammar. What a pattern matches stands in a JSON text, so quotation
 * marks, backslashes and control characters are written as their escapes. Look-aheads, look-behinds and borders of
 * words are left out: without them a pattern allows more, which is looked at when the text is complete.
 */
import { KvError } from '../../../native/index.ts';
import type { Repetitions } from './options.ts';
import { ALL, ANY, type CharacterSet, escaped, negated, propertySet, setExpression, setOf } from './pattern-set.ts';

/** A class, an escape, the beginning of a group, a count, a repetition, or one character. */
const PART =
  /\[\^?(?:[^\]\\]|\\.)*\]|\\(?:u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|.)|\(\?<(?![=!])[^>]*>|\(\?<?.|\{(\d+)(,(\d*))?\}\??|[*+?]\??|./gsuy;
const IN_CLASS = /\\(?:u\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|.)|./gsu;
const CONTROLS: Readonly<Record<string, number>> = { n: 10, t: 9, r: 13, f: 12, v: 11, 0: 0, b: 8 };
const NESTING_MAX = 32;
/** Alternatives of which ^ and $ are part. */
const ANCHORED_MAX = 64;

type Refuse = (what: string) => KvError;

/** One thing after another: what it is, and how often. `count` is how the expression says that. */
interface Item {
  readonly what: 'start' | 'end' | 'assertion' | 'one' | 'group';
  readonly expression: string;
  readonly inner: readonly Sequence[];
  readonly count: string;
  /** The most that the count asks for; 1 without one. */
  readonly times: number;
}
type Sequence = readonly Item[];

/** One alternative: whether it has to begin where the text begins, and to end where it ends. */
export interface Anchored {
  readonly body: string;
  readonly fromStart: boolean;
  readonly toEnd: boolean;
}

/** As engines read it: with the flag `u`, or where it is none so, without. Throws 'bad-argument' for what is none. */
export function compiledPattern(pattern: string, where: string): RegExp {
  try {
    return new RegExp(pattern, 'u');
  } catch (cause) {
    try {
      return new RegExp(pattern);
    } catch {
      throw new KvError('bad-argument', `the pattern at ${where} is none: ${(cause as Error).message.slice(0, 200)}`, {
        values: { pattern: pattern.slice(0, 200), where },
        cause,
      });
    }
  }
}

/**
 * Alternatives of which a text has one. Throws 'bad-argument' for what is no pattern, 'unsupported' for what cannot be
 * followed.
 */
export function followedPattern(pattern: string, where: string, repetitions: Repetitions): readonly Anchored[] {
  const sequences = sequencesOf(pattern, where);
  const counted = weightOf(sequences, true) - weightOf(sequences, false);
  if (counted > 0) repetitions.add(counted, where);
  const alternatives = sequences.flatMap((sequence) => anchored(sequence, refusing(pattern, where)));
  return alternatives.map(({ items, ...anchors }) => ({ ...anchors, body: sequenceText(items) }));
}

/** False: what is followed of a pattern allows more than it. Throws as followedPattern. */
export const isFollowedExactly = (pattern: string, where: string): boolean =>
  !sequencesOf(pattern, where).some((sequence) => sequence.some((item) => holds(item, ['assertion'])));

/**
 * One pattern for texts that match several: what has to stand first, others in this order, what has to stand last. null
 * where two of them have to stand in the same place.
 */
export function joinedPatterns(patterns: readonly string[], where: string): string | null {
  const kinds = patterns.map((pattern) => {
    const [sequence, ...others] = sequencesOf(pattern, where);
    if (others.length > 0 || sequence === undefined) return null;
    const [fromStart, toEnd] = [sequence[0]?.what === 'start', sequence.at(-1)?.what === 'end'];
    const inner = pattern.slice(fromStart ? 1 : 0, toEnd ? -1 : undefined);
    return { fromStart, toEnd, inner: `(?:${inner})` };
  });
  const all = kinds.filter((kind) => kind !== null);
  const [first, last] = [all.filter((kind) => kind.fromStart), all.filter((kind) => kind.toEnd)];
  const isWhole = all.some((kind) => kind.fromStart && kind.toEnd);
  if (all.length < patterns.length || isWhole || first.length > 1 || last.length > 1) return null;
  const between = all.filter((kind) => !kind.fromStart && !kind.toEnd);
  const inner = [...first, ...between, ...last].map((kind) => kind.inner).join('[\\s\\S]*');
  return `${first.length > 0 ? '^' : ''}${inner}${last.length > 0 ? '$' : ''}`;
}

const refusing =
  (pattern: string, where: string): Refuse =>
  (what) =>
    new KvError('unsupported', `the pattern at ${where} has ${what}, which cannot be followed`, {
      values: { pattern: pattern.slice(0, 200), where },
      hint: 'a simpler pattern, or an enum of the texts that there are',
    });

function sequencesOf(pattern: string, where: string): Sequence[] {
  compiledPattern(pattern, where);
  const refuse = refusing(pattern, where);
  const parts = [...pattern.matchAll(PART)];
  let at = 0;
  const alternatives = (depth: number): Sequence[] => {
    if (depth > NESTING_MAX) throw refuse(`more than ${NESTING_MAX} groups in groups`);
    const all: Item[][] = [[]];
    while (at < parts.length && parts[at]![0] !== ')') {
      const match = parts[at++]!;
      if (match[0] === '|') all.push([]);
      else all.at(-1)!.push(counted(item(match[0], depth), match));
    }
    return all;
  };
  const item = (part: string, depth: number): Item => {
    if (part === '^' || part === '$') return { ...NOTHING, what: part === '^' ? 'start' : 'end' };
    if (part === '\\b' || part === '\\B') return { ...NOTHING, what: 'assertion' };
    if (!part.startsWith('(')) return { ...NOTHING, what: 'one', expression: single(part, refuse) };
    const inner = alternatives(depth + 1);
    at++;
    if (/^\(\?<?[=!]/.test(part)) return { ...NOTHING, what: 'assertion' };
    if (part !== '(' && part !== '(?:' && !part.startsWith('(?<')) throw refuse('a group of another kind');
    return { ...NOTHING, what: 'group', inner };
  };
  const counted = (made: Item, { index }: { readonly index: number }): Item => {
    const next = parts[at];
    const isCount = next !== undefined && next.index > index && /^(?:[*+?]|\{\d)/.test(next[0]);
    if (!isCount) return made;
    at++;
    // Whether a repetition is lazy changes where a match ends, not what matches as a whole.
    const count = next[0].replace(/(?<=.)\?$/, '');
    if (made.what !== 'one' && made.what !== 'group') throw refuse('a count of what has no length');
    const times = next[1] === undefined ? 1 : Math.max(Number(next[1]), Number(next[3] || 0));
    return { ...made, count, times };
  };
  return alternatives(0);
}

const NOTHING: Item = { what: 'one', expression: '', inner: [], count: '', times: 1 };

/** Characters that it names, as often as its counts ask for them. */
const weightOf = (sequences: readonly Sequence[], isCounted: boolean): number =>
  sequences.reduce(
    (sum, sequence) =>
      sum +
      sequence.reduce(
        (inner, item) =>
          inner + (isCounted ? item.times : 1) * (item.what === 'group' ? weightOf(item.inner, isCounted) : 1),
        0,
      ),
    0,
  );

const holds = (item: Item, kinds: readonly Item['what'][]): boolean =>
  kinds.includes(item.what) || item.inner.some((sequence) => sequence.some((inner) => holds(inner, kinds)));

interface AnchoredItems {
  readonly items: Sequence;
  readonly fromStart: boolean;
  readonly toEnd: boolean;
}

/** A sequence without its ^ and $. A group that has some at an end is taken apart. */
function anchored(sequence: Sequence, refuse: Refuse): AnchoredItems[] {
  const own = sequence.filter(({ what }) => what !== 'assertion');
  const first = own.findIndex(({ what }) => what !== 'start');
  const last = own.findLastIndex(({ what }) => what !== 'end');
  const items = first < 0 ? [] : own.slice(first, last + 1);
  const fromStart = own[0]?.what === 'start';
  const toEnd = own.at(-1)?.what === 'end';
  for (const at of [0, items.length - 1]) {
    const group = items[at];
    if (group?.what !== 'group' || !holds(group, ['start', 'end'])) continue;
    if (group.count !== '') throw refuse('^ or $ in a group that is counted');
    const all = group.inner.flatMap((inner) => {
      const whole = [...items.slice(0, at), ...inner, ...items.slice(at + 1)];
      return anchored([...(fromStart ? [START] : []), ...whole, ...(toEnd ? [END] : [])], refuse);
    });
    if (all.length > ANCHORED_MAX) throw refuse('^ or $ in too many alternatives');
    return all;
  }
  if (items.some((item) => holds(item, ['start', 'end']))) throw refuse('^ or $ within');
  return [{ items, fromStart, toEnd }];
}

const START: Item = { ...NOTHING, what: 'start' };
const END: Item = { ...NOTHING, what: 'end' };

/** An alternative of nothing is written as the empty text. */
function sequenceText(items: Sequence): string {
  const parts = items
    .filter(({ what }) => what !== 'assertion')
    .map(({ what, expression, inner, count }) =>
      what === 'group' ? `(${inner.map(sequenceText).join(' | ')})${count}` : `${expression}${count}`,
    );
  return parts.length === 0 ? '""' : parts.join(' ');
}

/** One character, however it is given. */
function single(part: string, refuse: Refuse): string {
  if (part.startsWith('[')) return classOf(part, refuse);
  if (part === '.') return ANY;
  const set = named(part, refuse);
  if (set !== null) return setExpression(set) ?? refused(refuse('a class of nothing'));
  return escaped(codeOf(part, refuse));
}

function refused(error: KvError): never {
  throw error;
}

/** The set that an escape names; null: it is one character. */
function named(part: string, refuse: Refuse): CharacterSet | null {
  if (/^\\[pP]\{/.test(part)) return propertySet(part) ?? refused(refuse(`${part}, which has too many ranges,`));
  return part.startsWith('\\') ? setOf(part.slice(1)) : null;
}

function classOf(text: string, refuse: Refuse): string {
  const isNegated = text.startsWith('[^');
  const parts: readonly string[] = text.slice(isNegated ? 2 : 1, -1).match(IN_CLASS) ?? [];
  // Of white space fewer characters are written than there are.
  const sets: CharacterSet[] = parts.includes('\\s') && parts.includes('\\S') ? [ALL] : [];
  for (let i = 0; i < parts.length; i++) {
    const set = named(parts[i]!, refuse);
    if (set !== null) sets.push(set);
    else {
      const isRange = parts[i + 1] === '-' && i + 2 < parts.length && named(parts[i + 2]!, refuse) === null;
      const from = codeOf(parts[i]!, refuse);
      const to = isRange ? codeOf(parts[i + 2]!, refuse) : from;
      sets.push({ named: [[from, to]], left: [] });
      if (isRange) i += 2;
    }
  }
  const all = isNegated
    ? negated(sets, parts.includes('\\s'))
    : { named: sets.flatMap((set) => set.named), left: sets.flatMap((set) => set.left) };
  return setExpression(all) ?? refused(refuse('a class of nothing'));
}

/** The one character that a part stands for. */
function codeOf(part: string, refuse: Refuse): number {
  const hex = /^\\(?:u\{|[ux])([0-9a-fA-F]+)\}?$/.exec(part)?.[1];
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
