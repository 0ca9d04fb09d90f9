/** How much of a prompt is read at once while others write, who wait so long: as much as a pause of theirs may take. */

/**
 * How long a pass may take for the piece of a prompt in it, in milliseconds. With a quarter of the time for prompts, a
 * pause of this length comes once in a stretch of four times as long: of short steps it is then less than one in
 * twenty. Chosen: readers of an answer do not see it.
 */
const PAUSE_MS = 60;
/** Pages and windows are whole multiples of a piece. */
const PIECES = [128, 64, 32, 16] as const;
/** How much of what is known the newest pass says. */
const NEWEST = 0.3;

export class Pieces {
  #writingMs: number | null = null;
  /** What a token of a prompt adds to a pass; null: none was read yet. */
  #tokenMs: number | null = null;

  /** How long a pass takes in which nobody reads. */
  get writingMs(): number {
    return this.#writingMs ?? 0;
  }

  get tokens(): number {
    const tokenMs = this.#tokenMs;
    const least = PIECES.at(-1)!;
    if (tokenMs === null) return least;
    return PIECES.find((tokens) => tokens * tokenMs <= PAUSE_MS) ?? least;
  }

  /** A pass of so many tokens of answers and of prompts took so long. */
  took(ms: number, { written, read }: { readonly written: number; readonly read: number }): void {
    if (read === 0) this.#writingMs = mixed(this.#writingMs, ms);
    else this.#tokenMs = mixed(this.#tokenMs, Math.max(0, ms - (written === 0 ? 0 : this.writingMs)) / read);
  }
}

const mixed = (known: number | null, newest: number): number =>
  known === null ? newest : known + NEWEST * (newest - known);
