/**
 * Decisions as the binary spells them (native/log/spell.h): what of an entry is always the same is a plan with holes,
 * and what goes into the holes is a row of numbers. The text is that of `canonicalJson`. Where a value is absent or not
 * what its type says, nothing is filled in, and the entry goes the general way, which finds out what is wrong with it.
 */
import type { SpellPlan } from '../native/index.ts';
import { SPELL_STEPS } from './entries/binary.ts';
import { type DecisionBody, ENTRIES } from './entries/index.ts';
import { fillDecisionBody } from './entries/spelling.gen.ts';
import { coreOf, inOrder, mayBeNull, type Type } from './entries/type.ts';
import { beginRow, endRow, fixText, putNumber, putWord, rowOf, texts } from './plan-numbers.ts';

/** Steps as the binary counts them. */
const step = (name: (typeof SPELL_STEPS)[number]): number => SPELL_STEPS.indexOf(name);
const [TEXT, NUMBER, NUMBER_OR_NULL] = [step('text'), step('number'), step('number-or-null')];
const [FLAG, WORD, BODY] = [step('flag'), step('word'), step('body')];

/** More than an entry of this plan takes, sealed too: all words as long as they may be. */
export const DECISION_BYTES_MAX = 8 * 1024;

/** A text, or a hole. */
type Part = string | number;

/** What a value of this type is spelled as. */
function partsOf(type: Type): Part[] {
  const core = coreOf(type);
  switch (core.is) {
    case 'object': {
      const fields = inOrder(core.fields).flatMap(([name, field], at): Part[] => [
        `${at === 0 ? '' : ','}"${name}":`,
        ...partsOf(field),
      ]);
      return ['{', ...fields, '}'];
    }
    case 'flag':
      return [FLAG];
    case 'text':
    case 'one':
      return [WORD];
    default:
      return [mayBeNull(type) ? NUMBER_OR_NULL : NUMBER];
  }
}

/** Texts that stand behind each other are one step. */
function stepsOf(parts: readonly Part[]): Uint32Array {
  const joined: Part[] = [];
  for (const part of parts) {
    const last = joined.at(-1);
    if (typeof part === 'string' && typeof last === 'string') joined[joined.length - 1] = last + part;
    else joined.push(part);
  }
  return Uint32Array.from(
    joined.flatMap((part) => (typeof part === 'string' ? [TEXT, fixText(part), part.length] : [part, 0, 0])),
  );
}

/** The plan of entries of a kind whose body is of this type. Its numbers are those that were filled in last. */
export function planOf(kind: string, type: Type): SpellPlan {
  const parts: readonly Part[] = [
    ...['{"seq":', NUMBER, ',"timeMs":', NUMBER, ',"session":', WORD, `,"kind":"${kind}","body":`, BODY],
    ...partsOf(type),
  ];
  const holes = parts.filter((part) => typeof part === 'number' && part !== BODY).length;
  return { steps: stepsOf(parts), texts, numbers: rowOf(holes) };
}

export const decisionPlan = planOf('decision', ENTRIES.decision.type);

/** Fills in a decision. → false: it must be spelled the general way. */
export function fillDecision(seq: number, timeMs: number, session: string, body: DecisionBody): boolean {
  beginRow(DECISION_BYTES_MAX);
  putNumber(seq);
  putNumber(timeMs);
  putWord(session);
  fillDecisionBody(body);
  return endRow();
}
