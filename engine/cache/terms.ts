/** Turns what was requested into what is effective: a budget in bytes, a policy, and the context of its decisions. */
import {
  type CacheShape,
  CODED_HEAD_DIMS,
  checkOptions,
  checkServed,
  FORMATS,
  type FormatName,
  type FormatPair,
  isAutomatic,
  KvError,
  LOWEST_FORMATS,
  PAGE_TOKENS,
  parsePair,
  type Side,
  show,
  WINDOW_FORMAT,
  WINDOW_TOKENS,
  type WindowName,
} from '../../native/index.ts';
import {
  checkOwnSizes,
  checkThresholdValue,
  createPolicy,
  type Policy,
  type PolicyContext,
  type ThresholdId,
  type ThresholdSet,
  type TiersOptions,
  thresholdOf,
  tiersAsked,
  usefulPair,
} from '../../policy/index.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { isPolicyModule, type PolicyModule, type PolicyOrigin } from '../options/policy-module.ts';
import { CACHE_OPTIONS, GOVERNING_OPTIONS } from '../options/table.ts';
import type { CacheTypes, GoverningOptions } from '../options/types.ts';
import {
  bytesAt,
  checkBudget,
  checkMemory,
  defaultWindowTokens,
  f16CacheBytes,
  fixedBytes,
  leastBudget,
  OPEN_FORMAT,
  sideBytes,
  type Window,
} from './budget.ts';

/** What is asked of a cache: options that govern it, those that are undefined counting as not given. */
export type TermsRequest = { readonly [Name in keyof GoverningOptions]?: GoverningOptions[Name] | undefined } & {
  readonly policy?: string | Policy | PolicyModule | undefined;
  /** Where a policy of one's own came from, if it is that of a module. */
  readonly policyOrigin?: PolicyOrigin | undefined;
  /** f16 throughout, nothing moves. */
  readonly exact?: boolean;
  /** How far the queries of each layer look back; left out: over all. */
  readonly slidingWindow?: readonly (number | null)[] | undefined;
  /** The budget of all sessions of an engine, which one that asks for nothing else has as well. */
  readonly sharedBudgetBytes?: number | undefined;
};

const ASKED = { ...GOVERNING_OPTIONS, policy: CACHE_OPTIONS.policy };

/** What is effective of what a session was opened with. */
export interface Terms {
  readonly policy: Policy;
  readonly policyOptions: Readonly<Record<string, unknown>>;
  /** The module that the policy came from, if it did from one. */
  readonly policyModule?: Pick<PolicyOrigin, 'sha256' | 'export'>;
  readonly context: PolicyContext;
  readonly budgetBytes: number | null;
  readonly kldBudget: number | null;
  readonly tokensExpected: number | null;
  readonly stepLatencyBudgetMs: number | null;
  /** f16 throughout: nothing is decided. */
  readonly exact: boolean;
  /** Values that take the place of those of thresholds, by id. */
  readonly thresholdValues: Readonly<Record<string, number>>;
  /** Formats that need for bytes brings each layer to; null: its pages are let go. */
  readonly lowest: readonly (FormatPair | null)[];
}

/** What stays as it is of a cache with these terms. */
export function heldWindow({ context }: Terms): Window {
  const { openFormat = 'f16', windowFormat, windowTokens = PAGE_TOKENS, slidingWindow } = context;
  return { openFormat, windowFormat, windowTokens, slidingWindow };
}

/** Throws 'budget-too-small', 'bad-argument' or 'unsupported' before any work. */
export function termsOf(shape: CacheShape, request: TermsRequest, thresholds: ThresholdSet): Terms {
  const asked = askedIn(shape, request);
  return effective(asked, windowOf(asked), thresholds);
}

/** What is asked for, before its bytes are looked at. Throws 'bad-argument' or 'unsupported'. */
export function askedIn(shape: CacheShape, request: TermsRequest): Asked {
  checkRequest(request, shape.layers);
  const types = typesOf(request.cacheTypes);
  const pair = Array.isArray(types) ? undefined : types;
  const tokensExpected = request.tokensExpected ?? null;
  const exact = isExact(shape, request, types);
  const kvBudget = request.kvBudget ?? (asksForNothing(request) ? request.sharedBudgetBytes : undefined);
  const budgetBytes =
    kvBudget === undefined || exact
      ? null
      : parseBudget(kvBudget, tokensExpected === null ? null : f16CacheBytes(shape, tokensExpected));
  const { policy, policyOptions } = policyOf(
    exact ? 'none' : (request.policy ?? unasked(request, types, budgetBytes)),
    types,
    exact ? undefined : request.tiers,
    request.policyOrigin,
  );
  const named = namedPairs(policy, types);
  // Whoever names formats gets those and no others.
  const outlierKeys = (types === undefined && policy.outlierKeys) || [];
  const asked: Asked = {
    ...{ shape, request, exact, policy, policyOptions, named, types, outlierKeys, budgetBytes, tokensExpected },
    windowFormat: windowFormatOf(exact, [...(named ?? []), ...(policy.pairs ?? [])]),
    floor: named === null ? floorOf(pair, policy.lowest) : null,
  };
  checkTogether(asked);
  return asked;
}

/** The policy of a session that names none. */
function unasked(
  { tiers, kldBudget }: TermsRequest,
  types: FormatPair | FormatPair[] | undefined,
  budgetBytes: number | null,
): string {
  if (tiers !== undefined) return 'tiers';
  if (Array.isArray(types)) return 'table';
  if (budgetBytes !== null || kldBudget !== undefined) return 'price';
  return types === undefined ? 'none' : 'fixed';
}

/** True if nothing says in which formats its pages are to be. */
const asksForNothing = ({ kldBudget, policy, cacheTypes, tiers }: TermsRequest): boolean =>
  (kldBudget ?? policy ?? cacheTypes ?? tiers) === undefined;

/** What is effective of what was asked for, with a window that was found for it. */
export function effective(asked: Asked, window: Window, thresholds: ThresholdSet): Terms {
  const { shape, request, policy, policyOptions, exact, types, outlierKeys, budgetBytes, tokensExpected } = asked;
  const { kldBudget, skipLayers = [], policyOrigin: origin } = request;
  return {
    policy,
    policyOptions,
    ...(origin === undefined || exact ? {} : { policyModule: { sha256: origin.sha256, export: origin.export } }),
    budgetBytes,
    kldBudget: kldBudget ?? null,
    tokensExpected,
    stepLatencyBudgetMs: request.stepLatencyBudgetMs ?? null,
    exact,
    thresholdValues: request.thresholdValues ?? {},
    lowest: isForced(asked) ? lowestPairs(asked) : untouchedPairs(asked),
    context: {
      layers: shape.layers,
      kvHeads: shape.kvHeads,
      headDim: shape.headDim,
      windowFormat: asked.windowFormat,
      pageBytes: sideBytes(shape, [
        ...(types === undefined ? onTheWay(asked) : [types].flat()),
        ...(policy.pairs ?? []),
      ]),
      fixedBytes: fixedBytes(shape, window.openFormat),
      // Left out where they are what logs of earlier versions mean.
      ...(window.openFormat === 'f16' ? {} : { openFormat: window.openFormat }),
      ...(window.windowTokens === PAGE_TOKENS ? {} : { windowTokens: window.windowTokens }),
      ...(request.slidingWindow?.some((size) => size !== null) ? { slidingWindow: [...request.slidingWindow] } : {}),
      thresholds: withValues(thresholds, request.thresholdValues ?? {}),
      skipLayers: [...new Set(skipLayers)],
      floor: asked.floor,
      ...(outlierKeys.length === 0 ? {} : { outlierKeys }),
      ...(budgetBytes === null || kldBudget === undefined
        ? {}
        : { priority: request.priority ?? GOVERNING_OPTIONS.priority.default }),
    },
  };
}

/** Pairs that pages pass through where a layer has outlier keys. */
const onTheWay = ({ outlierKeys }: Asked): FormatPair[] => outlierKeys.map((k) => ({ k, v: k }));

/** The budgets and the policy that were asked for, as the first entry of a log has them. */
export const askedOf = ({ kvBudget, kldBudget, policy }: TermsRequest) => ({
  kvBudget: kvBudget ?? null,
  kldBudget: kldBudget ?? null,
  policy: (typeof policy === 'object' && !isPolicyModule(policy) ? policy.id : policy) ?? null,
});

/** The same with other thresholds, on which nothing else depends. */
export function withThresholds(terms: Terms, thresholds: ThresholdSet): Terms {
  return { ...terms, context: { ...terms.context, thresholds: withValues(thresholds, terms.thresholdValues) } };
}

/** Throws 'bad-thresholds' for an id that no threshold has, and a value out of its range. */
function withValues(set: ThresholdSet, values: Readonly<Record<string, number>>): ThresholdSet {
  const thresholds = { ...set.thresholds };
  for (const [id, value] of Object.entries(values)) {
    checkThresholdValue(id, value);
    const before = thresholdOf(set, id as ThresholdId);
    thresholds[id] = { ...before, value, origin: 'option', source: 'thresholdValues', samples: 0, evidence: [] };
  }
  return { ...set, thresholds };
}

/** A request, and what was made of it so far. */
export interface Asked extends Pick<Terms, 'policy' | 'policyOptions' | 'exact' | 'budgetBytes' | 'tokensExpected'> {
  readonly shape: CacheShape;
  readonly request: TermsRequest;
  readonly types: FormatPair | FormatPair[] | undefined;
  /** Pairs that layers get in turn and no others; null: the policy chooses. */
  readonly named: readonly FormatPair[] | null;
  readonly windowFormat: WindowName;
  /** The lowest formats that the session allows; null: any. */
  readonly floor: FormatPair | null;
  /** Formats that keys with outlier channels may take. */
  readonly outlierKeys: readonly FormatName[];
}

function namedPairs(policy: Policy, types: FormatPair | FormatPair[] | undefined): readonly FormatPair[] | null {
  if (Array.isArray(types)) return policy.id === 'table' ? types : null;
  return policy.id === 'fixed' && types !== undefined ? [types] : null;
}

/** A fixed f16 side must never have been 8-bit. */
function windowFormatOf(exact: boolean, pairs: readonly FormatPair[]): WindowName {
  return exact || pairs.some(({ k, v }) => k === 'f16' || v === 'f16') ? 'f16' : WINDOW_FORMAT;
}

/** Refuses what does not go together. */
function checkTogether({
  request: { openFormat, kldBudget },
  exact,
  policy,
  policyOptions,
  windowFormat,
  budgetBytes,
}: Asked): void {
  if (!exact && windowFormat === 'f16' && (openFormat ?? 'f16') !== 'f16')
    throw new KvError('bad-argument', `pages in f16 are not open in ${openFormat}`, {
      values: { openFormat, windowFormat },
    });
  if (!exact && budgetBytes === null && policy.id === 'tiers') checkOwnSizes(policyOptions);
  if (!exact && kldBudget !== undefined && !policy.needsTrials) {
    throw new KvError('unsupported', `policy '${policy.id}' measures nothing, so it cannot keep a divergence budget`, {
      values: { policy: policy.id, kldBudget },
      hint: "use policy 'price'",
    });
  }
}

/**
 * What is asked for, or else what the budget allows. What was not asked for gives way where a budget is too small for
 * it: first an open page in f16, then a whole page of newer tokens. Throws 'budget-too-small'.
 */
export function windowOf(asked: Asked): Window {
  const window = windowIn(asked);
  checkUntouched(asked, window);
  return window;
}

function windowIn(asked: Asked): Window {
  const { shape, request, windowFormat, budgetBytes, tokensExpected } = asked;
  const openFormat =
    windowFormat === 'f16' ? 'f16' : (request.openFormat ?? (budgetBytes === null ? 'f16' : OPEN_FORMAT));
  const windowTokens = request.windowTokens ?? defaultWindowTokens(shape, budgetBytes, windowFormat);
  const { slidingWindow } = request;
  const wanted: Window = { openFormat, windowFormat, windowTokens, slidingWindow };
  if (budgetBytes === null) return wanted;
  const coded: Window = { ...wanted, openFormat: request.openFormat ?? windowFormat };
  const smallest: Window = { ...coded, windowTokens: request.windowTokens ?? Math.min(...WINDOW_TOKENS) };
  const held = { pairs: lowestPairs(asked), onTheWay: onTheWay(asked) };
  const fits = (one: Window): boolean => budgetBytes >= leastBudget(shape, tokensExpected, { ...one, ...held });
  const window = [wanted, coded].find(fits) ?? smallest;
  checkBudget(shape, budgetBytes, tokensExpected, { ...window, ...held });
  return window;
}

/** The lowest formats that each layer may take; null: its pages may be let go. */
function lowestPairs(asked: Asked): (FormatPair | null)[] {
  const { shape, request, policy, named, windowFormat, floor } = asked;
  const { skipLayers = [] } = request;
  const lowest = (layer: number): FormatPair | null =>
    skipLayers.includes(layer) || policy.id === 'none'
      ? { k: windowFormat, v: windowFormat }
      : policy.evicts === true
        ? null
        : (named?.[layer % named.length] ?? lowestPair(floor));
  return Array.from({ length: shape.layers }, (_, layer) => lowest(layer));
}

const untouchedPairs = ({ shape, windowFormat }: Asked): FormatPair[] =>
  Array.from({ length: shape.layers }, () => ({ k: windowFormat, v: windowFormat }));

/** True if need for bytes alone moves pages: nobody was promised a divergence, and no policy of the caller decides. */
const isForced = ({ request, budgetBytes }: Asked): boolean =>
  budgetBytes !== null && request.kldBudget === undefined && typeof request.policy !== 'object';

/** Pages that nothing moves must fit the memory without a budget, and the budget where no divergence is allowed. */
function checkUntouched(asked: Asked, window: Window): void {
  const { shape, request, budgetBytes, tokensExpected } = asked;
  const untouched = bytesAt(shape, tokensExpected ?? 0, untouchedPairs(asked), window);
  checkMemory(shape, budgetBytes === null ? untouched : 0, window.openFormat);
  if (request.kldBudget === 0 && budgetBytes !== null && untouched > budgetBytes) {
    throw new KvError(
      'budget-too-small',
      `${tokensExpected} tokens need moves, and a divergence budget of 0 allows none`,
      {
        values: { budgetBytes, kldBudget: 0, neededBytes: untouched, tokens: tokensExpected },
        hint: 'raise one of the two budgets',
      },
    );
  }
}

/** f16 throughout: asked for, or all that the head size allows. Throws when something lower was asked for as well. */
function isExact(shape: CacheShape, request: TermsRequest, types: FormatPair | FormatPair[] | undefined): boolean {
  const { kvBudget, kldBudget } = request;
  const plain = !Array.isArray(types) && types?.k === 'f16' && types.v === 'f16';
  const coded = CODED_HEAD_DIMS.includes(shape.headDim);
  if (!coded && !plain && (kvBudget ?? kldBudget ?? types) !== undefined) {
    throw new KvError('unsupported', `head_dim ${shape.headDim} has no coded formats: its cache is f16 throughout`, {
      values: { headDim: shape.headDim, coded: CODED_HEAD_DIMS.join(', ') },
      hint: 'leave out the budget and the cache types',
    });
  }
  if (request.exact !== true && plain && (kvBudget !== undefined || kldBudget !== undefined)) {
    throw new KvError('bad-argument', 'an f16 cache keeps no budget', {
      values: { kvBudget, kldBudget },
      hint: 'allow lower formats, or leave out the budget',
    });
  }
  return request.exact === true || plain || !coded;
}

function policyOf(
  given: string | Policy | PolicyModule,
  types: FormatPair | FormatPair[] | undefined,
  tiers: TiersOptions | undefined,
  origin: PolicyOrigin | undefined,
): Pick<Terms, 'policy' | 'policyOptions'> {
  if (isPolicyModule(given))
    throw new KvError(
      'unsupported',
      'here a policy is named, or given itself; its module is for sessions and openCache',
      {
        values: { module: show(given.module) },
      },
    );
  const id = typeof given === 'string' ? given : given.id;
  if (tiers !== undefined && given !== 'tiers') {
    throw new KvError('bad-argument', `policy '${id}' has no tiers`, {
      values: { policy: id, tiers: JSON.stringify(tiers) },
      hint: "leave out the tiers, or use policy 'tiers'",
    });
  }
  if (Array.isArray(types) !== (id === 'table')) {
    throw new KvError('bad-argument', `policy '${id}' and these cacheTypes do not go together`, {
      values: { policy: id, cacheTypes: JSON.stringify(types) },
      hint: "policy 'table' takes one pair for each layer: cacheTypes: ['rot4:rot2', …]; the others take one pair",
    });
  }
  if (typeof given !== 'string') return { policy: given, policyOptions: origin?.options ?? {} };
  const policyOptions = Array.isArray(types)
    ? { layers: types }
    : id === 'fixed' && types !== undefined
      ? { ...types }
      : id === 'tiers'
        ? { ...tiersAsked(tiers) }
        : {};
  return { policy: createPolicy(id, policyOptions), policyOptions };
}

/** The lowest formats that a session allows: those asked for, as far as its policy goes down to them. */
function floorOf(asked: FormatPair | undefined, lowest: FormatPair | undefined): FormatPair | null {
  if (asked === undefined) return lowest ?? null;
  const finer = (side: Side): FormatName => {
    const least = (lowest ?? LOWEST_FORMATS)[side];
    return FORMATS[asked[side]].rank < FORMATS[least].rank || !isAutomatic(asked[side]) ? asked[side] : least;
  };
  return { k: finer('k'), v: finer('v') };
}

/** The lowest pair that policies go to: 2-bit keys stand only beside values below 4 bits. */
export function lowestPair(floor: FormatPair | null): FormatPair {
  return usefulPair(floor ?? LOWEST_FORMATS);
}

const pairOf = (given: FormatPair | string): FormatPair =>
  typeof given === 'string' ? parsePair(given) : { k: checkServed(given.k), v: checkServed(given.v) };

function typesOf(given: CacheTypes | undefined): FormatPair | FormatPair[] | undefined {
  if (given === undefined) return undefined;
  return isList(given) ? given.map(pairOf) : pairOf(given);
}

const isList = (types: CacheTypes): types is readonly (FormatPair | string)[] => Array.isArray(types);

/** Refuses bad numbers and names that later code would trust. Throws 'bad-argument'. */
function checkRequest(request: TermsRequest, layers: number): void {
  checkOptions(request, ASKED);
  const { skipLayers = [] } = request;
  const isLayer = (layer: unknown): boolean => Number.isInteger(layer) && Number(layer) >= 0 && Number(layer) < layers;
  if (!Array.isArray(skipLayers) || !skipLayers.every(isLayer))
    throw new KvError('bad-argument', `skipLayers must hold layers from 0 to ${layers - 1}`, {
      values: { skipLayers: show(skipLayers) },
    });
}
