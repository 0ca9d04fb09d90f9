/**
 * An arena is a cache with so many layers of `tokens` tokens that it fills `arenaBytes` in its format. A pass over all
 * layers then finds none of them in the processor's caches. Every format gets its own arena.
 */
import { type KvCache, openKvCache, openPool, PAGE_TOKENS, type PagePool, pageBytes } from '../../native/index.ts';
import { gaussians, type Pair, type Shape } from './shapes.ts';

/** Six times the largest last-level cache of the machines on which the benches were run. */
export const ARENA_BYTES = 200e6;
/** The most layers that a cache may have. */
const LAYERS_MAX = 4096;
/** How many pages have different content. Every layer repeats them in its own memory. */
const PAGES = 8;

/**
 * Counts through the layers and begins again after the last, so that each pass goes on where the one before it ended.
 */
export function layersInTurn(layers: number): () => number {
  let at = 0;
  return () => at++ % layers;
}

export interface Arena {
  readonly cache: KvCache;
  readonly pair: Pair;
  readonly layers: number;
  readonly tokens: number;
  /** The bytes of the sealed pages, both sides, per token and KV head, as the cache reports them. */
  readonly bytesPerToken: number;
  close(): void;
}

export interface ArenaOptions {
  readonly shape: Shape;
  readonly pair: Pair;
  /**
   * The number of sealed tokens of each layer, in whole pages. One more token is in the open page, because it seals the
   * last one.
   */
  readonly tokens: number;
  readonly threads: number;
  readonly random: () => number;
  readonly arenaBytes?: number | undefined;
}

/** Appends whole pages and one token, and moves the sealed pages to the pair of formats. */
export function fillLayer(
  cache: KvCache,
  layer: number,
  { pair, tokens }: Pick<ArenaOptions, 'pair' | 'tokens'>,
  rows: { k: Float32Array; v: Float32Array },
): void {
  const page = rows.k.length / PAGES;
  const row = page / PAGE_TOKENS;
  const last = { k: rows.k.subarray(0, row), v: rows.v.subarray(0, row) };
  let moved = 0;
  const move = (sealed: number): void => {
    for (; moved < sealed; moved++) {
      if (pair.k !== windowOf(pair)) cache.transcode(layer, moved, 'k', pair.k);
      if (pair.v !== windowOf(pair)) cache.transcode(layer, moved, 'v', pair.v);
    }
  };
  for (let at = 0; at < tokens / PAGE_TOKENS; at++) {
    const from = (at % PAGES) * page;
    cache.append(layer, rows.k.subarray(from, from + page), rows.v.subarray(from, from + page));
    move(at);
  }
  cache.append(layer, last.k, last.v);
  move(tokens / PAGE_TOKENS);
}

/** Rows to fill layers with. */
export function pageRows({ shape, random }: Pick<ArenaOptions, 'shape' | 'random'>): {
  k: Float32Array;
  v: Float32Array;
} {
  const count = PAGES * PAGE_TOKENS * shape.kvHeads * shape.headDim;
  return { k: gaussians(count, random), v: gaussians(count, random) };
}

const windowOf = ({ k, v }: Pair): 'f16' | 'q8' => (k === 'q8' || v === 'q8' ? 'q8' : 'f16');

export function openArena(options: ArenaOptions): Arena {
  const { shape, pair, tokens, threads, arenaBytes = ARENA_BYTES } = options;
  const { kvHeads, headDim } = shape;
  const layerBytes =
    (tokens / PAGE_TOKENS) * (pageBytes(pair.k, kvHeads, headDim) + pageBytes(pair.v, kvHeads, headDim));
  const layers = Math.min(LAYERS_MAX, Math.max(1, Math.ceil(arenaBytes / layerBytes)));
  const pool: PagePool = openPool(2 ** 40);
  const cache = openKvCache({ shape: { ...shape, layers }, pool, windowFormat: windowOf(pair), threads });
  const rows = pageRows(options);
  for (let layer = 0; layer < layers; layer++) fillLayer(cache, layer, options, rows);
  return {
    cache,
    pair,
    layers,
    tokens,
    bytesPerToken: cache.memory().pageBytes / layers / tokens / kvHeads,
    close: () => {
      cache.close();
      pool.close();
    },
  };
}
