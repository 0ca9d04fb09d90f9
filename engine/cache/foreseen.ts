/**
 * Whether a session keeps latents where it was left to it: what is known of its end is gathered here, and policy/
 * decides by it.
 */
import {
  type CacheShape,
  forecastMovablePages,
  KvError,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
} from '../../native/index.ts';
import {
  codesLike,
  type Foreseen,
  type Foresight,
  foresee,
  movableBytes,
  type PolicyContext,
  type Threshold,
  type ThresholdSet,
  thresholdOf,
  unitsOf,
  withThreshold,
} from '../../policy/index.ts';
import type { LatentOptions } from '../options/latent-options.ts';
import { latentPageMs } from './latent-time.ts';
import { latentContext, latentsWithin, termsWithLatents } from './latents.ts';
import type { Terms, TermsRequest } from './terms.ts';

/** The latent that is kept where nobody names one: pages may go on from it to lower ones. */
export const FORESEEN_LATENT: LatentName = 'xq4';

/** What a model says of its latents before any of its weights is read. */
export interface LatentModel {
  /** Channels of the inputs of its layers. */
  readonly width: number;
  /** Operations of its dense half for a token. */
  readonly denseOperations: number;
  /** All that keeping them needs. */
  readonly options: (format: LatentName) => LatentOptions;
}

/** How long earlier sessions of a model became. */
export interface KnownLengths {
  /** Median of their tokens. */
  readonly tokens: number;
  readonly sessions: number;
}

/** What a session is opened with, and why it keeps latents or none. */
export interface Planned {
  readonly terms: Terms;
  readonly latents: LatentOptions | undefined;
  readonly foresight: Foresight;
}

/** True if a session with these terms is one whose latents can be foreseen. */
export const isForeseeable = ({ policy, exact, budgetBytes, kldBudget, context }: Terms): boolean =>
  policy.holdsLatents === true &&
  !exact &&
  budgetBytes !== null &&
  kldBudget === null &&
  latentsWithin(FORESEEN_LATENT, context.floor).length > 0;

/**
 * Plans a session whose terms without latents are `terms`. Only where all else speaks for latents are weights read and
 * the time of a page measured.
 */
export function plannedLatents(
  shape: CacheShape,
  terms: Terms,
  {
    request,
    thresholds,
    model,
    lengths,
    threads,
  }: {
    readonly request: TermsRequest;
    readonly thresholds: ThresholdSet;
    readonly model: LatentModel;
    /** Where nobody says how long it gets. */
    readonly lengths: KnownLengths | undefined;
    readonly threads: number | undefined;
  },
): Planned {
  const set = terms.context.thresholds;
  const { stepLatencyBudgetMs } = terms;
  const seen = seenOf(shape, terms, model, lengths);
  // A time of 0 leaves the question of time open.
  const isWorth = foresee({ ...seen, pageMs: 0 }, set).kept !== null;
  if (!isWorth) return { terms, latents: undefined, foresight: foresee(seen, set) };
  const latents = model.options(FORESEEN_LATENT);
  const within = (tokensExpected: number | null): Terms =>
    termsWithLatents(shape, { ...request, tokensExpected: tokensExpected ?? undefined }, thresholds, latents);
  const leastShare = leastShareOf(terms, () => within(seen.tokens));
  const pageMs = leastShare > 1 || stepLatencyBudgetMs === null ? null : latentPageMs(shape, latents, threads);
  const foresight = foresee({ ...seen, leastShare, pageMs }, set);
  if (foresight.kept === null) return { terms, latents: undefined, foresight };
  return { terms: bounded(within(terms.tokensExpected), foresight), latents, foresight };
}

/** Of the budget only what pages may have at the end counts: open pages, sinks and the window are left out. */
function seenOf(
  shape: CacheShape,
  { context, budgetBytes, tokensExpected, stepLatencyBudgetMs }: Terms,
  { width, denseOperations }: LatentModel,
  lengths: KnownLengths | undefined,
): Foreseen {
  const tokens = tokensExpected ?? lengths?.tokens ?? null;
  const movable = tokens === null ? 0 : forecastMovablePages(tokens, context.windowTokens);
  const beside = latentContext(context, shape, { width, denseOperations, names: LATENT_NAMES, kept: FORESEEN_LATENT });
  const roomOf = (one: PolicyContext): number => Math.max(0, movableBytes(one, budgetBytes ?? 0, movable));
  return {
    tokens,
    sessions: tokensExpected === null ? (lengths?.sessions ?? 0) : 0,
    pages: unitsOf(context, movable).length,
    roomBytes: roomOf(context),
    roomBesideBytes: roomOf(beside),
    format: FORESEEN_LATENT,
    latentBytes: latentBytes(FORESEEN_LATENT, width),
    codeBytes: 2 * context.pageBytes[codesLike(FORESEEN_LATENT)],
    leastShare: 0,
    operations: beside.latents?.operations ?? 0,
    pageMs: null,
    stepLatencyBudgetMs,
  };
}

/** The share of the budget that terms need at least where it is more than all of it; 0 where it is not. */
function leastShareOf({ budgetBytes }: Terms, make: () => Terms): number {
  try {
    make();
    return 0;
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'budget-too-small') throw error;
    return Number(error.values.neededBytes) / Math.max(1, budgetBytes ?? 0);
  }
}

/** The same, with no more operations for latents than were foreseen. */
function bounded(terms: Terms, { operations }: Foresight): Terms {
  const { context } = terms;
  const set = context.thresholds;
  const threshold: Threshold = {
    ...thresholdOf(set, 'latent.operations'),
    value: operations,
    origin: 'controller',
    source: 'foreseen where the session began',
  };
  return {
    ...terms,
    context: { ...context, thresholds: withThreshold(set, threshold) },
  };
}
