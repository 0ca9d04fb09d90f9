/**
 * What a session learns about its own predictions: measured over promised error, per layer and over all of them.
 * Sources are canaries, pages that are tried again, and the first trials of new pages. Means are weighted exponentially
 * and shrunk towards what the whole session shows, so that one wild measurement moves little and a repeated one much.
 * Only Math.log, Math.exp and Math.sqrt are used, which are the same in every version of V8.
 */
import { FORMAT_NAMES, SIDES } from '../native/index.ts';
import type { Estimate } from './law.ts';
import { thresholdOf } from './thresholds.ts';
import type { CanaryReport, ThresholdSet, TrialReport } from './types.ts';

/** Share of a new measurement in the mean of the session, and in levels that follow faster. */
const SLOW = 0.1;
const LEVEL = 0.3;
/** So many measurements at the mean of the session stand beside those of a layer. */
const PRIOR = 1;
/** Weight that measurements keep with each page that passes. */
const KEPT = 0.5;
/** What is told of a mean follows it by this share with each page, whatever its uncertainty. */
const FOLLOWS = 0.25;
/**
 * ln(measured / promised) before anything was measured: errors fade with age (measured: -0.8 to -2 over pages 1 to 8).
 */
const FADED = -1;
/**
 * Standard deviation of one ln(measured / promised) of a layer, by source, before a session has measured it (0.6 at an
 * age of 3 pages, 1.0 at 10), and how many of them a mean must lie away to be told: fewer for canaries, which are few
 * and measured against what the page was. One measurement counts for at most three.
 */
const SPREADS = [0.9, 0.9, 0.6, 0.9, 1.1];
const CERTAIN = [1, 1, 2, 2, 2];
const WILD = 3;
/**
 * Rows are kept by their place and not because an error in them was large, so what they say does not fade: ln(measured
 * / promised) of four rows is 0 ± 1.1 at any age up to eight pages. That counts as what a page is expected to show.
 */
const ROWS_UNFADED = FADED;
/** Pages of this age, in pages, say something about the topic. */
const TOPIC_AGE = 3;
/** Older pages count alike. */
const AGES = 10;
/** Sides that a page must have been tried on for its mean to say something about the topic. */
const SIDES_MIN = 6;
/** Page boundaries before the levels that a topic is compared with are known well enough. */
const SETTLED = 4;
/** How much a shift of the first trials counts beside one of the repeated trials. */
const FIRST_SHARE = 0.3;
/** Tokens for which a change of topic, or damage, is remembered. */
const SHIFT_TOKENS = 512;

/** A mean of ln ratio with the weight of what it rests on, and what was told of it last. */
interface Mean {
  sum: number;
  weight: number;
  told: number;
}

/** What a repeated trial measured, and what was known before it. */
export interface Repeated {
  readonly measured: number;
  readonly promised: number;
  /** How many trials that rests on; 0 where nothing is known. */
  readonly tries: number;
}

/**
 * Where measurements of a layer come from: canaries of keys and of values, the first repetition of a trial, later ones,
 * and kept rows.
 */
const SOURCES = 5;
const FIRST = 2;
const LATER = 3;
const ROWS = 4;

export class Evidence {
  readonly #layers: number;
  /** [layers, SOURCES] */
  readonly #means: readonly Mean[];
  /** Means over the session, by source. */
  readonly #session = new Float64Array(SOURCES).fill(FADED);
  readonly #variance = Float64Array.from(SPREADS, (spread) => spread * spread);
  /** Mean ln ε of the lowest format tried, [side, layer]; NaN before the first page. */
  readonly #level: Float64Array;
  /** Mean ln(measured / promised) of pages by age; NaN before the first, and what this situation adds to it. */
  readonly #ages = new Float64Array(AGES + 1).fill(Number.NaN);
  readonly #sums = new Float64Array(AGES + 1);
  readonly #counts = new Float64Array(AGES + 1);
  #boundaries = 0;
  /** Sources that count: kept rows only once there are any. */
  #sources = ROWS;
  /** How far the first trials of this page and of the one before lie from their levels. */
  #shifts: readonly [number, number] = [0, 0];
  #shiftUntil = 0;
  /** By layer. */
  readonly #damagedUntil = new Map<number, number>();

  constructor(layers: number) {
    this.#layers = layers;
    this.#means = Array.from({ length: layers * SOURCES }, () => ({ sum: 0, weight: 0, told: FADED }));
    this.#level = new Float64Array(2 * layers).fill(Number.NaN);
  }

  /** A canary was probed. */
  canary({ layer, side, epsilonNow, epsilonPromised, rows }: CanaryReport): void {
    if (rows === undefined) {
      this.#note(layer, SIDES.indexOf(side), epsilonNow, epsilonPromised);
      return;
    }
    this.#sources = SOURCES;
    this.#note(layer, ROWS, epsilonNow, epsilonPromised * Math.exp(-ROWS_UNFADED));
  }

  /**
   * A page of this age, in pages, was tried again, after so many trials; `promised` is what they said of the same
   * format.
   */
  again(layer: number, age: number, { measured, promised, tries }: Repeated): void {
    if (!(measured > 0 && promised > 0)) return;
    this.#note(layer, tries === 1 ? FIRST : LATER, measured, promised);
    const at = Math.min(age, AGES);
    this.#sums[at]! += Math.log(measured / promised);
    this.#counts[at]! += 1;
  }

  #note(layer: number, source: number, measured: number, promised: number): void {
    if (!(measured > 0 && promised > 0)) return;
    const ratio = Math.log(measured / promised);
    const mean = this.#means[layer * SOURCES + source]!;
    mean.sum += ratio;
    mean.weight++;
    const away = ratio - this.#session[source]!;
    const variance = this.#variance[source]!;
    this.#variance[source] = variance + SLOW * (Math.min(away * away, WILD * WILD * variance) - variance);
    this.#session[source]! += SLOW * (Math.min(0, ratio) - this.#session[source]!);
  }

  /**
   * A page has passed: what was measured counts for less, so that a layer that nobody measures any more is believed
   * again in the end.
   */
  fade(): void {
    for (const [at, mean] of this.#means.entries()) {
      mean.told += FOLLOWS * (this.#middle(mean, at % SOURCES) - mean.told);
      mean.sum *= KEPT;
      mean.weight *= KEPT;
    }
  }

  /** First trials of pages: how far errors as a whole lie from those of earlier pages. */
  trials(reports: readonly TrialReport[]): void {
    let [sum, count] = [0, 0];
    for (const { layer, side, epsilon } of reports) {
      // What a latent would cost says nothing that its keys and values do not say.
      if (side === 'kv') continue;
      const lowest = FORMAT_NAMES.findLast((name) => epsilon[name] !== undefined);
      const error = lowest === undefined ? 0 : epsilon[lowest]!;
      if (error <= 0) continue;
      const at = SIDES.indexOf(side) * this.#layers + layer;
      const value = Math.log(error);
      const level = this.#level[at]!;
      this.#level[at] = Number.isNaN(level) ? value : level + LEVEL * (value - level);
      if (Number.isNaN(level)) continue;
      sum += value - level;
      count++;
    }
    if (count >= SIDES_MIN) this.#shifts = [Math.abs(sum / count), this.#shifts[0]];
  }

  /**
   * All of a situation is noted. The ratio of a layer moves only as far as its uncertainty forces it, so noise does not
   * carry it to and fro. And where pages that were read before are needed less than pages of their age were so far, by
   * `bound` in ln ε, the topic has changed: queries of another text do not ask for them.
   */
  settle(tokens: number, bound: number): void {
    for (const [at, mean] of this.#means.entries()) {
      const source = at % SOURCES;
      const middle = this.#middle(mean, source);
      const width = CERTAIN[source]! * Math.sqrt(this.#variance[source]! / (mean.weight + PRIOR));
      mean.told = Math.min(Math.max(mean.told, middle - width), middle + width);
    }
    let [sum, count, seen] = [0, 0, 0];
    for (let age = 0; age <= AGES; age++) {
      const reports = this.#counts[age]!;
      if (reports === 0) continue;
      const [value, level] = [this.#sums[age]! / reports, this.#ages[age]!];
      this.#ages[age] = Number.isNaN(level) ? value : level + LEVEL * (value - level);
      this.#sums[age] = 0;
      this.#counts[age] = 0;
      seen += reports;
      if (Number.isNaN(level) || age < TOPIC_AGE) continue;
      sum += reports * (level - value);
      count += reports;
    }
    if (seen === 0) return;
    if (count === 0 || ++this.#boundaries <= SETTLED) return;
    const shift = sum / count + FIRST_SHARE * Math.max(...this.#shifts);
    if (shift >= bound) this.#shiftUntil = tokens + SHIFT_TOKENS;
  }

  /** The mean of a layer, shrunk towards that of the session. */
  #middle({ sum, weight }: Mean, source: number): number {
    return (sum + PRIOR * this.#session[source]!) / (weight + PRIOR);
  }

  /** Codes of a layer are no longer those that were made. */
  damaged(layer: number, tokens: number): void {
    this.#damagedUntil.set(layer, tokens + SHIFT_TOKENS);
  }

  /** True if codes of a layer were damaged lately. */
  isDamaged(layer: number, tokens: number): boolean {
    return tokens < (this.#damagedUntil.get(layer) ?? 0);
  }

  /** True if the topic seems to have changed lately. */
  hasShifted(tokens: number): boolean {
    return tokens < this.#shiftUntil;
  }

  /** Measured over promised error of a layer; that of its worst source. */
  ratio(layer: number): number {
    let worst = Number.NEGATIVE_INFINITY;
    for (let source = 0; source < this.#sources; source++)
      worst = Math.max(worst, this.#means[layer * SOURCES + source]!.told);
    return Math.exp(worst);
  }
}

/**
 * The thresholds with gains and coefficients of the law that can be believed: in place of one below a share of the
 * median of its side stands another share of it. → and the layers that had one
 */
export function believable(set: ThresholdSet): { readonly thresholds: ThresholdSet; readonly doubted: Set<number> } {
  const share = thresholdOf(set, 'gain.least').value;
  // Logs of sessions that began without the bound are decided again as they were.
  const instead = Object.hasOwn(set.thresholds, 'gain.doubted') ? thresholdOf(set, 'gain.doubted').value : share;
  const doubted = new Set<number>();
  const raised = (gains: readonly number[]): readonly number[] => {
    const median = [...gains].sort((a, b) => a - b)[gains.length >> 1]!;
    return gains.map((gain, layer) => {
      if (gain >= share * median) return gain;
      doubted.add(layer);
      return instead * median;
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
