/**
 * Plain attention in float64 over what a cache says it holds: the yardstick for everything that attend() and trial()
 * do.
 */
import { FORMAT_NAMES, type FormatName, isFreed, type KvCache, PAGE_TOKENS, type Side } from '../../native/index.ts';

/** Seeded uniform numbers in [0, 1). */
export { seeded as uniform } from '../../engine/evaluate/recall.ts';

/** `count` normal numbers times `size`. */
export function normals(random: () => number, count: number, size = 1): Float32Array {
  return Float32Array.from(
    { length: count },
    () => size * Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()),
  );
}

export function pick<T>(random: () => number, list: readonly T[]): T {
  return list[Math.floor(random() * list.length)]!;
}

/** Every row of one side of a layer as the cache decodes it, zeros for freed pages: [tokens, n, d]. */
export function history(cache: KvCache, layer: number, side: Side): Float32Array {
  const { pages } = cache.table(layer);
  const rows = cache.shape.kvHeads * cache.shape.headDim;
  const all = new Float32Array(cache.length(layer) * rows);
  for (let page = 0; page <= pages; page++)
    if (page === pages || !isFreed(cache.table(layer), page))
      all.set(cache.decode(layer, page, side), page * PAGE_TOKENS * rows);
  return all;
}

export interface DenseOptions {
  readonly scale?: number;
  readonly window?: number | null;
  readonly slopes?: Float32Array;
  readonly scoreCap?: number | null;
  /** Tokens that are not there. */
  readonly skips?: (position: number) => boolean;
  /** Positions of the queries; default the last T. */
  readonly positions?: readonly number[];
}

export interface Dense {
  /** [T, H, d] */
  readonly out: Float64Array;
  /** [T, H] */
  readonly lse: Float64Array;
  /** Probability per page, summed over tokens and heads. */
  readonly mass: Float64Array;
}

export function denseAttention(
  shape: { queryHeads: number; kvHeads: number; headDim: number },
  q: Float32Array,
  k: Float32Array,
  v: Float32Array,
  options: DenseOptions = {},
): Dense {
  const { queryHeads, kvHeads, headDim } = shape;
  const group = queryHeads / kvHeads;
  const length = k.length / (kvHeads * headDim);
  const tokens = q.length / (queryHeads * headDim);
  const scale = options.scale ?? 1 / Math.sqrt(headDim);
  const out = new Float64Array(q.length);
  const lse = new Float64Array(tokens * queryHeads);
  const mass = new Float64Array(Math.ceil(length / PAGE_TOKENS));
  const p = new Float64Array(length);
  for (let t = 0; t < tokens; t++) {
    const position = options.positions?.[t] ?? length - tokens + t;
    const first = options.window ? Math.max(0, position - options.window + 1) : 0;
    for (let h = 0; h < queryHeads; h++) {
      const at = (t * queryHeads + h) * headDim;
      const kv = Math.floor(h / group) * headDim;
      let max = Number.NEGATIVE_INFINITY;
      for (let i = first; i <= position; i++) {
        const row = i * kvHeads * headDim + kv;
        let dot = 0;
        for (let c = 0; c < headDim; c++) dot += q[at + c]! * k[row + c]!;
        const capped = options.scoreCap ? options.scoreCap * Math.tanh((dot * scale) / options.scoreCap) : dot * scale;
        p[i] = options.skips?.(i) ? Number.NEGATIVE_INFINITY : capped - (options.slopes?.[h] ?? 0) * (position - i);
        max = Math.max(max, p[i]!);
      }
      let sum = 0;
      for (let i = first; i <= position; i++) sum += p[i] = Math.exp(p[i]! - max);
      lse[t * queryHeads + h] = max + Math.log(sum);
      for (let i = first; i <= position; i++) {
        const weight = p[i]! / sum;
        mass[Math.floor(i / PAGE_TOKENS)]! += weight;
        const row = i * kvHeads * headDim + kv;
        for (let c = 0; c < headDim; c++) out[at + c]! += weight * v[row + c]!;
      }
    }
  }
  return { out, lse, mass };
}

/** Attention over what the cache decodes. */
export function denseOf(cache: KvCache, layer: number, q: Float32Array, options: DenseOptions = {}): Dense {
  return denseAttention(cache.shape, q, history(cache, layer, 'k'), history(cache, layer, 'v'), options);
}

/** Largest L2 error of a row, as a share of the root mean square row. */
export function rowError(actual: ArrayLike<number>, expected: ArrayLike<number>, row: number): number {
  let worst = 0;
  let total = 0;
  for (let at = 0; at < expected.length; at += row) {
    let error = 0;
    for (let c = 0; c < row; c++) {
      error += (actual[at + c]! - expected[at + c]!) ** 2;
      total += expected[at + c]! ** 2;
    }
    if (!(error <= worst)) worst = error; // NaN counts as worst
  }
  return Math.sqrt(worst / (total / (expected.length / row)));
}

/** Equal to the bit; comparing long arrays element by element takes a test runner seconds. */
export function sameBits(a: ArrayBufferView, b: ArrayBufferView): boolean {
  const bytes = (x: ArrayBufferView): Buffer => Buffer.from(x.buffer, x.byteOffset, x.byteLength);
  return bytes(a).equals(bytes(b));
}

export function formatOf(cache: KvCache, layer: number, page: number, side: Side): FormatName {
  const table = cache.table(layer);
  return FORMAT_NAMES[(side === 'k' ? table.kFormat : table.vFormat)[page]!]!;
}

/** ‖actual − expected‖ / ‖expected‖ in L2. */
export function relativeError(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  return rowError(actual, expected, expected.length);
}

/**
 * Allowed relative error of attend against dense attention on decoded values: float32 sums on f16 pages; on coded pages
 * queries and probabilities are 16-bit integers (two int8 planes: 5e-5 on normal data), so 3e-4 leaves room for peaked
 * rows.
 */
export const F16_TOLERANCE = 1e-5;
export const CODED_TOLERANCE = 3e-4;
/** The worst of a few thousand rows may lie this many times above what is allowed for all rows together. */
export const WORST_ROW = 4;
