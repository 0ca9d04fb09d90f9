/**
 * Decisions as the binary spells them (native/log/spell.h): what of an entry is always the same is a plan with holes, and what goes into the holes
 * is a row of numbers. The text is that of `canonicalJson`. Where a value is not what its type says, nothing is filled in, and
 * the general way finds out what is wrong with it.
 */
import type { SpellPlan } from '../native/index.ts';
import type { Because } from '../policy/index.ts';
import { canonicalText } from './canonical.ts';
import type { DecisionBody } from './types.ts';

/** As SpellStep in native/log/spell.h; texts are 0. */
const [NUMBER, NUMBER_OR_NULL, FLAG, WORD, BODY] = [1, 2, 3, 4, 5] as const;
const TEXTS_BYTES = 16 * 1024;
/** What the code of a word has room for. */
const WORD_BYTES_MAX = 255;
/** What the binary writes into the first of the numbers. */
const ANSWERS = 3;

const texts = Buffer.alloc(TEXTS_BYTES);
let textBytes = 0;

function addText(text: string): number {
  const from = textBytes;
  textBytes += texts.write(text, from, 'utf8');
  return from;
}

function stepsOf(around: TemplateStringsArray, ...holes: readonly number[]): number[] {
  return around.flatMap((text, index) => {
    const hole = holes[index];
    return [0, addText(text), text.length, ...(hole === undefined ? [] : [hole, 0, 0])];
  });
}

const because = (): number[] =>
  stepsOf`{"bound":${NUMBER},"measured":${NUMBER},"origin":${WORD},"rule":${WORD},"threshold":${WORD},"unit":${WORD}}`;

const steps = Uint32Array.from([
  ...stepsOf`{"seq":${NUMBER},"timeMs":${NUMBER},"session":${WORD},"kind":"decision","body":${BODY}`,
  ...stepsOf`{"bytesAfter":${NUMBER},"bytesBefore":${NUMBER},"decision":{"because":`,
  ...because(),
  ...stepsOf`,"bytesFreed":${NUMBER},"epsilonFrom":${NUMBER_OR_NULL},"epsilonTo":${NUMBER_OR_NULL},"from":${WORD}`,
  ...stepsOf`,"layer":${NUMBER},"page":${NUMBER},"price":${NUMBER_OR_NULL},"retry":${FLAG},"side":${WORD},"to":${WORD}}`,
  ...stepsOf`,"epsilonNow":${NUMBER_OR_NULL},"order":${NUMBER},"situation":${NUMBER},"tokens":${NUMBER}`,
  ...stepsOf`,"verdict":{"accepted":${FLAG},"because":`,
  ...because(),
  ...stepsOf`}}`,
]);
const fixedBytes = textBytes;
const isHole = (_: number, index: number): boolean => index % 3 === 0;
const holes = [...steps].filter(isHole).filter((step) => step !== 0 && step !== BODY).length;

/** Begins with room for the answers. */
const numbers = new Float64Array(ANSWERS + holes);

/** The plan with the numbers of the decision that was filled in last. */
export const decisionPlan: SpellPlan = { steps, texts, numbers };

/** More than an entry of this plan takes, sealed too: all words as long as they may be. */
export const DECISION_BYTES_MAX = 8 * 1024;

/** Words are names of rules, formats, units and the session, and come again with every entry. They are forgotten when there is no more room. */
const words = new Map<string, number>();
let at = ANSWERS;
let isSound = true;

function putNumber(value: unknown): void {
  if (typeof value !== 'number' || !Number.isFinite(value)) isSound = false;
  else numbers[at] = value;
  at++;
}

function putNullable(value: unknown): void {
  if (value === null) numbers[at++] = Number.POSITIVE_INFINITY;
  else putNumber(value);
}

function putFlag(value: unknown): void {
  if (typeof value !== 'boolean') isSound = false;
  numbers[at++] = value === true ? 1 : 0;
}

function putWord(value: string): void {
  numbers[at++] = words.get(value) ?? newWord(value);
}

function newWord(value: unknown): number {
  const text = typeof value === 'string' ? canonicalText(value) : '';
  const bytes = Buffer.byteLength(text);
  if (bytes === 0 || bytes > WORD_BYTES_MAX || bytes > texts.length - textBytes) {
    isSound = false;
    return 0;
  }
  const code = addText(text) * (WORD_BYTES_MAX + 1) + bytes;
  words.set(value as string, code);
  return code;
}

function putBecause(it: Because): void {
  putNumber(it.bound);
  putNumber(it.measured);
  putWord(it.origin);
  putWord(it.rule);
  putWord(it.threshold);
  putWord(it.unit);
}

/** Fills in a decision. → false: it must be spelled the general way. */
export function fillDecision(seq: number, timeMs: number, session: string, body: DecisionBody): boolean {
  // Room for the words of one more decision; what was filled in before is spelled by now.
  if (texts.length - textBytes < DECISION_BYTES_MAX) {
    words.clear();
    textBytes = fixedBytes;
  }
  at = ANSWERS;
  isSound = true;
  const { decision, verdict } = body;
  putNumber(seq);
  putNumber(timeMs);
  putWord(session);
  putNumber(body.bytesAfter);
  putNumber(body.bytesBefore);
  putBecause(decision.because);
  putNumber(decision.bytesFreed);
  putNullable(decision.epsilonFrom);
  putNullable(decision.epsilonTo);
  putWord(decision.from);
  putNumber(decision.layer);
  putNumber(decision.page);
  putNullable(decision.price);
  putFlag(decision.retry);
  putWord(decision.side);
  putWord(decision.to);
  putNullable(body.epsilonNow);
  putNumber(body.order);
  putNumber(body.situation);
  putNumber(body.tokens);
  putFlag(verdict.accepted);
  putBecause(verdict.because);
  return isSound;
}
