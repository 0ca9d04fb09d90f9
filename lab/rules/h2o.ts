/**
 * Heavy hitters: half of the budget are the newest tokens, half those that got most attention from all queries so far.
 * H2O, arXiv 2306.14048. Sums favour old tokens, which more queries could see; a token that has just come is kept by
 * the window alone.
 */

import type { Kept, Observed, Yardstick, YardstickSession } from 'palimpsest/lab';
import { addColumns, best, Scores, split } from './tokens.ts';

export class H2oSession implements YardstickSession {
  readonly #scores = new Scores();

  observe(step: Observed): void {
    addColumns(step, this.#scores);
  }

  keep(held: readonly number[], budgetTokens: number): Kept {
    const { older, recent } = split(held, Math.floor(budgetTokens / 2));
    const hitters = best(older, budgetTokens - recent.length, (position) => this.#scores.of(position));
    return { tokens: [...hitters, ...recent] };
  }
}

export const h2o: Yardstick = {
  id: 'h2o',
  source: 'H2O, arXiv 2306.14048: half heavy hitters, half window',
  when: 'step',
  positions: 'own',
  observes: true,
  open: () => new H2oSession(),
};
