/** From what was asked to what is effective: budget in bytes, policy, and the context its decisions rest on. */
import { type CacheShape, FORMAT_NAMES, type FormatName, type FormatPair, pageBytes } from '../native/index.ts';
import { createPolicy, type Policy, type PolicyContext, type ThresholdSet } from '../policy/index.ts';
import { checkBudget, f16CacheBytes, fixedBytes, parseBudget } from './budget.ts';
import type { KvBudget } from './types.ts';

export interface PlanRequest {
  readonly kvBudget?: KvBudget | undefined;
  readonly kldBudget?: number | undefined;
  readonly tokensExpected?: number | undefined;
  readonly policy?: string | undefined;
  readonly cacheTypes?: FormatPair | undefined;
  readonly skipLayers?: readonly number[] | undefined;
  /** f16 throughout, nothing moves. */
  readonly exact?: boolean;
}

export interface SessionPlan {
  readonly policy: Policy;
  readonly policyOptions: Readonly<Record<string, unknown>>;
  readonly context: PolicyContext;
  readonly budgetBytes: number | null;
  readonly tokensExpected: number | null;
}

/** Throws 'budget-too-small', 'bad-argument' or 'unsupported' before any work. */
export function planSession(shape: CacheShape, request: PlanRequest, thresholds: ThresholdSet): SessionPlan {
  const { cacheTypes } = request;
  const tokensExpected = request.tokensExpected ?? null;
  const f16Bytes = tokensExpected === null ? null : f16CacheBytes(shape, tokensExpected);
  const exact = request.exact === true;
  const budgetBytes = request.kvBudget === undefined || exact ? null : parseBudget(request.kvBudget, f16Bytes);
  const budgeted = budgetBytes !== null || request.kldBudget !== undefined;
  const id = exact ? 'none' : (request.policy ?? (budgeted ? 'price' : cacheTypes !== undefined ? 'fixed' : 'none'));
  const lowest: FormatName = id === 'none' ? 'q8' : 'rot2';
  if (budgetBytes !== null) checkBudget(shape, budgetBytes, tokensExpected ?? 0, lowest);
  const policyOptions = id === 'fixed' && cacheTypes !== undefined ? { k: cacheTypes.k, v: cacheTypes.v } : {};
  return {
    policy: createPolicy(id, policyOptions),
    policyOptions,
    budgetBytes,
    tokensExpected,
    context: {
      layers: shape.layers,
      kvHeads: shape.kvHeads,
      headDim: shape.headDim,
      windowFormat: exact ? 'f16' : 'q8',
      pageBytes: Object.fromEntries(FORMAT_NAMES.map((name) => [name, pageBytes(name, shape.kvHeads, shape.headDim)])) as PolicyContext['pageBytes'],
      fixedBytes: fixedBytes(shape),
      thresholds,
      skipLayers: [...(request.skipLayers ?? [])],
      floor: id === 'fixed' ? null : (cacheTypes ?? null),
    },
  };
}
