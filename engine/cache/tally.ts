/**
 * What a cache has counted of its own work: what became of planned moves in each layer, and the milliseconds that
 * deciding took.
 */

/** Milliseconds that deciding took. */
export interface Spent {
  /** All that is not one of the others. */
  readonly decideMs: number;
  readonly trialMs: number;
  readonly transcodeMs: number;
  readonly witnessMs: number;
}

/** Of one layer. */
export interface LayerCounts {
  readonly tried: number;
  readonly accepted: number;
  readonly refused: number;
  readonly epsilonMax: number | null;
}

type Counting<T> = { -readonly [Name in keyof T]: T[Name] };

export class Tally {
  readonly #layers: readonly Counting<LayerCounts>[];
  readonly #spent: Counting<Spent> = { decideMs: 0, trialMs: 0, transcodeMs: 0, witnessMs: 0 };

  constructor(layers: number) {
    this.#layers = Array.from({ length: layers }, () => ({ tried: 0, accepted: 0, refused: 0, epsilonMax: null }));
  }

  layer(layer: number): LayerCounts {
    return this.#layers[layer]!;
  }

  get spent(): Spent {
    return this.#spent;
  }

  /** Moves planned, refused ones included. */
  get decisions(): number {
    return this.#layers.reduce((sum, { accepted, refused }) => sum + accepted + refused, 0);
  }

  /** Moves that were planned and refused. */
  get refused(): number {
    return this.#layers.reduce((sum, { refused }) => sum + refused, 0);
  }

  /** So many candidates of a layer were tried. */
  tried(layer: number, candidates: number): void {
    this.#layers[layer]!.tried += candidates;
  }

  /** A move was carried out. epsilon: of its trial; null: it had none. */
  moved(layer: number, epsilon: number | null): void {
    const counts = this.#layers[layer]!;
    counts.accepted++;
    if (epsilon !== null) counts.epsilonMax = Math.max(counts.epsilonMax ?? 0, epsilon);
  }

  /** A planned move was not carried out. */
  refusedMove(layer: number): void {
    this.#layers[layer]!.refused++;
  }

  /** Trials and what is read twice, beside the steps or in them. */
  trialsTook(ms: number): void {
    this.#spent.trialMs += ms;
  }

  moveTook(ms: number): void {
    this.#spent.transcodeMs += ms;
  }

  /** Handing an entry to the log. */
  entryTook(ms: number): void {
    this.#spent.witnessMs += ms;
  }

  /** Does the work of deciding, whose time is what of it no trial, no move and no entry took. */
  deciding(work: () => void): void {
    const start = performance.now() - this.#othersMs;
    try {
      work();
    } finally {
      this.#spent.decideMs += performance.now() - this.#othersMs - start;
    }
  }

  get #othersMs(): number {
    const { trialMs, transcodeMs, witnessMs } = this.#spent;
    return trialMs + transcodeMs + witnessMs;
  }
}
