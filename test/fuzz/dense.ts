/**
 * The dense half: weights of files become the same panels, rows the same integers, norms and gates the same bits;
 * products with packed weights fuse, and have a bound.
 */
import { dequantize, ELEMENT_TYPES } from '../../engine/transformer/dequant.ts';
import { DENSE_BLOCK as BLOCK, densePacking, DENSE_PANEL as PANEL } from '../../native/index.ts';
import { DENSE_FORMS, DENSE_TYPES, type DenseType } from '../../native/layout.ts';
import { weightBlocks } from '../native/weight-blocks.ts';
import { bytes, type Case, type Cases, floats, one, type Random, whole } from './case.ts';

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

interface Stored {
  readonly type: DenseType;
  readonly inputs: number;
  readonly outputs: number;
  /** Rows as a file has them. */
  readonly rows: Uint8Array;
}

function stored(random: Random): Stored {
  const { name: type, values } = one(random, DENSE_TYPES);
  const inputs = values === 1 ? whole(random, 1, 200) : values * whole(random, 1, Math.max(2, 192 / values));
  const outputs = whole(random, 1, 100);
  return { type, inputs, outputs, rows: weightBlocks(random, type, inputs * outputs, 2 ** whole(random, -8, 4)) };
}

/** Any bytes at all: scales may be infinite, and then every machine says so. */
function densePack(random: Random): Case {
  const { type, inputs, outputs, rows } = stored(random);
  const isAny = random() < 0.5;
  const given = isAny ? bytes(random, rows.length) : rows;
  const id = DENSE_TYPES.findIndex(({ name }) => name === type);
  return {
    shape: `${type}, inputs ${inputs}, outputs ${outputs}${isAny ? ', any bytes' : ''}`,
    run({ kernels, isa }) {
      const panels = bytes(() => 0.5, densePacking(type, outputs, inputs)!.bytes);
      const finite = kernels.densePack(isa, id, inputs, outputs, given, panels);
      // What is refused is not kept.
      return [Int32Array.of(finite), finite === 1 ? panels : new Uint8Array(0)];
    },
  };
}

/** Σ|x| · (what a code times its scale, and a minimum, can be) of row t and output o. */
function sizes({ type, inputs, outputs, rows }: Stored, x: Float32Array, n: number, planes: number): Float64Array {
  const w = new Float32Array(inputs * outputs);
  dequantize(ELEMENT_TYPES.get(type)!, rows, w);
  const sums = new Float64Array(n * outputs);
  for (let first = 0; first < inputs; first += BLOCK) {
    const count = Math.min(BLOCK, inputs - first);
    const most = Float64Array.from({ length: outputs }, (_, o) => largest(w, o * inputs + first, count));
    for (let t = 0; t < n; t++) {
      const at = t * inputs + first;
      let total = 0;
      for (let i = 0; i < count; i++) total += Math.abs(x[at + i]!);
      // Integers are within half a step of the row, a step is 1/32512 or 1/127 of its largest.
      const size = total + (BLOCK * largest(x, at, count)) / (planes === 1 ? 254 : 65024);
      for (let o = 0; o < outputs; o++) sums[t * outputs + o]! += size * 20 * most[o]!;
    }
  }
  return sums;
}

function largest(values: Float32Array, from: number, count: number): number {
  let most = 0;
  for (let i = from; i < from + count; i++) most = Math.max(most, Math.abs(values[i]!));
  return most;
}

function densePanels(random: Random): Case {
  const weights = stored(random);
  const { type, inputs, outputs, rows } = weights;
  const n = whole(random, 1, 13);
  const planes = whole(random, 1, 2);
  const blocks = Math.ceil(inputs / BLOCK);
  const id = DENSE_TYPES.findIndex(({ name }) => name === type);
  const form = DENSE_FORMS.findIndex(({ name }) => name === DENSE_TYPES[id]!.form);
  const x = floats(random, n * inputs, 2 ** 20);
  const bias = random() < 0.5 ? floats(random, Math.ceil(outputs / PANEL) * PANEL, 2 ** 20) : new Float32Array(0);
  const base = random() < 0.5 ? floats(random, n * outputs, 2 ** 20) : new Float32Array(0);
  const bound = sizes(weights, x, n, planes);
  for (let at = 0; at < bound.length; at++) {
    const sum = bound[at]! + Math.abs(bias[at % outputs] ?? 0) + Math.abs(base[at] ?? 0);
    // Two results, each of a chain of five roundings a block (two of them from int32, two groups of scales) and two at
    // the end, 2^-24 of the sum of sizes each.
    bound[at] = 2 * (8 * blocks + 2) * (sum * 2 ** -24 + 2 ** -149);
  }
  return {
    shape: `${type}, inputs ${inputs}, outputs ${outputs}, rows ${n}, planes ${planes}`,
    bounds: () => [bound],
    run({ kernels, isa }) {
      const panels = new Uint8Array(densePacking(type, outputs, inputs)!.bytes);
      kernels.densePack(isa, id, inputs, outputs, rows, panels);
      const y = new Float32Array(n * outputs);
      const steps = new Float32Array(n * blocks);
      const sums = new Int32Array(2 * n * blocks);
      kernels.densePanels(isa, form, inputs, outputs, n, panels, x, bias, base, y, steps, sums, planes);
      return [y, steps, sums];
    },
  };
}

export const DENSE_CASES: Cases = { normAndGate, densePack, densePanels };
