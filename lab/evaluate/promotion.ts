/**
 * `npm run evaluate -- promotion`: what pages that come back for an answer are worth. Documents with five codes; each
 * question is read, and how likely its code is behind it is compared, question by question, with the cache as it is.
 * Every number of pages has a session of its own, because what it takes others pay for.
 */

import { f16CacheBytes } from '../../engine/cache/budget.ts';
import { RESERVE_SHARE, reserveFor } from '../../engine/cache/promoted.ts';
import { parseCache } from '../../engine/evaluate/evaluate.ts';
import { DEPTHS, questionText, questionTokens } from '../../engine/evaluate/recall.ts';
import { parseBudget } from '../../engine/options/parse-budget.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { table } from '../../native/index.ts';
import { documentWithKeys } from './frontier.ts';

export const PROMOTED_PAGES: readonly number[] = [0, 2, 4, 8, 16];

interface PromotionRequest {
  readonly runtime: Runtime;
  readonly caches: readonly string[];
  readonly contexts: readonly number[];
  readonly kinds: readonly string[];
  /** Seeds of the documents. */
  readonly documents: readonly number[];
  /** Pages of each layer that come back. */
  readonly pages: readonly number[];
  /** What stays free for them is given beside the budget, so that all other pages are as they are without. */
  readonly isBeside: boolean;
  readonly say: (line: string) => void;
}

/** One way to keep the cache, over all questions. */
interface Measured {
  readonly name: string;
  /** Nats of each code. */
  readonly nats: number[];
  /** Page sides that came back for each question, and what the cache took at most. */
  readonly sides: number[];
  peakShare: number;
}

/** → a table for each cache and context */
export async function promotion(request: PromotionRequest): Promise<string> {
  const tables: string[] = [];
  for (const cache of request.caches)
    for (const context of request.contexts) tables.push(await measured(request, cache, context));
  return tables.join('\n');
}

async function measured(request: PromotionRequest, cache: string, context: number): Promise<string> {
  const { options } = parseCache(cache);
  const ways: [Measured, SessionOptions][] = [
    [{ name: 'exact', nats: [], sides: [], peakShare: 0 }, { exact: true }],
    ...request.pages.map((promote): [Measured, SessionOptions] => [
      { name: promote === 0 ? 'as it is' : `${promote} pages`, nats: [], sides: [], peakShare: 0 },
      { ...options, originals: 'memory', promote },
    ]),
  ];
  for (const seed of request.documents)
    for (const [into, asked] of ways) {
      await ask(request, context, seed, asked, into);
      const last = into.nats.slice(-DEPTHS.length);
      request.say(`${cache} ${context} document ${seed} ${into.name}: ${last.map((one) => one.toFixed(2)).join(' ')}`);
    }
  const base = ways.find(([{ name }]) => name === 'as it is')?.[0] ?? ways[0]![0];
  const title = `${request.runtime.model.name}, ${cache}, ${context} tokens, ${base.nats.length} questions`;
  return `${title}\n${table(
    COLUMNS,
    ways.map(([way]) => ({ way, base })),
  )}\n`;
}

async function ask(
  { runtime, kinds, isBeside }: PromotionRequest,
  context: number,
  seed: number,
  asked: SessionOptions,
  into: Measured,
): Promise<void> {
  const { tokenizer } = runtime.model;
  const { tokens, questions } = documentWithKeys(tokenizer, kinds, context, seed, DEPTHS);
  const tokensExpected = tokens.length + questionTokens(tokenizer);
  const options = { ...asked, tokensExpected, ...(isBeside ? beside(runtime, asked, tokensExpected) : {}) };
  const session = Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
  try {
    await session.read(tokens);
    for (const { place, code } of questions) {
      const question = tokenizer.encode(questionText(place));
      const whole = tokenizer.encode(`${questionText(place)} ${code}`);
      const before = session.report().originals?.sidesPromoted ?? 0;
      into.nats.push(await session.likelihood(question, whole.slice(question.length)));
      into.sides.push((session.report().originals?.sidesPromoted ?? 0) - before);
      session.rewind(tokens.length);
    }
    const { kvBytes, kvBytesF16 } = session.report();
    into.peakShare = Math.max(into.peakShare, kvBytes / kvBytesF16);
  } finally {
    session.close();
  }
}

/** A budget of which so much stays free for promotions that what is left is the one that was asked for. */
function beside({ shape }: Runtime, { kvBudget, promote = 0 }: SessionOptions, tokens: number): SessionOptions {
  if (kvBudget === undefined || promote === 0) return {};
  const bytes = parseBudget(kvBudget, f16CacheBytes(shape, tokens));
  const whole = reserveFor(promote, shape, Number.MAX_SAFE_INTEGER);
  const most = Math.ceil(bytes / (1 - RESERVE_SHARE));
  return { kvBudget: Math.min(bytes + whole, most) };
}

interface Row {
  readonly way: Measured;
  readonly base: Measured;
}

const mean = (numbers: readonly number[]): number =>
  numbers.reduce((sum, one) => sum + one, 0) / Math.max(1, numbers.length);

/** The standard error of a mean. */
function standardError(numbers: readonly number[]): number {
  const middle = mean(numbers);
  const squares = numbers.reduce((sum, one) => sum + (one - middle) ** 2, 0);
  return Math.sqrt(squares / Math.max(1, numbers.length - 1) / Math.max(1, numbers.length));
}

const COLUMNS = [
  { title: 'cache', value: ({ way }: Row) => way.name },
  { title: 'nats of a code', value: ({ way }: Row) => mean(way.nats).toFixed(2) },
  {
    title: 'more than as it is',
    value: ({ way, base }: Row) => {
      const more = way.nats.map((nats, i) => nats - base.nats[i]!);
      return way === base ? '' : `${mean(more).toFixed(2)} ± ${standardError(more).toFixed(2)}`;
    },
  },
  { title: 'sides that came back', value: ({ way }: Row) => mean(way.sides).toFixed(0) },
  { title: 'peak of f16', value: ({ way }: Row) => `${(100 * way.peakShare).toFixed(1)}%` },
] as const;
