/**
 * Heavy hitters: half of the places for the newest pages, half for those that attention went to most since they came.
 * H2O (arXiv 2306.14048), by pages where the paper goes by tokens of each head. What page 0 receives is mostly that of
 * the sinks, which stay in any case, and says nothing of the page.
 */
import type { MassReport } from '../types.ts';
import { evictPolicy, first, type Keeping, newest } from './evict.ts';

class HeavyHitters implements Keeping {
  readonly #sums: number[][] = [];

  see(masses: readonly MassReport[]): void {
    for (const { layer, shares } of masses) {
      const before = this.#sums[layer] ?? [];
      this.#sums[layer] = shares.map((share, page) => (page === 0 ? 0 : (before[page] ?? 0) + share));
    }
  }

  stay(layer: number, pages: readonly number[], places: number): readonly number[] {
    const recent = newest(pages, Math.floor(places / 2));
    const older = pages.slice(0, pages.length - recent.length);
    return [...first(older, places - recent.length, (page) => this.#sums[layer]?.[page] ?? 0), ...recent];
  }
}

export const h2o = evictPolicy('h2o-pages', () => new HeavyHitters(), { readsMasses: true });
