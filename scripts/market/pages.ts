/**
 * The pages of one simulated session: how many layers of pages behind the window stand on each step of the ladder that
 * policies go down, with the sizes that the engine has. What content would say is a law: an error falls by a quarter
 * with every bit.
 */
import { bytesAt, OPEN_FORMAT, type Window } from '../../engine/cache/budget.ts';
import { type CacheShape, movablePages, openBytes, PAGE_TOKENS, pageBytes, sealedPages } from '../../native/index.ts';
import { STEPS } from '../../policy/index.ts';

/** What all sessions of a model have in common. */
export class Ladder {
  readonly shape: CacheShape;
  /** Bytes of a page of one layer, keys and values, on each step. */
  readonly bytes: readonly number[];
  /** Bits of a number, and what it costs beside four bits. */
  readonly bits: readonly number[];
  readonly cost: readonly number[];
  readonly window: Window = { openFormat: OPEN_FORMAT, windowFormat: OPEN_FORMAT, windowTokens: PAGE_TOKENS };

  constructor(shape: CacheShape) {
    const { kvHeads, headDim } = shape;
    this.shape = shape;
    const sides = STEPS.map(({ k, v }) => [pageBytes(k, kvHeads, headDim), pageBytes(v, kvHeads, headDim)] as const);
    const bitsOf = (bytes: number): number => (8 * bytes) / (PAGE_TOKENS * kvHeads * headDim);
    const costOf = (bytes: number): number => 4 ** (4 - bitsOf(bytes));
    this.bytes = sides.map(([k, v]) => k + v);
    this.bits = sides.map(([k, v]) => (bitsOf(k) + bitsOf(v)) / 2);
    this.cost = sides.map(([k, v]) => (costOf(k) + costOf(v)) / 2);
  }

  /** The step below which nothing goes. */
  get lowest(): number {
    return this.bytes.length - 1;
  }

  /** What a session takes up to so many tokens with all pages behind its window on the lowest step. */
  leastBytes(tokens: number): number {
    return bytesAt(
      this.shape,
      tokens,
      Array.from({ length: this.shape.layers }, () => STEPS[this.lowest]!),
      this.window,
    );
  }
}

export class Pages {
  readonly #ladder: Ladder;
  readonly #counts: Float64Array;
  /** undefined: it has changed since. */
  #price: number | null | undefined;
  tokens = 0;
  behindTokens = 0;
  behindBytes = 0;
  /** Of all that it takes. */
  bytes = 0;

  constructor(ladder: Ladder) {
    this.#ladder = ladder;
    this.#counts = new Float64Array(ladder.bytes.length);
  }

  /** Bytes that so many tokens more take. */
  appendBytes(tokens: number): number {
    return this.#bytesAt(this.tokens + tokens, this.behindBytes + this.#leavingBytes(tokens)) - this.bytes;
  }

  /** Pages that leave the window are still in its format. */
  append(tokens: number): void {
    const pages = movablePages(this.tokens + tokens) - movablePages(this.tokens);
    this.behindBytes += this.#leavingBytes(tokens);
    this.#counts[0]! += pages * this.#ladder.shape.layers;
    this.tokens += tokens;
    this.behindTokens = movablePages(this.tokens) * PAGE_TOKENS;
    this.#price = undefined;
    this.bytes = this.#bytesAt(this.tokens, this.behindBytes);
  }

  #leavingBytes(tokens: number): number {
    const { shape, bytes } = this.#ladder;
    return (movablePages(this.tokens + tokens) - movablePages(this.tokens)) * shape.layers * bytes[0]!;
  }

  #bytesAt(tokens: number, behindBytes: number): number {
    const { shape, bytes, window } = this.#ladder;
    const inWindow = sealedPages(tokens) - movablePages(tokens);
    return openBytes(shape, tokens, window.openFormat) + inWindow * shape.layers * bytes[0]! + behindBytes;
  }

  /** Moves the pages that cost least for a byte until so many are free, or none goes lower. → bytes freed */
  giveUp(neededBytes: number): number {
    let freedBytes = 0;
    for (let step = 0; step < this.#ladder.lowest && freedBytes < neededBytes; step++) {
      const saved = this.#ladder.bytes[step]! - this.#ladder.bytes[step + 1]!;
      const moves = Math.min(this.#counts[step]!, Math.ceil((neededBytes - freedBytes) / saved));
      this.#counts[step]! -= moves;
      this.#counts[step + 1]! += moves;
      freedBytes += moves * saved;
    }
    this.behindBytes -= freedBytes;
    this.bytes -= freedBytes;
    this.#price = undefined;
    return freedBytes;
  }

  /** True if a page of it may go lower. */
  get canGive(): boolean {
    return this.price !== null;
  }

  /** Everything goes. */
  clear(): void {
    this.#counts.fill(0);
    this.#price = undefined;
    Object.assign(this, { tokens: 0, behindTokens: 0, behindBytes: 0, bytes: 0 });
  }

  /** What the next byte costs of its mean divergence, as `price` would say it; null: there is none. */
  get price(): number | null {
    if (this.#price === undefined) this.#price = this.#nextPrice();
    return this.#price;
  }

  #nextPrice(): number | null {
    const { bytes, cost, lowest, shape } = this.#ladder;
    const step = this.#counts.findIndex((count, at) => count > 0 && at < lowest);
    if (step < 0) return null;
    const share = PAGE_TOKENS / (shape.layers * this.tokens);
    return (share * (cost[step + 1]! - cost[step]!)) / (bytes[step]! - bytes[step + 1]!);
  }

  /** Mean over its tokens of what their formats cost, beside four bits; those of the window cost nothing. */
  get divergence(): number {
    return this.#mean(this.#ladder.cost, 0);
  }

  /** Mean bits of its sealed and open pages. */
  get bits(): number {
    return this.#mean(this.#ladder.bits, this.#ladder.bits[0]!);
  }

  #mean(of: readonly number[], inWindow: number): number {
    if (this.tokens === 0) return inWindow;
    const { behindTokens } = this;
    const behind = this.#counts.reduce((sum, count, step) => sum + count * of[step]!, 0) / this.#ladder.shape.layers;
    return (behind * PAGE_TOKENS + (this.tokens - behindTokens) * inWindow) / this.tokens;
  }
}
