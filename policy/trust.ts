/**
 * Whether trials of pages that are tried again find in a layer what is expected of them, by what earlier sessions and
 * this one know. Where they do, a sample of its pages says enough (machine.ts, region `trust`).
 */

/** Weight that measurements keep with each page that passes. */
const KEPT = 0.75;
/** No single trial finds more than this many times what was expected. */
const RATIO_MAX = 50;
/** Fewer say nothing. */
const COUNT_LEAST = 8;
/**
 * Trials of a whole session before a layer of it is trusted: those of some ten pages. At once, sessions of 1,400 tokens
 * saved hardly any trials, and one lucky trial made nearly all of their divergence.
 */
const SEEN_LEAST = 96;
/** Standard deviation of ln of the mean ratio of one trial: found ε² over expected ε², whose distribution is skewed. */
const UNSURE = 1;

/** Of the pages of a trusted layer that would be tried again, one in so many is. */
const SAMPLE = 2;

/**
 * Pages that are no older are all tried again: a first trial alone may have met a lucky moment, and nothing that a
 * layer is known for says which. Leaving out half of these as well cost up to six times the divergence on one text.
 */
const YOUNG_PAGES = 2;

/** True if a page is in the sample when page `newest` comes to be tried. Older pages take turns. */
export const isSampled = (layer: number, page: number, newest: number): boolean =>
  newest - page <= YOUNG_PAGES || (page + layer + newest) % SAMPLE === 0;

export class Agreement {
  readonly #sum: Float64Array;
  readonly #count: Float64Array;
  /** The same of all pages. */
  readonly #seen: Uint32Array;

  constructor(layers: number) {
    this.#seen = new Uint32Array(layers);
    this.#sum = new Float64Array(layers);
    this.#count = new Float64Array(layers);
  }

  /** A page was tried again: ε² that was expected of it at its age, and what was found. */
  note(layer: number, expected: number, found: number): void {
    const ratio = found / expected;
    if (!Number.isFinite(ratio)) return;
    this.#sum[layer]! += Math.min(RATIO_MAX, ratio);
    this.#count[layer]! += 1;
    this.#seen[layer]! += 1;
  }

  /** A page has passed. */
  fade(): void {
    for (let layer = 0; layer < this.#sum.length; layer++) {
      this.#sum[layer]! *= KEPT;
      this.#count[layer]! *= KEPT;
    }
  }

  /**
   * How well both agree: 1 where exactly that was found and nothing is uncertain, e^-0.5 where a mean error is e^0.5
   * times what was expected, or a fraction of it; 0 where too little was measured.
   */
  of(layer: number): number {
    const count = this.#count[layer]!;
    if (count < COUNT_LEAST || this.#seen[layer]! < SEEN_LEAST) return 0;
    return Math.exp(-Math.abs(0.5 * Math.log(this.#sum[layer]! / count)) - UNSURE / Math.sqrt(count));
  }
}
