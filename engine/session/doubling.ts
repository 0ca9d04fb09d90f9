/**
 * What moves cost, measured where no original is left: every coded page side is coded once more, in another code of as
 * many bits. The two errors have nothing to do with each other, so that what the second does to the output, by how
 * large it is beside the first, is what the first has done.
 */
import { FORMATS, type FormatName, type KvCache, SIDES } from '../../native/index.ts';

/** Energies of errors, as shares of that of the rows. */
interface Energies {
  /** Of the forms that sides have. */
  readonly present: number;
  /** Of what coding them once more adds. */
  readonly added: number;
}

interface Coded extends Energies {
  /** The second code; null: there is none, and the error stays as it is. */
  readonly second: FormatName | null;
}

const alone = (present: number): Coded => ({ second: null, present, added: 0 });

/**
 * By format of a side. Energies are those of rows of any direction, in heads of 64 channels (measured; a test does it
 * again). Of formats that are not here, those for outlier channels, nobody knows how large their errors are.
 */
export const CODED: Readonly<Partial<Record<FormatName, Coded>>> = {
  trellis4: { second: 'rot4', present: 0.0077, added: 0.0085 },
  trellis3: { second: 'rot3', present: 0.0249, added: 0.0323 },
  trellis2: { second: 'rot2', present: 0.0862, added: 0.1236 },
  trellis1: { second: 'rot1', present: 0.394, added: 0.613 },
  rot4: alone(0.0085),
  rot3: alone(0.0323),
  rot2: alone(0.1236),
  rot1: alone(0.535),
};

/** True if a side is coded: next to nothing is seen of the error of 16 and of 8 bits. */
const isCoded = (format: FormatName): boolean => FORMATS[format].tier !== 'exact';

/** What doubling the errors of a cache takes into account. */
export class Doubled {
  #present = 0;
  #added = 0;
  /** Page sides that are coded, and those of them whose errors are known. */
  #coded = 0;
  #known = 0;

  /** Codes the page sides of a copy of a layer once more. */
  double(copy: KvCache, pages: number): void {
    for (let page = 0; page < pages; page++)
      for (const side of SIDES) {
        const format = copy.format(0, page, side);
        if (!isCoded(format)) continue;
        this.#coded++;
        const known = CODED[format];
        if (known === undefined) continue;
        this.#known++;
        if (known.second !== null) copy.transcode(0, page, side, known.second);
        this.#present += known.present;
        this.#added += known.added;
      }
  }

  /**
   * The divergence of the errors that were there over that of those that were added: sides whose errors stayed as they
   * were count like the others. null: most did.
   */
  get share(): number | null {
    return 2 * this.#known > this.#coded && this.#added > 0
      ? ((this.#present / this.#added) * this.#coded) / this.#known
      : null;
  }
}
