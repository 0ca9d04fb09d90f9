/**
 * The main demonstration: it reads a long document within a budget, asks questions about it, does the same with the exact cache, and
 * compares the two. It is one function that runs in the model's thread and reports everything that is to be shown as events.
 */

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
  const ours = Session.open(runtime, { ...setup, tokensExpected: documentTokens + asked, compareTokens });
  onSession(ours);
  const exact = Session.open(runtime, { ...setup, exact: true, witness: false, compareTokens });
  try {
    const read = async (session: Session, name: 'ours' | 'exact'): Promise<number> => {
      const start = performance.now();
      await session.read(document.tokens, {
        signal,
        reserve: asked,
        onProgress: (progress) => emit({ kind: 'progress', run: name, progress }),
      });
      return (documentTokens * 1000) / (performance.now() - start);
    };
    /** What is compared of both runs: rows of the end of the document, and of each question with its answer before these are taken back. */
    const rows = { ours: [] as Float32Array[], exact: [] as Float32Array[] };
    const keep = (session: Session, name: 'ours' | 'exact', count: number): void =>
      void rows[name].push(lastRows(session.hiddenRows(), count, config.hiddenSize));
    const questions = async (session: Session, name: 'ours' | 'exact', keeps: boolean): Promise<RecallAnswer[]> => {
      const answers: RecallAnswer[] = [];
      for (const question of document.questions) {
        emit({ kind: 'question', run: name, question });
        const onText = (text: string): void => emit({ kind: 'text', run: name, text });
        const answer = await ask(session, question, signal, onText, (tokens) => {
          if (keeps) keep(session, name, tokens.length);
        });
        emit({ kind: 'answer', run: name, answer });
        answers.push(answer);
      }
      return answers;
    };
    const oursRead = await read(ours, 'ours');
    keep(ours, 'ours', COMPARED_TOKENS);
    const answers = await questions(ours, 'ours', true);
    const exactRead = await read(exact, 'exact');
    keep(exact, 'exact', COMPARED_TOKENS);

    // The exact cache reads our answers, so that both runs can be compared token for token.
    for (const { tokens } of answers) {
      await exact.read(tokens, { signal });
      keep(exact, 'exact', tokens.length);
      exact.rewind(documentTokens);
    }
    const turns = answers.map(({ tokens }) => tokens);
    const targets = Int32Array.from(
      [document.tokens.slice(documentTokens - COMPARED_TOKENS), ...turns].flatMap((tokens) => [
        ...tokens.slice(1),
        NO_TARGET,
      ]),
    );
    const answersExact = await questions(exact, 'exact', false);
    const sums = emptySums();
    const [exactRows, oursRows] = [joined(rows.exact), joined(rows.ours)];
    await addDivergence(sums, runtime.dense, exactRows, oursRows, targets, config.hiddenSize);
    return {
      report: ours.report(),
      exactReport: exact.report(),
      answers,
      answersExact,
      divergence: toDivergence(sums),
      documentTokens,
      prefillTokensPerSecond: oursRead,
      prefillTokensPerSecondExact: exactRead,
      tokensPerSecond: writingSpeed(answers),
      tokensPerSecondExact: writingSpeed(answersExact),
    };
  } finally {
    exact.close();
  }
}

/** The speed of generation, in tokens per second over all answers. */
export function writingSpeed(answers: readonly RecallAnswer[]): number {
  const ms = answers.reduce((sum, { written }) => sum + written.ms, 0);
  return ms === 0 ? 0 : (1000 * answers.reduce((sum, { written }) => sum + written.tokens, 0)) / ms;
}

function joined(parts: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function lastRows(rows: Float32Array, count: number, width: number): Float32Array {
  return rows.slice(Math.max(0, rows.length - count * width));
}
