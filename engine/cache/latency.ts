/** The p95 of recent decode steps: wall-clock time, so whoever decides by it must write it down. */

/**
 * Steps looked at: half a page, so that every page boundary falls into some window and no single slow step stays for
 * long.
 */
const STEPS = 64;
/** With fewer, one outlier would be the p95. */
const STEPS_MIN = 20;
/** Most of them that are at or above the p95. */
const LARGEST = STEPS - Math.ceil(0.95 * STEPS) + 1;

export class RecentLatency {
  readonly #ms = new Float64Array(STEPS);
  readonly #largest = new Float64Array(LARGEST);
  #count = 0;

  add(ms: number): void {
    this.#ms[this.#count++ % STEPS] = ms;
  }

  /** In milliseconds, rounded to a microsecond; 0 before enough steps were seen. */
  get p95(): number {
    const count = Math.min(this.#count, STEPS);
    if (count < STEPS_MIN) return 0;
    // The percentile is one of the few largest values, so those are kept in order at the end of a short array.
    const above = count - Math.ceil(0.95 * count) + 1;
    const largest = this.#largest.fill(0);
    for (let i = 0; i < count; i++) {
      const ms = this.#ms[i]!;
      let at = LARGEST - above;
      if (ms <= largest[at]!) continue;
      for (; at + 1 < LARGEST && largest[at + 1]! < ms; at++) largest[at] = largest[at + 1]!;
      largest[at] = ms;
    }
    return Math.round(largest[LARGEST - above]! * 1000) / 1000;
  }
}
