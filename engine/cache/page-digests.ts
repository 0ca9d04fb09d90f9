/**
 * Whether the codes of demoted page sides are still those that they were. Whatever damages them, a session that went on
 * unaware would answer from what is no longer there.
 */
import { FORMAT_NAMES, type FormatName, type KvCache, PAGE_KINDS, SIDES, type Side } from '../../native/index.ts';
import type { PageSide } from '../../policy/index.ts';

const RESIDENT = PAGE_KINDS.indexOf('resident');
const NONE: readonly PageSide[] = [];

interface Known {
  readonly format: number;
  readonly digest: number;
}

export class PageDigests {
  readonly #cache: KvCache;
  readonly #windowFormat: number;
  /** By layer: of page p the keys' at 2p, the values' at 2p + 1. */
  #known: (Known | undefined)[][] = [];
  #waiting: PageSide[] = [];

  constructor(cache: KvCache, windowFormat: FormatName) {
    this.#cache = cache;
    this.#windowFormat = FORMAT_NAMES.indexOf(windowFormat);
  }

  /** Compares all codes with what they were. */
  check(): void {
    for (let layer = 0; layer < this.#cache.shape.layers; layer++) this.#checkLayer(layer);
  }

  #checkLayer(layer: number): void {
    const { pages, kind, kFormat, vFormat } = this.#cache.table(layer);
    const digests = this.#cache.sideDigests(layer);
    const known = (this.#known[layer] ??= []);
    for (let at = 0; at < 2 * pages; at++) {
      const page = at >> 1;
      const format = (at % 2 === 0 ? kFormat : vFormat)[page]!;
      if (kind[page] !== RESIDENT || format === this.#windowFormat) {
        known[at] = undefined;
        continue;
      }
      const before = known[at];
      const digest = digests[at]!;
      // In another form it is other codes.
      if (before?.format === format && before.digest !== digest)
        this.#waiting.push({ layer, page, side: SIDES[at % 2]! });
      if (before?.format !== format || before.digest !== digest) known[at] = { format, digest };
    }
  }

  /** A side is about to be moved: what became of its codes is not seen any more afterwards. */
  before(layer: number, page: number, side: Side): void {
    const known = this.#known[layer]?.[2 * page + SIDES.indexOf(side)];
    if (known === undefined) return;
    const now = this.#read(layer, page, side);
    if (known.format === now.format && known.digest !== now.digest) this.#waiting.push({ layer, page, side });
  }

  /** It was moved. */
  after(layer: number, page: number, side: Side): void {
    (this.#known[layer] ??= [])[2 * page + SIDES.indexOf(side)] = this.#read(layer, page, side);
  }

  #read(layer: number, page: number, side: Side): Known {
    const format = FORMAT_NAMES.indexOf(this.#cache.format(layer, page, side));
    return { format, digest: this.#cache.sideDigests(layer, page)[SIDES.indexOf(side)]! };
  }

  /** What has changed its codes and not its form, since it was last asked for. */
  take(): readonly PageSide[] {
    if (this.#waiting.length === 0) return NONE;
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  /** Pages from `first` on are gone, or all pages were made again. */
  cut(first = 0): void {
    for (const known of this.#known) if (known !== undefined) known.length = Math.min(known.length, 2 * first);
    this.#waiting = this.#waiting.filter(({ page }) => page < first);
  }
}
