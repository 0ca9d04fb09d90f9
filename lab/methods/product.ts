/**
 * pq2: product quantization (Jégou et al. 2011). Every four channels of a head are one of 256 words, keys before their
 * rotary embedding, 2 bits a channel. The words of a layer, side, head and place are fitted by k-means,
 *
 *   pq2        to the first eight pages of the very prompt, which stay exact until then; the words, 32 KiB a head and
 *   side at d = 64, are counted
 *   pq2-text   to 2,048 tokens of the text that ships with the package, once for a model; they are part of the model
 *   and not counted
 */
import {
  firstToken,
  joined,
  type ModelConfig,
  PAGE_TOKENS,
  type Runtime,
  SINK_TOKENS,
  type Side,
} from 'palimpsest/lab';
import { type Headwise, headwise, takeHead } from './headwise.ts';
import { ownRows } from './own-rows.ts';
import { f16Bytes, type KeptRows, type PageMethod, unrotate } from './paged.ts';
import { inHalf } from './rot-head.ts';
import { fitWords, quantizeWords, VECTOR } from './words.ts';

const WORDS = 256;
const ROUNDS = 10;
const OWN_PAGES = 8;
const TEXT_TOKENS = 2048;

/** Words of a head by place, each [256, 4]. */
export type Codebooks = readonly Float32Array[];

/** The same channels of all rows [rows, d], as vectors of their own. */
function channelsOf(rows: Float32Array, d: number, first: number): Float32Array {
  const count = rows.length / d;
  return Float32Array.from(
    { length: count * VECTOR },
    (_, i) => rows[Math.floor(i / VECTOR) * d + first + (i % VECTOR)]!,
  );
}

/** The codebooks of rows [rows, d], in f16. */
export const codebooksOf = (rows: Float32Array, d: number): Codebooks =>
  Array.from({ length: d / VECTOR }, (_, place) =>
    inHalf(fitWords(channelsOf(rows, d, place * VECTOR), { count: WORDS, rounds: ROUNDS, seed: place + 1 })),
  );

/** Rows [rows, d] become words, in place. */
export function codeProduct(rows: Float32Array, d: number, books: Codebooks): void {
  for (const [place, words] of books.entries()) {
    const vectors = channelsOf(rows, d, place * VECTOR);
    quantizeWords(vectors, words);
    for (let i = 0; i < vectors.length; i++)
      rows[Math.floor(i / VECTOR) * d + place * VECTOR + (i % VECTOR)] = vectors[i]!;
  }
}

/** Bytes of the codes of a head of a page, and of its codebooks. */
export const productHeadBytes = (headDim: number): number => (PAGE_TOKENS * headDim) / VECTOR;
export const codebookBytes = (headDim: number): number => 2 * WORDS * headDim;

type BooksOf = (layer: number, side: Side, head: number) => Codebooks;

const pagesWith = (config: ModelConfig, booksOf: BooksOf): Headwise => ({
  isBeforeRope: true,
  code: (rows, { layer, side, head }) => {
    codeProduct(rows, config.headDim, booksOf(layer, side, head));
    return productHeadBytes(config.headDim);
  },
});

/** Codebooks by layer, side and head, made when they are first asked for. */
function kept(make: BooksOf): BooksOf {
  const found = new Map<string, Codebooks>();
  return (layer, side, head) => {
    const name = `${layer} ${side} ${head}`;
    const books = found.get(name) ?? make(layer, side, head);
    found.set(name, books);
    return books;
  };
}

export const productPages: PageMethod = ({ model: { config } }, rope) => {
  const { layers, kvHeads, headDim } = config;
  let all: readonly KeptRows[] = [];
  const booksOf = kept((layer, side, head) => {
    const pages = Array.from({ length: OWN_PAGES }, (_, page) => {
      const rows = takeHead(all[layer]![side], page, head, config);
      if (side === 'k') unrotate(rows, 1, firstToken(page), rope, config);
      return rows.subarray(page === 0 ? SINK_TOKENS * headDim : 0);
    });
    return codebooksOf(joined(pages), headDim);
  });
  const inner = headwise(config, rope, pagesWith(config, booksOf));
  return {
    code: (page, rows, firstRow) => {
      if (page + 1 < OWN_PAGES) return;
      all = rows;
      // Words of a head are fitted when its first page is coded, while all others are still exact.
      for (let from = page + 1 === OWN_PAGES ? 0 : page; from <= page; from++)
        inner.code(from, rows, from === 0 ? SINK_TOKENS : firstRow);
    },
    heldBytes: (coded, windowTokens) =>
      coded < OWN_PAGES
        ? f16Bytes(config, firstToken(coded) + windowTokens)
        : inner.heldBytes(coded, windowTokens) + 2 * layers * kvHeads * codebookBytes(headDim),
  };
};

const textBooks = new WeakMap<Runtime, BooksOf>();

export const productTextPages: PageMethod = async (runtime, rope) => {
  const { config } = runtime.model;
  const all = await ownRows(runtime, TEXT_TOKENS);
  const books =
    textBooks.get(runtime) ??
    kept((layer, side, head) => {
      const pages = Array.from({ length: TEXT_TOKENS / PAGE_TOKENS }, (_, page) =>
        takeHead(all[layer]![side], page, head, config),
      );
      return codebooksOf(joined(pages).subarray(SINK_TOKENS * config.headDim), config.headDim);
    });
  textBooks.set(runtime, books);
  return headwise(config, rope, pagesWith(config, books));
};
