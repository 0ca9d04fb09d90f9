/**
 * How much an error costs in the text at hand beside others: what earlier sessions like this one say, and what probes
 * of this one have measured.
 */
import { SIDES } from '../native/index.ts';
import { type Estimate, type Law, observed } from './law.ts';
import type { ProbeReport } from './types.ts';

/**
 * Spread of what probes of one text measure beside what its sessions do, in logarithms. Over 30 sessions in 15 texts
 * the factor of a session rises as the power 0.11 to 0.19 of what its probes say, so two of them weigh a fifth of what
 * is expected without them. Taken to be 0.3, as once, predictions are off by e^±0.63 in place of e^±0.37.
 */
const PROBE_SD = 1.2;

export class TextFactor {
  readonly #law: Law | null;
  /**
   * The divergence that probes measure over what their errors promise in a text of factor 1: the threshold
   * 'probe.gain'.
   */
  readonly #probeGain: number;
  readonly #probeSd: number;
  /** By earlier sessions; what is known of them may change while a session lasts. */
  expected: Estimate;
  /** By this one alone; null before its first probe. */
  measured: Estimate | null = null;

  /** Without a law the factor is 1. */
  constructor(law: Law | null, probeGain: number, probeSd = PROBE_SD) {
    this.#law = law;
    this.#probeGain = probeGain;
    this.#probeSd = probeSd;
    this.expected = law?.text ?? { value: 1, sd: 0, samples: 0 };
  }

  /** A probe says it with an error of its own, and with the spread between what it and a session measure. */
  learn({ meanKld, standardError, epsilon2 }: ProbeReport): void {
    const { coefficient } = this.#law ?? {};
    if (coefficient === undefined) return;
    let promised = 0;
    for (const side of SIDES)
      for (const [layer, sum] of epsilon2[side].entries()) promised += (coefficient[side][layer]?.value ?? 0) * sum;
    const ratio = meanKld / (promised * this.#probeGain);
    if (!(ratio > 0) || !Number.isFinite(ratio)) return;
    const sd = Math.hypot(standardError / meanKld, this.#probeSd);
    this.measured = this.measured === null ? { value: ratio, sd, samples: 1 } : observed(this.measured, ratio, sd);
  }

  /** Both together. */
  get used(): Estimate {
    return this.measured === null ? this.expected : observed(this.expected, this.measured.value, this.measured.sd);
  }
}
