/** The p95 of recent decode steps: wall-clock time, so whoever decides by it must write it down. */

/** Steps looked at: half a page, so that every page boundary falls into some window and no single slow step stays for long. */
const STEPS = 64;
/** With fewer, one outlier would be the p95. */
const STEPS_MIN = 20;

export class RecentLatency {
  readonly #ms = new Float64Array(STEPS);
  #count = 0;

  add(ms: number): void {
    this.#ms[this.#count++ % STEPS] = ms;
  }

  /** In milliseconds, rounded to a microsecond; 0 before enough steps were seen. */
  get p95(): number {
    const count = Math.min(this.#count, STEPS);
    if (count < STEPS_MIN) return 0;
    const sorted = this.#ms.slice(0, count).sort();
    return Math.round(sorted[Math.ceil(0.95 * count) - 1]! * 1000) / 1000;
  }
}
