/** What the newest tokens of a session left behind the last layer: rows of the residual stream, each of m numbers. */

export class Trail {
  readonly #width: number;
  readonly #most: number;
  /** Behind each token of the newest step, [T, m]. */
  #newest = new Float32Array(0);
  #last: Float32Array | null = null;
  /** Oldest first. */
  #kept: Float32Array[] = [];

  /** width: m. most: how many rows are kept for comparison. */
  constructor(width: number, most: number) {
    this.#width = width;
    this.#most = most;
  }

  /** Behind each token of the newest step, [T, m]. */
  get newest(): Float32Array {
    return this.#newest;
  }

  /** What the next token is drawn from, [m]; null: nothing was read, or tokens were taken back. */
  get last(): Float32Array | null {
    return this.#last;
  }

  /** Rows kept for comparison, oldest first, [kept, m]. */
  kept(): Float32Array {
    const rows = new Float32Array(this.#kept.length * this.#width);
    for (const [index, row] of this.#kept.entries()) rows.set(row, index * this.#width);
    return rows;
  }

  /** A step of so many tokens left these rows, which may be overwritten by the next one. */
  add(tokens: number, hidden: Float32Array): void {
    const width = this.#width;
    this.#newest = hidden.slice(0, tokens * width);
    this.endAt(this.#newest.slice((tokens - 1) * width));
    for (let row = Math.max(0, tokens - this.#most); row < tokens; row++)
      this.#kept.push(this.#newest.slice(row * width, (row + 1) * width));
    if (this.#kept.length > this.#most) this.#kept.splice(0, this.#kept.length - this.#most);
  }

  /** So many of the newest tokens were taken back; what is the last row now nobody knows. */
  cut(tokens: number): void {
    this.#kept.length = Math.max(0, this.#kept.length - tokens);
    this.#last = null;
  }

  /** The last token left this row. */
  endAt(row: Float32Array | null): void {
    this.#last = row;
  }

  /** As it is now, to go back to. */
  copy(): Trail {
    const copy = new Trail(this.#width, this.#most);
    copy.#last = this.#last;
    copy.#kept = [...this.#kept];
    return copy;
  }
}
