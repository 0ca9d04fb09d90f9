/** Budgets of bytes as people write them. */
import { KvError, plural, show } from '../../native/index.ts';
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

/** What is to be a number of bytes, or a share of something. */
interface Asked {
  /** What it is, in words. */
  readonly what: string;
  /** What it must be. */
  readonly must: string;
  /** Its name among the values of an error. */
  readonly name: string;
  /** Of what it may be a share; null: of nothing. */
  readonly share: { readonly of: string; readonly bytes: number | null } | null;
}

/** '64MiB' → bytes; '25%' → that share of `f16Bytes` (null when the length is not known). */
export const parseBudget = (budget: KvBudget, f16Bytes: number | null): number =>
  bytesOf(budget, {
    ...{ what: 'a KV budget', must: 'a KV budget', name: 'kvBudget' },
    share: { of: 'the f16 cache', bytes: f16Bytes },
  });

/** '64MiB' → bytes; '25%' → that share of what all sessions have. */
export const parseGroupBudget = (budget: KvBudget, sharedBytes: number): number =>
  bytesOf(budget, {
    ...{ what: 'the budget of a group', must: 'the budget of a group', name: 'kvGroup' },
    share: { of: 'the kvBudget of the engine', bytes: sharedBytes },
  });

/** '64MiB' → bytes. `option`: the name of what it is given for. */
export const parseBytes = (given: string | number, option: string): number =>
  bytesOf(given, { what: option, must: `a size, as ${option} must be`, name: option, share: null });

function bytesOf(given: string | number, { what, must, name, share }: Asked): number {
  const percent = share === null ? '' : ` or a share of ${share.of} (25%)`;
  const values = { [name]: show(given) };
  const fail = (): never => {
    throw new KvError('bad-argument', `'${show(given)}' is not ${must}`, {
      values,
      hint: `write bytes with a unit (64MiB, 1.5GB)${percent}`,
    });
  };
  const whole = (bytes: number): number => (bytes >= 1 && Number.isSafeInteger(bytes) ? bytes : fail());
  if (typeof given === 'number') return whole(Math.floor(given));
  if (typeof given !== 'string') return fail();
  const match = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(%|[a-z]*)\s*$/i.exec(given);
  if (match === null) return fail();
  const value = Number(match[1]);
  const unit = (match[2] ?? '').toLowerCase();
  if (unit === '%') {
    if (share === null)
      throw new KvError('bad-argument', `${name} cannot be ${given}: there is nothing of which that is a share`, {
        values,
        hint: 'write bytes with a unit (256MiB, 1.5GB)',
      });
    if (value <= 0 || value > 100) return fail();
    if (share.bytes === null) {
      throw new KvError('bad-argument', `a budget of ${given} needs the expected length`, {
        values,
        hint: 'pass tokensExpected (prompt + max tokens) to a session; give a budget of all sessions in bytes',
      });
    }
    return Math.floor((value / 100) * share.bytes);
  }
  // Nobody means so few bytes.
  if (unit === '' && value > 0 && value <= 100) {
    const meant = share === null ? 'a unit' : `${value}% for that share of ${share.of}, or a unit`;
    throw new KvError('bad-argument', `${what} of ${given} is ${plural(value, 'byte')}`, {
      values,
      hint: `write ${meant} (${value}MiB)`,
    });
  }
  return whole(Math.floor(value * (UNITS[unit] ?? 0)));
}
