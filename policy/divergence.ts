/**
 * What the moves made so far are predicted to cost, by page and layer: each page's share fades as the page grows older.
 */
import { pageOf } from '../native/index.ts';
import type { Fading } from './fading.ts';

/** Pages of newer tokens behind a page; 1 when it leaves the window. */
export const ageOf = (page: number, tokens: number): number => Math.max(1, pageOf(tokens) - page - 1);

export class Divergence {
  /** null: nothing fades, as in version 1 of the price policy. */
  readonly #fading: Fading | null;
  /** Cost at the age of the first trial, [pages][layers × sides]. */
  readonly #costs: Float64Array[] = [];
  /** What the costs of a layer and side count as, [layers × sides]. */
  #weights: Float64Array;
  /** Weighted sums over layers and sides, by page. */
  #sums: number[] = [];
  /** Σ over the tokens read so far of what the moves cost then, and how many tokens these are. */
  #past = 0;
  #tokens = 0;

  constructor(layers: number, fading: Fading | null) {
    this.#weights = new Float64Array(2 * layers).fill(1);
    this.#fading = fading;
  }

  /**
   * Adds the cost of a move in `place`, 2 · layer for keys and one more for values; negative where one was taken back.
   * No page costs less than nothing.
   */
  add(place: number, page: number, cost: number): void {
    while (this.#costs.length <= page) {
      this.#costs.push(new Float64Array(this.#weights.length));
      this.#sums.push(0);
    }
    const costs = this.#costs[page]!;
    const after = Math.max(0, costs[place]! + cost);
    this.#sums[page] = Math.max(0, this.#sums[page]! + this.#weights[place]! * (after - costs[place]!));
    costs[place] = after;
  }

  /** A side is gone, and with it what its moves have cost. */
  drop(place: number, page: number): void {
    const cost = this.#costs[page]?.[place] ?? 0;
    if (cost > 0) this.add(place, page, -cost);
  }

  /** From now on costs count as much as these, [layers × sides]. */
  weigh(weights: Float64Array): void {
    this.#weights = weights;
    this.#sums = this.#costs.map((costs) => costs.reduce((sum, cost, place) => sum + weights[place]! * cost, 0));
  }

  /** The divergence of all layers together at this length, in nats. */
  total(tokens: number): number {
    let sum = 0;
    for (let page = 0; page < this.#sums.length; page++) sum += this.#sums[page]! * this.#left(page, tokens);
    return sum;
  }

  /**
   * Tokens were read, or taken back. Keys and values that are computed while others are coded carry some of that error
   * with them, so what moves have cost so far counts beside what they cost now.
   */
  pass(tokens: number): void {
    if (tokens < this.#tokens) this.#past *= tokens / this.#tokens;
    else this.#past += (tokens - this.#tokens) * this.total(tokens);
    this.#tokens = tokens;
  }

  /** The mean of `total` over all tokens so far. */
  get past(): number {
    return this.#tokens === 0 ? 0 : this.#past / this.#tokens;
  }

  /** The divergence of each layer, [layers]. */
  byLayer(tokens: number): Float64Array {
    const found = new Float64Array(this.#weights.length / 2);
    for (const [page, costs] of this.#costs.entries()) {
      const left = this.#left(page, tokens);
      for (const [place, cost] of costs.entries()) found[place >> 1]! += this.#weights[place]! * cost * left;
    }
    return found;
  }

  #left(page: number, tokens: number): number {
    return this.#fading === null ? 1 : this.#fading.energyAt(ageOf(page, tokens));
  }
}
