/**
 * kvquantB: KVQuant (Hooper et al., arXiv 2401.18079) with B bits, as published.
 *
 *   keys      before their rotary embedding; a channel has its range from calibration, the 0.5% and 99.5% of its
 *   elements there; what lies outside is an outlier
 *   values    a token has the range of its elements, all KV heads together, after 0.5% of them on either side were
 *   taken out as outliers
 *   levels    2^B for a layer and side, anywhere in the range: one-dimensional k-means over what calibration leaves in
 *   it (k-means++, 50 rounds at most)
 *   outliers  in f16, exact; an element is a value and an index of 16 bits, and each token has a pointer of 32 bits on
 *   either side
 *   Q-Norm    at 2 bits levels are moved and stretched until decoded elements of the calibration have their mean and
 *   deviation
 *   sinks     the first tokens stay in f16 and take no part in calibration
 *
 * The paper weighs elements in k-means by the square of the gradient of the loss (Fisher information). There are no
 * gradients here, so all weigh the same. Calibration is 2,048 tokens of the text that ships with the package, where the
 * paper has 16 times as many. Ranges of keys and levels are part of the model and not counted; values have offset and
 * scale of a token in f16.
 *
 *   kvquantB-post    keys after their rotary embedding instead, all else the same: what the paper measures its own way
 *   against
 *   kvquantB-dense   no outliers; ranges are from least to most
 *   kvquantB-capped  no more outliers of keys in a token than 1% of its channels, rounded up, as where room is
 *   reserved; the rest become the last level
 *   kvquant2-raw     without Q-Norm
 */
import {
  firstToken,
  type ModelConfig,
  PAGE_TOKENS,
  RopeTable,
  type Runtime,
  SINK_TOKENS,
  type Side,
} from 'palimpsest/lab';
import { SIDES } from './headwise.ts';
import { ownRows } from './own-rows.ts';
import { f16Bytes, type KeptRows, type PageMethod, unrotate } from './paged.ts';
import { inHalf } from './rot-head.ts';
import { uniforms } from './words.ts';

export type KvQuantBits = 2 | 3 | 4;

export interface KvQuant {
  readonly bits: KvQuantBits;
  readonly variant: 'published' | 'post' | 'dense' | 'capped' | 'raw';
}

/** Share of the elements that are outliers, on both sides together. */
const SHARE = 0.01;
const CALIBRATED_TOKENS = 2048;
const ROUNDS = 50;
/** Value and index of an outlier, the pointer of a token, and offset and scale of a token's values. */
const OUTLIER_BYTES = 4;
const POINTER_BYTES = 4;
const RANGE_BYTES = 4;

/** The method that a cache names; null for any other cache. */
export function kvQuantOf(cache: string): KvQuant | null {
  const [, digits, variant = 'published'] = /^kvquant([234])(?:-(post|dense|capped|raw))?$/.exec(cache) ?? [];
  if (digits === undefined || (variant === 'raw' && digits !== '2')) return null;
  return { bits: Number(digits) as KvQuantBits, variant: variant as KvQuant['variant'] };
}

export const kvQuantCaches = (): string[] => [
  ...['kvquant4', 'kvquant3', 'kvquant2'],
  ...['kvquant4-post', 'kvquant3-post', 'kvquant2-post'],
  ...['kvquant3-dense', 'kvquant3-capped', 'kvquant2-raw'],
];

/** From where to where elements are coded by levels, for each vector that shares a range. */
export interface Ranges {
  readonly low: Float32Array;
  readonly high: Float32Array;
}

/**
 * The ranges of channels of rows [rows, width] without their outliers: the elements at `share / 2` from either end,
 * linear between neighbours.
 */
export function channelRanges(rows: Float32Array, width: number, share: number): Ranges {
  const count = rows.length / width;
  const [low, high] = [new Float32Array(width), new Float32Array(width)];
  for (let c = 0; c < width; c++) {
    const sorted = Float32Array.from({ length: count }, (_, t) => rows[t * width + c]!).sort();
    const at = (part: number): number => {
      const place = part * (count - 1);
      const before = sorted[Math.floor(place)]!;
      return before + (place % 1) * (sorted[Math.ceil(place)]! - before);
    };
    [low[c], high[c]] = [at(share / 2), at(1 - share / 2)];
  }
  return { low, high };
}

/** Elements of a token on either side that are outliers. */
const outliersOf = (width: number, share: number): number =>
  share > 0 ? Math.max(1, Math.round((share * width) / 2)) : 0;

/** The range of a token's elements without its outliers. */
function tokenRange(row: Float32Array, share: number): readonly [low: number, high: number] {
  const sorted = row.slice().sort();
  const out = outliersOf(row.length, share);
  return [sorted[out]!, sorted[row.length - 1 - out]!];
}

const toUnit = (x: number, low: number, high: number): number => (high > low ? (2 * x - low - high) / (high - low) : 0);

const nearest = (y: number, bounds: Float64Array): number => {
  let at = 0;
  while (at < bounds.length && y > bounds[at]!) at++;
  return at;
};

const boundsOf = (levels: Float64Array): Float64Array =>
  levels.subarray(1).map((level, at) => (level + levels[at]!) / 2);

/** So many levels for numbers: one-dimensional k-means, begun by k-means++. */
export function fitLevels(x: Float32Array, count: number, seed: number): Float64Array {
  const sorted = x.slice().sort();
  return lloyd(sorted, firstLevels(sorted, count, seed));
}

/** Levels after 50 rounds of Lloyd's iteration over sorted numbers. One that serves no number stays where it is. */
export function lloyd(sorted: Float32Array, first: Float64Array): Float64Array {
  const sums = new Float64Array(sorted.length + 1);
  for (const [at, one] of sorted.entries()) sums[at + 1] = sums[at]! + one;
  const firstAbove = (bound: number): number => {
    let [from, to] = [0, sorted.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (sorted[middle]! > bound) to = middle;
      else from = middle + 1;
    }
    return from;
  };
  let levels = first;
  for (let round = 0; round < ROUNDS; round++) {
    const ends = [0, ...Array.from(boundsOf(levels), firstAbove), sorted.length];
    const next = levels.map((level, at) => {
      const [from, to] = [ends[at]!, ends[at + 1]!];
      return to > from ? (sums[to]! - sums[from]!) / (to - from) : level;
    });
    const isSame = next.every((level, at) => level === levels[at]);
    levels = next;
    if (isSame) break;
  }
  return levels;
}

/** Numbers drawn with chances that are as their squared distance from those drawn before (k-means++), in order. */
function firstLevels(x: Float32Array, count: number, seed: number): Float64Array {
  const uniform = uniforms(seed);
  const drawn = [x[Math.floor(uniform() * x.length)]!];
  const squares = Float64Array.from(x, (one) => (one - drawn[0]!) ** 2);
  while (drawn.length < count) {
    let left = uniform() * squares.reduce((sum, one) => sum + one, 0);
    let at = 0;
    while (at + 1 < x.length && left >= squares[at]!) left -= squares[at++]!;
    const level = x[at]!;
    drawn.push(level);
    for (const [i, one] of x.entries()) squares[i] = Math.min(squares[i]!, (one - level) ** 2);
  }
  return Float64Array.from(drawn).sort();
}

/** Q-Norm: levels with which decoded numbers have the mean and the deviation that the numbers have. */
export function normed(levels: Float64Array, x: Float32Array): Float64Array {
  const bounds = boundsOf(levels);
  const [mean, deviation] = momentsOf(x);
  const [codedMean, codedDeviation] = momentsOf(Float32Array.from(x, (one) => levels[nearest(one, bounds)]!));
  const stretch = codedDeviation > 0 ? deviation / codedDeviation : 1;
  return levels.map((level) => (level - codedMean) * stretch + mean);
}

function momentsOf(x: Float32Array): readonly [mean: number, deviation: number] {
  const mean = x.reduce((sum, one) => sum + one, 0) / x.length;
  return [mean, Math.sqrt(x.reduce((sum, one) => sum + (one - mean) ** 2, 0) / x.length)];
}

/** How a layer codes one side. `levels` is null where nothing is rounded to levels, for tests. */
export interface Grid {
  readonly levels: Float64Array | null;
  /** Ranges of channels; null: every token has its own. */
  readonly channels: Ranges | null;
  /** Share of outliers of tokens with ranges of their own; 0 keeps channels without outliers, too. */
  readonly share: number;
  /** Most outliers of a token. */
  readonly most: number;
}

/** Codes rows [rows, width] from firstRow on and decodes them in place. → which elements are outliers, kept in f16 */
export function codeGrid(rows: Float32Array, width: number, grid: Grid, firstRow = 0): number[] {
  const { levels, channels, share, most } = grid;
  const bounds = levels === null ? null : boundsOf(levels);
  const outliers: number[] = [];
  for (let from = firstRow * width; from < rows.length; from += width) {
    const row = rows.subarray(from, from + width);
    const own = channels === null ? inHalf(halfRange(tokenRange(row, share))) : null;
    const ends = (c: number): readonly [number, number] =>
      own === null ? [channels!.low[c]!, channels!.high[c]!] : [own[0]! - own[1]!, own[0]! + own[1]!];
    const places = share === 0 ? [] : outlierPlaces(row, channels, share, most);
    const exact = inHalf(Float32Array.from(places, (c) => row[c]!));
    if (levels !== null)
      for (let c = 0; c < width; c++) {
        const [low, high] = ends(c);
        row[c] = (low + high) / 2 + ((high - low) / 2) * levels[nearest(toUnit(row[c]!, low, high), bounds!)]!;
      }
    for (const [at, c] of places.entries()) row[c] = exact[at]!;
    outliers.push(...places.map((c) => from + c));
  }
  return outliers;
}

/** Middle and half width. */
const halfRange = ([low, high]: readonly [number, number]): Float32Array =>
  Float32Array.of((low + high) / 2, (high - low) / 2);

/**
 * Channels of a row that are outliers, in order: outside the ranges of channels, the farthest first where there are too
 * many, or at both ends of the row.
 */
function outlierPlaces(row: Float32Array, channels: Ranges | null, share: number, most: number): number[] {
  const all = [...row.keys()];
  if (channels === null) {
    const out = outliersOf(row.length, share);
    const sorted = all.toSorted((one, other) => row[one]! - row[other]! || one - other);
    return [...sorted.slice(0, out), ...sorted.slice(sorted.length - out)].toSorted((one, other) => one - other);
  }
  const outside = all.filter((c) => row[c]! < channels.low[c]! || row[c]! > channels.high[c]!);
  if (outside.length <= most) return outside;
  const away = (c: number): number => Math.abs(toUnit(row[c]!, channels.low[c]!, channels.high[c]!));
  return outside
    .toSorted((one, other) => away(other) - away(one) || one - other)
    .slice(0, most)
    .toSorted((one, other) => one - other);
}

/** The grid of one side of a layer, fitted to rows [rows, width] without sinks. */
export function fitGrid(rows: Float32Array, width: number, side: Side, { bits, variant }: KvQuant): Grid {
  const share = variant === 'dense' ? 0 : SHARE;
  const channels = side === 'k' ? channelRanges(rows, width, share) : null;
  const most = variant === 'capped' && side === 'k' ? Math.ceil(SHARE * width) : width;
  const left: number[] = [];
  for (let from = 0; from < rows.length; from += width) {
    const row = rows.subarray(from, from + width);
    const [least, largest] = channels === null ? tokenRange(row, share) : [0, 0];
    for (const [c, x] of row.entries()) {
      const [low, high] = channels === null ? [least, largest] : [channels.low[c]!, channels.high[c]!];
      if (x >= low && x <= high) left.push(toUnit(x, low, high));
    }
  }
  const pool = Float32Array.from(left);
  const levels = fitLevels(pool, 2 ** bits, 1);
  return { levels: bits === 2 && variant !== 'raw' ? normed(levels, pool) : levels, channels, share, most };
}

/** Bytes of a page of a layer without its outliers. */
export const kvQuantPageBytes = (width: number, { bits, variant }: KvQuant): number =>
  (2 * PAGE_TOKENS * width * bits) / 8 +
  PAGE_TOKENS * RANGE_BYTES +
  (variant === 'dense' ? 0 : 2 * PAGE_TOKENS * POINTER_BYTES);

type Grids = readonly Readonly<Record<Side, Grid>>[];
const known = new WeakMap<Runtime, Map<string, Promise<Grids>>>();

/** The grids of all layers of a model, fitted once. */
function gridsOf(runtime: Runtime, method: KvQuant): Promise<Grids> {
  const found = known.get(runtime) ?? new Map<string, Promise<Grids>>();
  known.set(runtime, found);
  const name = `${method.bits} ${method.variant}`;
  const grids =
    found.get(name) ??
    ownRows(runtime, CALIBRATED_TOKENS).then((layers) => fitted(layers, runtime.model.config, method));
  found.set(name, grids);
  return grids;
}

function fitted(layers: readonly KeptRows[], config: ModelConfig, method: KvQuant): Grids {
  const width = config.kvHeads * config.headDim;
  return layers.map(({ k, v }) => {
    const keys = k.slice();
    const tokens = k.length / width;
    if (method.variant === 'post') new RopeTable(config, tokens).apply(keys, tokens, config.kvHeads, 0);
    const behind = (rows: Float32Array): Float32Array => rows.subarray(SINK_TOKENS * width);
    return { k: fitGrid(behind(keys), width, 'k', method), v: fitGrid(behind(v), width, 'v', method) };
  });
}

export const kvQuantPages =
  (method: KvQuant): PageMethod =>
  async (runtime, rope) => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim } = config;
    const width = kvHeads * headDim;
    const grids = await gridsOf(runtime, method);
    let outliers = 0;
    const codeSide = (all: Float32Array, side: Side, grid: Grid, page: number, firstRow: number): void => {
      const first = firstToken(page);
      const rows = all.slice(first * width, (first + PAGE_TOKENS) * width);
      const isTurned = side === 'k' && method.variant !== 'post';
      if (isTurned) unrotate(rows, kvHeads, first, rope, config);
      outliers += codeGrid(rows, width, grid, firstRow).length;
      if (isTurned) rope.apply(rows, PAGE_TOKENS, kvHeads, first);
      all.set(rows.subarray(firstRow * width), (first + firstRow) * width);
    };
    return {
      code: (page, kept, firstRow) => {
        for (const [layer, rows] of kept.entries())
          for (const side of SIDES) codeSide(rows[side], side, grids[layer]![side], page, firstRow);
      },
      heldBytes: (coded, windowTokens) =>
        layers * coded * kvQuantPageBytes(width, method) + outliers * OUTLIER_BYTES + f16Bytes(config, windowTokens),
    };
  };
