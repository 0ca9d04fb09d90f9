/** Budgets of bytes as people write them. */
import { KvError, show } from '../../native/index.ts';
import type { KvBudget } from './types.ts';

const UNITS: Readonly<Record<string, number>> = {
  '': 1,
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  k: 2 ** 10,
  m: 2 ** 20,
  g: 2 ** 30,
};

/** '64MiB' → bytes; '25%' → that share of `f16Bytes` (null when the length is not known). */
export function parseBudget(budget: KvBudget, f16Bytes: number | null): number {
  const fail = (): never => {
    throw new KvError('bad-argument', `'${show(budget)}' is not a KV budget`, {
      values: { given: show(budget) },
      hint: 'write bytes with a unit (64MiB, 1.5GB) or a share of the f16 cache (25%)',
    });
  };
  if (typeof budget === 'number') return Number.isFinite(budget) && budget > 0 ? Math.floor(budget) : fail();
  if (typeof budget !== 'string') return fail();
  const match = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[a-z]*)\s*$/i.exec(budget);
  if (match === null) return fail();
  const value = Number(match[1]);
  const unit = (match[2] ?? '').toLowerCase();
  if (unit === '%') {
    if (value <= 0 || value > 100) return fail();
    if (f16Bytes === null) {
      throw new KvError('bad-argument', `a budget of ${budget} needs the expected length`, {
        values: { given: budget },
        hint: 'pass tokensExpected (prompt + max tokens) to a session; give a budget of all sessions in bytes',
      });
    }
    return Math.floor((value / 100) * f16Bytes);
  }
  // Nobody means so few bytes.
  if (unit === '' && value > 0 && value <= 100) {
    throw new KvError('bad-argument', `a KV budget of ${budget} is ${budget} bytes`, {
      values: { given: budget },
      hint: `write ${value}% for that share of the f16 cache, or a unit (${value}MiB)`,
    });
  }
  const factor = UNITS[unit];
  return factor === undefined || value <= 0 ? fail() : Math.floor(value * factor);
}
