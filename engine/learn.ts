/** What a session starts with and what it leaves behind. Both are in the log; the book is only an index over it. */
import {
  experienceOf,
  type Fingerprint,
  fingerprint,
  type Lookup,
  loadThresholdFile,
  type Measurements,
  type ThresholdBook,
} from '../memory/index.ts';
import { defaultThresholds, type ThresholdSet } from '../policy/index.ts';
import { readEntry } from '../witness/index.ts';
import { f16CacheBytes, parseBudget } from './budget.ts';
import type { Runtime } from './runtime.ts';
import type { Session } from './session.ts';
import type { SessionOptions } from './types.ts';

/** Fingerprint of a session as far as it is known: length and pressure at its start, all of it at its end. */
export function sessionFingerprint(
  runtime: Runtime,
  tokens: number,
  budgetBytes: number | null,
  measured: Partial<Measurements> = {},
): Fingerprint {
  const { shape } = runtime;
  const f16 = f16CacheBytes(shape, tokens);
  return fingerprint({
    ...shape,
    tokens: Math.max(1, tokens),
    pressure: budgetBytes === null || f16 === 0 ? null : Math.min(1, budgetBytes / f16),
    ...measured,
  });
}

/** Start values: a threshold file when one is named, else what the nearest earlier sessions say, else the defaults. */
export async function startValues(
  runtime: Runtime,
  book: ThresholdBook | null,
  options: SessionOptions,
): Promise<{ thresholds: ThresholdSet; lookup: Lookup | null; fingerprint: Fingerprint }> {
  const { model, shape } = runtime;
  const tokens = options.tokensExpected ?? model.config.contextLength;
  const budgetBytes =
    options.kvBudget === undefined ? null : parseBudget(options.kvBudget, f16CacheBytes(shape, tokens));
  const print = sessionFingerprint(runtime, tokens, budgetBytes);
  if (options.thresholdsPath !== undefined) {
    return {
      thresholds: await loadThresholdFile(options.thresholdsPath, { modelDigest: model.digest, shape }),
      lookup: null,
      fingerprint: print,
    };
  }
  const defaults = defaultThresholds(shape.layers);
  if (book === null) return { thresholds: defaults, lookup: null, fingerprint: print };
  const lookup = await book.lookup({
    modelDigest: model.digest,
    family: model.config.architecture,
    fingerprint: print,
    layers: shape.layers,
    defaults,
  });
  return { thresholds: lookup.thresholds, lookup, fingerprint: print };
}

/** Writes the 'close' entry and, once it is on disk, the experience. Sessions that logged nothing leave nothing. */
export async function closeSession(
  session: Session,
  book: ThresholdBook | null,
  reason: 'done' | 'aborted' | 'error',
  meanKld: number | null,
): Promise<void> {
  const { log, thresholds } = session.setup;
  if (log === null || !session.logged) return;
  const report = session.report();
  const seq = log.append(session.id, 'close', {
    tokens: report.tokens,
    kvBytes: report.kvBytes,
    kvBytesF16: report.kvBytesF16,
    effectiveBits: report.effectiveBits,
    decisions: report.decisions,
    refused: report.refusedTrials,
    priceThreshold: report.summary.priceThreshold,
    predictedKld: report.summary.predictedKld,
    meanKld,
    fingerprint: [...sessionFingerprint(session.runtime, report.tokens, report.budgetBytes, session.measured())],
    gains: thresholds.gains,
    c: thresholds.c,
    reason,
  });
  await log.flush();
  if (book === null || seq === null) return;
  const experience = experienceOf(readEntry(log.dir, session.openSeq), readEntry(log.dir, seq));
  if (experience !== null) await book.record(experience);
}

/** `set` with what a session's price ended at as the price to start with; 0 teaches nothing. */
export function withPrice(set: ThresholdSet, price: number): ThresholdSet {
  const start = set.thresholds['price.start'];
  if (start === undefined || price === 0) return set;
  return {
    ...set,
    thresholds: {
      ...set.thresholds,
      'price.start': { ...start, value: price, origin: 'controller', samples: start.samples + 1 },
    },
  };
}
