/** From what was asked to what is effective: budget in bytes, policy, and the context its decisions rest on. */
import {
  type CacheShape,
  CODED_HEAD_DIMS,
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  KvError,
  pageBytes,
  parsePair,
} from '../native/index.ts';
import { createPolicy, type Policy, type PolicyContext, type ThresholdSet } from '../policy/index.ts';
import { checkBudget, f16CacheBytes, fixedBytes, parseBudget } from './budget.ts';
import type { KvBudget } from './types.ts';

export interface PlanRequest {
  readonly kvBudget?: KvBudget | undefined;
  readonly kldBudget?: number | undefined;
  readonly tokensExpected?: number | undefined;
  readonly policy?: string | undefined;
  readonly cacheTypes?: FormatPair | string | undefined;
  readonly skipLayers?: readonly number[] | undefined;
  readonly stepLatencyBudgetMs?: number | undefined;
  /** f16 throughout, nothing moves. */
  readonly exact?: boolean;
}

export interface SessionPlan {
  readonly policy: Policy;
  readonly policyOptions: Readonly<Record<string, unknown>>;
  readonly context: PolicyContext;
  readonly budgetBytes: number | null;
  readonly kldBudget: number | null;
  readonly tokensExpected: number | null;
  readonly stepLatencyBudgetMs: number | null;
}

/** How the plan of a fork differs from that of the cache it goes on from: nothing is moved. */
export const FORK = { policy: createPolicy('none'), policyOptions: {}, kldBudget: null };

/** Throws 'budget-too-small', 'bad-argument' or 'unsupported' before any work. */
export function planSession(shape: CacheShape, request: PlanRequest, thresholds: ThresholdSet): SessionPlan {
  checkRequest(request, shape.layers);
  const cacheTypes = typeof request.cacheTypes === 'string' ? parsePair(request.cacheTypes) : request.cacheTypes;
  const tokensExpected = request.tokensExpected ?? null;
  const f16Bytes = tokensExpected === null ? null : f16CacheBytes(shape, tokensExpected);
  const plain = cacheTypes?.k === 'f16' && cacheTypes.v === 'f16';
  const coded = CODED_HEAD_DIMS.includes(shape.headDim);
  if (!coded && !plain && (request.kvBudget ?? request.kldBudget ?? cacheTypes) !== undefined) {
    throw new KvError('unsupported', `head_dim ${shape.headDim} has no coded formats: its cache is f16 throughout`, {
      values: { headDim: shape.headDim, coded: CODED_HEAD_DIMS.join(', ') },
      hint: 'leave out the budget and the cache types',
    });
  }
  const exact = request.exact === true || plain || !coded;
  if (request.exact !== true && plain && (request.kvBudget !== undefined || request.kldBudget !== undefined)) {
    throw new KvError('bad-argument', 'an f16 cache keeps no budget', {
      values: { kvBudget: request.kvBudget, kldBudget: request.kldBudget },
      hint: 'allow lower formats, or leave out the budget',
    });
  }
  const budgetBytes = request.kvBudget === undefined || exact ? null : parseBudget(request.kvBudget, f16Bytes);
  const budgeted = budgetBytes !== null || request.kldBudget !== undefined;
  const id = exact ? 'none' : (request.policy ?? (budgeted ? 'price' : cacheTypes !== undefined ? 'fixed' : 'none'));
  const lowest: FormatName = id === 'none' ? 'q8' : 'rot2';
  if (budgetBytes !== null) checkBudget(shape, budgetBytes, tokensExpected ?? 0, lowest);
  const policyOptions = id === 'fixed' && cacheTypes !== undefined ? { k: cacheTypes.k, v: cacheTypes.v } : {};
  const policy = createPolicy(id, policyOptions);
  if (!exact && request.kldBudget !== undefined && !policy.needsTrials) {
    throw new KvError('unsupported', `policy '${id}' measures nothing, so it cannot keep a divergence budget`, {
      values: { policy: id, kldBudget: request.kldBudget },
      hint: "use policy 'price'",
    });
  }
  return {
    policy,
    policyOptions,
    budgetBytes,
    kldBudget: request.kldBudget ?? null,
    tokensExpected,
    stepLatencyBudgetMs: request.stepLatencyBudgetMs ?? null,
    context: {
      layers: shape.layers,
      kvHeads: shape.kvHeads,
      headDim: shape.headDim,
      // A fixed f16 side must never have been 8-bit.
      windowFormat: exact || (id === 'fixed' && (cacheTypes?.k === 'f16' || cacheTypes?.v === 'f16')) ? 'f16' : 'q8',
      pageBytes: Object.fromEntries(
        FORMAT_NAMES.map((name) => [name, pageBytes(name, shape.kvHeads, shape.headDim)]),
      ) as PolicyContext['pageBytes'],
      fixedBytes: fixedBytes(shape),
      thresholds,
      skipLayers: [...(request.skipLayers ?? [])],
      floor: id === 'fixed' ? null : (cacheTypes ?? null),
    },
  };
}

/** Refuses numbers and names that would be believed further on. Throws 'bad-argument'. */
function checkRequest(
  { kldBudget, tokensExpected, policy, cacheTypes, skipLayers, stepLatencyBudgetMs }: PlanRequest,
  layers: number,
): void {
  const refuse = (message: string, given: unknown): never => {
    throw new KvError('bad-argument', message, { values: { given: String(given) } });
  };
  if (kldBudget !== undefined && !(typeof kldBudget === 'number' && Number.isFinite(kldBudget) && kldBudget >= 0))
    refuse('kldBudget must be a number of nats ≥ 0', kldBudget);
  if (stepLatencyBudgetMs !== undefined && !(Number.isFinite(stepLatencyBudgetMs) && stepLatencyBudgetMs > 0))
    refuse('stepLatencyBudgetMs must be a number of milliseconds above 0', stepLatencyBudgetMs);
  if (tokensExpected !== undefined && !(Number.isSafeInteger(tokensExpected) && tokensExpected > 0))
    refuse('tokensExpected must be a positive whole number', tokensExpected);
  if (policy !== undefined && typeof policy !== 'string') refuse('policy must be a name', policy);
  if (
    cacheTypes !== undefined &&
    typeof cacheTypes !== 'string' &&
    !(isFormat(cacheTypes?.k) && isFormat(cacheTypes.v))
  )
    refuse(`cacheTypes must name one of ${FORMAT_NAMES.join(', ')} for k and for v`, JSON.stringify(cacheTypes));
  if (
    skipLayers !== undefined &&
    !(Array.isArray(skipLayers) && skipLayers.every((layer) => Number.isInteger(layer) && layer >= 0 && layer < layers))
  ) {
    refuse(`skipLayers must hold layers from 0 to ${layers - 1}`, skipLayers);
  }
}

function isFormat(name: unknown): boolean {
  return (FORMAT_NAMES as readonly unknown[]).includes(name);
}
