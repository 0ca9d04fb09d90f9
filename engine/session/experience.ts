/**
 * What a conversation starts with and what it leaves behind. Both are in the log; the book is only an index over it.
 */
import {
  adaptedDigest,
  believed,
  type Fingerprint,
  type Lookup,
  loadThresholdFile,
  type ThresholdBook,
} from '../../memory/index.ts';
import { type CacheShape, given } from '../../native/index.ts';
import { defaultThresholds, type ThresholdSet } from '../../policy/index.ts';
import { readEntry, type WitnessLog } from '../../witness/index.ts';
import type { AppliedAdapter } from '../adapters/adapters.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import { fingerprintOf, printOf } from '../cache/fingerprint.ts';
import type { KnownLengths } from '../cache/foreseen.ts';
import type { Governed } from '../cache/governed.ts';
import { latentsMayPay } from '../cache/model-latents.ts';
import { formatShares } from '../cache/report.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { withPolicyModule } from '../options/policy-module.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { SessionOptions } from '../options/types.ts';
import { shippedThresholds } from '../state/shipped-laws.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { LoadedModel } from '../transformer/types.ts';
import type { Beginnings } from './known-prefix.ts';
import type { SessionSetup } from './setup.ts';

/** Thresholds to start with, and where they came from. */
export interface StartValues {
  readonly thresholds: ThresholdSet;
  readonly lookup: Lookup | null;
  readonly fingerprint: Fingerprint;
  /** What stands where nothing is known, for later look-ups of the same session. */
  readonly defaults?: ThresholdSet;
}

/** What is known of a conversation before it begins. */
export interface Beginning {
  readonly shape: CacheShape;
  readonly modelDigest: string;
  /** What is added to what it answers. Default: nothing. */
  readonly adapters?: readonly AppliedAdapter[] | undefined;
  /** The kernel pack that it has pages in, as decisions name it. Default: none. */
  readonly pack?: string | undefined;
  /** Architecture of the model: its relatives count as evidence, for less. */
  readonly family: string;
  readonly tokens: number;
  readonly budgetBytes: number | null;
  /** Named by the caller: the object, or else a file of it. */
  readonly thresholds?: ThresholdSet | undefined;
  readonly thresholdsPath?: string | undefined;
}

/**
 * Start values: thresholds or a threshold file when the caller names one, else what the nearest earlier sessions say,
 * else what comes with the package for this model, else the defaults.
 */
export async function startValues(begin: Beginning, book: ThresholdBook | null): Promise<StartValues> {
  const { shape, modelDigest, family, tokens, budgetBytes, thresholdsPath, pack } = begin;
  const print = printOf(shape, tokens, budgetBytes);
  if (begin.thresholds !== undefined) return { thresholds: begin.thresholds, lookup: null, fingerprint: print };
  if (thresholdsPath !== undefined)
    return {
      thresholds: withBelief(await loadThresholdFile(thresholdsPath, { modelDigest, shape, pack })),
      lookup: null,
      fingerprint: print,
    };
  const shipped = shippedThresholds(modelDigest);
  const defaults = shipped ?? defaultThresholds(shape.layers);
  if (book === null) return { thresholds: defaults, lookup: null, fingerprint: print };
  const asked = { ...askedOf(begin), family, fingerprint: print, layers: shape.layers, defaults };
  const lookup = await book.lookup(asked);
  return { thresholds: withBelief(lookup.thresholds), lookup, fingerprint: print, defaults };
}

/** Whose sessions are asked: those with the same adapters and the same pack, then those without. */
const askedOf = ({ modelDigest, adapters = [], pack }: Pick<Beginning, 'modelDigest' | 'adapters' | 'pack'>) => ({
  ...given({ pack }),
  ...(adapters.length === 0
    ? { modelDigest }
    : { modelDigest: adaptedDigest(modelDigest, adapters), plainDigest: modelDigest }),
});

/** What others say of errors is taken for as much as is believed of it. */
const withBelief = ({ course, ...set }: ThresholdSet): ThresholdSet =>
  course === undefined ? set : { ...set, course: believed(course) };

/**
 * What a session of a runtime is opened with: what its caller asks for, and what `state` remembers of earlier ones.
 * Where `log` is null nothing is written. beside: what its caller's adapters and pack are in the engine. Throws what
 * loading the module of a policy throws.
 */
export async function setupOf(
  { model, shape, resting }: Runtime,
  options: SessionOptions,
  state: {
    readonly book: ThresholdBook | null;
    readonly log: WitnessLog | null;
    readonly prefixKey?: Uint8Array;
  } | null,
  beside: Pick<Beginning, 'adapters' | 'pack'> = {},
): Promise<SessionSetup> {
  const { config, digest } = model;
  const ready = await withPolicyModule(options, resting);
  const { tokensExpected: tokens = config.contextLength, kvBudget, thresholds, thresholdsPath } = options;
  const budgetBytes = kvBudget === undefined ? null : parseBudget(kvBudget, f16CacheBytes(shape, tokens));
  const start = await startValues(
    {
      ...{ shape, modelDigest: digest, ...beside, family: config.architecture },
      ...{ tokens, budgetBytes, thresholds, thresholdsPath },
    },
    state?.book ?? null,
  );
  const book = state?.book;
  const lengths = await lengthsOf({ config, digest }, options, start.fingerprint, book ?? null);
  // What the caller has given stands as it is.
  const asks = book != null && thresholds === undefined && thresholdsPath === undefined;
  const query = { ...askedOf({ modelDigest: digest, ...beside }), family: config.architecture, layers: shape.layers };
  const defaults = start.defaults === undefined ? {} : { defaults: start.defaults };
  const recall: SessionSetup['recall'] = (fingerprint, hint) =>
    book!.lookup({ ...query, ...defaults, fingerprint, hint });
  const ask: Beginnings['ask'] = (asked) =>
    book!.lookupPrefix({ modelDigest: query.modelDigest, layers: shape.layers, ...asked });
  return {
    ...ready,
    ...start,
    ...given({ lengths }),
    ...(asks ? { recall } : {}),
    ...(state?.prefixKey === undefined ? {} : { beginnings: { key: state.prefixKey, ...(asks ? { ask } : {}) } }),
    log: options.witness === false ? null : (state?.log ?? null),
  };
}

/** How many sessions are asked for their length, and how many must say it. */
const LENGTHS_MOST = 64;
const LENGTHS_LEAST = 3;

/**
 * How long earlier sessions of the model became. Asked only where nobody says how long this one gets, and where it
 * matters: to foresee whether latents pay.
 */
async function lengthsOf(
  { config, digest }: Pick<LoadedModel, 'config' | 'digest'>,
  { tokensExpected, kvBudget, latents = SESSION_OPTIONS.latents.default }: SessionOptions,
  fingerprint: Fingerprint,
  book: ThresholdBook | null,
): Promise<KnownLengths | undefined> {
  if (tokensExpected !== undefined || kvBudget === undefined || latents !== 'auto') return undefined;
  if (book === null || !latentsMayPay(config)) return undefined;
  const same = { must: [{ field: 'modelDigest', equals: digest }] } as const;
  const near = await book.nearestSessions(fingerprint, LENGTHS_MOST, same);
  const lengths = near.map(({ payload }) => payload.tokens).filter((tokens) => tokens > 0);
  lengths.sort((a, b) => a - b);
  const median = lengths[Math.floor(lengths.length / 2)];
  return lengths.length < LENGTHS_LEAST ? undefined : { tokens: median!, sessions: lengths.length };
}

/**
 * Writes the 'close' entry and, once it is on disk, tells the book. A session that logged nothing leaves nothing
 * behind.
 */
export async function leave(
  cache: Governed,
  book: ThresholdBook | null,
  reason: 'done' | 'aborted' | 'error',
): Promise<void> {
  const { log, meter, openSeq, shape, tally, summary, length: tokens } = cache;
  meter.ended.add({ end: reason });
  if (cache.learnt.meanKld !== null) meter.kld.observe(cache.learnt.meanKld);
  if (log === null || openSeq < 0) return;
  const { gains, c } = cache.terms.context.thresholds;
  const text = summary.text?.measured;
  const course = cache.policy.course?.() ?? null;
  const kvBytes = cache.peakBytes;
  const kvBytesF16 = f16CacheBytes(shape, tokens);
  const seq = log.append(cache.id, 'close', {
    tokens,
    kvBytes,
    kvBytesF16,
    effectiveBits: kvBytesF16 === 0 ? 0 : (16 * kvBytes) / kvBytesF16,
    decisions: tally.decisions,
    refused: tally.refused,
    priceThreshold: summary.priceThreshold,
    predictedKld: summary.predictedKld,
    meanKld: cache.learnt.meanKld,
    fingerprint: [...fingerprintOf(cache)],
    gains,
    c,
    ...(text == null ? {} : { text }),
    ...given({ measured: summary.measured }),
    ...(course === null ? {} : { course }),
    ...(cache.costs.length === 0 ? {} : { costs: cache.costs }),
    ...(cache.prefix === null ? {} : { prefix: cache.prefix }),
    ...(cache.hint === null ? {} : { hint: cache.hint }),
    formats: formatShares(cache),
    reason,
  });
  if (book === null || seq === null) return;
  await log.flush();
  await book.record(readEntry(log.dir, openSeq), readEntry(log.dir, seq));
}
