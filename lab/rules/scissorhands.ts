/**
 * Persistence of importance: a query finds a token unimportant when it gives it less than an equal share. When the
 * cache is full, half of it is dropped: outside the newest ten tokens, those found unimportant most often by the last
 * 400 queries. Scissorhands, arXiv 2305.17118.
 */

import type { Kept, Observed, Yardstick, YardstickSession } from 'palimpsest/lab';
import { best, Scores, split } from './tokens.ts';

const HISTORY_TOKENS = 400;
const RECENT_TOKENS = 10;

interface Verdicts {
  readonly query: number;
  readonly unimportant: readonly number[];
}

class ScissorhandsSession implements YardstickSession {
  #history: Verdicts[] = [];

  observe({ held, queries, attention }: Observed): void {
    for (const [row, query] of queries.entries()) {
      const seen = held.findLastIndex((position) => position <= query) + 1;
      const unimportant: number[] = [];
      for (let at = 0; at < seen; at++) if (attention[row * held.length + at]! < 1 / seen) unimportant.push(held[at]!);
      this.#history.push({ query, unimportant });
    }
    const newest = held.at(-1) ?? 0;
    this.#history = this.#history.filter(({ query }) => query > newest - HISTORY_TOKENS);
  }

  keep(held: readonly number[], budgetTokens: number): Kept {
    if (held.length <= budgetTokens) return { tokens: held };
    const counts = new Scores();
    for (const { unimportant } of this.#history) for (const position of unimportant) counts.add(position, 1);
    const target = Math.ceil(budgetTokens / 2);
    const { older, recent } = split(held, Math.min(RECENT_TOKENS, target));
    return { tokens: [...best(older, target - recent.length, (position) => -counts.of(position)), ...recent] };
  }
}

export const scissorhands: Yardstick = {
  id: 'scissorhands',
  source: 'Scissorhands, arXiv 2305.17118: history 400, newest 10, half is dropped',
  when: 'step',
  positions: 'own',
  observes: true,
  open: () => new ScissorhandsSession(),
};
