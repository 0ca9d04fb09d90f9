/**
 * Start values from a handful of earlier sessions. Every estimate is a weighted mean in logarithms with its standard
 * error, drawn towards the default while samples are few, and it is the cautious end of it that is used: a price
 * threshold too low costs some bytes for a few hundred tokens until the controller has found its place, one too high
 * costs quality that no promotion brings back.
 */

import type { Estimate } from '../policy/index.ts';

export interface Sample {
  readonly value: number;
  /** 0..1: how near the session was. */
  readonly weight: number;
}

/** c of KLD ≈ c·Σ g·ε² without evidence. Measured 3 to 4 on SmolLM2-135M over 56 runs; 4 is the cautious end. */
export const C_DEFAULT = 4;
/**
 * Standard deviation of ln c between models (chosen), and of one session's measured/predicted ratio around it (r = .95
 * over 56 runs gives about as much).
 */
const C_PRIOR_SD = 0.3;
export const C_SESSION_SD = 0.3;
/** One session's ratio beyond this factor from the default says more about the comparison than about c. Chosen. */
const C_FACTOR_MAX = 8;
/**
 * Spread of ln λ between sessions that look alike, before there are enough to measure it. Chosen; content moves bits by
 * ±6%.
 */
const PRICE_PRIOR_SD = 0.25;
/**
 * The default (0) counts as this many sessions: after one session its threshold is halved, after ten a tenth is taken
 * off. Chosen.
 */
const PRICE_PRIOR_SESSIONS = 1;
/** The number of sessions that the evidence is worth: the sum of weights, never more than the number of sessions. */
export const evidenceOf = (samples: readonly Sample[]): number => samples.reduce((sum, s) => sum + s.weight, 0);

interface LogMean {
  readonly mean: number;
  readonly sd: number;
}

/**
 * Mean and standard deviation of ln value; `priorSd` counts as one sample of the spread. Values > 0, some weight > 0.
 */
function logMean(samples: readonly Sample[], priorSd: number): LogMean {
  const total = evidenceOf(samples);
  const mean = samples.reduce((sum, s) => sum + s.weight * Math.log(s.value), 0) / total;
  const spread = samples.reduce((sum, s) => sum + s.weight * (Math.log(s.value) - mean) ** 2, 0);
  return { mean, sd: Math.sqrt((spread + priorSd ** 2) / (total + 1)) };
}

/**
 * Start value of the price threshold, KLD per byte. Sessions that ended at 0 never needed to move anything and count
 * towards 0. → 0 without evidence.
 */
export function startPrice(samples: readonly Sample[]): number {
  const paid = samples.filter((s) => s.value > 0 && s.weight > 0);
  const evidence = evidenceOf(paid);
  if (evidence <= 0) return 0;
  const { mean, sd } = logMean(paid, PRICE_PRIOR_SD);
  const cautious = Math.exp(mean - sd / Math.sqrt(Math.max(1, evidence)));
  return (cautious * evidence) / (evidenceOf(samples) + PRICE_PRIOR_SESSIONS);
}

/**
 * c from sessions that were compared with an exact run. A sample's value is the c that would have predicted what was
 * measured. One number for all layers: a single comparison per session cannot tell layers apart. The prior's cautious
 * end is the default, so no evidence gives exactly C_DEFAULT.
 */
export function lawConstant(samples: readonly Sample[]): number {
  const priorMean = Math.log(C_DEFAULT) - C_PRIOR_SD;
  let precision = 1 / C_PRIOR_SD ** 2;
  let sum = priorMean * precision;
  for (const { value, weight } of samples) {
    if (!(value > 0) || !(weight > 0)) continue;
    const bounded = Math.min(C_DEFAULT * C_FACTOR_MAX, Math.max(C_DEFAULT / C_FACTOR_MAX, value));
    sum += (Math.log(bounded) * weight) / C_SESSION_SD ** 2;
    precision += weight / C_SESSION_SD ** 2;
  }
  const cautious = Math.exp(sum / precision + 1 / Math.sqrt(precision));
  return precision === 1 / C_PRIOR_SD ** 2 ? C_DEFAULT : cautious;
}

/** Spread of the text factor among sessions that look alike, in logarithms: 0.35 over English texts of SmolLM2-135M. */
const TEXT_SPREAD = 0.35;

/**
 * What is expected of the text factor of a session before it has measured anything: `assumed`, and what sessions like
 * it have measured, each by its weight and precision. However many there are, the text at hand may differ from them by
 * the spread among them. Without evidence: `assumed`.
 */
export function textFactor(assumed: Estimate, sessions: readonly (Estimate & { readonly weight: number })[]): Estimate {
  let precision = 1 / Math.max(1e-12, assumed.sd ** 2);
  let sum = precision * Math.log(assumed.value);
  let samples = 0;
  for (const { value, sd, weight } of sessions) {
    if (!(weight > 0)) continue;
    const own = weight / (sd ** 2 + TEXT_SPREAD ** 2);
    precision += own;
    sum += own * Math.log(value);
    samples++;
  }
  if (samples === 0) return assumed;
  const sd = Math.min(assumed.sd, Math.hypot(1 / Math.sqrt(precision), TEXT_SPREAD));
  return { value: Math.exp(sum / precision), sd, samples: assumed.samples + samples };
}
