/**
 * What the end of a prompt looks at: tokens are chosen once, when the prompt has been read, by the attention that its
 * last 32 queries gave them, averaged over five neighbours. SnapKV, arXiv 2404.14469. PyramidKV (arXiv 2406.02069) does
 * the same with more tokens for lower layers.
 */

import type { Kept, Observed, Yardstick, YardstickContext, YardstickSession } from 'palimpsest/lab';
import { addColumns, best, Scores, split } from './tokens.ts';

/** Tokens at the end of the prompt whose queries are observed, and which are kept. */
const OBSERVED_TOKENS = 32;
/** Neighbours that share their scores. */
const POOL_TOKENS = 5;
/** Steepness of PyramidKV. */
const BETA = 20;

class SnapSession implements YardstickSession {
  readonly #context: YardstickContext;
  readonly #capacityOf: (capacity: number) => number;
  readonly #scores = new Scores();

  constructor(context: YardstickContext, capacityOf: (capacity: number) => number) {
    this.#context = context;
    this.#capacityOf = capacityOf;
  }

  observe({ held, queries, attention }: Observed): void {
    const first = queries.findIndex((position) => position >= this.#context.promptTokens - OBSERVED_TOKENS);
    if (first < 0) return;
    addColumns(
      { held, queries: queries.slice(first), attention: attention.subarray(first * held.length) },
      this.#scores,
    );
  }

  keep(held: readonly number[], budgetTokens: number): Kept {
    const { older, recent } = split(held, Math.min(OBSERVED_TOKENS, budgetTokens));
    const half = (POOL_TOKENS - 1) / 2;
    // Beyond both ends of the prompt there is nothing, which counts as 0.
    const pooled = older.map((_, at) =>
      older.slice(Math.max(0, at - half), at + half + 1).reduce((sum, position) => sum + this.#scores.of(position), 0),
    );
    const places = new Map(older.map((position, at) => [position, at]));
    const capacity = this.#capacityOf(budgetTokens - recent.length);
    return { tokens: [...best(older, capacity, (position) => pooled[places.get(position)!]!), ...recent] };
  }
}

/**
 * Tokens that a layer keeps beside the observed ones, when `capacity` is the mean over all layers: the lowest layer
 * keeps most, and the rest follows a line. `prefixTokens`: those that there are to choose from.
 */
export function pyramidCapacity(capacity: number, layer: number, layers: number, prefixTokens: number): number {
  let least = capacity / BETA;
  let most = 2 * capacity - least;
  if (most >= prefixTokens) {
    most = prefixTokens;
    least = 2 * capacity - most;
  }
  if (least >= most || layers === 1) return Math.min(capacity, prefixTokens);
  return Math.round(most - (layer * (most - least)) / (layers - 1));
}

const once = { when: 'prompt', positions: 'own', observes: true } as const;

export const snapkv: Yardstick = {
  ...once,
  id: 'snapkv',
  source: 'SnapKV, arXiv 2404.14469: 32 queries, average over 5 tokens',
  open: (context) => new SnapSession(context, (capacity) => capacity),
};

export const pyramidkv: Yardstick = {
  ...once,
  id: 'pyramidkv',
  source: 'PyramidKV, arXiv 2406.02069: SnapKV with β = 20',
  open: (context) => {
    const { layer, layers, promptTokens } = context;
    return new SnapSession(context, (capacity) =>
      pyramidCapacity(capacity, layer, layers, promptTokens - OBSERVED_TOKENS),
    );
  },
};
