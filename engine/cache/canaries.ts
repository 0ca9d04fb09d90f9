/**
 * Canaries: page sides that were demoted while their original was kept beside them, so that the error which their form
 * causes for the queries of today can be measured against what their trial promised. Architecture and figures:
 * quality.md of the design, §2; a canary per layer tracks the true error over time, and does not find single bad pages.
 */
import { type FormatName, type KvCache, SIDES, type Side } from '../../native/index.ts';
import { type CanaryReport, type Decision, type PolicyContext, thresholdOf } from '../../policy/index.ts';
import type { Tally } from './tally.ts';
import type { Terms } from './terms.ts';

/** Probes fall on multiples of so many tokens, as plans do while writing, so that several share the waking up. */
const STRIDE_TOKENS = 8;
const NO_REPORTS: readonly CanaryReport[] = [];

/** A planned move of one side. */
type SideMove = Pick<Canary, 'layer' | 'page' | 'side' | 'from' | 'to'> & Pick<Decision, 'epsilonTo'>;

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
  readonly #every: number;
  readonly #renew: number;
  /** How much more often than others a layer is probed. */
  readonly #haste: (layer: number) => number;
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
    this.#haste = haste;
    this.#share = policy.keepsOriginals === true ? thresholdOf(context.thresholds, 'canary.share').value : 0;
    this.#every = thresholdOf(context.thresholds, 'canary.every').value;
    this.#renew = thresholdOf(context.thresholds, 'canary.renew').value;
  }

  /** Bytes of the kept originals. */
  get bytes(): number {
    return this.#list.length * this.#sideBytes;
  }

  get count(): number {
    return this.#list.length;
  }

  /** Bytes of a budget that originals may take: whole page sides. */
  allowanceBytes(budgetBytes: number): number {
    return Math.floor((this.#share * budgetBytes) / this.#sideBytes) * this.#sideBytes;
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
    if (canary !== undefined) {
      canary.to = to;
      canary.epsilonPromised = epsilonTo ?? canary.epsilonPromised;
      return 0;
    }
    if (from !== this.#context.windowFormat || epsilonTo === null || epsilonTo === 0) return 0;
    const places = Math.floor(allowanceBytes / this.#sideBytes);
    const stretch = Math.floor(tokens / this.#renew);
    // The form that the side gets takes bytes, and the original gives none back.
    if (this.#cache.roomBytes < this.#context.pageBytes[to]) return 0;
    if (places === 0 || !this.#isWatched(layer, side, stretch, places)) return 0;
    const same = this.#list.find((it) => it.layer === layer && it.side === side);
    if (same !== undefined && Math.floor(same.since / this.#renew) === stretch) return 0;
    const leaving = same ?? (this.#list.length < places ? undefined : this.#list[0]);
    if (leaving !== undefined) {
      // Canaries of this stretch stay to its end.
      if (Math.floor(leaving.since / this.#renew) === stretch) return 0;
      this.#cache.dropOriginal(leaving.layer, leaving.page, leaving.side);
      this.#remove(leaving);
    }
    this.#cache.keepOriginal(layer, page, side);
    // Originals that were kept at one boundary are not all probed at once.
    const dueAt = dueAfter(tokens, this.#every * (1 - scatter(layer, page) / 2));
    this.#list.push({ layer, page, side, from, to, epsilonPromised: epsilonTo, since: tokens, dueAt });
    this.#setDue();
    return this.#sideBytes;
  }

  /**
   * True if a layer and side is among the `places` that a stretch of tokens watches. An order that looks random but
   * follows from the position in the session alone, so that no content decides what is watched; layers that are probed
   * more often come first.
   */
  #isWatched(layer: number, side: Side, stretch: number, places: number): boolean {
    const { layers } = this.#context;
    if (places >= 2 * layers) return true;
    const key = (of: number, index: number): number => scatter(stretch, 2 * of + index) - (this.#haste(of) > 1 ? 1 : 0);
    const own = key(layer, SIDES.indexOf(side));
    let before = 0;
    for (let of = 0; of < layers && before < places; of++)
      for (let index = 0; index < SIDES.length; index++) if (key(of, index) < own) before++;
    return before < places;
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
      canary.dueAt = dueAfter(tokens, this.#every / this.#haste(canary.layer));
      const { layer, page, side, from, to, epsilonPromised, since } = canary;
      const epsilonNow = this.#cache.trialOriginal(layer, page, side);
      // NaN: no kept query sees the page.
      if (Number.isFinite(epsilonNow))
        this.#waiting.push({ layer, page, side, from, to, epsilonPromised, epsilonNow, age: tokens - since });
    }
    this.#setDue();
    this.#tally.trialsTook(performance.now() - start);
  }

  #setDue(): void {
    this.#dueAt = this.#list.reduce((least, { dueAt }) => Math.min(least, dueAt), Number.POSITIVE_INFINITY);
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
    // What can no longer be put back is not told.
    if (this.#waiting.length > 0)
      this.#waiting = this.#waiting.filter((it) =>
        this.#list.some(({ layer, page, side }) => it.layer === layer && it.page === page && it.side === side),
      );
    this.#setDue();
  }

  /** Gives the originals of a page back, which is about to be freed. */
  drop(layer: number, page: number): void {
    const gone = this.#list.filter((it) => it.layer === layer && it.page === page);
    if (gone.length === 0) return;
    for (const { side } of gone)
      if (this.#cache.originalFormat(layer, page, side) !== null) this.#cache.dropOriginal(layer, page, side);
    this.sync();
  }

  /** Gives every original back, or those of pages from `first` on. */
  dropAll(first = 0): void {
    this.sync();
    for (const { layer, page, side } of this.#list) if (page >= first) this.#cache.dropOriginal(layer, page, side);
    this.sync();
  }

  #remove(canary: Canary): void {
    this.#list = this.#list.filter((it) => it !== canary);
  }
}

const dueAfter = (tokens: number, wait: number): number =>
  Math.ceil((tokens + Math.max(1, wait)) / STRIDE_TOKENS) * STRIDE_TOKENS;

/** A number in [0, 1) that follows from two whole numbers (the finalizer of MurmurHash3 over both). */
function scatter(a: number, b: number): number {
  let h = (Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 1, 0x85ebca77)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b) >>> 0;
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35) >>> 0;
  return ((h ^ (h >>> 16)) >>> 0) / 2 ** 32;
}
