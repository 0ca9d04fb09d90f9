/**
 * The typed-array scan in front of the machines: signals of all layers against thresholds with hysteresis. Only a layer
 * that crosses a bound is reported. Where nothing crosses, nothing is allocated and nothing is called.
 */
export interface Step {
  /** The signal rises through a step when it reaches `enter`… */
  readonly enter: number;
  /** …and falls back through it when it goes below `leave` (< enter). */
  readonly leave: number;
}

/** One kind of signal: its steps from the lowest to the highest. */
export interface Band {
  readonly steps: readonly Step[];
}

export class Scan {
  readonly layers: number;
  /** What was measured, [bands, layers]; the caller writes, the scan reads. NaN crosses nothing. */
  readonly signals: Float64Array;
  /** How many steps each signal is above, [bands, layers]. */
  readonly levels: Uint8Array;
  /**
   * Crossings of the last run, three numbers each: band, layer, +step (risen through step 1, 2, …) or −step (fallen).
   */
  readonly crossings: Int32Array;
  readonly #bands: readonly Band[];

  constructor(layers: number, bands: readonly Band[]) {
    this.layers = layers;
    this.#bands = bands;
    this.signals = new Float64Array(bands.length * layers);
    this.levels = new Uint8Array(bands.length * layers);
    this.crossings = new Int32Array(3 * layers * bands.reduce((sum, { steps }) => sum + steps.length, 0));
  }

  /**
   * Compares everything once. → crossings found; a signal that jumps over several steps crosses each of them in order.
   */
  run(): number {
    const { layers, signals, levels, crossings } = this;
    let count = 0;
    for (let band = 0, at = 0; band < this.#bands.length; band++) {
      const { steps } = this.#bands[band]!;
      for (let layer = 0; layer < layers; layer++, at++) {
        const signal = signals[at]!;
        let level = levels[at]!;
        while (level < steps.length && signal >= steps[level]!.enter) {
          level++;
          count = note(crossings, count, band, layer, level);
        }
        while (level > 0 && signal < steps[level - 1]!.leave) {
          count = note(crossings, count, band, layer, -level);
          level--;
        }
        levels[at] = level;
      }
    }
    return count;
  }
}

function note(crossings: Int32Array, count: number, band: number, layer: number, step: number): number {
  crossings[3 * count] = band;
  crossings[3 * count + 1] = layer;
  crossings[3 * count + 2] = step;
  return count + 1;
}
