/**
 * Where attention went lately, as policies are told of it that ask: the shares of each layer's pages since the last
 * report. A report of all layers of a long session would not fit an entry of the log, so layers take turns there.
 */
import type { KvCache } from '../../native/index.ts';
import type { MassReport } from '../../policy/index.ts';

/** Shares in one report at most: each takes some nine bytes of an entry, which holds 1 MiB. */
const SHARES_AT_ONCE = 32_768;
/** Shares are told to a millionth, so that they take few bytes. */
const PARTS = 1e6;

export class Masses {
  readonly #cache: KvCache;
  /** What each page had received when its layer was reported last. */
  readonly #before: Float64Array[];
  /** The layer that comes first the next time. */
  #turn = 0;

  constructor(cache: KvCache) {
    this.#cache = cache;
    this.#before = Array.from({ length: cache.shape.layers }, () => new Float64Array(0));
  }

  /** Reports of all layers, or of those whose turn it is; none of a layer whose pages nobody looked at. */
  take(): readonly MassReport[] {
    const { layers } = this.#cache.shape;
    const pages = Math.max(1, this.#cache.table(0).pages);
    const count = Math.min(layers, Math.max(1, Math.floor(SHARES_AT_ONCE / pages)));
    const taken = Array.from({ length: count }, (_, i) => (this.#turn + i) % layers).sort((a, b) => a - b);
    this.#turn = (this.#turn + count) % layers;
    return taken.flatMap((layer) => this.#report(layer));
  }

  #report(layer: number): readonly MassReport[] {
    const { pages, mass } = this.#cache.table(layer);
    const now = mass.subarray(0, pages);
    const before = this.#before[layer]!;
    this.#before[layer] = now;
    // Less than before: the page was made anew when tokens were taken back, and counts from then on.
    const gained = Array.from(now, (one, page) => (one >= (before[page] ?? 0) ? one - (before[page] ?? 0) : one));
    const total = gained.reduce((sum, one) => sum + one, 0);
    if (!(total > 0)) return [];
    return [{ layer, shares: gained.map((one) => Math.round((PARTS * one) / total) / PARTS) }];
  }
}
