/** The fingerprint of a session: what is known before it begins, and what is known of it later. */
import { type Fingerprint, fingerprint, type Measurements } from '../memory/index.ts';
import type { CacheShape } from '../native/index.ts';
import { f16CacheBytes } from './budget.ts';
import type { Governed } from './governed.ts';
import { measureWork } from './measure.ts';

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
  const { shape, length, plan, kv, masses, content } = cache;
  return printOf(shape, length, plan.budgetBytes, { ...measureWork(kv, masses), ...content });
}

/** What a session of a runtime is opened with: what its caller asks for, and what `state` remembers of earlier ones. Where `log` is null nothing is written. */
export async function setupOf(
  { model, shape }: Runtime,
  options: SessionOptions,
  state: { readonly book: ThresholdBook | null; readonly log: WitnessLog | null } | null,
): Promise<SessionSetup> {
  const { config, digest } = model;
  const { tokensExpected: tokens = config.contextLength, kvBudget, thresholds, thresholdsPath } = options;
  const budgetBytes = kvBudget === undefined ? null : parseBudget(kvBudget, f16CacheBytes(shape, tokens));
  const start = await startValues(
    { shape, modelDigest: digest, family: config.architecture, tokens, budgetBytes, thresholds, thresholdsPath },
    state?.book ?? null,
  );
  const book = state?.book;
  // What the caller has given stands as it is.
  const asks = book != null && thresholds === undefined && thresholdsPath === undefined;
  const query = { modelDigest: digest, family: config.architecture, layers: shape.layers };
  const defaults = start.defaults === undefined ? {} : { defaults: start.defaults };
  const recall = (fingerprint: Fingerprint): Promise<Lookup> => book!.lookup({ ...query, ...defaults, fingerprint });
  return {
    ...options,
    ...start,
    ...(asks ? { recall } : {}),
    log: options.witness === false ? null : (state?.log ?? null),
  };
}
