/** What the moves made so far are predicted to cost, by page and layer: each page's share fades as the page grows older. */
import { pageOf } from '../native/index.ts';
import type { Fading } from './fading.ts';

/** Pages of newer tokens behind a page; 1 when it leaves the window. */
export const ageOf = (page: number, tokens: number): number => Math.max(1, pageOf(tokens) - page - 1);

export class Divergence {
  readonly #layers: number;
  /** null: nothing fades, as in version 1 of the price policy. */
  readonly #fading: Fading | null;
  /** Cost at the age of the first trial, [pages][layers]. */
  readonly #costs: Float64Array[] = [];
  /** Sums of them over the layers. */
  readonly #sums: number[] = [];
  /** Σ over the tokens read so far of what the moves cost then, and how many tokens these are. */
  #past = 0;
  #tokens = 0;

  constructor(layers: number, fading: Fading | null) {
    this.#layers = layers;
    this.#fading = fading;
  }

  /** Adds the cost of a move, negative where one was taken back. No page costs less than nothing. */
  add(layer: number, page: number, cost: number): void {
    while (this.#costs.length <= page) {
      this.#costs.push(new Float64Array(this.#layers));
      this.#sums.push(0);
    }
    const costs = this.#costs[page]!;
    const after = Math.max(0, costs[layer]! + cost);
    this.#sums[page] = Math.max(0, this.#sums[page]! + after - costs[layer]!);
    costs[layer] = after;
  }

  /** Of all layers together at this length, in nats. */
  total(tokens: number): number {
    let sum = 0;
    for (let page = 0; page < this.#sums.length; page++) sum += this.#sums[page]! * this.#left(page, tokens);
    return sum;
  }

  /**
   * Tokens were read, or taken back. Keys and values that are computed while others are coded carry some of that error with them, so
   * what moves have cost so far counts beside what they cost now.
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

  /** Of each layer, [layers]. */
  byLayer(tokens: number): Float64Array {
    const found = new Float64Array(this.#layers);
    for (const [page, costs] of this.#costs.entries()) {
      const left = this.#left(page, tokens);
      for (let layer = 0; layer < found.length; layer++) found[layer]! += costs[layer]! * left;
    }
    return found;
  }

  #left(page: number, tokens: number): number {
    return this.#fading === null ? 1 : this.#fading.energyAt(ageOf(page, tokens));
  }
}
