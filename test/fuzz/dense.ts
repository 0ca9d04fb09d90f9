/**
 * The dense half: weights of files become the same panels, rows the same integers, norms and gates the same bits;
 * products with packed weights fuse, and have a bound. So have whole layers of every kind of model, whose rows have the
 * bits that they have alone.
 */
import { dequantize, ELEMENT_TYPES } from '../../engine/transformer/dequant.ts';
import { DENSE_BLOCK as BLOCK, densePacking, DENSE_PANEL as PANEL } from '../../native/index.ts';
import {
  DENSE_FEATURES,
  DENSE_FORMS,
  DENSE_NORMS,
  DENSE_SLOTS,
  DENSE_TYPES,
  type DenseType,
} from '../../native/layout.ts';
import type { Binary, DenseHandle } from '../../native/load.ts';
import { gaussian } from '../native/rows.ts';
import { weightBlocks } from '../native/weight-blocks.ts';
import { bytes, type Case, type Cases, floats, one, type Random, succeed, whole } from './case.ts';

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

type Feature = (typeof DENSE_FEATURES)[number];

/** What layers of kinds of models have: Llama and Gemma, OLMo, and those with norms that take the mean out. */
function featuresOf(random: Random): Feature[] {
  const some = (...features: Feature[]): Feature[] => features.filter(() => random() < 0.5);
  const kind = whole(random, 0, 2);
  const norms: Feature[] = kind === 0 ? some('postNorms') : kind === 1 ? ['noPreNorms', 'postNorms'] : ['layerNorms'];
  return [
    ...norms,
    ...some('parallel', 'ungated', 'widthNorms'),
    ...one<Feature[]>(random, [[], ['gelu'], ['geluErf']]),
  ];
}

interface Layers {
  /** As open takes it. */
  readonly shape: Int32Array;
  readonly features: readonly Feature[];
  readonly widths: Readonly<Record<'hidden' | 'q' | 'kv' | 'vocabulary', number>>;
  /** Fills a half. */
  set(half: DenseHandle): void;
}

const F32 = DENSE_TYPES.findIndex(({ name }) => name === 'F32');
const normals = (random: Random, count: number, size: number, middle = 0): Float32Array =>
  Float32Array.from({ length: count }, () => middle + size * gaussian(random));

function layersOf(random: Random): Layers {
  const features = featuresOf(random);
  const has = (feature: Feature): boolean => features.includes(feature);
  const [layers, hidden, inner] = [whole(random, 1, 2), whole(random, 8, 80), whole(random, 1, 100)];
  const [kvHeads, perHead, d] = [whole(random, 1, 2), whole(random, 1, 3), 2 * whole(random, 4, 12)];
  const [heads, vocabulary] = [kvHeads * perHead, whole(random, 1, 40)];
  const [wide, narrow] = [heads * d, kvHeads * d];
  const sizes = { q: [wide, hidden], k: [narrow, hidden], v: [narrow, hidden], o: [hidden, wide] };
  const all = { ...sizes, gate: [inner, hidden], up: [inner, hidden], down: [hidden, inner] };
  const calls: ((half: DenseHandle) => number)[] = [];
  const matrix = (layer: number, slot: number, outputs: number, inputs: number): void => {
    const rows = new Uint8Array(normals(random, outputs * inputs, inputs ** -0.5).buffer);
    calls.push((half) => half.setRows(layer, slot, F32, rows, 0, outputs, 0));
    if (random() < 0.5) return;
    const bias = normals(random, outputs, 0.2);
    calls.push((half) => half.setBias(layer, slot, bias));
  };
  const norm = (layer: number, name: (typeof DENSE_NORMS)[number], width: number): void => {
    const values = normals(random, width, 0.2, 1);
    const biases = has('layerNorms') && !/^[qk]/.test(name) ? normals(random, width, 0.2) : new Float32Array(0);
    const both = Float32Array.of(...values, ...biases);
    calls.push((half) => half.setNorm(layer, DENSE_NORMS.indexOf(name), both));
  };
  const isQkNormed = has('widthNorms') || random() < 0.2;
  for (let layer = 0; layer < layers; layer++) {
    for (const [slot, name] of DENSE_SLOTS.entries())
      if (name !== 'gate' || !has('ungated')) matrix(layer, slot, all[name][0]!, all[name][1]!);
    if (!has('noPreNorms')) for (const name of ['attnNorm', 'mlpNorm'] as const) norm(layer, name, hidden);
    if (has('postNorms')) for (const name of ['attnPost', 'mlpPost'] as const) norm(layer, name, hidden);
    if (!isQkNormed) continue;
    norm(layer, 'qNorm', has('widthNorms') ? wide : d);
    norm(layer, 'kNorm', has('widthNorms') ? narrow : d);
  }
  matrix(layers, 0, vocabulary, hidden);
  norm(layers, 'attnNorm', hidden);
  const bits = DENSE_FEATURES.reduce((sum, name, bit) => sum + (has(name) ? 2 ** bit : 0), 0);
  return {
    shape: Int32Array.of(layers, hidden, inner, heads, kvHeads, d, vocabulary, whole(random, 1, 2), bits, 0, 0),
    features,
    widths: { hidden, q: wide, kv: narrow, vocabulary },
    set: (half) => {
      for (const call of calls) succeed(call(half), 'set');
    },
  };
}

/** What a half answers to rows: q, k and v of each layer, the rows behind the last one, and their logits. */
function answersOf(half: DenseHandle, { shape, widths }: Layers, x: Float32Array, attention: Float32Array) {
  const layers = shape[0]!;
  const tokens = x.length / widths.hidden;
  const found: Float32Array[] = [];
  const made = (width: number): Float32Array => found[found.push(new Float32Array(tokens * width)) - 1]!;
  succeed(half.first(x, tokens, made(widths.q), made(widths.kv), made(widths.kv)), 'first');
  let at = x;
  for (let layer = 0; layer < layers - 1; layer++) {
    const next = made(widths.hidden);
    const [q, k, v] = [made(widths.q), made(widths.kv), made(widths.kv)];
    succeed(half.next(layer, attention, at, tokens, next, q, k, v), 'next');
    at = next;
  }
  const last = made(widths.hidden);
  succeed(half.last(attention, at, tokens, last), 'last');
  succeed(half.logits(last, tokens, made(widths.vocabulary)), 'logits');
  return found;
}

/** Rows that are computed together, of which each must have the bits that it has alone. */
function denseLayers(random: Random): Case {
  const layers = layersOf(random);
  const { features, shape, widths } = layers;
  const n = whole(random, 1, 9);
  const [x, attention] = [normals(random, n * widths.hidden, 1), normals(random, n * widths.q, 1)];
  const row = whole(random, 0, n - 1);
  const openOn = ({ Dense }: Binary): DenseHandle => {
    const half = new Dense();
    succeed(half.open(shape, 1e-5), 'open');
    layers.set(half);
    return half;
  };
  const rowOf = (values: Float32Array): Float32Array => {
    const width = values.length / n;
    return values.slice(row * width, (row + 1) * width);
  };
  return {
    shape: `${[...shape]}${features.map((one) => `, ${one}`).join('')}, rows ${n}`,
    // Sums round otherwise, and a row whose largest number is another by its last bit has integers that are others by
    // one in 32,512, of which there are up to five in a row between matrices; norms and gates do not enlarge them here.
    bounds: (expected) =>
      expected.map((values) =>
        new Float64Array(values.length).fill(2 ** -9 * largest(values as Float32Array, 0, values.length)),
      ),
    run({ binary, isa }) {
      succeed(binary.setIsa(isa), 'setIsa');
      const half = openOn(binary);
      const together = answersOf(half, layers, x, attention);
      const alone = answersOf(half, layers, rowOf(x), rowOf(attention));
      half.close();
      for (const [part, values] of together.entries())
        if (rowOf(values).some((value, i) => !Object.is(value, alone[part]![i])))
          throw new Error(`result ${part}: row ${row} of ${n} has other bits than alone`);
      return together;
    },
  };
}

export const DENSE_CASES: Cases = { normAndGate, densePack, densePanels, denseLayers };
