/**
 * Pages that the sliding windows of their layers have left behind. No query sees them any more, so they are freed at
 * the end of the step after which that holds, a page later than it could be: answers, guesses and the ends of prompts
 * are taken back by a few tokens, and what these see is there still. What a way back leads to is kept until it is
 * closed.
 */
import {
  freedPages,
  isEvicted,
  isFreed,
  type KvCache,
  KvError,
  nextFreed,
  pageEnd,
  pageOf,
  pagesLeftBehind,
  sealedPages,
} from '../../native/index.ts';

/** At most so many pages are freed in one step: an entry of the log has a largest size. */
const FREED_AT_ONCE = 512;

/** A page of a layer. */
export interface PageOfLayer {
  readonly layer: number;
  readonly page: number;
}

/** Somewhere to go back to. */
interface Way {
  /** Tokens that the cache has then. */
  readonly tokens: number;
}

export class SlidingWindows {
  readonly #cache: Pick<KvCache, 'length' | 'table'>;
  /** By layer; null: it sees everything. */
  readonly #windows: readonly (number | null)[];
  readonly #evicts: boolean;
  /** Pages of each layer that are freed, from the first one on. */
  readonly #freed: number[];
  /** Ways, and how many pages are sealed where they lead. */
  readonly #ways = new Map<Way, number>();
  /** Before this length no page is left behind. */
  #dueAt: number;

  /** evicts: whether pages may be let go that queries would see. */
  constructor(cache: Pick<KvCache, 'length' | 'table'>, windows: readonly (number | null)[], evicts = false) {
    this.#cache = cache;
    this.#evicts = evicts;
    this.#windows = windows;
    this.#freed = windows.map(() => 0);
    this.#dueAt = this.#next(0);
  }

  /** True where a page may be left behind that is not freed yet. */
  isDue(tokens: number): boolean {
    return tokens >= this.#dueAt;
  }

  /** Pages that are to be freed now, the first of them; the next call goes on behind them. */
  due(tokens: number): readonly PageOfLayer[] {
    const pages: PageOfLayer[] = [];
    for (const [layer, window] of this.#windows.entries()) {
      const end = freedPages(tokens, window);
      if (this.#freed[layer]! >= end) continue;
      const table = this.#cache.table(layer);
      let isWhole = true;
      for (let page = this.#freed[layer]!; page < end && pages.length < FREED_AT_ONCE; page++) {
        const isKept = this.#isKept(page, window);
        if (!isKept && !isFreed(table, page)) pages.push({ layer, page });
        isWhole &&= !isKept;
        if (isWhole) this.#freed[layer] = page + 1;
      }
    }
    this.#dueAt = pages.length < FREED_AT_ONCE ? this.#next(tokens) : tokens;
    return pages;
  }

  /** Throws 'unsupported' for a length from which pages would be seen that are freed. */
  checkBack(tokens: number): void {
    const layer = this.#windows.findIndex((window, of) => this.#seesFreed(of, window, tokens));
    if (layer < 0) return;
    throw new KvError(
      'unsupported',
      `tokens behind ${tokens} cannot be taken back: pages have been freed that layer ${layer} sees from there`,
      {
        values: { tokens, length: this.#cache.length(0), layer, slidingWindow: this.#windows[layer] },
        hint: 'take everything back and read it again, or fork() before you append tokens that you may want to take back',
      },
    );
  }

  /** True if nothing is left of a page. */
  isFreed(layer: number, page: number): boolean {
    if (this.#evicts && isFreed(this.#cache.table(layer), page)) return true;
    const window = this.#windows[layer] ?? null;
    if (window === null || page >= pagesLeftBehind(this.#cache.length(layer), window)) return false;
    return page < this.#freed[layer]! || isFreed(this.#cache.table(layer), page);
  }

  /** True if the cache can go back to this length. */
  reaches(tokens: number): boolean {
    return !this.#windows.some((window, layer) => this.#seesFreed(layer, window, tokens));
  }

  #seesFreed(layer: number, window: number | null, tokens: number): boolean {
    if (window === null || this.#freed[layer] === 0) return false;
    const table = this.#cache.table(layer);
    const pages = Math.min(table.pages, pageOf(pageEnd(tokens)));
    for (let page = pagesLeftBehind(tokens, window); page < pages; page++)
      if (isFreed(table, page) && !isEvicted(table, page)) return true;
    return false;
  }

  /** What is seen from this way on is kept. */
  keepFor(way: Way): void {
    this.#ways.set(way, Math.min(this.#cache.table(0).pages, pageOf(pageEnd(way.tokens))));
  }

  /** True if somebody may go back. */
  get hasWays(): boolean {
    return this.#ways.size > 0;
  }

  /** Nobody goes that way any more. */
  forget(way: Way): void {
    if (this.#ways.delete(way)) this.#dueAt = 0;
  }

  /** Tokens were taken back: pages behind them are others when they come again. */
  takeBack(tokens: number): void {
    for (const [layer, freed] of this.#freed.entries()) this.#freed[layer] = Math.min(freed, sealedPages(tokens));
    this.#dueAt = this.#next(tokens);
  }

  #isKept(page: number, window: number | null): boolean {
    for (const [{ tokens }, pages] of this.#ways)
      if (page < pages && page >= pagesLeftBehind(tokens, window)) return true;
    return false;
  }

  #next(tokens: number): number {
    return this.#windows.reduce<number>(
      (least, window) => (window === null ? least : Math.min(least, nextFreed(tokens, window))),
      Number.POSITIVE_INFINITY,
    );
  }
}
