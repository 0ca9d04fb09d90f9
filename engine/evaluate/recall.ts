/**
 * Recall of facts from different depths of a long document: five access codes are written into a text, and asked for at its end.
 * Every question sees the same document and no other question; each run is greedy and continues with its own answer.
 */
import { given, KvError, sealsBetween } from '../../native/index.ts';
import type { Tokenizer } from '../model/types.ts';
import type { Session } from '../session.ts';
import type { GenerateOptions } from '../types.ts';

export interface RecallQuestion {
  readonly place: string;
  readonly code: string;
  /** Depth in the document, 0 … 1. */
  readonly depth: number;
}

export interface RecallDocument {
  /** Token ids of the document, exactly as many as asked for. */
  readonly tokens: readonly number[];
  readonly questions: readonly RecallQuestion[];
}

export const DEPTHS: readonly number[] = [0.1, 0.3, 0.5, 0.7, 0.9];
const PLACES: readonly string[] = [
  'Lisbon',
  'Nairobi',
  'Quebec',
  'Hanoi',
  'Oslo',
  'Cairo',
  'Lima',
  'Dublin',
  'Athens',
  'Kyoto',
  'Vienna',
  'Havana',
  'Tunis',
  'Prague',
  'Delhi',
];
/** Digits of a code. */
const CODE_DIGITS = 5;

/** mulberry32: a small seeded generator; only documents depend on it. */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Said three times: a model of 135 million parameters then answers most questions with the exact cache, so that a loss can be seen. */
export const statement = ({ place, code }: Pick<RecallQuestion, 'place' | 'code'>): string =>
  `\n\nThe access code of ${place} is ${code}. Remember it: the access code of ${place} is ${code}. Once more: the access code of ${place} is ${code}.\n\n`;
export const questionText = (place: string): string => `\n\nThe access code of ${place} is`;

/** A document of exactly `tokenCount` tokens: `filler` cut to size with five codes written behind whole sentences at five depths. */
export function recallDocument(tokenizer: Tokenizer, filler: string, tokenCount: number, seed: number): RecallDocument {
  const random = seeded(seed);
  const places = [...PLACES].map((place) => ({ place, order: random() })).sort((a, b) => a.order - b.order);
  const questions = DEPTHS.map((depth, i): RecallQuestion => {
    const code = Array.from({ length: CODE_DIGITS }, () => Math.floor(random() * 10)).join('');
    return { place: places[i]!.place, code, depth };
  });
  const statements = questions.map((question) => tokenizer.encode(statement(question)));
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const room = tokenCount - head.length - statements.reduce((sum, ids) => sum + ids.length, 0);
  const body = tokenizer.encode(filler);
  if (body.length < room) {
    throw new KvError('bad-argument', `the text has ${body.length} tokens, a document of ${tokenCount} needs ${room}`, {
      values: { tokens: body.length, needed: room },
      hint: 'give a longer text or a shorter window',
    });
  }
  const tokens: number[] = [...head];
  let at = 0;
  questions.forEach((question, i) => {
    const cut = sentenceEnd(tokenizer, body, Math.floor(question.depth * room), at, room);
    for (; at < cut; at++) tokens.push(body[at]!);
    tokens.push(...statements[i]!);
  });
  for (; at < room; at++) tokens.push(body[at]!);
  return { tokens, questions };
}

/** The first token position from `from` on that ends a sentence, within reach; else `from` itself. */
function sentenceEnd(tokenizer: Tokenizer, body: readonly number[], from: number, least: number, most: number): number {
  for (let at = Math.max(from, least); at < Math.min(from + 80, most); at++) {
    if (/[.!?]$/.test(tokenizer.decode([body[at]!]).trimEnd())) return at + 1;
  }
  return Math.max(from, least);
}

export interface RecallAnswer {
  readonly question: RecallQuestion;
  readonly answer: string;
  readonly recalled: boolean;
  /** Question and answer as they were read. */
  readonly tokens: readonly number[];
  /** Tokens of the answer, and what writing them took; reading the question is not in it. */
  readonly written: { readonly tokens: number; readonly ms: number };
}

/** Tokens that one question and its answer may take. */
export const ANSWER_TOKENS = 12;

/**
 * Asks one question at the end of the document, greedily, and takes question and answer back, so that the next one sees the same
 * cache. Throws KvError 'aborted'.
 */
export async function ask(
  session: Session,
  question: RecallQuestion,
  signal?: AbortSignal,
  onText?: (text: string) => void,
): Promise<RecallAnswer> {
  const ids = session.runtime.model.tokenizer.encode(questionText(question.place));
  const before = session.length;
  const options = given<GenerateOptions>({ maxTokens: ANSWER_TOKENS, stop: ['.', '\n'], signal });
  const answering = session.generate(ids, options);
  let next = await answering.next();
  for (; next.done !== true; next = await answering.next()) onText?.(next.value);
  const { text, finish, tokens: count, tokensPerSecond } = next.value;
  if (finish === 'aborted')
    throw new KvError('aborted', `aborted while the question about ${question.place} was answered`);
  const tokens = session.tokens.slice(before);
  session.rewind(before);
  return {
    question,
    answer: text.trim(),
    recalled: text.replaceAll(/[\s,]/g, '').includes(question.code),
    tokens,
    written: { tokens: count, ms: count === 0 ? 0 : (1000 * count) / tokensPerSecond },
  };
}

/** Tokens to plan for one question and its answer. */
export function questionTokens(tokenizer: Tokenizer): number {
  return Math.max(...PLACES.map((place) => tokenizer.encode(questionText(place)).length)) + ANSWER_TOKENS;
}

/** The longest document of at most `tokens` tokens behind which a question fits into the open page, so that it can be taken back without a trace. */
export function documentLength(tokenizer: Tokenizer, tokens: number): number {
  const asked = questionTokens(tokenizer);
  let length = tokens;
  while (length > 0 && sealsBetween(length, asked) > 0) length--;
  return length;
}
