/**
 * Codes that are damaged are made again: the side gets its original in the format that it has, so that no byte more is
 * needed. Without an original it stays as it is, and whoever keeps the engine is told what would have helped. What was
 * computed over damaged codes in the meantime stays as well.
 */
import type { KvCache, Side } from '../../native/index.ts';
import type { DamagedSide, PageSide } from '../../policy/index.ts';
import type { MendedSide } from '../../witness/index.ts';
import type { Meter } from '../metrics/meter.ts';
import type { PageDigests } from './page-digests.ts';
import type { Remaking } from './remaking.ts';
import type { DamageReport } from './types.ts';

const NONE: readonly DamagedSide[] = [];

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

  #mend(found: readonly PageSide[]): void {
    if (found.length === 0) return;
    const { cache, session, note, meter } = this.#parts;
    const damaged = found.map((side) => this.#mended(side));
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
}
