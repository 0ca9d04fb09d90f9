/** How much of a prompt is read at once while others write: as much as the time between two tokens of theirs allows. */

/** Pages and windows are whole multiples of a piece. */
const PIECES = [128, 64, 32, 16] as const;
/** How much of what is known the newest pass says. */
const NEWEST = 0.3;

export class Pieces {
  readonly #targetMs: number;
  #writingMs: number | null = null;
  /** What a token of a prompt adds to a pass; null: none was read yet. */
  #tokenMs: number | null = null;

  /** `targetMs`: how long a pass with a piece in it may take. */
  constructor(targetMs: number) {
    this.#targetMs = targetMs;
  }

  /** How long a pass takes in which nobody reads. */
  get writingMs(): number {
    return this.#writingMs ?? 0;
  }

  /** What a token of a prompt took of late; null: none was read. */
  get tokenMs(): number | null {
    return this.#tokenMs;
  }

  get tokens(): number {
    const tokenMs = this.#tokenMs;
    const least = PIECES.at(-1)!;
    if (tokenMs === null) return least;
    const leftMs = this.#targetMs - this.writingMs;
    return PIECES.find((tokens) => tokens * tokenMs <= leftMs) ?? least;
  }

  /** A pass of so many tokens of answers and of prompts took so long. */
  took(ms: number, { written, read }: { readonly written: number; readonly read: number }): void {
    if (read === 0) this.#writingMs = mixed(this.#writingMs, ms);
    else this.#tokenMs = mixed(this.#tokenMs, Math.max(0, ms - (written === 0 ? 0 : this.writingMs)) / read);
  }
}

const mixed = (known: number | null, newest: number): number =>
  known === null ? newest : known + NEWEST * (newest - known);
