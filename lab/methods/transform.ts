/**
 * Transform coding: rows in a basis that a calibration found, in which the few components that vary have most bits.
 * After KVTC (Staniszewski and Łańcucki, arXiv 2511.01815) and NOVA-KV (arXiv 2608.04074), with what pages here demand.
 *
 *   pcaB       after KVTC: keys before their rotary embedding and values, all KV heads of a layer together, in their
 *   principal components
 *   qpcaB      after NOVA-KV: a KV head at a time, keys after their rotary embedding, in components in which the mean
 *   square error is that of the scores of
 *              queries: U·√Λ·Vᵀ, where VΛVᵀ are the moments of queries and U the principal components of √Λ·Vᵀ·k.
 *   Values likewise with what W_o makes of them
 *   pcaB-ec …  the same with steps of one size for all components, and an entropy coder behind
 *   ecB        steps and coder alone: the channels of a KV head as they are, keys after their rotary embedding, without
 *   any calibration
 *
 * The bases are those of 2,048 tokens of the text that ships with the package; they are part of the model and not
 * counted. Of each page and block the mean of channels is taken off as rot does it, and deviations of components are
 * kept, a byte each, from which bits or chances follow. Without an entropy coder component i has b_i bits, six at most:
 * the next bit always goes where it takes off most, which is what dynamic programming finds for a convex error. Its
 * levels are those of Lloyd and Max, and a row has one unbiased scale, a byte. With one, all components have one step,
 * the finest with which the page has B bits, and the bytes are those of an ideal coder that takes components for
 * Gaussian or Laplacian, whichever is shorter for the page.
 *
 * What is not as published: KVTC has one basis for all layers together, more directions than the calibration here has
 * tokens, and DEFLATE as its coder; NOVA-KV has vector codes.
 */
import { encodeMean, firstToken, PAGE_TOKENS, type Runtime, reference, SINK_TOKENS, type Side } from 'palimpsest/lab';
import { putHead, SIDES, takeHead } from './headwise.ts';
import { lloyd } from './kvquant.ts';
import { momentsOf, ownMoments, ownRows } from './own-rows.ts';
import { f16Bytes, type PageMethod, unrotate } from './paged.ts';
import { gaussians } from './words.ts';
import { product, singularVectors, transposed } from './xquant.ts';

export type TransformBits = 2 | 3 | 4;

export interface TransformMethod {
  readonly bits: TransformBits;
  /**
   * Principal components of a layer, those of a head that queries and W_o see, or the channels of a head as they are.
   */
  readonly basis: 'pca' | 'qpca' | 'ec';
  readonly isEntropyCoded: boolean;
}

const CALIBRATED_TOKENS = 2048;
const MOST_BITS = 6;
/**
 * Share of the mean power of queries that every direction has at least: what none of them looked at may be looked at
 * later.
 */
const LEAST_POWER = 0.01;
const LEVEL_SAMPLES = 100_000;

/** The method that a cache names; null for any other cache. */
export function transformOf(cache: string): TransformMethod | null {
  const [, basis, bits, coder] = /^(pca|qpca)([2-4])(-ec)?$/.exec(cache) ?? /^(ec)([2-4])$/.exec(cache) ?? [];
  if (bits === undefined) return null;
  return {
    bits: Number(bits) as TransformBits,
    basis: basis as TransformMethod['basis'],
    isEntropyCoded: coder !== undefined || basis === 'ec',
  };
}

export const transformCaches = (): string[] => [
  ...['pca3', 'pca2', 'pca3-ec', 'pca2-ec'],
  ...['qpca3', 'qpca2', 'qpca3-ec', 'qpca2-ec'],
  ...['ec4', 'ec3', 'ec2'],
];

/** Rows into components and back. */
export interface Basis {
  /** [components, width] */
  readonly forth: Float32Array;
  /** [width, components] */
  readonly back: Float32Array;
}

/** Eigenvectors of a symmetric matrix without negative eigenvalues as rows, the largest first, and its eigenvalues. */
function eigen(matrix: Float32Array, width: number): { readonly rows: Float32Array; readonly values: number[] } {
  const rows = singularVectors(matrix, width);
  const images = product(rows, matrix, width);
  const values = Array.from({ length: rows.length / width }, (_, at) =>
    Math.sqrt(images.subarray(at * width, (at + 1) * width).reduce((sum, one) => sum + one * one, 0)),
  );
  return { rows, values };
}

/** The principal components of moments. */
export function principal(moments: Float32Array, width: number): Basis {
  const { rows } = eigen(moments, width);
  return { forth: rows, back: transposed(rows, width) };
}

/** Components of rows with such moments in which the square of an error e is e·S·e, S the moments of what sees them. */
export function seen(moments: Float32Array, sight: Float32Array, width: number): Basis {
  const power =
    Array.from({ length: width }, (_, c) => sight[c * width + c]!).reduce((sum, one) => sum + one, 0) / width;
  const sure = sight.map((one, i) => one + (i % (width + 1) === 0 ? LEAST_POWER * power : 0));
  const { rows, values } = eigen(sure, width);
  const root = rows.map((one, i) => one * Math.sqrt(values[Math.floor(i / width)]!));
  const inverse = rows.map((one, i) => one / Math.sqrt(values[Math.floor(i / width)]!));
  // A·M·Aᵀ for A = √Λ·Vᵀ: moments of what is seen.
  const inner = eigen(product(product(root, moments, width), root, width), width).rows;
  return {
    forth: product(inner, transposed(root, width), width),
    back: transposed(product(inner, transposed(inverse, width), width), width),
  };
}

const tables = new Map<number, Float64Array>();
/** The levels of Lloyd and Max for a normal with so many bits. */
export function levelsOf(bits: number): Float64Array {
  const found = tables.get(bits) ?? fitTable(bits);
  tables.set(bits, found);
  return found;
}

function fitTable(bits: number): Float64Array {
  const sorted = gaussians(LEVEL_SAMPLES, 21).sort();
  const count = 2 ** bits;
  // Levels of a fine code are as dense as the cube root of the density (Panter and Dite 1951), which is a normal √3
  // times as wide.
  const first = Float64Array.from(
    { length: count },
    (_, at) => Math.sqrt(3) * sorted[Math.floor(((at + 0.5) * LEVEL_SAMPLES) / count)]!,
  );
  return lloyd(sorted, first);
}

/** Squared error of a normal with so many bits. */
const distortions: readonly number[] = [1, 0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.000644, 0];

/** Bits of components with such deviations, so many in all: each goes where it takes off most. */
export function allocation(deviations: ArrayLike<number>, bits: number): Uint8Array {
  const out = new Uint8Array(deviations.length);
  const gain = Float64Array.from(deviations, (one) => one * one * (distortions[0]! - distortions[1]!));
  for (let left = bits; left > 0; left--) {
    let chosen = 0;
    for (let at = 1; at < gain.length; at++) if (gain[at]! > gain[chosen]!) chosen = at;
    // Where nothing varies, or all have their most, bits are left.
    if (!(gain[chosen]! > 0)) break;
    const have = ++out[chosen]!;
    const next = have < MOST_BITS ? distortions[have]! - distortions[have + 1]! : 0;
    gain[chosen] = deviations[chosen]! ** 2 * next;
  }
  return out;
}

const inBytes = (x: number): number => (x > 0 ? reference.rotScale(reference.scaleCode(Math.fround(x))) : 0);

/**
 * Codes components y [128, n] of rows from firstRow on by levels, with so many bits a row, and decodes them in place.
 */
function codeLevels(y: Float32Array, deviations: Float64Array, bits: number, firstRow: number): void {
  const n = deviations.length;
  const own = allocation(deviations, bits);
  const levels = Array.from(own, (one) => (one === 0 ? null : levelsOf(one)));
  const coded = [...own.keys()].filter((i) => own[i]! > 0 && deviations[i]! > 0);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const row = y.subarray(t * n, (t + 1) * n);
    const square = coded.reduce((sum, i) => sum + (row[i]! / deviations[i]!) ** 2, 0);
    const rms = Math.sqrt(square / coded.length);
    const decoded = new Float64Array(n);
    let along = 0;
    for (const i of coded) {
      const x = row[i]! / deviations[i]!;
      const of = levels[i]!;
      let at = 0;
      while (at + 1 < of.length && x > (rms * (of[at]! + of[at + 1]!)) / 2) at++;
      decoded[i] = of[at]! * deviations[i]!;
      along += x * of[at]!;
    }
    const scale = along > 0 ? inBytes(square / along) : 0;
    for (let i = 0; i < n; i++) row[i] = scale * decoded[i]!;
  }
}

const SHAPES = ['gaussian', 'laplacian'] as const;
type Shape = (typeof SHAPES)[number];

/** Chance that a normal is below x (Abramowitz and Stegun 7.1.26, error 1.5·10⁻⁷). */
function normalBelow(x: number): number {
  const t = 1 / (1 + (0.3275911 * Math.abs(x)) / Math.SQRT2);
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const tail = (series * Math.exp((-x * x) / 2)) / 2;
  return x > 0 ? 1 - tail : tail;
}

const below = (x: number, deviation: number, shape: Shape): number => {
  if (shape === 'gaussian') return normalBelow(x / deviation);
  const tail = Math.exp((-Math.SQRT2 * Math.abs(x)) / deviation) / 2;
  return x > 0 ? 1 - tail : tail;
};

/** What every number q has as a chance in any case, over (1 + |q|)², and what all of them have together. */
const SPARE = 1e-6;
const SPARE_IN_ALL = SPARE * (Math.PI ** 2 / 3 - 1);

/**
 * Bits of the numbers of steps from 0 to `most`, and of their negatives, for a component of such a deviation in steps.
 */
export function lengthsOf(deviation: number, shape: Shape, most: number): Float64Array {
  return Float64Array.from({ length: most + 1 }, (_, q) => {
    const mass = Math.max(0, below(0.5 - q, deviation, shape) - below(-0.5 - q, deviation, shape));
    return Math.log2(1 + SPARE_IN_ALL) - Math.log2(mass + SPARE / (1 + q) ** 2);
  });
}

const LEAST_DEVIATION = 0.05;

/** Bits of components y from firstRow on with a step. → the shorter of both shapes */
function lengthOf(y: Float32Array, deviations: Float64Array, step: number, firstRow: number): number {
  const n = deviations.length;
  const totals = SHAPES.map(() => 0);
  const steps = new Int32Array(PAGE_TOKENS - firstRow);
  for (let i = 0; i < n; i++) {
    let most = 0;
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      const q = Math.abs(Math.round(y[t * n + i]! / step));
      steps[t - firstRow] = q;
      most = Math.max(most, q);
    }
    for (const [at, shape] of SHAPES.entries()) {
      const lengths = lengthsOf(Math.max(LEAST_DEVIATION, deviations[i]! / step), shape, most);
      for (const q of steps) totals[at]! += lengths[q]!;
    }
  }
  return Math.min(...totals);
}

/**
 * Codes components by steps of one size, the finest that a byte tells with no more bits in all, and decodes them in
 * place. → bits
 */
function codeSteps(y: Float32Array, deviations: Float64Array, bits: number, firstRow: number): number {
  const n = deviations.length;
  let [coarse, fine] = [127, -127];
  const stepOf = (code: number): number => reference.rotScale(code);
  while (coarse - fine > 1) {
    const middle = (coarse + fine) >> 1;
    if (lengthOf(y, deviations, stepOf(middle), firstRow) <= bits) coarse = middle;
    else fine = middle;
  }
  const step = stepOf(coarse);
  const length = lengthOf(y, deviations, step, firstRow);
  for (let i = firstRow * n; i < y.length; i++) y[i] = step * Math.round(y[i]! / step);
  return length;
}

/** Codes and decodes rows [128, width] from firstRow on, in place. → bytes */
export function codeTransformed(
  rows: Float32Array,
  basis: Basis,
  { bits, isEntropyCoded }: TransformMethod,
  firstRow: number,
): number {
  const width = rows.length / PAGE_TOKENS;
  const n = basis.forth.length / width;
  const { means, meanScale } = encodeMean(rows, width, firstRow);
  const scale = reference.fromHalf(meanScale);
  const mean = Float32Array.from(means, (one) => one * scale);
  const y = product(
    rows.map((one, i) => one - mean[i % width]!),
    basis.forth,
    width,
  );
  const count = PAGE_TOKENS - firstRow;
  const deviations = Float64Array.from({ length: n }, (_, i) => {
    let square = 0;
    for (let t = firstRow; t < PAGE_TOKENS; t++) square += y[t * n + i]! ** 2;
    return inBytes(Math.sqrt(square / count));
  });
  let coded = PAGE_TOKENS * width * bits;
  if (isEntropyCoded) coded = 8 * Math.ceil(codeSteps(y, deviations, count * width * bits, firstRow) / 8);
  else codeLevels(y, deviations, width * bits, firstRow);
  const decoded = product(y, basis.back, n);
  for (let i = firstRow * width; i < rows.length; i++) rows[i] = mean[i % width]! + decoded[i]!;
  // Mean and deviations; and the scales of rows, or a step and which shape.
  return coded / 8 + width + 2 + n + (isEntropyCoded ? 2 : PAGE_TOKENS);
}

type Bases = readonly Readonly<Record<Side, readonly Basis[]>>[];
const known = new WeakMap<Runtime, Map<string, Promise<Bases>>>();

/** The bases of the blocks of all layers, found once. */
function basesOf(runtime: Runtime, basis: TransformMethod['basis']): Promise<Bases> {
  const found = known.get(runtime) ?? new Map<string, Promise<Bases>>();
  known.set(runtime, found);
  const make = { pca: wholeBases, qpca: seenBases, ec: channelBases }[basis];
  const bases = found.get(basis) ?? make(runtime);
  found.set(basis, bases);
  return bases;
}

/** Channels as they are. */
async function channelBases({ model: { config } }: Runtime): Promise<Bases> {
  const { layers, kvHeads, headDim } = config;
  const rows = Float32Array.from({ length: headDim * headDim }, (_, i) => (i % (headDim + 1) === 0 ? 1 : 0));
  const heads = Array.from({ length: kvHeads }, (): Basis => ({ forth: rows, back: rows }));
  return Array.from({ length: layers }, () => ({ k: heads, v: heads }));
}

async function wholeBases(runtime: Runtime): Promise<Bases> {
  const { kvHeads, headDim } = runtime.model.config;
  const width = kvHeads * headDim;
  const layers = await ownRows(runtime, CALIBRATED_TOKENS);
  const basis = (rows: Float32Array): Basis =>
    principal(momentsOf(rows.subarray(SINK_TOKENS * width), width, true), width);
  return layers.map(({ k, v }) => ({ k: [basis(k)], v: [basis(v)] }));
}

async function seenBases(runtime: Runtime): Promise<Bases> {
  const { config, weights } = runtime.model;
  const { kvHeads, queryHeads, headDim, hiddenSize } = config;
  const layers = await ownMoments(runtime, CALIBRATED_TOKENS);
  return layers.map(({ k, v, q }, layer) => {
    const output = weights.tensor(`${layer}.o`).readFloat32();
    const sight = (head: number): Float32Array => {
      const group = queryHeads / kvHeads;
      const sum = new Float32Array(headDim * headDim);
      for (let one = head * group; one < (head + 1) * group; one++) {
        const columns = Float32Array.from(
          { length: hiddenSize * headDim },
          (_, i) => output[Math.floor(i / headDim) * queryHeads * headDim + one * headDim + (i % headDim)]!,
        );
        for (const [i, x] of momentsOf(columns, headDim, false).entries()) sum[i]! += x;
      }
      return sum;
    };
    return {
      k: k.map((moments, head) => seen(moments, q[head]!, headDim)),
      v: v.map((moments, head) => seen(moments, sight(head), headDim)),
    };
  });
}

export const transformPages =
  (method: TransformMethod): PageMethod =>
  async (runtime, rope) => {
    const { config } = runtime.model;
    const { kvHeads, headDim } = config;
    const width = kvHeads * headDim;
    const bases = await basesOf(runtime, method.basis);
    let bytes = 0;
    const codeWhole = (all: Float32Array, side: Side, basis: Basis, page: number, firstRow: number): void => {
      const first = firstToken(page);
      const rows = all.slice(first * width, (first + PAGE_TOKENS) * width);
      if (side === 'k') unrotate(rows, kvHeads, first, rope, config);
      bytes += codeTransformed(rows, basis, method, firstRow);
      if (side === 'k') rope.apply(rows, PAGE_TOKENS, kvHeads, first);
      all.set(rows.subarray(firstRow * width), (first + firstRow) * width);
    };
    const codeHeads = (all: Float32Array, own: readonly Basis[], page: number, firstRow: number): void => {
      for (const [head, basis] of own.entries()) {
        const rows = takeHead(all, page, head, config);
        bytes += codeTransformed(rows, basis, method, firstRow);
        putHead(all, rows, { page, head, firstRow }, config);
      }
    };
    return {
      code: (page, kept, firstRow) => {
        for (const [layer, rows] of kept.entries())
          for (const side of SIDES) {
            const own = bases[layer]![side];
            if (method.basis !== 'pca') codeHeads(rows[side], own, page, firstRow);
            else codeWhole(rows[side], side, own[0]!, page, firstRow);
          }
      },
      heldBytes: (_coded, windowTokens) => bytes + f16Bytes(config, windowTokens),
    };
  };
