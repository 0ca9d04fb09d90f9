/** Checks the options with which a cache is opened. */
import { fail, floats, integer, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import { FORMAT_NAMES, FORMATS, PAGE_TOKENS, pageBytes, WINDOW_FORMAT, type WindowName } from './format.ts';
import { openRows, roomFor } from './geometry.ts';
import { HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX, SINK_TOKENS, THREADS_MAX } from './layout.ts';
import { checkHeadDim } from './moves.ts';
import { checkOption, checkOptions, type Rows, real, suchThat, whole } from './option.ts';
import type { CacheShape, KvCacheOptions } from './types.ts';

const FACTOR_MOST = Math.fround(1e20);
/**
 * True if rows or distances can be multiplied by this without overflow of a score. kLargestFactor of
 * native/kernels/kernels.h is the same.
 */
const isFactor = (x: number): boolean => Math.abs(x) <= FACTOR_MOST;
/** True if scores can be divided by this. kLeastCap of native/kernels/kernels.h is the same. */
export const isCap = (x: unknown): boolean => typeof x === 'number' && x >= Math.fround(1e-20) && isFactor(x);

/**
 * The bytes of open pages and sinks when every layer holds so many tokens. There is room for 16 rows at first, which is
 * doubled as tokens come until it is a whole page. An f16 page then keeps its room, and the sinks come with it; a coded
 * one becomes the sealed page, the next begins anew, and the sinks are there from the first token on. No move can free
 * these bytes.
 */
export function openBytes(
  { layers, kvHeads, headDim }: CacheShape,
  tokens: number,
  openFormat: WindowName = 'f16',
): number {
  const isCoded = openFormat !== 'f16';
  const room = roomFor(isCoded ? openRows(tokens) : Math.min(tokens, PAGE_TOKENS));
  const hasSinks = isCoded ? tokens > 0 : room === PAGE_TOKENS;
  const sinkBytes = hasSinks ? 4 * SINK_TOKENS * kvHeads * headDim : 0;
  return layers * (2 * pageBytes(openFormat, kvHeads, headDim, room) + sinkBytes);
}

/** The sizes of a cache. `checkedShape` asks more of them together. */
export const SHAPE_OPTIONS = {
  layers: { rule: whole(1, LAYERS_MAX), help: 'layers that attend' },
  queryHeads: { rule: whole(1, HEADS_MAX), help: 'query heads of a layer: a multiple of kvHeads' },
  kvHeads: { rule: whole(1, HEADS_MAX), help: 'key and value heads of a layer' },
  headDim: { rule: whole(8, HEAD_DIM_MAX), help: 'channels of a head: 64, 80, 96, 128 or 256 for coded formats' },
} as const satisfies Rows<CacheShape>;

/** What attention computes with. */
export const ATTENTION_OPTIONS = {
  threads: { rule: whole(1, THREADS_MAX), default: 1, help: 'threads of attention and trials' },
  scale: {
    rule: real(-FACTOR_MOST, FACTOR_MOST, 'a number of at most 1e20 in size'),
    help: 'factor on q·k (default: 1/sqrt(headDim))',
  },
  scoreCap: {
    rule: suchThat<number | null>((cap) => cap === null || isCap(cap), 'null or a number from 1e-20 to 1e20'),
    default: null,
    help: 'a scaled score s becomes scoreCap · tanh(s / scoreCap), before ALiBi',
  },
} as const satisfies Rows<Pick<KvCacheOptions, 'threads' | 'scale' | 'scoreCap'>>;

/** Throws 'bad-argument' for sizes that no cache has, before anything is computed from them. */
export function checkShape(shape: CacheShape): void {
  for (const name of Object.keys(SHAPE_OPTIONS) as (keyof CacheShape)[])
    checkOption(name, SHAPE_OPTIONS[name], shape[name]);
}

function checkedShape(shape: CacheShape): CacheShape {
  record(shape, 'shape');
  checkShape(shape);
  const { layers, queryHeads, kvHeads, headDim } = shape;
  if (queryHeads % kvHeads !== 0) fail('queryHeads must be a multiple of kvHeads', { queryHeads, kvHeads });
  if (headDim % 8 !== 0) fail('headDim must be a multiple of 8', { headDim });
  return Object.freeze({ layers, queryHeads, kvHeads, headDim });
}

/** How many tokens each layer attends to, 0 for all. */
function checkedWindows(given: readonly (number | null)[] | undefined, layers: number): Int32Array {
  const windows = new Int32Array(layers);
  if (given === undefined) return windows;
  if (!Array.isArray(given)) fail('slidingWindow must be an array', { slidingWindow: show(given) });
  if (given.length !== layers)
    shapeError('slidingWindow must have one entry per layer', { slidingWindow: given.length, layers });
  for (let layer = 0; layer < layers; layer++) {
    const window: unknown = given[layer];
    windows[layer] = window === null ? 0 : integer(window, 'slidingWindow', 1, 2 ** 30);
  }
  return windows;
}

/** Checks all options but the pool, budgets and latents, and fills in the defaults. */
export function checkedOptions(options: KvCacheOptions) {
  const shape = checkedShape(options.shape);
  const windowFormat = options.windowFormat ?? WINDOW_FORMAT;
  const sealed = FORMAT_NAMES.filter((name) => FORMATS[name].window);
  if (!sealed.includes(windowFormat))
    fail(`windowFormat must be ${sealed.map((name) => `'${name}'`).join(' or ')}`, {
      windowFormat: show(windowFormat),
    });
  checkHeadDim(windowFormat, shape.headDim, "open the cache with windowFormat: 'f16'");
  const openFormat = options.openFormat ?? 'f16';
  if (openFormat !== 'f16' && openFormat !== windowFormat)
    fail(`openFormat must be 'f16' or the window format, '${windowFormat}'`, { openFormat: show(openFormat) });
  const scale = options.scale ?? 1 / Math.sqrt(shape.headDim);
  const scoreCap = options.scoreCap ?? null;
  const threads = options.threads ?? 1;
  checkOptions({ scale, scoreCap, threads }, ATTENTION_OPTIONS);
  const windows = checkedWindows(options.slidingWindow, shape.layers);
  const slopes = options.alibiSlopes ?? new Float32Array(0);
  floats(slopes, 'alibiSlopes');
  if (options.alibiSlopes !== undefined && slopes.length !== shape.queryHeads) {
    shapeError('alibiSlopes must have one slope per query head', {
      alibiSlopes: slopes.length,
      queryHeads: shape.queryHeads,
    });
  }
  if (!slopes.every(isFactor)) throw new KvError('bad-value', 'alibiSlopes must be at most 1e20 in size');
  return { shape, windowFormat, openFormat, scale, scoreCap, threads, windows, slopes };
}
