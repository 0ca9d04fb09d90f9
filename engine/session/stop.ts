/** Stop strings over a stream: text that might be the beginning of one is held back until it is decided. */
export class StopText {
  readonly #stops: readonly string[];
  #held = '';
  /** The one that came; null: none yet. */
  by: string | null = null;

  constructor(stops: readonly string[]) {
    this.#stops = stops.filter((stop) => stop !== '');
  }

  get hit(): boolean {
    return this.by !== null;
  }

  /** → text that is safe to show. After a hit everything is ''. */
  push(text: string): string {
    if (this.hit || text === '') return '';
    this.#held += text;
    let first = -1;
    for (const stop of this.#stops) {
      const at = this.#held.indexOf(stop);
      if (at < 0 || (first >= 0 && at >= first)) continue;
      first = at;
      this.by = stop;
    }
    if (first >= 0) {
      const out = this.#held.slice(0, first);
      this.#held = '';
      return out;
    }
    let keep = 0;
    for (const stop of this.#stops) {
      for (let length = Math.min(stop.length - 1, this.#held.length); length > keep; length--) {
        if (stop.startsWith(this.#held.slice(-length))) keep = length;
      }
    }
    const out = this.#held.slice(0, this.#held.length - keep);
    this.#held = this.#held.slice(this.#held.length - keep);
    return out;
  }

  /** → what was held back and turned out not to be a stop. */
  end(): string {
    const out = this.#held;
    this.#held = '';
    return this.hit ? '' : out;
  }
}
