/**
 * How prompts and answers share the time: by how many there are of each. A prompt that is read owes time to those that
 * write, and is read on when they have had it. One prompt beside seven that write has an eighth of the time, three
 * beside one have three quarters: those that write together cost hardly more than one that writes alone, and who waits
 * to be read writes nothing.
 */

/** What a pass was. */
export interface Pass {
  readonly ms: number;
  /** What it would have taken without prompts. */
  readonly writingMs: number;
  readonly hasPrompt: boolean;
  /** Who was in it, or waits for the next one. */
  readonly writers: number;
  readonly readers: number;
}

export class Owed {
  #ms = 0;

  /** Writers have the next pass to themselves. */
  get isOwed(): boolean {
    return this.#ms > 0;
  }

  /** Nobody writes. */
  clear(): void {
    this.#ms = 0;
  }

  took({ ms, writingMs, hasPrompt, writers, readers }: Pass): void {
    if (hasPrompt) this.#ms += Math.max(0, ms - writingMs) * (writers / readers);
    else this.#ms = Math.max(0, this.#ms - ms);
  }
}
