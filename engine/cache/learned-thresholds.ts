/**
 * What a session has learned for those to come: a measured divergence moves the error law, and its last price becomes
 * one to start with.
 */
import { KvError, show } from '../../native/index.ts';
import { defaultLaw, observed, type PolicySession, type ThresholdSet } from '../../policy/index.ts';
import type { QualityFeedback } from './types.ts';

/** Standard deviation of ln(measured over predicted) where the text is the same: 0.20 over 30 runs of SmolLM2-135M. */
const COMPARED_SD = 0.2;

export class LearnedThresholds {
  /** The thresholds that the session began with. */
  readonly #start: ThresholdSet;
  readonly #layers: number;
  readonly #policy: PolicySession;
  #learnt: ThresholdSet;
  #measured: { readonly meanKld: number; readonly predicted: number } | null = null;

  constructor(start: ThresholdSet, layers: number, policy: PolicySession) {
    this.#start = start;
    this.#layers = layers;
    this.#policy = policy;
    this.#learnt = start;
  }

  /**
   * Moves the text factor of the error law, and half as far its constant c, which version 1 of the price policy uses,
   * towards what was measured (in the logarithm), from what the prediction was made with: the same measurement again
   * changes nothing. Used by caches opened with the thresholds saved from here; running decisions keep what their log
   * entry names.
   */
  adapt(feedback: QualityFeedback): ThresholdSet {
    const meanKld: unknown = feedback?.meanKld;
    if (typeof meanKld !== 'number' || !Number.isFinite(meanKld) || meanKld < 0) {
      throw new KvError('bad-value', `meanKld must be a number ≥ 0, not ${show(meanKld)}`, {
        values: { meanKld: show(meanKld) },
      });
    }
    const predicted = this.#policy.summary().predictedKld;
    this.#measured = { meanKld, predicted };
    if (predicted > 0 && meanKld > 0) {
      const thresholds = this.#start;
      const c = thresholds.c * Math.sqrt(meanKld / predicted);
      const law = thresholds.law ?? defaultLaw(this.#layers);
      const text = observed(law.text, law.text.value * (meanKld / predicted), COMPARED_SD);
      this.#learnt = { ...thresholds, c: Math.min(64, Math.max(1 / 16, c)), law: { ...law, text } };
    }
    return this.#learnt;
  }

  /** What adapt was told, as long as nothing was moved since that would make it another; else null. */
  get meanKld(): number | null {
    return this.#measured?.predicted === this.#policy.summary().predictedKld ? this.#measured.meanKld : null;
  }

  /**
   * The thresholds of this session with what it has learned so far: what was measured, and its final price as the price
   * to start with.
   */
  thresholds(): ThresholdSet {
    const set = this.#learnt;
    const price = this.#policy.summary().priceThreshold;
    const start = set.thresholds['price.start'];
    // A price of 0 teaches nothing.
    if (start === undefined || price === 0) return set;
    return {
      ...set,
      thresholds: {
        ...set.thresholds,
        'price.start': { ...start, value: price, origin: 'controller', samples: start.samples + 1 },
      },
    };
  }
}
