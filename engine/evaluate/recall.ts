/**
 * Recall of facts from different depths of a long document: five access codes are written into a text, and asked for at its end.
 * Every question is a turn of one conversation: each run continues with its own answers.
 */
import { KvError } from '../../native/index.ts';
import type { Tokenizer } from '../model/types.ts';
import type { Session } from '../session.ts';

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
const PLACES: readonly string[] = ['harbour', 'library', 'observatory', 'greenhouse', 'archive', 'bakery', 'theatre', 'museum', 'station', 'garden', 'lighthouse', 'market', 'chapel', 'workshop', 'cellar'];
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

export const statement = (question: Pick<RecallQuestion, 'place' | 'code'>): string => ` The access code of the ${question.place} is ${question.code}.`;
export const questionText = (place: string): string => `\n\nQuestion: What is the access code of the ${place}?\nAnswer: The access code of the ${place} is`;

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
    throw new KvError('bad-argument', `the text has ${body.length} tokens, a document of ${tokenCount} needs ${room}`, { values: { tokens: body.length, needed: room }, hint: 'give a longer text or a shorter window' });
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
}

/** Tokens that one question and its answer may take. */
export const ANSWER_TOKENS = 12;

/** Asks one question as the next turn of the session, greedily; the answer stays in its cache, as in a conversation. */
export async function ask(session: Session, question: RecallQuestion, onText?: (text: string) => void): Promise<RecallAnswer> {
  const ids = session.runtime.model.tokenizer.encode(questionText(question.place));
  let answer = '';
  for await (const text of session.generate(ids, { maxTokens: ANSWER_TOKENS, stop: ['.', '\n'] })) {
    answer += text;
    onText?.(text);
  }
  return { question, answer: answer.trim(), recalled: answer.replaceAll(/[\s,]/g, '').includes(question.code) };
}

/** Tokens to plan for the questions and answers of one document. */
export function questionTokens(tokenizer: Tokenizer): number {
  return DEPTHS.length * (tokenizer.encode(questionText('observatory')).length + ANSWER_TOKENS);
}

/** Residual rows of a fork that is made to read `tokens`; needs a session without a byte budget. [tokens, m] */
export async function forcedRows(session: Session, tokens: readonly number[]): Promise<Float32Array> {
  const fork = session.fork(tokens.length);
  try {
    await fork.read(tokens);
    return fork.hiddenRows();
  } finally {
    fork.close();
  }
}
