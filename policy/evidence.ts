/**
 * What a session learns about its own predictions: measured over promised error, per layer and over all of them. Sources are canaries, pages
 * that are tried again while they are still 8-bit, and the first trials of new pages. Means are weighted exponentially and shrunk towards what
 * the whole session shows, so that one wild measurement moves little and a repeated one much. Only Math.log and Math.exp are used, which are the
 * same in every version of V8.
 */
import { FORMAT_NAMES, SIDES } from '../native/index.ts';
import type { Estimate } from './law.ts';
import { thresholdOf } from './thresholds.ts';
import type { CanaryReport, ThresholdSet, TrialReport } from './types.ts';

/** Share of a new measurement in means that follow slowly: of the session, and of the level of errors of a layer and side. */
const SLOW = 0.1;
const LEVEL = 0.3;
/** So many measurements at the mean of the session stand beside those of a layer. */
const PRIOR = 2;
/** Weight that measurements keep with each page that passes. */
const KEPT = 0.7;
/** ln(measured / promised) before anything was measured: errors fade with age (measured: -0.8 to -2 over pages 1 to 8). */
const FADED = -1;
/** Sides that a page must have been tried on for its mean to say something about the topic. */
const SIDES_MIN = 6;
/** A shift counts when it is so many times the spread between layers: one layer alone is no change of topic. */
const SHIFT_SPREAD = 1.5;
/** Tokens for which a shift is remembered. */
const SHIFT_TOKENS = 512;

/** A mean of ln ratio with the weight of what it rests on. */
interface Mean {
  sum: number;
  weight: number;
}

export class Evidence {
  readonly #layers: number;
  /** Canaries, [side, layer], and repeated trials of each layer. */
  readonly #canaries: Mean[];
  readonly #again: Mean[];
  /** The same over the session. */
  #session = FADED;
  /** Mean ln ε of the lowest format tried, [side, layer]; NaN before the first page. */
  readonly #level: Float64Array;
  #shift = 0;
  #shiftUntil = 0;

  constructor(layers: number) {
    const means = (): Mean[] => Array.from({ length: layers }, () => ({ sum: 0, weight: 0 }));
    this.#layers = layers;
    this.#canaries = [...means(), ...means()];
    this.#again = means();
    this.#level = new Float64Array(2 * layers).fill(Number.NaN);
  }

  /** A canary was probed. */
  canary({ layer, side, epsilonNow, epsilonPromised }: CanaryReport): void {
    this.#note(this.#canaries[SIDES.indexOf(side) * this.#layers + layer]!, epsilonNow, epsilonPromised);
  }

  /** A page was tried again; `promised` is what was known of the same format. */
  again(layer: number, measured: number, promised: number): void {
    this.#note(this.#again[layer]!, measured, promised);
  }

  #note(mean: Mean, measured: number, promised: number): void {
    if (!(measured > 0 && promised > 0)) return;
    const ratio = Math.log(measured / promised);
    mean.sum += ratio;
    mean.weight++;
    this.#session += SLOW * (Math.min(0, ratio) - this.#session);
  }

  /** A page has passed: what was measured counts for less, so that a layer that nobody measures any more is believed again in the end. */
  fade(): void {
    for (const means of [this.#canaries, this.#again])
      for (const mean of means) {
        mean.sum *= KEPT;
        mean.weight *= KEPT;
      }
  }

  /** First trials of pages: whether errors as a whole are others than before. `bound` is the shift of mean ln ε that counts. */
  trials(reports: readonly TrialReport[], tokens: number, bound: number): void {
    let [sum, squares, count] = [0, 0, 0];
    for (const { layer, side, epsilon } of reports) {
      const lowest = FORMAT_NAMES.findLast((name) => epsilon[name] !== undefined);
      const error = lowest === undefined ? 0 : epsilon[lowest]!;
      if (error <= 0) continue;
      const at = SIDES.indexOf(side) * this.#layers + layer;
      const value = Math.log(error);
      const level = this.#level[at]!;
      this.#level[at] = Number.isNaN(level) ? value : level + LEVEL * (value - level);
      if (Number.isNaN(level)) continue;
      sum += value - level;
      squares += (value - level) ** 2;
      count++;
    }
    if (count < SIDES_MIN) return;
    const mean = sum / count;
    const spread = Math.sqrt(Math.max(0, squares / count - mean * mean));
    this.#shift = Math.abs(mean) >= SHIFT_SPREAD * spread ? Math.abs(mean) : 0;
    if (this.#shift >= bound) this.#shiftUntil = tokens + SHIFT_TOKENS;
  }

  /** Whether the topic seems to have changed lately. */
  hasShifted(tokens: number): boolean {
    return tokens < this.#shiftUntil;
  }

  /** Measured over promised error of a layer; that of its worse source. */
  ratio(layer: number): number {
    const of = ({ sum, weight }: Mean): number => (sum + PRIOR * this.#session) / (weight + PRIOR);
    const canaries = Math.max(of(this.#canaries[layer]!), of(this.#canaries[this.#layers + layer]!));
    return Math.exp(Math.max(canaries, of(this.#again[layer]!)));
  }
}

/**
 * The thresholds with gains and coefficients of the law that can be believed: none below a share of the median of its side. → and the layers that
 * had one
 */
export function believable(set: ThresholdSet): { readonly thresholds: ThresholdSet; readonly doubted: Set<number> } {
  const share = thresholdOf(set, 'gain.least').value;
  const doubted = new Set<number>();
  const raised = (gains: readonly number[]): readonly number[] => {
    const least = share * [...gains].sort((a, b) => a - b)[gains.length >> 1]!;
    return gains.map((gain, layer) => {
      if (gain < least) doubted.add(layer);
      return Math.max(gain, least);
    });
  };
  const gains = { k: raised(set.gains.k), v: raised(set.gains.v) };
  const coefficients = (of: readonly Estimate[]): readonly Estimate[] => {
    const values = raised(of.map(({ value }) => value));
    return of.map((estimate, layer) => ({ ...estimate, value: values[layer]! }));
  };
  const { law } = set;
  const coefficient = law && { k: coefficients(law.coefficient.k), v: coefficients(law.coefficient.v) };
  if (doubted.size === 0) return { thresholds: set, doubted };
  return { thresholds: { ...set, gains, ...(law && coefficient ? { law: { ...law, coefficient } } : {}) }, doubted };
}
