/**
 * Looks at a grammar in GBNF before the library does, which knows the same notation but for `.`, classes beyond ASCII
 * and tokens, and aborts on deep nesting.
 */
import { KvError } from '../../../native/index.ts';
import { characterClass, type Range } from './characters.ts';
import type { Repetitions } from './options.ts';
import { Apart } from './rules.ts';

/** Brackets in brackets. The library needs its small stack for each. */
const NESTING_MAX = 64;
/** Comments, texts, classes of characters, counts; and each other character by itself. */
const PART = /#[^\n]*|"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|./gsu;
const ANY_CHARACTER = '([\\x00\\x00] | [^\\x00])';
const IN_CLASS = /\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|./gsu;
const CONTROLS: Readonly<Record<string, number>> = { n: 10, t: 9, r: 13 };

/**
 * The grammar as the library reads it. Throws 'bad-argument', and 'unsupported' for tokens (`<…>`) and counts that are
 * too large.
 */
export function libraryGrammar(gbnf: string, repetitions: Repetitions): string {
  let nesting = 0;
  const apart = new Apart();
  const grammar = gbnf.replace(PART, (part, least: string | undefined, most: string | undefined, at: number) => {
    const behind = gbnf.slice(at + part.length, at + part.length + 80);
    if (part === '(' && ++nesting > NESTING_MAX)
      throw new KvError('unsupported', `the grammar nests brackets deeper than ${NESTING_MAX}`, {
        values: { nestingMax: NESTING_MAX },
        hint: 'give what is inside a rule of its own',
      });
    if (part === ')') nesting--;
    if (part.startsWith('{')) repetitions.add(Math.max(Number(least ?? 0), Number(most ?? 0)), part);
    if (part === '<')
      throw new KvError('unsupported', 'the grammar names a token, and grammars are of characters here', {
        hint: 'leave out <…>; the end of the answer follows from the grammar',
      });
    if (part.startsWith('"')) return apart.one(part, behind);
    if (part.startsWith('[')) return apart.one(classOf(part), behind);
    return part === '.' ? apart.one(ANY_CHARACTER, behind) : part;
  });
  return [grammar, ...apart.rules].join('\n');
}

/** One that is of ASCII alone stays as it is. */
function classOf(text: string): string {
  const isNegated = text.startsWith('[^');
  const parts = text.slice(isNegated ? 2 : 1, -1).match(IN_CLASS) ?? [];
  const ranges: Range[] = [];
  for (let i = 0; i < parts.length; i++) {
    const isRange = parts[i + 1] === '-' && i + 2 < parts.length;
    ranges.push([codeOf(parts[i]!), codeOf(parts[isRange ? i + 2 : i]!)]);
    if (isRange) i += 2;
  }
  const bad = ranges.find(([from, to]) => from > to || to > 0x10ffff);
  if (bad !== undefined)
    throw new KvError('bad-argument', `the grammar has a range that is none: ${text.slice(0, 80)}`, {
      values: { class: text },
    });
  return ranges.every(([, to]) => to <= 0x7f) ? text : characterClass(ranges, isNegated);
}

function codeOf(part: string): number {
  const hex = /^\\[xuU]([0-9a-fA-F]+)$/.exec(part)?.[1];
  if (hex !== undefined) return Number.parseInt(hex, 16);
  const character = part.startsWith('\\') ? part.slice(1) : part;
  return (character === part ? undefined : CONTROLS[character]) ?? character.codePointAt(0)!;
}
