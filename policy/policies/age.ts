/**
 * Young pages 4:4, old pages 2:2, the boundary where the budget puts it. A rule of thumb that others use, kept to
 * compare with: it costs 1.3 to 1.7 times the divergence of `uniform` at equal bytes (measured).
 */
import type { FormatPair } from '../../native/index.ts';
import { rungsOf } from '../ladder.ts';
import type { Sides } from '../sides.ts';
import type { Because, Decision, Policy, PolicyContext, Situation } from '../types.ts';
import { type Aim, allowed, followPolicy, pairBytes, refuseKldBudget } from './follow.ts';
import { movableBytes, pagesAhead, unitsOf } from './uniform.ts';

interface Ages {
  readonly young: FormatPair;
  readonly old: FormatPair;
}

class AgeAim implements Aim {
  readonly #context: PolicyContext;
  readonly #ages: Ages;
  /** Units (layer of a page) that stay young, counted back from the newest. */
  #young = Number.POSITIVE_INFINITY;
  #newest = 0;
  #reserve = 0;

  constructor(context: PolicyContext, ages: Ages) {
    this.#context = context;
    this.#ages = ages;
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

  target(layer: number, page: number): FormatPair {
    return this.#age(layer, page) > this.#young ? this.#ages.old : this.#ages.young;
  }

  because({ layer, page, to }: Omit<Decision, 'because'>): Because {
    const { layers } = this.#context;
    const old = to !== this.#ages.young.k;
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
    const bytesOf = (pair: FormatPair): number => pairBytes(allowed(pair, context), context);
    const [young, old] = [bytesOf(this.#ages.young), bytesOf(this.#ages.old)];
    const spare = movableBytes(context, budgetBytes, pages) - this.#reserve - units * old;
    if (units === 0 || spare >= units * (young - old)) return Number.POSITIVE_INFINITY;
    // Skipped layers count as units here as everywhere, though they never move. Of the others the newest are there.
    const { layers, skipLayers } = context;
    return Math.max(0, Math.floor((spare / (young - old)) * (layers / (layers - new Set(skipLayers).size))));
  }
}

const agePolicy = (version: number, ages: Ages): Policy =>
  followPolicy('age', version, (context) => new AgeAim(context, ages), { lowest: ages.old });

export const age = agePolicy(2, { young: rungsOf(4), old: rungsOf(2) });
/** The policy of the time before trellis codes. It names formats because its logs were decided by them. */
export const ageOne = agePolicy(1, { young: { k: 'rot4', v: 'rot4' }, old: { k: 'rot2', v: 'rot2' } });
