/** One KV head of a recorded layer, and attention over some of its tokens in plain loops. */
import {
  FORMAT_NAMES,
  type FormatName,
  firstToken,
  joined,
  KvError,
  openKvCache,
  openPool,
} from '../../native/index.ts';
import type { Trace, TracePage } from './reader.ts';

/** A layer of a trace as it was recorded, and in whatever formats are asked for. */
export class TraceLayer {
  readonly tokens: number;
  /** Positions of all recorded queries, ascending, and ‖x‖ of each. */
  readonly positions: readonly number[];
  readonly norms: readonly number[];
  readonly #trace: Trace;
  readonly #pages: readonly TracePage[];
  readonly #rows = new Map<FormatName, { readonly k: Float32Array; readonly v: Float32Array }>();

  constructor(trace: Trace, layer: number) {
    this.#trace = trace;
    this.#pages = Array.from({ length: trace.pages }, (_, page) => trace.page(page, layer));
    this.tokens = trace.header.tokens;
    this.positions = this.#pages.flatMap(({ queryRows }, page) => queryRows.map((row) => firstToken(page) + row));
    this.norms = this.#pages.flatMap(({ norms }) => [...norms]);
    this.#rows.set('f16', { k: joined(this.#pages.map(({ k }) => k)), v: joined(this.#pages.map(({ v }) => v)) });
  }

  /** Keys and values of one KV head in a format, [T, d] each. */
  rows(head: number, format: FormatName): { readonly k: Float32Array; readonly v: Float32Array } {
    const { kvHeads, headDim } = this.#trace.shape;
    const all = this.#rows.get(format) ?? this.#coded(format);
    const of = (side: Float32Array): Float32Array => columns(side, kvHeads * headDim, head * headDim, headDim);
    return { k: of(all.k), v: of(all.v) };
  }

  /** Queries of one query head, [queries, d], scaled by 1/√d. */
  queries(head: number): Float32Array {
    const { queryHeads, headDim } = this.#trace.shape;
    const all = joined(this.#pages.map(({ q }) => q));
    return columns(all, queryHeads * headDim, head * headDim, headDim).map((one) => one / Math.sqrt(headDim));
  }

  /** What a cache makes of the rows when all its sealed pages go to a format. The open page stays exact. */
  #coded(format: FormatName): { readonly k: Float32Array; readonly v: Float32Array } {
    if (!FORMAT_NAMES.includes(format)) throw new KvError('unsupported', `there is no format ${format}`);
    const { shape } = this.#trace;
    const pool = openPool(2 ** 40);
    const cache = openKvCache({ shape: { ...shape, layers: 1 }, pool });
    try {
      for (const { k, v } of this.#pages) cache.append(0, k, v);
      const sealed = cache.table(0).pages;
      const decoded = (side: 'k' | 'v'): Float32Array => {
        for (let page = 0; page < sealed; page++) cache.transcode(0, page, side, format);
        return joined(Array.from({ length: sealed + 1 }, (_, page) => cache.decode(0, page, side)));
      };
      const rows = { k: decoded('k'), v: decoded('v') };
      this.#rows.set(format, rows);
      return rows;
    } finally {
      cache.close();
      pool.close();
    }
  }
}

/** `count` columns from `first` on of rows of `width`. */
function columns(rows: Float32Array, width: number, first: number, count: number): Float32Array {
  const out = new Float32Array((rows.length / width) * count);
  for (let from = first, to = 0; to < out.length; from += width, to += count)
    out.set(rows.subarray(from, from + count), to);
  return out;
}

/** q·k, each from its place on; `width` is a multiple of 4, as of all coded heads. */
export function dot(q: Float32Array, qAt: number, k: Float32Array, kAt: number, width: number): number {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  for (let i = 0; i < width; i += 4) {
    a += q[qAt + i]! * k[kAt + i]!;
    b += q[qAt + i + 1]! * k[kAt + i + 1]!;
    c += q[qAt + i + 2]! * k[kAt + i + 2]!;
    d += q[qAt + i + 3]! * k[kAt + i + 3]!;
  }
  return a + b + c + d;
}

/** ln Σ e^score */
export function logSumExp(scores: Float32Array): number {
  let max = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < scores.length; i++) if (scores[i]! > max) max = scores[i]!;
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += Math.exp(scores[i]! - max);
  return max + Math.log(sum);
}

/** Turns scores into probabilities, in place. */
export function softmax(scores: Float32Array): void {
  const whole = logSumExp(scores);
  for (let i = 0; i < scores.length; i++) scores[i] = Math.exp(scores[i]! - whole);
}

/**
 * Turns the rotated channels of a query `distance` positions on; `radians` and `interleaved` as in the header of the
 * trace.
 */
export function turned(
  q: Float32Array,
  distance: number,
  { radians, interleaved }: { readonly radians: readonly number[]; readonly interleaved: boolean },
): Float32Array {
  const out = q.slice();
  const pairs = radians.length;
  for (let pair = 0; pair < pairs; pair++) {
    const [a, b] = interleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + pairs];
    const cos = Math.cos(distance * radians[pair]!);
    const sin = Math.sin(distance * radians[pair]!);
    out[a] = q[a]! * cos - q[b]! * sin;
    out[b] = q[a]! * sin + q[b]! * cos;
  }
  return out;
}
