/**
 * The first four versions of the price policy, as they were: their logs are decided again by them. The fourth stopped
 * layers whose errors exceed what was promised; the third also believed every trial as it was; the second had no
 * evidence of its own; the first had no law of errors either, and is also compared with (`price-1`). What is not here
 * they have in common with the present one (price.ts).
 */
import { type FormatPair, forecastMovablePages } from '../../native/index.ts';
import { defaultLaw, type Law } from '../law.ts';
import { type LayerMachine, stoppingMachine } from '../machine.ts';
import { Offers } from '../offers.ts';
import { TextFactor } from '../text-factor.ts';
import { thresholdOf } from '../thresholds.ts';
import type { Policy, PolicyContext, PolicySummary, Situation } from '../types.ts';
import { PRICE, PriceSession, price, type Sources, sourcesOf } from './price.ts';
import { boundsOf } from './price-bounds.ts';
import type { Plan } from './price-plan.ts';

/** What they decided by in place of thresholds that they did not know. */
const BOUNDS = { chosen: 1, cautious: 1, length: 0 } as const;
/** What they took the spread to be between what probes of a text measure and what its sessions do, in logarithms. */
const PROBE_SD = 0.3;

function earlySources(context: PolicyContext, law: Law | null): Sources {
  const bounds = boundsOf(context.thresholds, BOUNDS);
  const text = new TextFactor(law, bounds.probeGain, PROBE_SD);
  return { context, offers: new Offers(context, law, 'nothing'), bounds, text, doubted: new Set() };
}

const lawOf = ({ thresholds, layers }: PolicyContext): Law => thresholds.law ?? defaultLaw(layers);

/**
 * A degraded layer stops, so others pay for it, until nothing else keeps the budget; and errors that exceed what was
 * promised make a layer dearer by their square. Of what pages cost that were taken back, a rest stays.
 */
class FourthSession extends PriceSession {
  protected override get machine(): LayerMachine {
    return stoppingMachine;
  }

  protected override get qualityGivesWay(): boolean {
    return true;
  }

  protected override dearer(ratio: number): number {
    return ratio * ratio;
  }

  protected override get leavesRests(): boolean {
    return true;
  }
}

/**
 * Learns nothing about its predictions: a layer is as bad as its worst error or its predicted divergence, against their
 * bounds.
 */
class SecondSession extends FourthSession {
  /** Worst ε of each layer and the page that was open when it was committed. */
  readonly #worst = new Float64Array(this.context.layers);
  readonly #worstAt = new Float64Array(this.context.layers);

  constructor(context: PolicyContext, law: Law | null = lawOf(context)) {
    super(context, (given) => earlySources(given, law));
  }

  protected override get spentLate(): number {
    return 0;
  }

  protected override get qualityGivesWay(): boolean {
    return false;
  }

  protected override learn(): void {}

  protected override correct(): void {}

  protected override tell(): void {}

  protected override severity(layer: number): number {
    return Math.max(this.#faded(layer) / this.bounds.epsilon, this.offers.layerKld[layer]! / this.bounds.kld);
  }

  /**
   * An error fades with the age of its page as age^-0.8 to -0.9 (measured); -0.75 is more cautious and takes square
   * roots only, which are the same on every machine.
   */
  #faded(layer: number): number {
    const age = Math.max(1, this.page - this.#worstAt[layer]! + 1);
    return this.#worst[layer]! / (Math.sqrt(age) * Math.sqrt(Math.sqrt(age)));
  }

  protected override committed(layer: number, epsilon: number): void {
    if (epsilon < this.#faded(layer)) return;
    this.#worst[layer] = epsilon;
    this.#worstAt[layer] = this.page;
  }
}

/** Adds up what moves cost when they are made, and makes those at or under its price before they must be made. */
class FirstSession extends SecondSession {
  constructor(context: PolicyContext) {
    super(context, null);
    this.begin(thresholdOf(context.thresholds, 'price.start').value);
  }

  override get predictedKld(): number {
    return this.offers.layerKld.reduce((sum, kld) => sum + kld, 0);
  }

  protected override nats(cost: number): number {
    return cost;
  }

  override summary(): PolicySummary {
    const { text: _, ...summary } = super.summary();
    return { ...summary, priceThreshold: this.price, layerKld: [...this.offers.layerKld] };
  }

  protected override movesEarly(_situation: Situation): boolean {
    return true;
  }

  /** Until the share of the budget that belongs to the pages known so far is spent. */
  protected override spend(plan: Plan, kldBudget: number): void {
    const { tokens, tokensExpected } = plan.situation;
    const { layers, windowTokens } = this.context;
    const pages = tokensExpected === null ? 0 : forecastMovablePages(Math.max(tokens, tokensExpected), windowTokens);
    const share = Math.min(1, this.offers.sides.known / Math.max(1, 2 * layers * pages));
    this.spendUpTo(plan, kldBudget * share, this.predictedKld);
  }
}

/** It names formats because logs of the first version were decided by them. */
const LOWEST_OF_FIRST: FormatPair = { k: 'rot2', v: 'rot2' };

export const priceOne: Policy = {
  ...PRICE,
  version: 1,
  triesAgain: false,
  probes: false,
  keepsOriginals: false,
  holdsLatents: false,
  lowest: LOWEST_OF_FIRST,
  open: (context) => new FirstSession(context),
};

export const priceTwo: Policy = {
  ...PRICE,
  version: 2,
  triesAgain: true,
  probes: true,
  keepsOriginals: false,
  holdsLatents: false,
  open: (context) => new SecondSession(context),
};

export const priceThree: Policy = {
  ...price,
  version: 3,
  rereads: false,
  open: (context) => new FourthSession(context, (given) => sourcesOf(given, 'persistence')),
};

export const priceFour: Policy = { ...price, version: 4, open: (context) => new FourthSession(context) };
