/**
 * Compares the quality of caches with that of the exact one: perplexity, divergence, same top token, recall and bits.
 * All caches read the same tokens. Text is read in chunks that end at page boundaries, so the scored tokens, the last
 * ones of each window, attend to a quantized history.
 */

import type { ThresholdBook } from '../../memory/index.ts';
import {
  given,
  KvError,
  LATENT_NAMES,
  type LatentName,
  parsePair,
  plural,
  type WindowName,
} from '../../native/index.ts';
import { predictedBy } from '../../policy/index.ts';
import type { SessionOptions } from '../options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../session/divergence.ts';
import { setupOf } from '../session/experience.ts';
import type { ReadOptions } from '../session/prompt.ts';
import { Session } from '../session/session.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { CacheMethod } from './methods.ts';
import { ask, documentLength, questionTokens, type RecallDocument, recallDocument, recalledBy } from './recall.ts';

/** The number of tokens at the end of each window that are scored. */
export const SCORED_TOKENS = 512;

/** A cache that sessions have. */
export interface CacheSpec {
  readonly name: string;
  readonly options: SessionOptions;
}

/** A cache that no session has. */
export interface MethodSpec {
  readonly name: string;
  readonly method: CacheMethod;
}

export type EvaluateCache = CacheSpec | MethodSpec;

/**
 * The session options of a cache such as 'exact', 'q8', 'rot4:rot2', 'price@25%', 'uniform@64MiB', 'price@kld:0.02' or,
 * with the lowest formats allowed, 'price@25%@rot2:rot2', and of one with another window: 'price@25%+f16' has its open
 * page in f16, 'price@25%+64' sealed pages that move after 64 newer tokens, 'price@25%+xq4' pages that may become
 * latents.
 */
export function parseCache(text: string): CacheSpec {
  const [cache, ...window] = text.trim().split('+') as [string, ...string[]];
  const { name, options } = parseBare(cache, text);
  const windowTokens = window.find((part) => /^[0-9]+$/.test(part));
  const latents = window.find((part): part is LatentName => (LATENT_NAMES as readonly string[]).includes(part));
  const openFormat = window.find((part) => part !== windowTokens && part !== latents) as WindowName | undefined;
  const given = {
    ...(openFormat === undefined ? {} : { openFormat }),
    ...(windowTokens === undefined ? {} : { windowTokens: Number(windowTokens) }),
    ...(latents === undefined ? {} : { latents }),
  };
  return { name: [name, ...window].join('+'), options: { ...options, ...given } };
}

function parseBare(cache: string, text: string): CacheSpec {
  const name = cache.trim();
  if (name === 'exact' || name === 'f16') return { name, options: { exact: true } };
  const [policy = '', budget, floor] = name.split('@');
  if (budget === undefined) return { name, options: { policy: 'fixed', cacheTypes: parsePair(name) } };
  const lowest = floor === undefined ? {} : { cacheTypes: parsePair(floor) };
  if (budget.startsWith('kld:')) {
    const kldBudget = Number(budget.slice(4));
    if (!Number.isFinite(kldBudget) || kldBudget <= 0)
      throw new KvError('bad-argument', `'${budget}' is not a divergence budget`, {
        values: { given: text },
        hint: 'write a number after kld:, as in price@kld:0.02',
      });
    return { name, options: { policy, kldBudget, ...lowest } };
  }
  return { name, options: { policy, kvBudget: budget, ...lowest } };
}

export interface EvaluateText {
  readonly name: string;
  readonly content: string;
}

export interface EvaluateRequest {
  readonly texts: readonly EvaluateText[];
  readonly caches: readonly EvaluateCache[];
  readonly tokens: number;
  /** The number of windows of each text. They are spread evenly over it. */
  readonly windows: number;
  /** The number of recall documents for each text, with five questions each. */
  readonly recallDocuments: number;
  readonly seed: number;
  /**
   * What earlier sessions taught: every cache starts from it, as a session of an engine with this state folder would.
   * It is only read.
   */
  readonly book?: ThresholdBook | null;
  readonly signal?: AbortSignal;
  readonly onRow?: (row: EvaluateRow) => void;
}

export interface EvaluateRow {
  readonly text: string;
  readonly cache: string;
  readonly tokens: number;
  readonly windows: number;
  readonly scored: number;
  readonly effectiveBits: number;
  readonly kvBytes: number;
  readonly kvBytesF16: number;
  readonly meanKld: number;
  readonly kld99: number;
  readonly perplexity: number;
  readonly perplexityExact: number;
  readonly sameTop: number;
  readonly asked: number;
  readonly recalled: number;
  readonly recalledExact: number;
  /** Null: the cache tries no pages, and predicts nothing. */
  readonly predictedKld: number | null;
  readonly decisions: number;
  readonly refused: number;
  readonly prefillTokensPerSecond: number;
}

type Tally = ReturnType<typeof emptyTally>;

const emptyTally = () => ({
  sums: emptySums(),
  kvBytes: 0,
  kvBytesF16: 0,
  asked: 0,
  recalled: 0,
  recalledExact: 0,
  predictedKld: null as number | null,
  decisions: 0,
  refused: 0,
  readMs: 0,
  tokensRead: 0,
  windows: 0,
});

/**
 * Scores every cache on every text. A text that is too short, or a budget that cannot be kept, is refused before
 * anything is read. `onRow` receives a row for everything that was measured, even if the work fails or is aborted
 * later.
 */
export async function evaluate(runtime: Runtime, request: EvaluateRequest): Promise<EvaluateRow[]> {
  await checkCaches(runtime, request);
  const windows = request.texts.map((text) => windowsOf(runtime, request, text));
  if (request.recallDocuments > 0) for (const text of request.texts) documentOf(runtime, request, text, 0);
  const rows: EvaluateRow[] = [];
  for (const [at, text] of request.texts.entries()) {
    const tallies = request.caches.map(emptyTally);
    try {
      await scoreWindows(runtime, request, windows[at]!, tallies);
      await scoreRecall(runtime, request, text, tallies);
    } finally {
      for (const [i, tally] of tallies.entries()) {
        if (tally.windows === 0 && tally.asked === 0) continue;
        const row = toRow(text.name, request.caches[i]!.name, request.tokens, tally);
        rows.push(row);
        request.onRow?.(row);
      }
    }
  }
  return rows;
}

function toRow(text: string, cache: string, tokens: number, tally: Tally): EvaluateRow {
  const divergence = toDivergence(tally.sums);
  return {
    text,
    cache,
    tokens,
    windows: tally.windows,
    scored: divergence.tokens,
    effectiveBits: tally.kvBytesF16 === 0 ? 0 : (16 * tally.kvBytes) / tally.kvBytesF16,
    kvBytes: tally.kvBytes,
    kvBytesF16: tally.kvBytesF16,
    meanKld: divergence.meanKld,
    kld99: divergence.kld99,
    perplexity: divergence.perplexity,
    perplexityExact: divergence.perplexityExact,
    sameTop: divergence.sameTop,
    asked: tally.asked,
    recalled: tally.recalled,
    recalledExact: tally.recalledExact,
    predictedKld: tally.predictedKld === null ? null : tally.predictedKld / tally.windows,
    decisions: tally.decisions,
    refused: tally.refused,
    prefillTokensPerSecond: tally.readMs === 0 ? 0 : (tally.tokensRead * 1000) / tally.readMs,
  };
}

/**
 * Throws if the windows are longer than the context of the model, or if a cache cannot be opened for so many tokens.
 */
async function checkCaches(runtime: Runtime, request: EvaluateRequest): Promise<void> {
  const { config, tokenizer } = runtime.model;
  if (request.tokens > config.contextLength) {
    throw new KvError(
      'context-too-long',
      `windows of ${request.tokens} tokens exceed the context of ${config.contextLength}`,
      { values: { tokens: request.tokens, contextLength: config.contextLength } },
    );
  }
  const asked = questionTokens(tokenizer);
  const lengths = [
    ...(request.windows > 0 ? [request.tokens] : []),
    ...(request.recallDocuments > 0 ? [documentLength(tokenizer, request.tokens - asked) + asked] : []),
  ];
  for (const cache of request.caches)
    if ('options' in cache) for (const length of lengths) (await open(runtime, request, cache.options, length)).close();
}

async function open(
  runtime: Runtime,
  { book = null }: EvaluateRequest,
  options: SessionOptions,
  tokensExpected: number,
): Promise<Session> {
  const asked = { ...options, tokensExpected, compareTokens: SCORED_TOKENS };
  return Session.open(runtime, await setupOf(runtime, asked, { book, log: null }));
}

/** The windows of a text, each with BOS if the model uses it. Throws 'bad-argument' if the text is too short. */
function windowsOf(runtime: Runtime, request: EvaluateRequest, text: EvaluateText): number[][] {
  if (request.windows === 0) return [];
  const { tokenizer } = runtime.model;
  const ids = tokenizer.encode(text.content);
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const length = request.tokens - head.length;
  if (ids.length < length) {
    throw new KvError('bad-argument', `${text.name} has ${plural(ids.length, 'token')}, but a window needs ${length}`, {
      values: { text: text.name, tokens: ids.length, needed: length },
      hint: 'give a longer text, or a shorter window with --tokens',
    });
  }
  return Array.from({ length: request.windows }, (_, window) => {
    const at = Math.floor(((ids.length - length) * (window + 0.5)) / request.windows);
    return [...head, ...ids.slice(at, at + length)];
  });
}

const reading = ({ signal }: EvaluateRequest): ReadOptions => given<ReadOptions>({ signal });

/** Opens a session for one piece of work and closes it afterwards, even if the work fails. */
async function using<T>(session: Session, work: (session: Session) => Promise<T>): Promise<T> {
  try {
    return await work(session);
  } finally {
    session.close();
  }
}

async function scoreWindows(
  runtime: Runtime,
  request: EvaluateRequest,
  windows: readonly (readonly number[])[],
  tallies: Tally[],
): Promise<void> {
  const { hiddenSize } = runtime.model.config;
  for (const tokens of windows) {
    const exactRows = await using(await open(runtime, request, { exact: true }, tokens.length), async (exact) => {
      await exact.read(tokens, reading(request));
      return exact.hiddenRows();
    });
    const scored = exactRows.length / hiddenSize;
    const targets = Int32Array.from([...tokens.slice(tokens.length - scored + 1), NO_TARGET]);
    for (const [i, cache] of request.caches.entries()) {
      const tally = tallies[i]!;
      const { rows, predictedKld, ...counted } = await ('method' in cache
        ? readByMethod(runtime, request, cache, tokens)
        : readBySession(runtime, request, cache, tokens));
      for (const [name, count] of Object.entries(counted)) tally[name as keyof typeof counted] += count;
      if (predictedKld !== null) tally.predictedKld = (tally.predictedKld ?? 0) + predictedKld;
      await addDivergence(tally.sums, runtime.dense, exactRows, rows, targets, hiddenSize);
      tally.tokensRead += tokens.length;
      tally.windows++;
    }
  }
}

/** One window as a cache has read it: the rows to compare, and what is added up over windows. */
interface WindowRead
  extends Pick<Tally, 'readMs' | 'kvBytes' | 'kvBytesF16' | 'predictedKld' | 'decisions' | 'refused'> {
  readonly rows: Float32Array;
}

async function readBySession(
  runtime: Runtime,
  request: EvaluateRequest,
  { options }: CacheSpec,
  tokens: readonly number[],
): Promise<WindowRead> {
  return using(await open(runtime, request, options, tokens.length), async (session) => {
    const start = performance.now();
    await session.read(tokens, reading(request));
    const readMs = performance.now() - start;
    const { policy, kvBytes, kvBytesF16, summary, decisions, refusedTrials: refused } = session.report();
    const predictedKld = predictedBy(policy, summary.predictedKld);
    return { rows: session.hiddenRows(), readMs, kvBytes, kvBytesF16, predictedKld, decisions, refused };
  });
}

/** A method decides nothing and predicts nothing. Its bytes are the most that it held, as those of a session are. */
async function readByMethod(
  runtime: Runtime,
  { signal }: EvaluateRequest,
  { method }: MethodSpec,
  ids: readonly number[],
): Promise<WindowRead> {
  const start = performance.now();
  const scored = Math.min(SCORED_TOKENS, ids.length);
  const { hidden, bytes, bytesF16 } = await method(runtime, { ids, scored, signal });
  const readMs = performance.now() - start;
  return { rows: hidden, readMs, kvBytes: bytes, kvBytesF16: bytesF16, predictedKld: null, decisions: 0, refused: 0 };
}

/** Every document begins at another place in the text, so that no two have the same filler. */
function documentOf(runtime: Runtime, request: EvaluateRequest, text: EvaluateText, index: number): RecallDocument {
  const { tokenizer } = runtime.model;
  const from = Math.floor((text.content.length * index) / (request.recallDocuments + 1));
  const filler = text.content.slice(from) + text.content.slice(0, from);
  const length = documentLength(tokenizer, request.tokens - questionTokens(tokenizer));
  return recallDocument(tokenizer, filler, length, (request.seed % 2 ** 32) * 1000 + index);
}

async function scoreRecall(
  runtime: Runtime,
  request: EvaluateRequest,
  text: EvaluateText,
  tallies: Tally[],
): Promise<void> {
  const asked = questionTokens(runtime.model.tokenizer);
  for (let index = 0; index < request.recallDocuments; index++) {
    const document = documentOf(runtime, request, text, index);
    const count = async (options: SessionOptions): Promise<number> =>
      using(await open(runtime, request, options, document.tokens.length + asked), async (session) => {
        await session.read(document.tokens, reading(request));
        let recalled = 0;
        for (const question of document.questions)
          if ((await ask(session, question, request.signal)).recalled) recalled++;
        return recalled;
      });
    const countByMethod = async (method: CacheMethod): Promise<number> => {
      let recalled = 0;
      for (const question of document.questions)
        if (await recalledBy(method, { runtime, document: document.tokens, question, signal: request.signal }))
          recalled++;
      return recalled;
    };
    const recalledExact = await count({ exact: true });
    for (const [i, cache] of request.caches.entries()) {
      const counted = (): Promise<number> => ('method' in cache ? countByMethod(cache.method) : count(cache.options));
      const isExact = 'options' in cache && cache.options.exact === true;
      const recalled = isExact ? recalledExact : await counted();
      const tally = tallies[i]!;
      tally.asked += document.questions.length;
      tally.recalledExact += recalledExact;
      tally.recalled += recalled;
    }
  }
}
