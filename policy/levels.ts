/**
 * How much of what the trials of a page say is the page, and how much is chance. A trial asks a few queries; of many
 * pages those that were tried in a lucky moment look cheapest, and who believes them moves the wrong ones. So what is
 * known of a page is shrunk towards what the pages of its layer and side have in common, by what repeated trials show:
 * how much of a first trial's difference from the others is found again, how far pages differ beyond that, and how far
 * repeated trials of one page differ among themselves. (Empirical Bayes: Robbins 1956; Efron and Morris 1975.)
 *
 * All is in logarithms of ε. A repeated trial of a page whose first one was x is y = x + r with
 * r = m − (1 − b)·(x − mean x) + u + e, where u belongs to the page and e is chance. Means are those of a layer and
 * side; b and the variances of x, u and e are the session's, because one layer has too few pages to tell them.
 */
import type { Noise } from './course.ts';
import { grown, SLOTS } from './sides.ts';

/**
 * What stands in until a session has trials of its own, where no earlier one says it, as so many repeated trials.
 * Between what SmolLM2-135M and the reference model show: b 0.5 and 0.4, variances of x 0.2 and 0.19, of u 0.16 and
 * 0.02, of e 0.2 and 0.5.
 */
const PRIOR_COUNT = 32;
const ASSUMED: Noise = { found: 0.6, page: 0.05, chance: 0.4 };
const FIRST_ASSUMED = 0.12;
/** Trials of one page are never taken to be surer than this variance. */
const CHANCE_LEAST = 0.01;
/** No single trial says more than this. */
const LN_MAX = 2;

/** Sums over the repeated trials of one layer and side. */
class Sums {
  /** First trials, and Σ x of them. */
  pages = 0;
  first = 0;
  /** Repeated trials, and Σ over them. */
  count = 0;
  r = 0;
  rr = 0;
  x = 0;
  xx = 0;
  xr = 0;
  /** Ordered pairs of repeated trials of one page, Σ of the products of their r, and Σ of one of the two. */
  pairs = 0;
  products = 0;
  halves = 0;
}

export class Levels {
  readonly #sums: readonly Sums[];
  // By slot.
  /** −1: it was not tried. */
  #place = new Int32Array(SLOTS).fill(-1);
  #first = new Float64Array(SLOTS);
  #count = new Uint16Array(SLOTS);
  #sum = new Float64Array(SLOTS);
  /** b, and the variances of u and of e. */
  #found: number;
  #page: number;
  #chance: number;
  readonly #assumed: Noise;

  /** Pages are compared with those of the same place. */
  constructor(places: number, assumed: Noise = ASSUMED) {
    this.#assumed = assumed;
    this.#found = assumed.found;
    this.#page = assumed.page;
    this.#chance = assumed.chance;
    this.#sums = Array.from({ length: places }, () => new Sums());
  }

  /** A page side was tried for the first time; x is ln ε of one of its formats, the same for all pages of its place. */
  first(slot: number, place: number, x: number): void {
    while (slot >= this.#place.length) this.#grow();
    this.#place[slot] = place;
    this.#first[slot] = x;
    this.#count[slot] = 0;
    this.#sum[slot] = 0;
    const sums = this.#sums[place]!;
    sums.pages++;
    sums.first += x;
  }

  /** It was tried again; r is ln of what was found over what its first trial promised for its age. */
  again(slot: number, r: number): void {
    const sums = this.#sumsOf(slot);
    if (sums === undefined || !Number.isFinite(r)) return;
    const bounded = Math.max(-LN_MAX, Math.min(LN_MAX, r));
    const [x, count, sum] = [this.#first[slot]!, this.#count[slot]!, this.#sum[slot]!];
    sums.count++;
    sums.r += bounded;
    sums.rr += bounded * bounded;
    sums.x += x;
    sums.xx += x * x;
    sums.xr += x * bounded;
    sums.pairs += 2 * count;
    sums.products += 2 * bounded * sum;
    sums.halves += sum + count * bounded;
    this.#count[slot] = count + 1;
    this.#sum[slot] = sum + bounded;
  }

  /** Takes in what was learned; called once a page. */
  settle(): void {
    let [covariance, spread, total, count, shared, pairs] = [0, 0, 0, 0, 0, 0];
    for (const one of this.#sums) {
      if (one.count < 2) continue;
      const [x, r] = [one.x / one.count, one.r / one.count];
      covariance += one.xr - one.count * x * r;
      spread += one.xx - one.count * x * x;
      total += one.rr - one.count * r * r;
      count += one.count;
      shared += one.products - 2 * r * one.halves + r * r * one.pairs;
      pairs += one.pairs;
    }
    const assumed = this.#assumed;
    const prior = PRIOR_COUNT * FIRST_ASSUMED;
    const slope = (covariance - prior * (1 - assumed.found)) / (spread + prior);
    this.#found = 1 + Math.max(-1, Math.min(0, slope));
    const unfound = 1 - this.#found;
    const lost = unfound * unfound * ((spread + prior) / (count + PRIOR_COUNT));
    this.#page = Math.max(0, (shared - lost * pairs + assumed.page * PRIOR_COUNT) / (pairs + PRIOR_COUNT));
    const whole = (total + PRIOR_COUNT * (lost + assumed.page + assumed.chance)) / (count + PRIOR_COUNT);
    this.#chance = Math.max(CHANCE_LEAST, whole - lost - this.#page);
  }

  /** What this session has found; null before its first repeated trial. */
  get noise(): Noise | null {
    if (this.#sums.every(({ count }) => count === 0)) return null;
    return { found: this.#found, page: this.#page, chance: this.#chance };
  }

  #sumsOf(slot: number): Sums | undefined {
    return this.#sums[this.#place[slot] ?? -1];
  }

  /** By how much a first trial is expected to lie above what is found later of its page, in ln ε; 0 without one. */
  excess(slot: number): number {
    const sums = this.#sumsOf(slot);
    if (sums === undefined) return 0;
    const { first, pages } = sums;
    return (1 - this.#found) * (this.#first[slot]! - first / pages);
  }

  /** What is added to ln ε of a first trial, so that it stands for what is expected of its page. 0 without one. */
  shift(slot: number): number {
    const sums = this.#sumsOf(slot);
    if (sums === undefined) return 0;
    const excess = this.excess(slot);
    const tries = this.#count[slot]!;
    if (tries === 0) return -excess;
    const { r, count } = sums;
    const kept = this.#page / (this.#page + this.#chance / tries);
    return -excess + kept * (this.#sum[slot]! / tries - r / count + excess);
  }

  #grow(): void {
    const size = this.#place.length * 2;
    this.#place = grown(this.#place, new Int32Array(size).fill(-1));
    this.#first = grown(this.#first, new Float64Array(size));
    this.#count = grown(this.#count, new Uint16Array(size));
    this.#sum = grown(this.#sum, new Float64Array(size));
  }
}
