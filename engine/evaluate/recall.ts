/**
 * Recall of facts from different depths of a long document. Five access codes are written into a text and asked for at
 * its end. Each question is asked right after the document, without the other questions, and the answer is generated
 * greedily.
 */
import { given, KvError, plural, sealsBetween } from '../../native/index.ts';
import type { GenerateOptions } from '../options/types.ts';
import type { Session } from '../session/session.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { Tokenizer } from '../transformer/types.ts';
import type { CacheMethod } from './methods.ts';

export interface RecallQuestion {
  readonly place: string;
  readonly code: string;
  /** The depth in the document, from 0 to 1. */
  readonly depth: number;
}

export interface RecallDocument {
  /** The token ids of the document, exactly as many as were requested. */
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
/** The number of digits of a code. */
const CODE_DIGITS = 5;

/** mulberry32, a small generator of random numbers from a seed. Only documents are made with it. */
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

/**
 * The code is stated three times. A model of 135 million parameters then answers most questions with the exact cache,
 * so losses can be seen.
 */
export const statement = ({ place, code }: Pick<RecallQuestion, 'place' | 'code'>): string =>
  `\n\nThe access code of ${place} is ${code}. Remember it: the access code of ${place} is ${code}. Once more: the access code of ${place} is ${code}.\n\n`;
export const questionText = (place: string): string => `\n\nThe access code of ${place} is`;

/**
 * Makes a document of exactly `tokenCount` tokens from `filler`, with one code after the end of a sentence at each of
 * the depths.
 */
export function recallDocument(
  tokenizer: Tokenizer,
  filler: string,
  tokenCount: number,
  seed: number,
  depths: readonly number[] = DEPTHS,
): RecallDocument {
  const random = seeded(seed);
  const places = [...PLACES].map((place) => ({ place, order: random() })).sort((a, b) => a.order - b.order);
  const questions = depths.map((depth, i): RecallQuestion => {
    const code = Array.from({ length: CODE_DIGITS }, () => Math.floor(random() * 10)).join('');
    return { place: places[i]!.place, code, depth };
  });
  const statements = questions.map((question) => tokenizer.encode(statement(question)));
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const room = tokenCount - head.length - statements.reduce((sum, ids) => sum + ids.length, 0);
  const body = tokenizer.encode(filler);
  if (body.length < room) {
    throw new KvError(
      'bad-argument',
      `the text has ${plural(body.length, 'token')}, but a document of ${tokenCount} needs ${room}`,
      {
        values: { tokens: body.length, needed: room },
        hint: 'give a longer text or a shorter window',
      },
    );
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

/** The first position from `from` on at which a sentence has ended, or `from` itself if there is none soon. */
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
  /** The tokens of the question and the answer as the session read them. */
  readonly tokens: readonly number[];
  /** The number of tokens of the answer and the time to generate them, without reading the question. */
  readonly written: { readonly tokens: number; readonly ms: number };
}

/** The most tokens of an answer. */
export const ANSWER_TOKENS = 12;

/**
 * Asks one question at the end of the document and then takes question and answer back, so that the next question finds
 * the same cache. `onAnswered` is called before they are taken back. Throws KvError 'aborted'.
 */
export async function ask(
  session: Session,
  question: RecallQuestion,
  signal?: AbortSignal,
  onText?: (text: string) => void,
  onAnswered?: (tokens: readonly number[]) => void,
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
  onAnswered?.(tokens);
  session.rewind(before);
  return {
    question,
    answer: text.trim(),
    recalled: text.replaceAll(/[\s,]/g, '').includes(question.code),
    tokens,
    written: { tokens: count, ms: count === 0 ? 0 : (1000 * count) / tokensPerSecond },
  };
}

/** What is asked of a method that no session has. */
export interface MethodQuestion {
  readonly runtime: Runtime;
  /** Token ids of the document. */
  readonly document: readonly number[];
  readonly question: RecallQuestion;
  readonly signal?: AbortSignal | undefined;
}

/**
 * True if a greedy answer would begin with the code: whether each of its tokens is the most likely one behind those
 * before it. A method does not know the question when it reads the document.
 */
export async function recalledBy(
  method: CacheMethod,
  { runtime, document, question: { place, code }, signal }: MethodQuestion,
): Promise<boolean> {
  const { tokenizer, config } = runtime.model;
  const asked = tokenizer.encode(questionText(place));
  const answered = tokenizer.encode(`${questionText(place)} ${code}`);
  const { hidden } = await method(runtime, { ids: [...document, ...answered], scored: answered.length, signal });
  const answer = answered.slice(asked.length);
  const from = (asked.length - 1) * config.hiddenSize;
  const rows = hidden.slice(from, from + answer.length * config.hiddenSize);
  const logits = await runtime.dense.logits(rows, answer.length);
  return answer.every((id, at) => {
    const row = logits.subarray(at * config.vocabSize, (at + 1) * config.vocabSize);
    return row.every((one) => one <= row[id]!);
  });
}

/** The most tokens of a question and its answer together. */
export function questionTokens(tokenizer: Tokenizer): number {
  return Math.max(...PLACES.map((place) => tokenizer.encode(questionText(place)).length)) + ANSWER_TOKENS;
}

/**
 * The longest document of at most `tokens` tokens after which a question and its answer fit into the open page, so that
 * they can be taken back.
 */
export function documentLength(tokenizer: Tokenizer, tokens: number): number {
  const asked = questionTokens(tokenizer);
  let length = tokens;
  while (length > 0 && sealsBetween(length, asked) > 0) length--;
  return length;
}
