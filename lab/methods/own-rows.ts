/**
 * Keys and values of a text that ships with the package, for methods that are fitted to a model before they see what
 * they are to code.
 */
import { joined, ownText, RopeTable, type Runtime, SINK_TOKENS } from 'palimpsest/lab';
import { f16Bytes, type KeptRows, type PageCode, readPaged, unrotate } from './paged.ts';
import { product, transposed } from './xquant.ts';

/** More characters than a token of any tokenizer here takes on average. */
const CHARACTERS_PER_TOKEN = 6;

const known = new WeakMap<Runtime, Map<number, Promise<readonly KeptRows[]>>>();

/** Rows of each layer, [tokens, nd], keys before their rotary embedding, as the exact cache has them. */
export function ownRows(runtime: Runtime, tokens: number): Promise<readonly KeptRows[]> {
  const found = known.get(runtime) ?? new Map<number, Promise<readonly KeptRows[]>>();
  known.set(runtime, found);
  const rows = found.get(tokens) ?? readRows(runtime, tokens);
  found.set(tokens, rows);
  return rows;
}

async function readRows(runtime: Runtime, tokens: number): Promise<readonly KeptRows[]> {
  const { config } = runtime.model;
  const rows: KeptRows[] = [];
  const length = await readOwn(runtime, tokens, ({ layer }, _start, kept) => {
    rows[layer] = kept;
  });
  const rope = new RopeTable(config, length);
  for (const { k } of rows) unrotate(k, config.kvHeads, 0, rope, config);
  return rows;
}

/** Reads the text with the exact cache. → tokens */
async function readOwn(runtime: Runtime, tokens: number, see: NonNullable<PageCode['see']>): Promise<number> {
  const { config, tokenizer } = runtime.model;
  const { bosId, addBos } = tokenizer;
  const head = addBos && bosId !== null ? [bosId] : [];
  const ids = [...head, ...tokenizer.encode(ownText(tokens * CHARACTERS_PER_TOKEN))].slice(0, tokens);
  const exact: PageCode = { see, code: () => {}, heldBytes: () => f16Bytes(config, ids.length) };
  await readPaged(runtime, () => exact, { ids, scored: 1 });
  return ids.length;
}

/** Rows of a layer as attention has them: keys [T, nd] after their rotary embedding, values, and queries [T, Hd]. */
export interface SeenRows extends KeptRows {
  readonly q: Float32Array;
}

/** Rows and queries of each layer, as the exact cache has them. */
export async function ownSeen(runtime: Runtime, tokens: number): Promise<readonly SeenRows[]> {
  const { layers, queryHeads, headDim } = runtime.model.config;
  const kept: KeptRows[] = [];
  const queries = Array.from({ length: layers }, (): Float32Array[] => []);
  await readOwn(runtime, tokens, ({ layer, tokens: read, q }, _start, rows) => {
    kept[layer] = rows;
    queries[layer]!.push(q.slice(0, read * queryHeads * headDim));
  });
  return kept.map((rows, layer) => ({ ...rows, q: joined(queries[layer]!) }));
}

/** Rows [T · count, d] of `count` of the heads of rows [T, heads · d], from the first one on. */
export function rowsOfHeads(
  rows: Float32Array,
  headDim: number,
  { heads, first, count }: { readonly heads: number; readonly first: number; readonly count: number },
): Float32Array {
  const [each, whole] = [count * headDim, heads * headDim];
  const out = new Float32Array((rows.length / heads) * count);
  for (let from = first * headDim, to = 0; to < out.length; from += whole, to += each)
    out.set(rows.subarray(from, from + each), to);
  return out;
}

/**
 * Moments [d, d] of each KV head of a layer: keys after their rotary embedding and values about their means, and the
 * queries of all its heads about zero.
 */
export interface Moments {
  readonly k: readonly Float32Array[];
  readonly v: readonly Float32Array[];
  readonly q: readonly Float32Array[];
}

/** Moments of the rows of each layer but the first tokens, as the exact cache has them. */
export async function ownMoments(runtime: Runtime, tokens: number): Promise<readonly Moments[]> {
  const { kvHeads, queryHeads, headDim } = runtime.model.config;
  const group = queryHeads / kvHeads;
  const heads = Array.from({ length: kvHeads }, (_, head) => head);
  const behind = (rows: Float32Array): Float32Array => rows.subarray(SINK_TOKENS * kvHeads * headDim);
  return (await ownSeen(runtime, tokens)).map(({ k, v, q }) => {
    const about = (rows: Float32Array, head: number): Float32Array =>
      momentsOf(rowsOfHeads(behind(rows), headDim, { heads: kvHeads, first: head, count: 1 }), headDim, true);
    const asked = (head: number): Float32Array =>
      rowsOfHeads(q, headDim, { heads: queryHeads, first: head * group, count: group });
    return {
      k: heads.map((head) => about(k, head)),
      v: heads.map((head) => about(v, head)),
      q: heads.map((head) => momentsOf(asked(head), headDim, false)),
    };
  });
}

/** Moments of rows [rows, width] about their mean, or about zero: [width, width]. */
export function momentsOf(rows: Float32Array, width: number, isCentred: boolean): Float32Array {
  const count = rows.length / width;
  const columns = transposed(rows, width);
  if (isCentred)
    for (let c = 0; c < width; c++) {
      const column = columns.subarray(c * count, (c + 1) * count);
      const mean = column.reduce((sum, one) => sum + one, 0) / count;
      for (let t = 0; t < count; t++) column[t]! -= mean;
    }
  return product(columns, columns, count).map((one) => one / count);
}
