/** Numbers that follow from a seed (mulberry32), and the distributions of synthetic traces. */

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** From 0 to 1, without 1. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let word = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    word = (word + Math.imul(word ^ (word >>> 7), 61 | word)) ^ word;
    return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32;
  }

  /** Between two events that come at random, in the mean. */
  exponential(mean: number): number {
    return -mean * Math.log(1 - this.next());
  }

  /** Half are below the median; `sigma` is the deviation of the logarithm. */
  logNormal(median: number, sigma: number): number {
    const normal = Math.sqrt(-2 * Math.log(1 - this.next())) * Math.cos(2 * Math.PI * this.next());
    return median * Math.exp(sigma * normal);
  }

  /** A rank from 1 to `most`, by a power of it: the inverse of the integral, which is near enough for large ranks. */
  zipf(most: number, exponent: number): number {
    const power = 1 - exponent;
    const reach = power === 0 ? Math.log(most + 1) : ((most + 1) ** power - 1) / power;
    const at = this.next() * reach;
    return Math.min(most, Math.floor(power === 0 ? Math.exp(at) : (1 + at * power) ** (1 / power)));
  }
}
