/** The dense half: rows become the same integers, norms and gates the same bits; products with packed weights fuse, and have a bound. */
import { fromHalf, toHalf } from '../../native/reference/index.ts';
import { gaussian } from '../native/rows.ts';
import { type Case, type Cases, floats, type Random, whole } from './case.ts';

const BLOCK = 32;
const PANEL = 16;
/** Bytes of a record of one panel and block: scales (and minima), then codes (kernels/dense_products.h). */
const WIDE_RECORD = 64 + 512;
const NARROW_RECORD = 64 + 256;

function normAndGate(random: Random): Case {
  const count = whole(random, 1, 300);
  const [x, gain] = [floats(random, count, 2 ** 30), floats(random, count, 2 ** 10)];
  const [gate, up] = [floats(random, count, 2 ** 30), floats(random, count, 2 ** 30)];
  const epsilon = random() < 0.2 ? 1 : 1e-5;
  const isGelu = random() < 0.5;
  return {
    shape: `count ${count}${isGelu ? ', GELU' : ''}`,
    run({ kernels, isa }) {
      const [y, gated] = [new Float32Array(count), gate.slice()];
      kernels.normAndGate(isa, count, gain, epsilon, x, y, gated, up, isGelu);
      return [y, gated];
    },
  };
}

interface Packed {
  readonly panels: Uint8Array;
  /** Σ|x·level·scale| and Σ|x·minimum| of row t and output o, in float64. */
  size(x: Float32Array, inputs: number, t: number, o: number): number;
}

function packed(random: Random, isWide: boolean, inputs: number, outputs: number): Packed {
  const blocks = Math.ceil(inputs / BLOCK);
  const record = isWide ? WIDE_RECORD : NARROW_RECORD;
  const panels = new Uint8Array(Math.ceil(outputs / PANEL) * blocks * record);
  const view = new DataView(panels.buffer);
  const spread = 2 ** whole(random, -8, 4);
  for (let at = 0; at < panels.length; at += record) {
    for (let o = 0; o < PANEL; o++) {
      if (isWide) view.setFloat32(at + 4 * o, spread * gaussian(random), true);
      else {
        view.setUint16(at + 2 * o, toHalf(spread * gaussian(random)), true);
        view.setUint16(at + 32 + 2 * o, toHalf(spread * gaussian(random)), true);
      }
    }
    for (let i = 64; i < record; i++) panels[at + i] = Math.floor(random() * 256);
  }
  return {
    panels,
    size(x, inputs, t, o) {
      let sum = 0;
      for (let block = 0; block < blocks; block++) {
        const at = (Math.floor(o / PANEL) * blocks + block) * record;
        const lane = o % PANEL;
        const scale = Math.abs(
          isWide ? view.getFloat32(at + 4 * lane, true) : fromHalf(view.getUint16(at + 2 * lane, true)),
        );
        const least = isWide ? 0 : Math.abs(fromHalf(view.getUint16(at + 32 + 2 * lane, true)));
        let [most, total] = [0, 0];
        for (let i = block * BLOCK; i < Math.min(inputs, (block + 1) * BLOCK); i++) {
          const size = Math.abs(x[t * inputs + i]!);
          total += size;
          most = Math.max(most, size);
        }
        // Integers are within half a step of the row, a step is 1/32512 of its largest; a level is at most 128.
        sum += (total + (BLOCK * most) / 65024) * (scale * (isWide ? 128 : 15) + least);
      }
      return sum;
    },
  };
}

function densePanels(random: Random): Case {
  const isWide = random() < 0.5;
  const inputs = isWide ? whole(random, 1, 200) : BLOCK * whole(random, 1, 6);
  const outputs = whole(random, 1, 100);
  const n = whole(random, 1, 13);
  const blocks = Math.ceil(inputs / BLOCK);
  const { panels, size } = packed(random, isWide, inputs, outputs);
  const x = floats(random, n * inputs, 2 ** 20);
  const bias = random() < 0.5 ? floats(random, Math.ceil(outputs / PANEL) * PANEL, 2 ** 20) : new Float32Array(0);
  const base = random() < 0.5 ? floats(random, n * outputs, 2 ** 20) : new Float32Array(0);
  const bound = new Float64Array(n * outputs);
  for (let t = 0; t < n; t++) {
    for (let o = 0; o < outputs; o++) {
      const at = t * outputs + o;
      const sum = size(x, inputs, t, o) + Math.abs(bias[o] ?? 0) + Math.abs(base[at] ?? 0);
      // Two results, each of a chain of four roundings a block (of them one from int32) and two at the end, 2^-24 of the sum of sizes each.
      bound[at] = 2 * (4 * blocks + 2) * (sum * 2 ** -24 + 2 ** -149);
    }
  }
  return {
    shape: `${isWide ? 'wide' : 'narrow'}, inputs ${inputs}, outputs ${outputs}, rows ${n}`,
    bounds: () => [bound],
    run({ kernels, isa }) {
      const y = new Float32Array(n * outputs);
      const steps = new Float32Array(n * blocks);
      const sums = new Int32Array(n * blocks);
      kernels.densePanels(isa, isWide, inputs, outputs, n, panels, x, bias, base, y, steps, sums);
      return [y, steps, sums];
    },
  };
}

export const DENSE_CASES: Cases = { normAndGate, densePanels };
