/**
 * How much attention tokens other than sinks, and pages, have got so far in every layer. All queries count that came
 * before a page is coded, and none of those that come after, so what is chosen by these numbers is judged by other
 * queries.
 */
import {
  dot,
  firstToken,
  type LayerInput,
  type ModelConfig,
  PAGE_TOKENS,
  pageOf,
  SINK_TOKENS,
  softmax,
} from 'palimpsest/lab';
import type { KeptRows } from './paged.ts';

/** Bytes of a sum. */
export const SCORE_BYTES = 4;
/**
 * Queries whose mean enters a moving average at once, and what of it stays (algorithms of adaptive tiers: 0.9 for 16
 * queries).
 */
const BLOCK = 16;
const STAYS = 0.9;

interface LayerMasses {
  /** Summed over queries and the query heads of a KV head, [kvHeads, T]. */
  readonly rows: Float64Array;
  /** The moving average of each page, over all heads. */
  readonly averages: Float64Array;
}

export class Masses {
  readonly #config: ModelConfig;
  readonly #tokens: number;
  readonly #layers: readonly LayerMasses[];
  #seen = 0;

  constructor(config: ModelConfig, tokens: number) {
    this.#config = config;
    this.#tokens = tokens;
    this.#layers = Array.from({ length: config.layers }, () => ({
      rows: new Float64Array(config.kvHeads * tokens),
      averages: new Float64Array(Math.ceil(tokens / PAGE_TOKENS)),
    }));
  }

  /** Adds the attention of the queries of a layer, [tokens, H, d] and rotated, from position `start` on. */
  see({ layer, tokens, q }: LayerInput, start: number, { k }: KeptRows): void {
    const { kvHeads, queryHeads, headDim, slidingWindow } = this.#config;
    const { rows, averages } = this.#layers[layer]!;
    const group = queryHeads / kvHeads;
    const scale = 1 / Math.sqrt(headDim);
    const queries: Float32Array = q.subarray(0, tokens * queryHeads * headDim).map((one) => one * scale);
    let block = new Float64Array(averages.length);
    for (let token = 0; token < tokens; token++) {
      const position = start + token;
      const from = Math.max(0, position + 1 - (slidingWindow[layer] ?? position + 1));
      const shares = new Float32Array(position + 1 - from);
      for (let head = 0; head < queryHeads; head++) {
        const kvHead = Math.floor(head / group);
        const place = (token * queryHeads + head) * headDim;
        for (let at = 0; at < shares.length; at++)
          shares[at] = dot(queries, place, k, ((from + at) * kvHeads + kvHead) * headDim, headDim);
        softmax(shares);
        // Sinks get most of all attention and are exact whatever they get.
        for (let at = Math.max(0, SINK_TOKENS - from); at < shares.length; at++) {
          rows[kvHead * this.#tokens + from + at]! += shares[at]!;
          block[pageOf(from + at)]! += shares[at]! / queryHeads;
        }
      }
      if ((position + 1) % BLOCK !== 0) continue;
      for (const [page, sum] of block.entries()) averages[page] = STAYS * averages[page]! + ((1 - STAYS) * sum) / BLOCK;
      block = new Float64Array(averages.length);
    }
    this.#seen = start + tokens;
  }

  /** The sum of all shares that a token got from the queries of a KV head. */
  ofRow(layer: number, head: number, token: number): number {
    return this.#layers[layer]!.rows[head * this.#tokens + token]!;
  }

  /** The mean share that a page got from queries that could see it. */
  ofPage(layer: number, page: number): number {
    const { kvHeads, queryHeads } = this.#config;
    const first = firstToken(page);
    let sum = 0;
    for (let head = 0; head < kvHeads; head++)
      for (let t = first; t < first + PAGE_TOKENS; t++) sum += this.ofRow(layer, head, t);
    return sum / (queryHeads * (this.#seen - first));
  }

  /** The moving average of what queries gave the page. */
  averageOfPage(layer: number, page: number): number {
    return this.#layers[layer]!.averages[page]!;
  }
}
