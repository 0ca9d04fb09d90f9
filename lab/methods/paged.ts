/**
 * A whole model whose pages are coded by a method that no cache has. Pages leave the window as those of any fixed
 * format do, and from then on are what the method makes of them; the sinks of the first page stay exact. Attention is
 * that of the native cache over decoded rows. Rows are decoded once, when a page is coded, and not at every step as a
 * program would have to; nothing is counted for them.
 *
 * Without a window a page is coded as soon as it is full, and then its tokens are read once more where they are scored:
 * they see codes alone, their own among them.
 */
import {
  f16CacheBytes,
  firstToken,
  type LayerInput,
  type MethodRead,
  type MethodReading,
  type ModelConfig,
  movablePages,
  openKvCache,
  openPool,
  RopeTable,
  type Runtime,
  rope as rotary,
  rowsLeft,
  SINK_TOKENS,
} from 'palimpsest/lab';
import { readThrough } from './read.ts';

/** Keys, rotated, and values of all tokens of a layer as attention sees them, [T, nd] each. */
export interface KeptRows {
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/** What codes the pages of one sequence. */
export interface PageCode {
  /**
   * Sees what a layer is given for tokens from `start` on, its rotary embedding applied, when its rows stand in `kept`
   * and before it attends.
   */
  readonly see?: (input: LayerInput, start: number, kept: KeptRows) => void;
  /**
   * Codes a page that leaves the window: puts what would be decoded in the place of its rows from firstRow on, in all
   * layers.
   */
  readonly code: (page: number, layers: readonly KeptRows[], firstRow: number) => void;
  /** Bytes of all layers with so many coded pages, and so many tokens in the window. */
  readonly heldBytes: (coded: number, windowTokens: number) => number;
  /** First tokens that stay exact where there is a window. Default: those of all caches. */
  readonly sinkTokens?: number;
  /** How many newer tokens keep a page in the window. Default: a page. */
  readonly windowTokens?: number;
}

/** How pages are read. */
export interface Paging {
  /** False: no page waits in a window, and sinks are those of all caches. Default true. */
  readonly hasWindow?: boolean;
}

/** Begins a sequence of so many tokens, whose positions are those of the table. */
export type PageMethod = (runtime: Runtime, rope: RopeTable, tokens: number) => PageCode | Promise<PageCode>;

/** Reads tokens under a method, the last `scored` of which are compared. */
export async function readPaged(
  runtime: Runtime,
  method: PageMethod,
  { ids, scored, signal }: MethodReading,
  { hasWindow = true }: Paging = {},
): Promise<MethodRead> {
  const { shape, model } = runtime;
  const { layers, kvHeads, headDim } = model.config;
  const nd = kvHeads * headDim;
  const rope = new RopeTable(model.config, ids.length);
  const code = await method(runtime, rope, ids.length);
  const kept = Array.from(
    { length: layers },
    (): KeptRows => ({ k: new Float32Array(ids.length * nd), v: new Float32Array(ids.length * nd) }),
  );
  const sinks = hasWindow ? (code.sinkTokens ?? SINK_TOKENS) : SINK_TOKENS;
  const windowTokens = hasWindow ? code.windowTokens : 0;
  let coded = 0;
  const codeUntil = (pages: number): void => {
    for (; coded < pages; coded++) code.code(coded, kept, coded === 0 ? sinks : 0);
  };
  const held = (tokens: number): number =>
    layers * 4 * nd * Math.min(sinks, tokens) + code.heldBytes(coded, tokens - firstToken(coded));
  let isAgain = false;
  let bytes = 0;
  const pool = openPool(2 ** 40);
  try {
    const hidden = await readThrough(runtime, {
      ids,
      rope,
      scored,
      signal,
      stride: rowsLeft,
      before: (start) => {
        isAgain = false;
        bytes = Math.max(bytes, held(start));
        codeUntil(movablePages(start, windowTokens));
      },
      after: (start, tokens) => {
        if (hasWindow) return false;
        bytes = Math.max(bytes, held(start + tokens));
        codeUntil(movablePages(start + tokens, windowTokens));
        isAgain = start + tokens > ids.length - scored && firstToken(coded) === start + tokens;
        return isAgain;
      },
      attend: (input, start, out) => {
        const { layer, tokens, k, v } = input;
        const own = kept[layer]!;
        if (!isAgain) {
          own.k.set(k.subarray(0, tokens * nd), start * nd);
          own.v.set(v.subarray(0, tokens * nd), start * nd);
          code.see?.(input, start, own);
        }
        const seen = { k: own.k.subarray(0, (start + tokens) * nd), v: own.v.subarray(0, (start + tokens) * nd) };
        attendOver(runtime, pool, seen, input, out);
      },
    });
    bytes = Math.max(bytes, held(ids.length));
    codeUntil(movablePages(ids.length, windowTokens));
    return {
      hidden,
      bytes,
      bytesAtRest: held(ids.length),
      bytesF16: f16CacheBytes(shape, ids.length),
    };
  } finally {
    pool.close();
  }
}

/** Puts into `out` the attention of the queries of a layer to rows, by the native cache. */
function attendOver(
  { shape, threads, model }: Runtime,
  pool: ReturnType<typeof openPool>,
  { k, v }: KeptRows,
  { layer, q }: LayerInput,
  out: Float32Array,
): void {
  const cache = openKvCache({
    shape: { ...shape, layers: 1 },
    pool,
    windowFormat: 'f16',
    slidingWindow: [model.config.slidingWindow[layer] ?? null],
    threads,
  });
  try {
    cache.append(0, k, v);
    cache.attend(0, q.subarray(0, out.length), out);
  } finally {
    cache.close();
  }
}

/** Bytes of so many tokens of all layers in f16. */
export const f16Bytes = ({ layers, kvHeads, headDim }: ModelConfig, tokens: number): number =>
  layers * tokens * 4 * kvHeads * headDim;

/** Takes the rotary embedding off keys [tokens, heads, d] from position `start` on, in place. */
export function unrotate(
  keys: Float32Array,
  heads: number,
  start: number,
  rope: RopeTable,
  { headDim, rotaryDim, ropeInterleaved }: ModelConfig,
): void {
  const tokens = keys.length / (heads * headDim);
  const { cos, sin } = rope.rows(start, tokens);
  // Scaled embeddings make keys longer as well, by the same factor everywhere.
  const square = cos[0]! ** 2 + sin[0]! ** 2;
  const back = sin.map((one) => -one / square);
  rotary(
    keys,
    tokens,
    heads,
    headDim,
    rotaryDim,
    square === 1 ? cos.slice() : cos.map((one) => one / square),
    back,
    ropeInterleaved,
  );
}
