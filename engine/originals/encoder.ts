/**
 * Makes a lower form of a page side that is kept as bytes: in a cache of its own, with one page behind the first (which
 * has the sinks), that no budget counts. It is opened when it is first needed.
 */
import {
  type CacheShape,
  type FormatName,
  type KvCache,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  type Side,
  type StoredSide,
  WINDOW_FORMAT,
} from '../../native/index.ts';

/** The first page, whose sinks are no part of a code, and one that stands for all others. */
const PAGES = 2;
/** Both pages in any format, with the row that seals the second one. */
const POOL_BYTES = 2 ** 30;

export class Encoder {
  readonly #shape: CacheShape;
  #pool: PagePool | null = null;
  #cache: KvCache | null = null;

  constructor({ kvHeads, headDim }: CacheShape) {
    this.#shape = { layers: 1, queryHeads: kvHeads, kvHeads, headDim };
  }

  /** The form of a side of a page in a lower format. Throws what KvCache.exchangeSide and transcode throw. */
  encoded(stored: StoredSide, page: number, side: Side, to: FormatName): StoredSide {
    if (stored.format === to) return stored;
    const cache = this.#opened();
    const place = Math.min(page, PAGES - 1);
    cache.exchangeSide(0, place, side, stored);
    cache.transcode(0, place, side, to);
    return cache.exportSide(0, place, side);
  }

  close(): void {
    this.#cache?.close();
    this.#pool?.close();
    this.#cache = null;
    this.#pool = null;
  }

  #opened(): KvCache {
    if (this.#cache !== null) return this.#cache;
    const shape = this.#shape;
    this.#pool ??= openPool(POOL_BYTES);
    const cache = openKvCache({ shape, pool: this.#pool, windowFormat: WINDOW_FORMAT, openFormat: WINDOW_FORMAT });
    // A full page is sealed by the row behind it.
    const rows = new Float32Array((PAGES * PAGE_TOKENS + 1) * shape.kvHeads * shape.headDim);
    cache.append(0, rows, rows);
    this.#cache = cache;
    return cache;
  }
}
