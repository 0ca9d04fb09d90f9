/**
 * Page sides that are made again of their originals, in a form that is no better than these: for somebody who asks
 * (restoring.ts), for a degraded layer (coming-back.ts), and where codes are damaged (mending.ts).
 */
import {
  FORMATS,
  type FormatName,
  type KvCache,
  type LatentName,
  PAGE_TOKENS,
  pageBytes,
  SIDES,
  type StoredSide,
} from '../../native/index.ts';
import type { PageSide } from '../../policy/index.ts';
import type { Originals } from '../originals/originals.ts';
import { latentOf } from './forms.ts';
import type { PageDigests } from './page-digests.ts';
import type { Promoted } from './promoted.ts';

interface RemakingParts {
  readonly cache: KvCache;
  readonly digests: PageDigests;
  /** Null where none are kept. */
  readonly originals: Originals | null;
  readonly promoted: Promoted | null;
  /** Bytes of the latent of a page. */
  readonly latentBytes: (format: LatentName) => number;
}

export class Remaking {
  readonly #parts: RemakingParts;

  constructor(parts: RemakingParts) {
    this.#parts = parts;
  }

  /** The form of a side by which policies know it: one that is promoted goes back to it. */
  formOf({ layer, page, side }: PageSide): FormatName {
    const { cache, promoted } = this.#parts;
    promoted?.release(layer, page, side);
    return cache.format(layer, page, side);
  }

  /** The codes of a side in a format; null where it has no original from which they can be made. */
  codes({ layer, page, side }: PageSide, format: FormatName): StoredSide | null {
    const { originals } = this.#parts;
    const original = originals?.read(layer, page, side) ?? null;
    if (original === null || FORMATS[original.format].rank > FORMATS[format].rank) return null;
    return originals!.encoded(original, page, side, format);
  }

  /** A page was made of its latent in a format: its sides become those of their originals, where there are any. */
  refine(layer: number, page: number, format: FormatName): void {
    for (const side of SIDES) {
      const codes = this.codes({ layer, page, side }, format);
      if (codes !== null) this.put({ layer, page, side }, codes);
    }
  }

  /**
   * The codes of both sides of a page that is held as a latent, in a format; null where a side has no original from
   * which they can be made, or there is no room for them.
   */
  codesOfPage(layer: number, page: number, format: FormatName): readonly StoredSide[] | null {
    const { cache } = this.#parts;
    const { kvHeads, headDim } = cache.shape;
    const bytes = SIDES.length * pageBytes(format, kvHeads, headDim);
    const { name } = latentOf(cache.table(layer), page)!;
    if (bytes > cache.roomBytes + this.#parts.latentBytes(name)) return null;
    const codes = SIDES.flatMap((side) => this.codes({ layer, page, side }, format) ?? []);
    return codes.length === SIDES.length ? codes : null;
  }

  /** Puts them in place of the latent, of which nothing is read. → bytes freed */
  putPage(layer: number, page: number, codes: readonly StoredSide[]): number {
    const { cache } = this.#parts;
    const { kvHeads, headDim } = cache.shape;
    const nothing = new Float32Array(PAGE_TOKENS * kvHeads * headDim);
    const before = cache.usedBytes;
    cache.holdForeign(layer, page, new Uint8Array(1));
    cache.restoreForeign(layer, page, codes[0]!.format, { k: nothing, v: nothing });
    for (const [at, side] of SIDES.entries()) this.put({ layer, page, side }, codes[at]!);
    return before - cache.usedBytes;
  }

  /** Puts codes in place of those that a side has. → bytes freed, below 0 where it takes more than before */
  put({ layer, page, side }: PageSide, codes: StoredSide): number {
    const { cache, digests } = this.#parts;
    const freed = cache.exchangeSide(layer, page, side, codes);
    digests.after(layer, page, side);
    return freed;
  }
}
