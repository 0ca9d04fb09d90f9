/**
 * Canaries: page sides that were demoted while rows of them (canary-rows.ts) or, where there is room beside those,
 * their original was kept, so that the error which their form causes for the queries of today can be measured against
 * what was promised. Architecture and figures: quality.md of the design, §2; a canary per layer tracks the true error
 * over time, and does not find single bad pages.
 */
import type { FormatName, KvCache, Side } from '../../native/index.ts';
import { type CanaryReport, type PolicyContext, thresholdOf } from '../../policy/index.ts';
import { CanaryRows } from './canary-rows.ts';
import type { Tally } from './tally.ts';
import type { Terms } from './terms.ts';
import { dueAfter, isWatched, type Pace, type SideMove, scatter } from './watching.ts';

const NO_REPORTS: readonly CanaryReport[] = [];

interface Canary {
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly from: FormatName;
  to: FormatName;
  epsilonPromised: number;
  /** Tokens in the cache when the original was kept. */
  readonly since: number;
  /** Tokens at which it is probed next. */
  dueAt: number;
}

export class Canaries {
  readonly #cache: KvCache;
  readonly #context: PolicyContext;
  readonly #tally: Tally;
  readonly #share: number;
  readonly #pace: Pace;
  /** Rows of other sides, which come first. */
  readonly #rows: CanaryRows;
  #list: Canary[] = [];
  #waiting: CanaryReport[] = [];
  /** Tokens at which the next of them is due. */
  #dueAt = Number.POSITIVE_INFINITY;

  constructor(
    cache: KvCache,
    { context, policy }: Pick<Terms, 'context' | 'policy'>,
    tally: Tally,
    haste: (layer: number) => number,
  ) {
    this.#cache = cache;
    this.#context = context;
    this.#tally = tally;
    this.#share = policy.keepsOriginals === true ? thresholdOf(context.thresholds, 'canary.share').value : 0;
    const renew = thresholdOf(context.thresholds, 'canary.renew').value;
    this.#pace = {
      every: thresholdOf(context.thresholds, 'canary.every').value,
      haste,
      stretchOf: (tokens) => Math.floor(tokens / renew),
    };
    this.#rows = new CanaryRows(cache, context, this.#pace);
  }

  /** Bytes of what is kept. */
  get bytes(): number {
    return this.#list.length * this.#sideBytes + this.#rows.bytes;
  }

  get count(): number {
    return this.#list.length + this.#rows.count;
  }

  /** Bytes of a budget that may be kept. */
  allowanceBytes(budgetBytes: number): number {
    return Math.floor(this.#share * budgetBytes);
  }

  get #sideBytes(): number {
    return this.#context.pageBytes[this.#context.windowFormat];
  }

  /**
   * Called before a move is carried out, with what originals may take in all. Keeps the original of a side that leaves
   * the window format if its layer and side are those that the present stretch of tokens is to watch. → bytes that the
   * original will take
   */
  before(move: SideMove, tokens: number, allowanceBytes: number): number {
    const { layer, page, side, from, to, epsilonTo } = move;
    const canary = this.#list.find((it) => it.layer === layer && it.page === page && it.side === side);
    this.#rows.before(move, tokens, allowanceBytes);
    if (canary !== undefined) {
      canary.to = to;
      canary.epsilonPromised = epsilonTo ?? canary.epsilonPromised;
      return 0;
    }
    if (from !== this.#context.windowFormat || epsilonTo === null || epsilonTo === 0) return 0;
    const places = Math.floor((allowanceBytes - this.#rows.bytesMax(allowanceBytes)) / this.#sideBytes);
    const { layers } = this.#context;
    const { haste, stretchOf } = this.#pace;
    const stretch = stretchOf(tokens);
    // The form that the side gets takes bytes, and the original gives none back.
    if (this.#cache.roomBytes < this.#context.pageBytes[to]) return 0;
    if (places === 0 || !isWatched({ layer, side, stretch, places, layers, haste })) return 0;
    const same = this.#list.find((it) => it.layer === layer && it.side === side);
    if (same !== undefined && stretchOf(same.since) === stretch) return 0;
    const leaving = same ?? (this.#list.length < places ? undefined : this.#list[0]);
    if (leaving !== undefined) {
      // Canaries of this stretch stay to its end.
      if (stretchOf(leaving.since) === stretch) return 0;
      this.#cache.dropOriginal(leaving.layer, leaving.page, leaving.side);
      this.#remove(leaving);
    }
    this.#cache.keepOriginal(layer, page, side);
    // Originals that were kept at one boundary are not all probed at once.
    const dueAt = dueAfter(tokens, this.#pace.every * (1 - scatter(layer, page) / 2));
    this.#list.push({ layer, page, side, from, to, epsilonPromised: epsilonTo, since: tokens, dueAt });
    this.#setDue();
    return this.#sideBytes;
  }

  /** Called after a move was carried out. */
  after(move: SideMove): void {
    this.#rows.after(move);
    this.#setDue();
  }

  /** True if one is due. */
  isDue(tokens: number): boolean {
    return tokens >= this.#dueAt;
  }

  /** Measures the canaries that are due on the queries kept now; `take` hands the reports over. */
  probe(tokens: number): void {
    const start = performance.now();
    this.sync();
    for (const canary of this.#list) {
      if (canary.dueAt > tokens) continue;
      canary.dueAt = dueAfter(tokens, this.#pace.every / this.#pace.haste(canary.layer));
      const { layer, page, side, from, to, epsilonPromised, since } = canary;
      const epsilonNow = this.#cache.trialOriginal(layer, page, side);
      // NaN: no kept query sees the page.
      if (Number.isFinite(epsilonNow))
        this.#waiting.push({ layer, page, side, from, to, epsilonPromised, epsilonNow, age: tokens - since });
    }
    this.#waiting.push(...this.#rows.probe(tokens));
    this.#setDue();
    this.#tally.trialsTook(performance.now() - start);
  }

  #setDue(): void {
    this.#dueAt = this.#list.reduce((least, { dueAt }) => Math.min(least, dueAt), this.#rows.dueAt);
  }

  take(): readonly CanaryReport[] {
    if (this.#waiting.length === 0) return NO_REPORTS;
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  /** Puts an original back in place of what its side has become. → bytes freed, the original's own not counted */
  restore(layer: number, page: number, side: Side): number {
    const canary = this.#list.find((it) => it.layer === layer && it.page === page && it.side === side);
    const freed = this.#cache.restoreOriginal(layer, page, side);
    if (canary !== undefined) this.#remove(canary);
    return freed - this.#sideBytes;
  }

  /**
   * Forgets canaries whose original is gone: their page became a latent, or the cache was made again from stored pages.
   */
  sync(): void {
    this.#list = this.#list.filter(({ layer, page, side }) => {
      const isThere = page < this.#cache.table(layer).pages;
      return isThere && this.#cache.originalFormat(layer, page, side) !== null;
    });
    this.#rows.sync();
    // What can no longer be put back is not told.
    if (this.#waiting.length > 0)
      this.#waiting = this.#waiting.filter((it) =>
        it.rows === undefined
          ? this.#list.some(({ layer, page, side }) => it.layer === layer && it.page === page && it.side === side)
          : this.#rows.has(it.layer, it.page, it.side),
      );
    this.#setDue();
  }

  /** Gives back what is kept of a page, which is about to be freed. */
  drop(layer: number, page: number): void {
    const gone = this.#list.filter((it) => it.layer === layer && it.page === page);
    if (!this.#rows.dropPage(layer, page) && gone.length === 0) return;
    for (const { side } of gone)
      if (this.#cache.originalFormat(layer, page, side) !== null) this.#cache.dropOriginal(layer, page, side);
    this.sync();
  }

  /** Gives everything back, or what is kept of pages from `first` on. */
  dropAll(first = 0): void {
    this.sync();
    for (const { layer, page, side } of this.#list) if (page >= first) this.#cache.dropOriginal(layer, page, side);
    this.#rows.dropAll(first);
    this.sync();
  }

  #remove(canary: Canary): void {
    this.#list = this.#list.filter((it) => it !== canary);
  }
}
