/**
 * What the newest queries look at: the pages stay that those of the last report gave most attention, some page of
 * tokens. SnapKV (arXiv 2404.14469) asks the last tokens of the prompt and chooses tokens of each head once, when the
 * prompt has been read whole; a budget that binds before has pages chosen while it is read, by the newest queries of
 * that moment.
 *
 * PyramidKV (arXiv 2406.02069) does the same with more places for lower layers than for higher ones.
 */
import type { MassReport } from '../types.ts';
import { evictPolicy, first, type Keeping } from './evict.ts';

/** Steepness of the pyramid: the highest layer has this part of the mean (β of the paper's experiments). */
const BETA = 20;

class Observed implements Keeping {
  readonly #shares: (readonly number[])[] = [];

  see(masses: readonly MassReport[]): void {
    for (const { layer, shares } of masses) this.#shares[layer] = shares;
  }

  stay(layer: number, pages: readonly number[], places: number): readonly number[] {
    // What page 0 receives is mostly that of the sinks, which stay in any case.
    return first(pages, places, (page) => (page === 0 ? 0 : (this.#shares[layer]?.[page] ?? 0)));
  }
}

class Pyramid extends Observed {
  share(places: number, layers: number, pages: number): readonly number[] {
    return pyramid(places, layers, pages);
  }
}

/**
 * Places of each of some layers, `places` in all: the lowest has most and the others follow a line; none has more than
 * `pages`, which a layer holds at most, so that the line is less steep where there are few.
 */
export function pyramid(places: number, layers: number, pages: number): readonly number[] {
  const mean = places / Math.max(1, layers);
  const most = Math.min(2 * mean - mean / BETA, Math.max(mean, pages));
  const exact = Array.from({ length: layers }, (_, i) =>
    layers === 1 ? mean : most - (2 * i * (most - mean)) / (layers - 1),
  );
  // Whole pages: each ends where the line says that it and those below it do.
  let sum = 0;
  let given = 0;
  return exact.map((one) => {
    sum += one;
    const upTo = Math.min(places, Math.floor(sum + 1e-9));
    const own = Math.max(0, upTo - given);
    given += own;
    return own;
  });
}

export const snapkv = evictPolicy('snapkv-pages', () => new Observed(), { readsMasses: true });
export const pyramidkv = evictPolicy('pyramidkv-pages', () => new Pyramid(), { readsMasses: true });
