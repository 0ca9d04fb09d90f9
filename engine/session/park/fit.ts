/**
 * Fits what parked pages are predicted by, to texts that a model reads with an exact cache: for every layer a ridge
 * regression from the keys and values of the layer below, and the basis of what is left in which channels are
 * uncorrelated and an error of one step costs the output equally much wherever it is. What an error costs comes from
 * the queries (for keys), from the output matrix (for values), and from the law of errors of the model, if there is
 * one.
 */
import { KvError, type Side } from '../../../native/index.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import { shippedThresholds } from '../../state/shipped-laws.ts';
import { RopeTable } from '../../transformer/rope.ts';
import { checkUniformRope } from '../../transformer/rotary.ts';
import type { Runtime } from '../../transformer/runtime/runtime.ts';
import type { ReadOptions } from '../prompt.ts';
import { Session } from '../session.ts';
import { cholesky, eigen, inverse, product, Singular, solveCholesky, transposed } from './linear.ts';
import { DEVIATIONS, type LayerMap, type PredictorData, type SideMap, turnBack } from './predictor.ts';
import { LEVEL_MAX, logisticShares } from './rans.ts';
import { unrotate } from './unrotate.ts';

/** The ridge of a regression, as a share of the trace of what it is made of. */
const RIDGE = 1e-3;
/** Standard deviations of an input within 8 bits: 127 / 24 = 5.3. */
const INPUT_STEPS = 24;
/** A code is 6 levels, so that 21 steps fill 8 bits, and no channel spreads over more than 7 steps. */
const FACTOR = Math.floor(127 / LEVEL_MAX);
const SPREAD_MAX = LEVEL_MAX / 3;
/** The size of a step where an error of 1 costs one nat a page and layer: 1.5 bits a number for SmolLM2-135M. */
const STEP = 0.0006;
/** Squared error, as a share of variance, of the formats whose ε the law knows. */
const REFERENCE = { k: { format: 'rot3', error: 0.0345 }, v: { format: 'rot2', error: 0.1324 } } as const;
/** What such an error costs where nothing is known of a model: the middle of what was measured of SmolLM2-135M. */
const COST = 1e-5;
const SINKS = 4;

/** Sums over tokens of 1, inputs, keys and values, and their products, of one layer; and of squared queries. */
interface Sums {
  readonly width: number;
  /** [size, size], its lower half. size: 1 + 2w (0 in layer 0) + 2w. */
  readonly gram: Float64Array;
  readonly size: number;
  /** [w] */
  readonly queries: Float64Array;
}

/**
 * Reads windows of tokens and fits. Throws 'bad-argument' for too few tokens and for those that are too alike,
 * 'aborted', and what reading throws.
 */
export async function fitPredictor(
  runtime: Runtime,
  windows: readonly (readonly number[])[],
  reading: ReadOptions = {},
): Promise<PredictorData> {
  const { shape, model } = runtime;
  const width = shape.kvHeads * shape.headDim;
  const tokens = windows.reduce((sum, { length }) => sum + Math.max(0, length - SINKS), 0);
  if (tokens < 4 * width)
    throw new KvError('bad-argument', `${tokens} tokens are too few to predict ${width} channels`, {
      values: { tokens, least: 4 * width },
    });
  const sums = Array.from({ length: shape.layers }, (_, layer): Sums => {
    const size = 1 + (layer === 0 ? 2 : 4) * width;
    return { width, size, gram: new Float64Array(size * size), queries: new Float64Array(width) };
  });
  for (const window of windows) await addWindow(runtime, sums, window, reading);
  const law = shippedThresholds(model.digest)?.law;
  const costOf = (layer: number, side: Side): number => {
    const epsilon = law?.epsilon?.[side][layer]?.[REFERENCE[side].format]?.value;
    const coefficient = law?.coefficient[side][layer]?.value;
    const cost = epsilon === undefined || coefficient === undefined ? COST : coefficient * epsilon ** 2;
    return cost / REFERENCE[side].error;
  };
  const step = STEP * Math.sqrt((30 * 192) / (shape.layers * width));
  const layers = sums.map((one, layer) => {
    const output = model.weights.tensor(`${layer}.o`).readFloat32();
    const stepOf = (side: Side): number => step / Math.sqrt(costOf(layer, side));
    return orAlike(layer, tokens, () => fitLayer(one, stepOf, outputMetric(runtime, output)));
  });
  const shares = Uint16Array.from(DEVIATIONS.flatMap((deviation) => [...logisticShares(deviation)]));
  const { kvHeads, headDim } = shape;
  return { modelDigest: model.digest, shape: { layers: shape.layers, kvHeads, headDim }, shares, layers };
}

/** What a fit has no answer to are texts in which channels do not vary, or vary together throughout. */
function orAlike<T>(layer: number, tokens: number, fit: () => T): T {
  try {
    return fit();
  } catch (cause) {
    if (!(cause instanceof Singular)) throw cause;
    throw new KvError('bad-argument', `the texts are too alike to predict pages by: layer ${layer} has no fit`, {
      values: { layer, tokens, why: cause.message },
      hint: 'give texts of several kinds, some thousand tokens of each, without long repetitions',
      cause,
    });
  }
}

async function addWindow(
  runtime: Runtime,
  sums: readonly Sums[],
  tokens: readonly number[],
  reading: ReadOptions,
): Promise<void> {
  const { shape, model } = runtime;
  checkUniformRope(model.config, 'a predictor of pages');
  const table = new RopeTable(model.config, tokens.length);
  let below: { k: Float32Array; v: Float32Array } | null = null;
  const session = Session.open(runtime, {
    exact: true,
    log: null,
    tokensExpected: tokens.length,
    thresholds: defaultThresholds(shape.layers),
    onRows: ({ layer, position, tokens: count, q, k, v }) => {
      const rows = { k: unrotate(k.slice(), position, table, model.config), v: v.slice() };
      add(sums[layer]!, layer === 0 ? null : below, rows, count, position);
      addQueries(sums[layer]!, q, shape.queryHeads, shape.headDim);
      below = rows;
    },
  });
  try {
    await session.read(tokens, reading);
  } finally {
    session.close();
  }
}

function add(
  { gram, size, width }: Sums,
  below: { k: Float32Array; v: Float32Array } | null,
  { k, v }: { k: Float32Array; v: Float32Array },
  tokens: number,
  position: number,
): void {
  const row = new Float64Array(size);
  row[0] = 1;
  for (let t = Math.max(0, SINKS - position); t < tokens; t++) {
    const [from, to] = [t * width, (t + 1) * width];
    const parts = [...(below === null ? [] : [below.k, below.v]), k, v];
    for (const [i, part] of parts.entries()) row.set(part.subarray(from, to), 1 + i * width);
    for (let i = 0; i < size; i++) {
      const factor = row[i]!;
      for (let j = 0, at = i * size; j <= i; j++, at++) gram[at]! += factor * row[j]!;
    }
  }
}

/** Squares of what queries ask of each channel of a key; both channels of a rotated pair are asked alike. */
function addQueries({ queries, width }: Sums, q: Float32Array, heads: number, headDim: number): void {
  const group = (heads * headDim) / width;
  for (let i = 0; i < q.length; i++) {
    const head = Math.floor(i / headDim) % heads;
    queries[Math.floor(head / group) * headDim + (i % headDim)]! += q[i]! * q[i]!;
  }
}

/** Σ W_oᵀ·W_o over the query heads of each KV head, [w, w]: how much an error of a value moves the residual stream. */
function outputMetric({ shape, model }: Runtime, output: Float32Array): Float64Array {
  const { queryHeads, kvHeads, headDim } = shape;
  const width = kvHeads * headDim;
  const columns = queryHeads * headDim;
  const metric = new Float64Array(width * width);
  for (let row = 0; row < model.config.hiddenSize; row++)
    for (let head = 0; head < queryHeads; head++) {
      const from = row * columns + head * headDim;
      const at = Math.floor((head * kvHeads) / queryHeads) * headDim;
      for (let i = 0; i < headDim; i++)
        for (let j = 0; j < headDim; j++) metric[(at + i) * width + at + j]! += output[from + i]! * output[from + j]!;
    }
  return metric;
}

/** stepOf: the size of a step where variances in the metric add up to 1. */
function fitLayer(sums: Sums, stepOf: (side: Side) => number, values: Float64Array): LayerMap {
  const { gram, size, width } = sums;
  const n = gram[0]!;
  const mean = Float64Array.from({ length: size - 1 }, (_, i) => gram[(i + 1) * size]! / n);
  const covariance = (i: number, j: number): number =>
    gram[(1 + Math.max(i, j)) * size + 1 + Math.min(i, j)]! / n - mean[i]! * mean[j]!;
  const inputs = size - 1 - 2 * width;
  const own = Array.from({ length: 2 * width }, (_, i) => inputs + i);
  const keys = own.slice(0, width);
  const gains = Float32Array.from(own, (i) => INPUT_STEPS / Math.sqrt(Math.max(covariance(i, i), 1e-12)));
  const centres = Float32Array.from(own, (i) => mean[i]!);
  const all = Array.from({ length: inputs }, (_, i) => i);
  const metric = new Float64Array(width * width);
  for (let c = 0; c < width; c++) metric[c * width + c] = sums.queries[c]!;
  const gainOf = (i: number): number => INPUT_STEPS / Math.sqrt(Math.max(covariance(i, i), 1e-12));
  const fit = (of: readonly number[], from: readonly number[], by: Float64Array, step: number): SideMap =>
    fitSide({ of, from, covariance, mean, gainOf }, by, step);
  return {
    k: fit(keys, all, metric, stepOf('k')),
    v: fit(own.slice(width), [...all, ...keys], values, stepOf('v')),
    centres,
    gains,
  };
}

interface Regression {
  /** Places of the channels that are predicted, and of those that predict. */
  readonly of: readonly number[];
  readonly from: readonly number[];
  readonly covariance: (i: number, j: number) => number;
  readonly mean: Float64Array;
  readonly gainOf: (i: number) => number;
}

function fitSide({ of, from, covariance, mean, gainOf }: Regression, metric: Float64Array, step: number): SideMap {
  const width = of.length;
  const count = from.length;
  const block = (rows: readonly number[], columns: readonly number[]): Float64Array =>
    Float64Array.from({ length: rows.length * columns.length }, (_, at) =>
      covariance(rows[Math.floor(at / columns.length)]!, columns[at % columns.length]!),
    );
  const total = block(of, of);
  const left = total.slice();
  let b: Float64Array = new Float64Array(0);
  if (count > 0) {
    const xx = block(from, from);
    const ridge = (RIDGE * trace(xx, count)) / count;
    for (let i = 0; i < count; i++) xx[i * count + i]! += ridge;
    const xy = block(from, of);
    b = solveCholesky(cholesky(xx, count), count, xy.slice(), width);
    const explained = product(transposed(xy, width), b, count);
    for (let i = 0; i < left.length; i++)
      left[i]! -= (explained[i]! + explained[(i % width) * width + Math.floor(i / width)]!) / 2;
  }
  const spread = trace(metric, width) / width;
  for (let i = 0; i < width; i++) metric[i * width + i]! += 1e-4 * spread;
  const root = cholesky(metric, width);
  const { values, vectors } = eigen(product(transposed(root, width), product(left, root, width), width), width);
  // A residual r is r·L·Tᵀ in the basis (rows of T are vectors), and comes back as z·T·L⁻¹.
  const back = product(vectors, inverse(root, width), width);
  const size = step * Math.sqrt(trace(product(metric, total, width), width));
  const spreads = Float64Array.from(values, (value) => Math.sqrt(Math.max(value, 0)) / size);
  const steps = spreads.map((one) => size * Math.max(1, one / SPREAD_MAX));
  const tables = Uint8Array.from(spreads, (one) => {
    const octaves = 2 * Math.log2(Math.max(one, 1e-6) / DEVIATIONS[0]!);
    const most = 2 * Math.log2(SPREAD_MAX / DEVIATIONS[0]!);
    return Math.max(0, Math.min(DEVIATIONS.length - 1, Math.round(Math.min(octaves, most))));
  });
  const contraction = width + count;
  const weights = new Int8Array(width * contraction);
  const scales = new Float32Array(width);
  for (let o = 0; o < width; o++) {
    const row = Float64Array.from({ length: contraction }, (_, c) =>
      c < width ? (back[c * width + o]! * steps[c]!) / FACTOR : b[(c - width) * width + o]! / gainOf(from[c - width]!),
    );
    const most = row.reduce((max, value) => Math.max(max, Math.abs(value)), 1e-30);
    scales[o] = most / 127;
    weights.set(
      Int8Array.from(row, (value) => Math.round((127 * value) / most)),
      o * contraction,
    );
  }
  const base = Float32Array.from(of, (i) => mean[i]!);
  if (!base.every(Number.isFinite) || !scales.every(Number.isFinite)) throw new Singular('a fit that is not finite');
  const map = { contraction, weights, scales, base, factors: new Uint8Array(width).fill(FACTOR), tables };
  // Weights were rounded: what cannot be turned back any more could not be used.
  turnBack(map, width);
  return map;
}

const trace = (a: Float64Array, n: number): number => {
  let sum = 0;
  for (let i = 0; i < n; i++) sum += a[i * n + i]!;
  return sum;
};
