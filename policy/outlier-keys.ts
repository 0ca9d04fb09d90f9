/**
 * Which layers have outlier channels in their keys. A rotation spreads a large channel over the whole head, so every
 * code over such a rotation errs several times more than a grid with a scale for each channel, which does not notice,
 * or bands of channels, which follow them. Of ordinary keys the rotated codes err less at equal bytes, and a trial
 * thinks too well of bands, because it asks the queries that chose them. Both are measured where pages are tried: with
 * the first pages of a layer as with all other formats, and with later ones where the first have shown it.
 */
import { FORMAT_NAMES, FORMATS, type FormatName, type KvFormat, type Side } from '../native/index.ts';
import { thresholdOf } from './thresholds.ts';
import type { PolicyContext, TrialReport } from './types.ts';

/** Pages of each layer that are tried in these formats whatever the layer is like. */
const FIRST_PAGES = 4;
/** Trials that a layer is judged by at least: the errors of a single page say little. */
const TRIALS_LEAST = 2;
/** The two formats of as many bits whose errors are compared; the first is tried for that, whatever else is. */
const gaugeOf = (kind: KvFormat['outlierGauge']): FormatName =>
  FORMAT_NAMES.find((name) => FORMATS[name].outlierGauge === kind)!;
export const PER_CHANNEL = gaugeOf('per channel');
const ROTATED = gaugeOf('rotated');

export class OutlierKeys {
  /** The formats that this session may use for such keys; none: it knows nothing of them. */
  readonly formats: readonly FormatName[];
  readonly #bound: number;
  /** Σ ln(ε per channel / ε rotated) by layer, and of how many trials. */
  readonly #sums: Float64Array;
  readonly #counts: Float64Array;

  constructor({ layers, outlierKeys = [], thresholds }: PolicyContext) {
    this.formats = outlierKeys;
    this.#bound = Math.log(thresholdOf(thresholds, 'keys.outliers').value);
    this.#sums = new Float64Array(layers);
    this.#counts = new Float64Array(layers);
  }

  /** Takes in a first trial, if it tried keys in both formats. */
  learn({ layer, side, epsilon }: TrialReport): void {
    const [per, rotated] = [epsilon[PER_CHANNEL] ?? 0, epsilon[ROTATED] ?? 0];
    if (side !== 'k' || this.formats.length === 0 || per <= 0 || rotated <= 0) return;
    this.#sums[layer]! += Math.log(per / rotated);
    this.#counts[layer]! += 1;
  }

  /** Takes in a first trial. → its errors without those of formats that are not for keys of this layer */
  admit(report: TrialReport): TrialReport['epsilon'] {
    const { layer, epsilon } = report;
    this.learn(report);
    if (this.formats.length === 0 || this.has(layer)) return epsilon;
    const others = Object.entries(epsilon).filter(([form]) => !(this.formats as readonly string[]).includes(form));
    return Object.fromEntries(others);
  }

  /** True if the keys of a layer have shown outlier channels. */
  has(layer: number): boolean {
    return this.#counts[layer]! >= TRIALS_LEAST && this.#sums[layer]! <= this.#bound * this.#counts[layer]!;
  }

  /**
   * True if a page is to be tried in a format so that outlier channels are seen or used; null: that does not depend on
   * them.
   */
  wants(
    { side, format }: { readonly side: Side; readonly format: FormatName },
    { layer, page }: { readonly layer: number; readonly page: number },
  ): boolean | null {
    const isTried = side === 'k' && (page < FIRST_PAGES || this.has(layer));
    if (this.formats.includes(format)) return isTried;
    return isTried && this.formats.length > 0 && format === ROTATED ? true : null;
  }
}
