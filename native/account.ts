/**
 * The bytes that a cache and its forks use, and the errors for a full budget. types.ts describes the methods of
 * KvCache.
 */
import { integer } from './arguments.ts';
import { KvError } from './error.ts';
import { type CacheHandle, check, type PoolHandle } from './load.ts';

/** The counts of a cache and its forks. */
export interface Counted {
  /** Null if only the pool has a budget. */
  readonly budgetBytes: number | null;
  readonly usedBytes: number;
  readonly peakBytes: number;
  readonly roomBytes: number;
  /** What of the used bytes is held together with caches that are no forks, or was. */
  readonly commonBytes: number;
}

const numbers = new Float64Array(6);
const poolNumbers = new Float64Array(6);

export function counted(handle: CacheHandle): Counted {
  check(handle.account(numbers, false), 'read the cache');
  const [budget, usedBytes, peakBytes, roomBytes] = numbers as unknown as [number, number, number, number];
  const commonBytes = numbers[5]!;
  return { budgetBytes: Number.isFinite(budget) ? budget : null, usedBytes, peakBytes, roomBytes, commonBytes };
}

export function auditBytes(handle: CacheHandle): number {
  check(handle.account(numbers, true), 'audit the cache');
  return numbers[4]!;
}

/** Checks a budget and returns it as the binary takes it; undefined and null mean that there is none. */
export function checkedBudget(bytes: unknown): number | undefined {
  return bytes === undefined || bytes === null ? undefined : integer(bytes, 'budgetBytes', 0, Number.MAX_SAFE_INTEGER);
}

/** Throws 'budget-too-small' if the budget is below `usedBytes`. */
export function refuseBelow(usedBytes: number, budgetBytes: number | undefined): void {
  if (budgetBytes === undefined || budgetBytes >= usedBytes) return;
  throw new KvError('budget-too-small', `the budget cannot go below the ${usedBytes} bytes in use`, {
    values: { budgetBytes, usedBytes },
    hint: 'demote pages or close a cache first',
  });
}

/**
 * The numbers of the budget that leaves less room: that of the cache or that of its pool. Null if the pool was closed.
 */
function binding(handle: CacheHandle, pool: PoolHandle) {
  const { budgetBytes, usedBytes } = counted(handle);
  const known = pool.numbers(poolNumbers, false) === 0;
  const [poolBudget, poolUsed] = poolNumbers as unknown as [number, number];
  const isPool = known && (budgetBytes === null || poolBudget - poolUsed < budgetBytes - usedBytes);
  if (isPool) return { owner: 'pool', budgetBytes: poolBudget, usedBytes: poolUsed };
  return budgetBytes === null ? null : { owner: 'cache', budgetBytes, usedBytes };
}

/** The error for work that a full budget does not allow. */
export function full(
  handle: CacheHandle,
  pool: PoolHandle,
  cause: KvError,
  { doing, neededBytes, hint }: { doing: string; neededBytes?: number | undefined; hint: string },
): KvError {
  const bound = binding(handle, pool);
  const room = bound === null ? '' : `: ${bound.usedBytes} of ${bound.budgetBytes} bytes are in use`;
  const values = {
    ...cause.values,
    ...(neededBytes === undefined ? {} : { neededBytes }),
    ...(bound === null ? {} : { budgetBytes: bound.budgetBytes, usedBytes: bound.usedBytes }),
  };
  return new KvError('budget-exceeded', `the ${bound?.owner ?? 'pool'} has no room to ${doing}${room}`, {
    values,
    hint,
  });
}
