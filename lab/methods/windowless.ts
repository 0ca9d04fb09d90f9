/**
 * `NAME+w0`: a method of coded pages, or a pair of the product's own formats, without a window (paged.ts). Pairs of
 * formats are coded by the native cache page by page, with the bytes that it says they take.
 */
import {
  FORMAT_NAMES,
  type FormatName,
  firstToken,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  type Runtime,
  type Side,
} from 'palimpsest/lab';
import { SIDES } from './headwise.ts';
import { f16Bytes, type KeptRows, type PageMethod } from './paged.ts';

const SUFFIX = '+w0';

/** The cache in front of the suffix; null: there is none. */
export const windowlessOf = (cache: string): string | null =>
  cache.endsWith(SUFFIX) ? cache.slice(0, -SUFFIX.length) : null;

export const windowless = (cache: string): string => `${cache}${SUFFIX}`;

const isFormat = (name: string | undefined): name is FormatName => FORMAT_NAMES.some((format) => format === name);

/** The formats that a cache names; null for any other cache. */
export function formatsOf(cache: string): Readonly<Record<Side, FormatName>> | null {
  const [k, v = k, ...more] = cache.split(':');
  return isFormat(k) && isFormat(v) && more.length === 0 ? { k, v } : null;
}

/** What a page of one layer decodes to. The first page has sinks, which are kept elsewhere, and others have none. */
function codedPage(
  { shape, threads }: Runtime,
  formats: Readonly<Record<Side, FormatName>>,
  kept: KeptRows,
  page: number,
): KeptRows {
  const width = shape.kvHeads * shape.headDim;
  const place = Math.min(page, 1);
  // The page behind a first one that is empty, and a token that seals it.
  const rowsOf = (all: Float32Array): Float32Array => {
    const rows = new Float32Array(((place + 1) * PAGE_TOKENS + 1) * width);
    const from = firstToken(page) * width;
    rows.set(all.subarray(from, from + PAGE_TOKENS * width), place * PAGE_TOKENS * width);
    return rows;
  };
  const pool = openPool(2 ** 40);
  const cache = openKvCache({
    shape: { ...shape, layers: 1 },
    pool,
    windowFormat: 'f16',
    slidingWindow: [null],
    threads,
  });
  try {
    cache.append(0, rowsOf(kept.k), rowsOf(kept.v));
    for (const side of SIDES) cache.transcode(0, place, side, formats[side]);
    return { k: cache.decode(0, place, 'k'), v: cache.decode(0, place, 'v') };
  } finally {
    cache.close();
    pool.close();
  }
}

/** The loop's method of a pair of formats. */
export const formatPages =
  (formats: Readonly<Record<Side, FormatName>>): PageMethod =>
  (runtime) => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim } = config;
    const width = kvHeads * headDim;
    const page = pageBytes(formats.k, kvHeads, headDim) + pageBytes(formats.v, kvHeads, headDim);
    return {
      code: (at, all, firstRow) => {
        for (const kept of all) {
          const decoded = codedPage(runtime, formats, kept, at);
          for (const side of SIDES)
            kept[side].set(decoded[side].subarray(firstRow * width), (firstToken(at) + firstRow) * width);
        }
      },
      heldBytes: (coded, windowTokens) => layers * coded * page + f16Bytes(config, windowTokens),
    };
  };
