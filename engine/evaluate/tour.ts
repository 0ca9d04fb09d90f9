/**
 * The main demonstration: it reads a long document within a budget, asks questions about it, does the same with the
 * exact cache, and compares the two. It is one function that runs in the model's thread and reports everything that is
 * to be shown as events.
 */

import { joined } from '../../native/index.ts';
import type { SessionReport } from '../cache/types.ts';
import type { Progress } from '../options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../session/divergence.ts';
import { Session } from '../session/session.ts';
import type { SessionSetup } from '../session/setup.ts';
import type { Divergence } from '../session/types.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import {
  ask,
  documentLength,
  questionTokens,
  type RecallAnswer,
  type RecallQuestion,
  recallDocument,
} from './recall.ts';

/** The number of tokens before the questions whose predictions are compared. */
export const COMPARED_TOKENS = 512;

export interface TourOptions {
  readonly filler: string;
  readonly documentTokens: number;
  readonly seed: number;
}

export type TourEvent =
  | { readonly kind: 'document'; readonly tokens: number; readonly questions: readonly RecallQuestion[] }
  | { readonly kind: 'progress'; readonly run: 'ours' | 'exact'; readonly progress: Progress }
  | { readonly kind: 'question'; readonly run: 'ours' | 'exact'; readonly question: RecallQuestion }
  | { readonly kind: 'text'; readonly run: 'ours' | 'exact'; readonly text: string }
  | { readonly kind: 'answer'; readonly run: 'ours' | 'exact'; readonly answer: RecallAnswer };

export interface TourResult {
  readonly report: SessionReport;
  readonly exactReport: SessionReport;
  readonly answers: readonly RecallAnswer[];
  readonly answersExact: readonly RecallAnswer[];
  readonly divergence: Divergence;
  readonly documentTokens: number;
  readonly prefillTokensPerSecond: number;
  readonly prefillTokensPerSecondExact: number;
  readonly tokensPerSecond: number;
  readonly tokensPerSecondExact: number;
}

/** Tokens of the document and of one question with its answer: the length that a tour's caches are going to have. */
export function tourTokens({ model }: Runtime, { documentTokens }: TourOptions): number {
  const { tokenizer, config } = model;
  const asked = questionTokens(tokenizer);
  return documentLength(tokenizer, Math.min(documentTokens, config.contextLength - asked)) + asked;
}

type RunName = 'ours' | 'exact';

/** One of the two runs of a tour over the same document. */
class TourRun {
  readonly session: Session;
  readonly #name: RunName;
  readonly #emit: (event: TourEvent) => void;
  readonly #signal: AbortSignal;
  /**
   * What is compared: rows of the end of the document, and of each question with its answer before these are taken
   * back.
   */
  readonly #rows: Float32Array[] = [];

  constructor(session: Session, name: RunName, emit: (event: TourEvent) => void, signal: AbortSignal) {
    this.session = session;
    this.#name = name;
    this.#emit = emit;
    this.#signal = signal;
  }

  /** Reads the document and leaves room for a question. → tokens a second */
  async read(tokens: readonly number[], reserve: number): Promise<number> {
    const { session } = this;
    const start = performance.now();
    await session.read(tokens, {
      signal: this.#signal,
      reserve,
      onProgress: (progress) => this.#emit({ kind: 'progress', run: this.#name, progress }),
    });
    const tokensPerSecond = (tokens.length * 1000) / (performance.now() - start);
    this.keep(COMPARED_TOKENS);
    return tokensPerSecond;
  }

  keep(count: number): void {
    const { hiddenSize } = this.session.runtime.model.config;
    this.#rows.push(lastRows(this.session.hiddenRows(), count, hiddenSize));
  }

  get rows(): Float32Array {
    return joined(this.#rows);
  }

  /** Asks each question behind the document. `keeps`: what is read and answered is compared. */
  async answers(questions: readonly RecallQuestion[], keeps: boolean): Promise<RecallAnswer[]> {
    const answers: RecallAnswer[] = [];
    for (const question of questions) {
      this.#emit({ kind: 'question', run: this.#name, question });
      const onText = (text: string): void => this.#emit({ kind: 'text', run: this.#name, text });
      const answer = await ask(this.session, question, this.#signal, onText, (tokens) => {
        if (keeps) this.keep(tokens.length);
      });
      this.#emit({ kind: 'answer', run: this.#name, answer });
      answers.push(answer);
    }
    return answers;
  }

  /** Reads answers of another run, so that both can be compared token for token. */
  async readAnswers(answers: readonly RecallAnswer[], documentTokens: number): Promise<void> {
    for (const { tokens } of answers) {
      await this.session.read(tokens, { signal: this.#signal });
      this.keep(tokens.length);
      this.session.rewind(documentTokens);
    }
  }
}

export async function tour(
  runtime: Runtime,
  setup: SessionSetup,
  options: TourOptions,
  emit: (event: TourEvent) => void,
  signal: AbortSignal,
  onSession: (session: Session) => void,
): Promise<TourResult> {
  const { tokenizer, config } = runtime.model;
  const asked = questionTokens(tokenizer);
  const documentTokens = tourTokens(runtime, options) - asked;
  const document = recallDocument(tokenizer, options.filler, documentTokens, options.seed);
  emit({ kind: 'document', tokens: documentTokens, questions: document.questions });

  const compareTokens = Math.max(COMPARED_TOKENS, asked);
  const session = Session.open(runtime, { ...setup, tokensExpected: documentTokens + asked, compareTokens });
  onSession(session);
  const exactSession = Session.open(runtime, { ...setup, exact: true, witness: false, compareTokens });
  const ours = new TourRun(session, 'ours', emit, signal);
  const exact = new TourRun(exactSession, 'exact', emit, signal);
  try {
    const prefillTokensPerSecond = await ours.read(document.tokens, asked);
    const answers = await ours.answers(document.questions, true);
    const prefillTokensPerSecondExact = await exact.read(document.tokens, asked);
    await exact.readAnswers(answers, documentTokens);
    const answersExact = await exact.answers(document.questions, false);
    const sums = emptySums();
    const end = document.tokens.slice(documentTokens - COMPARED_TOKENS);
    const targets = targetsOf([end, ...answers.map(({ tokens }) => tokens)]);
    await addDivergence(sums, runtime.dense, exact.rows, ours.rows, targets, config.hiddenSize);
    return {
      report: session.report(),
      exactReport: exactSession.report(),
      answers,
      answersExact,
      divergence: toDivergence(sums),
      documentTokens,
      prefillTokensPerSecond,
      prefillTokensPerSecondExact,
      tokensPerSecond: writingSpeed(answers),
      tokensPerSecondExact: writingSpeed(answersExact),
    };
  } finally {
    exactSession.close();
  }
}

/** The token that follows each, and none behind the last of a piece. */
function targetsOf(pieces: readonly (readonly number[])[]): Int32Array {
  return Int32Array.from(pieces.flatMap((tokens) => [...tokens.slice(1), NO_TARGET]));
}

/** The speed of generation, in tokens per second over all answers. */
export function writingSpeed(answers: readonly RecallAnswer[]): number {
  const ms = answers.reduce((sum, { written }) => sum + written.ms, 0);
  return ms === 0 ? 0 : (1000 * answers.reduce((sum, { written }) => sum + written.tokens, 0)) / ms;
}

export function lastRows(rows: Float32Array, count: number, width: number): Float32Array {
  return rows.slice(Math.max(0, rows.length - count * width));
}
