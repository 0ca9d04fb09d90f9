/**
 * Page sides that are made again of their originals, in a form that is no better than these: for somebody who asks
 * (restoring.ts), for a degraded layer (coming-back.ts), and where codes are damaged (mending.ts).
 */
import { FORMATS, type FormatName, type KvCache, SIDES, type StoredSide } from '../../native/index.ts';
import type { PageSide } from '../../policy/index.ts';
import type { Originals } from '../originals/originals.ts';
import type { PageDigests } from './page-digests.ts';
import type { Promoted } from './promoted.ts';

interface RemakingParts {
  readonly cache: KvCache;
  readonly digests: PageDigests;
  /** Null where none are kept. */
  readonly originals: Originals | null;
  readonly promoted: Promoted | null;
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

  /** Puts codes in place of those that a side has. → bytes freed, below 0 where it takes more than before */
  put({ layer, page, side }: PageSide, codes: StoredSide): number {
    const { cache, digests } = this.#parts;
    const freed = cache.exchangeSide(layer, page, side, codes);
    digests.after(layer, page, side);
    return freed;
  }
}
