/**
 * Turns at the model: one session steps at a time, so that all others are between two steps meanwhile and room that was
 * found for a step is there to its end. Who asked first comes first, but prompts leave writers their share.
 */

/**
 * The share of time that prompts get while others write. Chosen, not measured: a prompt takes a third longer from
 * writers than nothing would, and four times as long itself.
 */
const READING_SHARE = 1 / 4;
/**
 * Tokens of a prompt that are read at once while others write, who wait so long. Pages and windows are whole multiples
 * of it. Chosen, not measured.
 */
const PIECE_TOKENS = 16;

interface Turn {
  readonly reads: boolean;
  readonly begin: () => void;
}

export class Turns {
  #current: Turn | null = null;
  readonly #waiting: Turn[] = [];
  /** Milliseconds that writers may take before a prompt is read on. */
  #owedMs = 0;

  /** Does a step of a prompt (`reads`) or of an answer when its turn has come. */
  async during<Result>(reads: boolean, work: () => Promise<Result>): Promise<Result> {
    await this.#turn(reads);
    const start = performance.now();
    try {
      return await work();
    } finally {
      this.#over(performance.now() - start);
    }
  }

  /** How many of so many tokens of a prompt are read at once now. */
  piece(tokens: number): number {
    return this.#othersWrite ? Math.min(tokens, PIECE_TOKENS) : tokens;
  }

  get #othersWrite(): boolean {
    return this.#current?.reads === false || this.#waiting.some(({ reads }) => !reads);
  }

  async #turn(reads: boolean): Promise<void> {
    await new Promise<void>((resolve) => {
      const turn = { reads, begin: resolve };
      if (this.#current === null && this.#waiting.length === 0) this.#begin(turn);
      else this.#waiting.push(turn);
    });
  }

  #begin(turn: Turn): void {
    this.#current = turn;
    turn.begin();
  }

  #over(ms: number): void {
    const reads = this.#current?.reads === true;
    this.#current = null;
    if (this.#waiting.length === 0) {
      this.#owedMs = 0;
      return;
    }
    if (!reads) this.#owedMs = Math.max(0, this.#owedMs - ms);
    else if (this.#othersWrite) this.#owedMs += ms * (1 / READING_SHARE - 1);
    // Who has just had a turn may want the next one, and asks for it before this comes.
    setImmediate(() => this.#next());
  }

  #next(): void {
    if (this.#current !== null) return;
    const writer = this.#waiting.findIndex(({ reads }) => !reads);
    const [turn] = this.#waiting.splice(this.#owedMs > 0 && writer > 0 ? writer : 0, 1);
    if (turn !== undefined) this.#begin(turn);
  }
}
