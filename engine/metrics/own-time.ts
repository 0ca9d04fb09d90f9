/** Time that one kind of work takes of a thread, without that of other work which it has done in between. */
export class OwnTime {
  readonly #add: (seconds: number) => void;
  /** When it went on, on the clock of performance.now(); null: it does not count now. */
  #sinceMs: number | null = null;

  /** add: is told of time as it is over. */
  constructor(add: (seconds: number) => void) {
    this.#add = add;
  }

  /** Counts the time of work, once where such work is within such work. */
  during<Result>(work: () => Result): Result {
    if (this.#sinceMs !== null) return work();
    this.#sinceMs = performance.now();
    try {
      return work();
    } finally {
      this.#stop();
    }
  }

  /** Does other work, whose time is not counted. */
  outside<Result>(work: () => Result): Result {
    if (this.#sinceMs === null) return work();
    this.#stop();
    try {
      return work();
    } finally {
      this.#sinceMs = performance.now();
    }
  }

  #stop(): void {
    this.#add((performance.now() - this.#sinceMs!) / 1000);
    this.#sinceMs = null;
  }
}
