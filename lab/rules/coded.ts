/**
 * Codes first, then heavy hitters: what a cache of tokens does that keeps all of them in few bits and drops what still
 * does not fit. Under pressure all tokens go to rot4, in which three to four times as many fit, and of these the newest
 * half stay and those with most attention (h2o.ts).
 */
import type { FormatName, Kept, Observed, Yardstick, YardstickContext, YardstickSession } from 'palimpsest/lab';
import { h2o } from './h2o.ts';

const CODED: FormatName = 'rot4';

class CodedSession implements YardstickSession {
  readonly #context: YardstickContext;
  readonly #hitters: YardstickSession;
  /** What was coded does not become exact again. */
  readonly #coded = new Set<number>();

  constructor(context: YardstickContext) {
    this.#context = context;
    this.#hitters = h2o.open(context);
  }

  observe(step: Observed): void {
    this.#hitters.observe(step);
  }

  keep(held: readonly number[], budgetTokens: number): Kept {
    const { tokenBytes } = this.#context;
    const budget = budgetTokens * tokenBytes.f16;
    const formatOf = (position: number): FormatName => (this.#coded.has(position) ? CODED : 'f16');
    const bytes = held.reduce((sum, position) => sum + tokenBytes[formatOf(position)], 0);
    const { tokens } =
      bytes <= budget ? { tokens: held } : this.#hitters.keep(held, Math.floor(budget / tokenBytes[CODED]));
    if (bytes > budget) {
      this.#coded.clear();
      for (const position of tokens) this.#coded.add(position);
    }
    return { tokens, formats: tokens.map(formatOf) };
  }
}

export const codedHitters: Yardstick = {
  id: 'coded-h2o',
  source: 'caches of tokens that code first and drop then: all in rot4, of which H2O keeps what fits',
  when: 'step',
  positions: 'own',
  observes: true,
  open: (context) => new CodedSession(context),
};
