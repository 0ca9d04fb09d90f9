/**
 * Persistence of importance: queries find a page unimportant when it has less than an equal share of their attention.
 * Where a layer has no place left, half of its places are cleared: the pages go that were found unimportant most often
 * of late. Scissorhands (arXiv 2305.17118), by pages and reports (some page of queries each) where the paper goes by
 * tokens and queries: its history of 400 tokens is that of the last three reports, and its ten newest tokens are in the
 * window, which stays in any case.
 */
import type { MassReport } from '../types.ts';
import { evictPolicy, first, type Keeping } from './evict.ts';

/** Reports of a layer that are remembered: 400 tokens are about three pages. */
const HISTORY = 3;

class Persistence implements Keeping {
  readonly #history: (readonly (readonly number[])[])[] = [];

  see(masses: readonly MassReport[]): void {
    for (const { layer, shares } of masses)
      this.#history[layer] = [...(this.#history[layer] ?? []).slice(1 - HISTORY), shares];
  }

  stay(layer: number, pages: readonly number[], places: number): readonly number[] {
    const history = this.#history[layer] ?? [];
    // What page 0 receives is mostly that of the sinks, which stay in any case.
    const has = (shares: readonly number[], page: number): number => (page === 0 ? 0 : (shares[page] ?? 0));
    const equal = history.map((shares) => pages.reduce((sum, page) => sum + has(shares, page), 0) / pages.length);
    const important = (page: number): number =>
      history.filter((shares, i) => page >= shares.length || has(shares, page) >= equal[i]!).length;
    return first(pages, Math.ceil(places / 2), important);
  }
}

export const scissorhands = evictPolicy('scissorhands-pages', () => new Persistence(), { readsMasses: true });
