/** A wait that somebody may end. */
export class Pause {
  #wake: (() => void) | null = null;

  /** Resolves after so long, or when it is ended. */
  wait(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.end(), ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = null;
        resolve();
      };
    });
  }

  /** Ends the wait, if there is one. */
  end(): void {
    this.#wake?.();
  }
}
