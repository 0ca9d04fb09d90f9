/**
 * Codes that are damaged are made again: the side gets its original in the format that it has, so that no byte more is
 * needed. A page that is held as a latent gets keys and values of its originals, in the finest format that there is
 * room for, since its latent cannot be made again. Without an original it stays as it is, and whoever keeps the engine
 * is told what would have helped. What was computed over damaged codes in the meantime stays as well.
 */
import {
  FORMATS,
  type FormatName,
  type KvCache,
  replacementOf,
  SIDES,
  type Side,
  servesSide,
  TRIAL_CANDIDATES,
} from '../../native/index.ts';
import type { DamagedSide, PagePart, PageSide } from '../../policy/index.ts';
import type { MendedSide } from '../../witness/index.ts';
import type { Meter } from '../metrics/meter.ts';
import { latentOf } from './forms.ts';
import type { PageDigests } from './page-digests.ts';
import type { Remaking } from './remaking.ts';
import type { DamageReport } from './types.ts';

const NONE: readonly DamagedSide[] = [];
/** What keys and values of a page get whose latent is damaged, from the finest. */
const MADE_AGAIN: readonly FormatName[] = TRIAL_CANDIDATES.filter(
  (format) => replacementOf(format) === undefined && SIDES.every((side) => servesSide(format, side)),
);

interface MendingParts {
  /** The id under which the cache is known. */
  readonly session: string;
  readonly cache: KvCache;
  readonly digests: PageDigests;
  readonly remaking: Remaking;
  readonly meter: Meter;
  /** What the log is told. */
  readonly note: (body: Readonly<Record<string, unknown>>) => void;
  /** Hears of every side whose codes were made again. */
  readonly onMended: (side: PageSide) => void;
  /** True while a relative would see keys and values come in place of a latent. */
  readonly isShared: () => boolean;
  /** The lowest format that a side may have. */
  readonly lowest: (side: Side) => FormatName;
  /** Does what puts keys and values in place of the latent of a page, and tells it. */
  readonly change: (layer: number, page: number, work: () => number) => void;
}

export class Mending {
  readonly #parts: MendingParts;
  #waiting: DamagedSide[] = [];
  #sides = 0;
  #mendedSides = 0;

  constructor(parts: MendingParts) {
    this.#parts = parts;
  }

  /** Compares all codes with what they were, and makes those again that are damaged. */
  check(): void {
    const { digests } = this.#parts;
    digests.check();
    this.#mend(digests.take());
  }

  /** The same of a side that is about to be moved. */
  before(layer: number, page: number, side: Side): void {
    const { digests } = this.#parts;
    digests.before(layer, page, side);
    this.#mend(digests.take());
  }

  /**
   * The latent of a page is about to be read, to make keys and values of it in a format: where it is damaged, they are
   * made of originals, in that format. → whether the latent is sound
   */
  beforeRestoring(layer: number, page: number, format: FormatName): boolean {
    const { digests } = this.#parts;
    if (digests.isSound(layer, page, 'kv')) return true;
    this.#mend([{ layer, page, side: 'kv' }], [format]);
    return false;
  }

  /** What was damaged since it was last asked for. */
  take(): readonly DamagedSide[] {
    if (this.#waiting.length === 0) return NONE;
    const waiting = this.#waiting;
    this.#waiting = [];
    return waiting;
  }

  /** Pages from `first` on are gone, or all pages were made again. */
  cut(first = 0): void {
    this.#parts.digests.cut(first);
    this.#waiting = this.#waiting.filter(({ page }) => page < first);
  }

  report(): DamageReport {
    return { sides: this.#sides, mendedSides: this.#mendedSides };
  }

  /** `formats`: what keys and values may get of a page whose latent is damaged; the first that there is room for. */
  #mend(found: readonly PagePart[], formats = MADE_AGAIN): void {
    if (found.length === 0) return;
    const { cache, session, note, meter } = this.#parts;
    const damaged = found.map(({ layer, page, side }) =>
      side === 'kv' ? this.#mendedLatent(layer, page, formats) : this.#mended({ layer, page, side }),
    );
    const mendedSides = damaged.filter(({ mended }) => mended).length;
    this.#waiting.push(
      ...damaged.map(({ layer, page, side, mended }) => ({ layer, page, side, ...(mended ? { mended } : {}) })),
    );
    this.#sides += found.length;
    this.#mendedSides += mendedSides;
    const tokens = cache.length();
    note({ damaged, tokens });
    if (mendedSides > 0) meter.tell('codes-mended', { session, tokens, sides: mendedSides });
    if (mendedSides < found.length) meter.tell('codes-damaged', { session, tokens, sides: found.length - mendedSides });
  }

  #mended(damaged: PageSide): MendedSide {
    const { remaking, onMended } = this.#parts;
    const format = remaking.formOf(damaged);
    const codes = remaking.codes(damaged, format);
    if (codes === null) return { ...damaged, format, mended: false };
    remaking.put(damaged, codes);
    onMended(damaged);
    return { ...damaged, format, mended: true };
  }

  #mendedLatent(layer: number, page: number, formats: readonly FormatName[]): MendedSide {
    const { cache, remaking, isShared, lowest, change } = this.#parts;
    const { name, isHeld } = latentOf(cache.table(layer), page)!;
    const told = { layer, page, side: 'kv', format: name } as const;
    if (!isHeld || isShared()) return { ...told, mended: false };
    const isAllowed = (format: FormatName): boolean =>
      SIDES.every((side) => FORMATS[format].rank <= FORMATS[lowest(side)].rank);
    for (const format of formats) {
      const codes = isAllowed(format) ? remaking.codesOfPage(layer, page, format) : null;
      if (codes === null) continue;
      change(layer, page, () => remaking.putPage(layer, page, codes));
      return { ...told, mended: true };
    }
    return { ...told, mended: false };
  }
}
