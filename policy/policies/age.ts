/**
 * Young pages 4:4, old pages 2:2, the boundary where the budget puts it. A rule of thumb that others use, kept to compare
 * with: it cost 7 to 10 times the divergence of `uniform` at equal bytes (measured).
 */
import type { Side } from '../../native/index.ts';
import type { Sides } from '../sides.ts';
import type { Because, Decision, PolicyContext, Situation } from '../types.ts';
import { type Aim, allowed, followPolicy, pairBytes, refuseKldBudget } from './follow.ts';
import { movableBytes, pagesAhead, unitsOf } from './uniform.ts';

const YOUNG = { k: 'rot4', v: 'rot4' } as const;
const OLD = { k: 'rot2', v: 'rot2' } as const;

class AgeAim implements Aim {
  readonly #context: PolicyContext;
  /** Units (layer of a page) that stay young, counted back from the newest. */
  #young = Number.POSITIVE_INFINITY;
  #newest = 0;
  #reserve = 0;

  constructor(context: PolicyContext) {
    this.#context = context;
  }

  steer(situation: Situation, sides: Sides, lackBytes: number): boolean {
    refuseKldBudget('age', situation);
    const { layers } = this.#context;
    const { budgetBytes } = situation;
    const before = [this.#young, this.#newest];
    this.#newest = (sides.pageMax + 1) * layers;
    this.#reserve += lackBytes;
    if (budgetBytes !== null)
      this.#young = Math.min(this.#young, this.#fit(budgetBytes, pagesAhead(situation, this.#context)));
    return this.#young !== before[0] || this.#newest !== before[1];
  }

  target(layer: number, page: number): Readonly<Record<Side, 'rot4' | 'rot2'>> {
    return this.#age(layer, page) > this.#young ? OLD : YOUNG;
  }

  because({ layer, page, to }: Omit<Decision, 'because'>): Because {
    const { layers } = this.#context;
    const old = to !== YOUNG.k;
    return {
      threshold: 'age.young',
      measured: this.#age(layer, page) / layers,
      bound: old ? this.#young / layers : 0,
      unit: 'pages',
      origin: 'controller',
      rule: 'age',
    };
  }

  /** 1 for the newest unit. */
  #age(layer: number, page: number): number {
    return this.#newest - (page * this.#context.layers + layer);
  }

  #fit(budgetBytes: number, pages: number): number {
    const context = this.#context;
    const units = unitsOf(context, pages).length;
    const [young, old] = [pairBytes(allowed(YOUNG, context), context), pairBytes(allowed(OLD, context), context)];
    const spare = movableBytes(context, budgetBytes, pages) - this.#reserve - units * old;
    if (units === 0 || spare >= units * (young - old)) return Number.POSITIVE_INFINITY;
    // Skipped layers count as units here as everywhere, though they never move.
    return Math.max(0, Math.floor((spare / (young - old)) * ((pages * context.layers) / units)));
  }
}

export const agePolicy = followPolicy('age', 1, (context) => new AgeAim(context), { lowest: OLD });
