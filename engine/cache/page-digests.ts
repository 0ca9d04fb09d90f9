/**
 * Whether the codes of demoted page sides, and of latents, are still those that they were. Whatever damages them, a
 * session that went on unaware would answer from what is no longer there.
 */
import { FORMAT_NAMES, type FormatName, type KvCache, PAGE_KINDS, type Part, SIDES } from '../../native/index.ts';
import type { PagePart } from '../../policy/index.ts';

const RESIDENT = PAGE_KINDS.indexOf('resident');
const HELD = PAGE_KINDS.indexOf('latent');
const NONE: readonly PagePart[] = [];

/** What has a digest of its own, in the order of KvCache.sideDigests. */
const PARTS: readonly Part[] = [...SIDES, 'kv'];

interface Known {
  /** Of a side its place in FORMAT_NAMES, of a latent what the table of its layer has. */
  readonly format: number;
  readonly digest: number;
}

export class PageDigests {
  readonly #cache: KvCache;
  readonly #windowFormat: number;
  /** By layer: of page p the keys' at 3p, the values' at 3p + 1, the latent's at 3p + 2. */
  #known: (Known | undefined)[][] = [];
  #waiting: PagePart[] = [];

  constructor(cache: KvCache, windowFormat: FormatName) {
    this.#cache = cache;
    this.#windowFormat = FORMAT_NAMES.indexOf(windowFormat);
  }

  /** Compares all codes with what they were. */
  check(): void {
    for (let layer = 0; layer < this.#cache.shape.layers; layer++) this.#checkLayer(layer);
  }

  #checkLayer(layer: number): void {
    const { pages, kind, kFormat, vFormat, latent } = this.#cache.table(layer);
    const digests = this.#cache.sideDigests(layer);
    const known = (this.#known[layer] ??= []);
    for (let at = 0; at < PARTS.length * pages; at++) {
      const page = Math.floor(at / PARTS.length);
      const side = PARTS[at % PARTS.length]!;
      const before = known[at];
      const format = (side === 'kv' ? latent : side === 'k' ? kFormat : vFormat)[page]!;
      const digest = digests[at]!;
      const isThere = side === 'kv' || kind[page] === RESIDENT;
      // Most are what they were.
      if (isThere && before !== undefined && before.format === format && before.digest === digest) continue;
      if (side === 'kv') known[at] = this.#latentKnown({ format, digest }, before, kind[page] === HELD);
      else known[at] = isThere && format !== this.#windowFormat ? { format, digest } : undefined;
      const now = known[at];
      // In another form it is other codes.
      if (before !== undefined && before.format === now?.format && before.digest !== now.digest)
        this.#waiting.push({ layer, page, side });
    }
  }

  /**
   * What is known of a latent from now on. One that waits beside keys and values is not told: it is what it was when it
   * was made, so that damage is found when it takes their place.
   */
  #latentKnown(now: Known, before: Known | undefined, isHeld: boolean): Known | undefined {
    if (now.format === 0) return undefined;
    return !isHeld && before?.format === now.format ? before : now;
  }

  /** True unless the codes are known to be others than those that were made. */
  isSound(layer: number, page: number, side: Part): boolean {
    const known = this.#known[layer]?.[placeOf(page, side)];
    if (known === undefined) return true;
    const now = this.#read(layer, page, side);
    return known.format !== now?.format || known.digest === now.digest;
  }

  /** A side is about to be moved: what became of its codes is not seen any more afterwards. */
  before(layer: number, page: number, side: Part): void {
    if (!this.isSound(layer, page, side)) this.#waiting.push({ layer, page, side });
  }

  /**
   * It was moved, or made. `isSound` false: of codes that were damaged, so that these are found to be, too, when all
   * are compared next.
   */
  after(layer: number, page: number, side: Part, isSound = true): void {
    const now = this.#read(layer, page, side);
    const known = now === undefined || isSound ? now : { ...now, digest: Number.NaN };
    (this.#known[layer] ??= [])[placeOf(page, side)] = known;
  }

  #read(layer: number, page: number, side: Part): Known | undefined {
    const digest = this.#cache.sideDigests(layer, page)[PARTS.indexOf(side)]!;
    if (side !== 'kv') return { format: FORMAT_NAMES.indexOf(this.#cache.format(layer, page, side)), digest };
    const format = this.#cache.table(layer).latent[page]!;
    return format === 0 ? undefined : { format, digest };
  }

  /** What has changed its codes and not its form, since it was last asked for. */
  take(): readonly PagePart[] {
    if (this.#waiting.length === 0) return NONE;
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  /** Pages from `first` on are gone, or all pages were made again. */
  cut(first = 0): void {
    for (const known of this.#known)
      if (known !== undefined) known.length = Math.min(known.length, PARTS.length * first);
    this.#waiting = this.#waiting.filter(({ page }) => page < first);
  }
}

const placeOf = (page: number, side: Part): number => PARTS.length * page + PARTS.indexOf(side);
