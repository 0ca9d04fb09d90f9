/** The fingerprint of a session: what is known before it begins, and what is known of it later. */
import { type Fingerprint, fingerprint, type Measurements } from '../../memory/index.ts';
import type { CacheShape } from '../../native/index.ts';
import { f16CacheBytes } from './budget.ts';
import type { Governed } from './governed.ts';
import { measureWork } from './workload.ts';

/** Only length and pressure are known at the start of a session. */
export function printOf(
  shape: CacheShape,
  tokens: number,
  budgetBytes: number | null,
  measured: Partial<Measurements> = {},
): Fingerprint {
  const f16 = f16CacheBytes(shape, tokens);
  const pressure = budgetBytes === null || f16 === 0 ? null : Math.min(1, budgetBytes / f16);
  return fingerprint({ ...shape, tokens: Math.max(1, tokens), pressure, ...measured });
}

/** The fingerprint of a session as far as it is known now. */
export function fingerprintOf(cache: Governed): Fingerprint {
  const { shape, length, terms, kv, masses, content, away } = cache;
  if (away !== null) return away.fingerprint;
  return printOf(shape, length, terms.budgetBytes, { ...measureWork(kv, masses), ...content });
}
