/**
 * How many tokens the steps had that a cache was filled by. A row gets the same bits beside any rows of other caches,
 * but not in any step of its own where open pages are in 8 bits; so whoever wants the same bits again takes the same
 * steps.
 */

/** So many tokens, so many times in a row. */
export type StepRun = readonly [tokens: number, times: number];

export class Steps {
  readonly #runs: [number, number][] = [];

  add(tokens: number, times = 1): void {
    const last = this.#runs.at(-1);
    if (last?.[0] === tokens) last[1] += times;
    else this.#runs.push([tokens, times]);
  }

  /** The last of them, of so many tokens, is as good as so many of one token. */
  split(tokens: number): void {
    if (tokens < 2) return;
    this.cut(this.tokens - tokens);
    this.add(1, tokens);
  }

  /** Takes over the steps of the first `tokens` of another cache, where it has none yet. → false: that cuts a step */
  begin(other: Steps, tokens: number): boolean {
    for (const [length, times] of other.#runs) this.#runs.push([length, times]);
    return this.cut(tokens);
  }

  /** The first `tokens` stay. → false: that cuts a step */
  cut(tokens: number): boolean {
    let over = this.tokens - tokens;
    while (over > 0) {
      const last = this.#runs.at(-1)!;
      const times = Math.min(last[1], Math.ceil(over / last[0]));
      over -= times * last[0];
      last[1] -= times;
      if (last[1] === 0) this.#runs.pop();
    }
    return over === 0;
  }

  /** Of all steps. */
  get tokens(): number {
    return this.#runs.reduce((sum, [tokens, times]) => sum + tokens * times, 0);
  }

  /** From the first on. */
  get runs(): readonly StepRun[] {
    return this.#runs.map(([tokens, times]) => [tokens, times]);
  }
}
