/** What several yardsticks do with the tokens that they have been shown. */
import type { Observed } from 'palimpsest/lab';

/** The first tokens of a text, which get much attention whatever they say (StreamingLLM). */
export const SINKS = 4;

/** A number per token, by position: tokens that were dropped or moved cannot shift the others. */
export class Scores {
  #values = new Float64Array(0);

  add(position: number, value: number): void {
    if (position >= this.#values.length) {
      const grown = new Float64Array(2 * position + 16);
      grown.set(this.#values);
      this.#values = grown;
    }
    this.#values[position]! += value;
  }

  of(position: number): number {
    return this.#values[position] ?? 0;
  }

  scale(factor: number): void {
    this.#values = this.#values.map((value) => factor * value);
  }
}

/** The `count` best of `tokens` by score, ascending by position. Among equals the newest are kept. */
export function best(tokens: readonly number[], count: number, score: (position: number) => number): number[] {
  if (count <= 0) return [];
  if (count >= tokens.length) return [...tokens];
  const order = tokens.map((position) => ({ position, value: score(position) }));
  order.sort((a, b) => b.value - a.value || b.position - a.position);
  return order
    .slice(0, count)
    .map(({ position }) => position)
    .sort((a, b) => a - b);
}

/** The newest `count` tokens and the others. */
export function split(held: readonly number[], count: number): { readonly older: number[]; readonly recent: number[] } {
  const at = Math.max(0, held.length - Math.max(0, count));
  return { older: held.slice(0, at), recent: held.slice(at) };
}

/** Adds up the columns of what was observed. */
export function addColumns({ held, queries, attention }: Observed, scores: Scores): void {
  for (const [at, position] of held.entries()) {
    let sum = 0;
    for (let query = 0; query < queries.length; query++) sum += attention[query * held.length + at]!;
    scores.add(position, sum);
  }
}
