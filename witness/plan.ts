/**
 * Decisions as the binary spells them (native/log/spell.h): what of an entry is always the same is a plan with holes,
 * and what goes into the holes is a row of numbers. The text is that of `canonicalJson`. A field that may be absent has
 * no hole in the plan of those that lack it. Where a value is not what its type says, nothing is filled in, and the
 * entry goes the general way, which finds out what is wrong with it.
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

/** More than an entry of this plan takes: all words as long as they may be. */
export const DECISION_BYTES_MAX = 8 * 1024;

/** A text, or a hole. */
type Part = string | number;

/** What a value of this type is spelled as. `isThere` is asked of each field that may be absent, in order. */
function partsOf(type: Type, isThere: () => boolean): Part[] {
  const core = coreOf(type);
  switch (core.is) {
    case 'object': {
      const fields: Part[] = [];
      for (const [name, field] of inOrder(core.fields)) {
        if (field.is === 'optional' && !isThere()) continue;
        fields.push(`${fields.length === 0 ? '' : ','}"${name}":`, ...partsOf(field, isThere));
      }
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

/** The plans of entries of a kind: one for each choice of fields that are absent, made when it first comes. */
export class EntryPlans {
  readonly #kind: string;
  readonly #type: Type;
  readonly #plans = new Map<number, SpellPlan>();

  constructor(kind: string, type: Type) {
    this.#kind = kind;
    this.#type = type;
  }

  /** The plan without these fields, as `endRow` says them. Its numbers are those that were filled in last. */
  without(absent: number): SpellPlan {
    const known = this.#plans.get(absent);
    if (known !== undefined) return known;
    let place = 0;
    const parts: readonly Part[] = [
      ...['{"seq":', NUMBER, ',"timeMs":', NUMBER, ',"session":', WORD, `,"kind":"${this.#kind}","body":`, BODY],
      ...partsOf(this.#type, () => (absent & (1 << place++)) === 0),
    ];
    const holes = parts.filter((part) => typeof part === 'number' && part !== BODY).length;
    const plan = { steps: stepsOf(parts), texts, numbers: rowOf(holes) };
    this.#plans.set(absent, plan);
    return plan;
  }
}

const decisionPlans = new EntryPlans('decision', ENTRIES.decision.type);

/** Fills in a decision. → its plan; null: it must be spelled the general way. */
export function fillDecision(seq: number, timeMs: number, session: string, body: DecisionBody): SpellPlan | null {
  beginRow(DECISION_BYTES_MAX);
  putNumber(seq);
  putNumber(timeMs);
  putWord(session);
  fillDecisionBody(body);
  const absent = endRow();
  return absent === null ? null : decisionPlans.without(absent);
}
