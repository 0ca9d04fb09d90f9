/**
 * Quality of caches against the exact one. Text is read in chunks that end at page boundaries, so the scored tokens (the last
 * of each window) use the quantized history; all caches read the very same tokens. Perplexity, KLD, same-top, recall, bits.
 */
import { type FormatPair, KvError, parsePair } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import type { Runtime } from '../runtime.ts';
import { Session } from '../session.ts';
import type { SessionOptions } from '../types.ts';
import { addDivergence, type DivergenceSums, emptySums, NO_TARGET, toDivergence } from './divergence.ts';
import { ask, documentLength, questionTokens, recallDocument } from './recall.ts';

/** Tokens at the end of each window that are scored. */
export const SCORED_TOKENS = 512;

export interface CacheSpec {
  readonly name: string;
  readonly options: SessionOptions;
}

/** 'exact', 'q8', 'rot4:rot2', 'price@25%', 'uniform@64MiB', 'price@kld:0.02' → session options. */
export function parseCache(text: string): CacheSpec {
  const name = text.trim();
  if (name === 'exact' || name === 'f16') return { name, options: { exact: true } };
  const at = name.indexOf('@');
  if (at < 0) {
    const cacheTypes: FormatPair = parsePair(name);
    return { name, options: { policy: 'fixed', cacheTypes } };
  }
  const policy = name.slice(0, at);
  const budget = name.slice(at + 1);
  if (budget.startsWith('kld:')) {
    const kldBudget = Number(budget.slice(4));
    if (!Number.isFinite(kldBudget) || kldBudget <= 0)
      throw new KvError('bad-argument', `'${budget}' is not a divergence budget`, {
        values: { given: text },
        hint: 'write price@kld:0.02',
      });
    return { name, options: { policy, kldBudget } };
  }
  return { name, options: { policy, kvBudget: budget } };
}

export interface EvaluateText {
  readonly name: string;
  readonly content: string;
}

export interface EvaluateRequest {
  readonly texts: readonly EvaluateText[];
  readonly caches: readonly CacheSpec[];
  readonly tokens: number;
  /** Windows per text, spread evenly over it. */
  readonly windows: number;
  /** Recall documents per text, five questions each. */
  readonly recallDocuments: number;
  readonly seed: number;
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
  readonly predictedKld: number;
  readonly decisions: number;
  readonly refused: number;
  readonly prefillTokensPerSecond: number;
}

interface Tally {
  sums: DivergenceSums;
  kvBytes: number;
  kvBytesF16: number;
  asked: number;
  recalled: number;
  recalledExact: number;
  predictedKld: number;
  decisions: number;
  refused: number;
  readMs: number;
  tokensRead: number;
  windows: number;
}

const emptyTally = (): Tally => ({
  sums: emptySums(),
  kvBytes: 0,
  kvBytesF16: 0,
  asked: 0,
  recalled: 0,
  recalledExact: 0,
  predictedKld: 0,
  decisions: 0,
  refused: 0,
  readMs: 0,
  tokensRead: 0,
  windows: 0,
});

export async function evaluate(runtime: Runtime, request: EvaluateRequest): Promise<EvaluateRow[]> {
  const { config } = runtime.model;
  if (request.tokens > config.contextLength) {
    throw new KvError(
      'context-too-long',
      `windows of ${request.tokens} tokens exceed the context of ${config.contextLength}`,
      { values: { tokens: request.tokens, contextLength: config.contextLength } },
    );
  }
  const rows: EvaluateRow[] = [];
  for (const text of request.texts) {
    const tallies = request.caches.map(emptyTally);
    await scoreWindows(runtime, request, text, tallies);
    await scoreRecall(runtime, request, text, tallies);
    for (const [i, tally] of tallies.entries()) {
      const divergence = toDivergence(tally.sums);
      const row: EvaluateRow = {
        text: text.name,
        cache: request.caches[i]!.name,
        tokens: request.tokens,
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
        predictedKld: tally.windows === 0 ? 0 : tally.predictedKld / tally.windows,
        decisions: tally.decisions,
        refused: tally.refused,
        prefillTokensPerSecond: tally.readMs === 0 ? 0 : (tally.tokensRead * 1000) / tally.readMs,
      };
      rows.push(row);
      request.onRow?.(row);
    }
  }
  return rows;
}

function open(runtime: Runtime, options: SessionOptions, tokensExpected: number): Session {
  return Session.open(runtime, {
    ...options,
    tokensExpected,
    compareTokens: SCORED_TOKENS,
    log: null,
    thresholds: defaultThresholds(runtime.shape.layers),
  });
}

async function scoreWindows(
  runtime: Runtime,
  request: EvaluateRequest,
  text: EvaluateText,
  tallies: Tally[],
): Promise<void> {
  const { tokenizer, config } = runtime.model;
  const ids = tokenizer.encode(text.content);
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const length = request.tokens - head.length;
  if (request.windows > 0 && ids.length < length) {
    throw new KvError('bad-argument', `${text.name} has ${ids.length} tokens, a window needs ${length}`, {
      values: { text: text.name, tokens: ids.length, needed: length },
      hint: 'give a longer text or --tokens',
    });
  }
  for (let window = 0; window < request.windows; window++) {
    const at = Math.floor(((ids.length - length) * (window + 0.5)) / request.windows);
    const tokens = [...head, ...ids.slice(at, at + length)];
    const exact = open(runtime, { exact: true }, tokens.length);
    await exact.read(tokens, request.signal === undefined ? {} : { signal: request.signal });
    const exactRows = exact.hiddenRows();
    exact.close();
    const scored = exactRows.length / config.hiddenSize;
    const targets = Int32Array.from([...tokens.slice(tokens.length - scored + 1), NO_TARGET]);
    for (const [i, cache] of request.caches.entries()) {
      const session = open(runtime, cache.options, tokens.length);
      const tally = tallies[i]!;
      const start = performance.now();
      await session.read(tokens, request.signal === undefined ? {} : { signal: request.signal });
      tally.readMs += performance.now() - start;
      tally.tokensRead += tokens.length;
      await addDivergence(tally.sums, runtime.dense, exactRows, session.hiddenRows(), targets, config.hiddenSize);
      const report = session.report();
      tally.kvBytes += report.kvBytes;
      tally.kvBytesF16 += report.kvBytesF16;
      tally.predictedKld += report.summary.predictedKld;
      tally.decisions += report.decisions;
      tally.refused += report.refusedTrials;
      tally.windows++;
      session.close();
    }
  }
}

async function scoreRecall(
  runtime: Runtime,
  request: EvaluateRequest,
  text: EvaluateText,
  tallies: Tally[],
): Promise<void> {
  const { tokenizer } = runtime.model;
  const asked = questionTokens(tokenizer);
  const documentTokens = documentLength(tokenizer, request.tokens - asked);
  for (let index = 0; index < request.recallDocuments; index++) {
    // Every document begins elsewhere in the text, so that no two share their filler.
    const from = Math.floor((text.content.length * index) / (request.recallDocuments + 1));
    const filler = text.content.slice(from) + text.content.slice(0, from);
    const document = recallDocument(tokenizer, filler, documentTokens, request.seed * 1000 + index);
    const count = async (options: SessionOptions): Promise<number> => {
      const session = open(runtime, options, documentTokens + asked);
      try {
        await session.read(document.tokens, request.signal === undefined ? {} : { signal: request.signal });
        let recalled = 0;
        for (const question of document.questions) if ((await ask(session, question)).recalled) recalled++;
        return recalled;
      } finally {
        session.close();
      }
    };
    const recalledExact = await count({ exact: true });
    for (const [i, cache] of request.caches.entries()) {
      const tally = tallies[i]!;
      tally.asked += document.questions.length;
      tally.recalledExact += recalledExact;
      tally.recalled += cache.options.exact === true ? recalledExact : await count(cache.options);
    }
  }
}
