/** One plan of the price policy: the offers it takes, what they free and cost, and the decisions that they become. */
import { FORMAT_NAMES, PARTS, pageEnd, roomEnd, SIDES } from '../../native/index.ts';
import { FORMS, isLatent, TIER_RANK } from '../ladder.ts';
import { LATENT_GIVES_WAY, type LatentGuard } from '../latent-guard.ts';
import type { Layers } from '../layers.ts';
import type { Offers } from '../offers.ts';
import { thresholdOf } from '../thresholds.ts';
import type { Because, CanaryReport, Decision, KLD_GIVES_WAY, PolicyContext, Situation } from '../types.ts';
import { isUselessPair } from '../unsafe.ts';

/** Why a step was taken. */
export type Rule =
  | 'price'
  | 'deficit'
  | typeof KLD_GIVES_WAY
  | 'low-memory'
  | 'quality-gives-way'
  | typeof LATENT_GIVES_WAY;

/** Offers set aside in one plan because their tier is shut; more than this is left for the next plan. */
const ASIDE_MAX = 1024;

/** What a plan asks of the session that makes it. */
export interface PlanState {
  readonly context: PolicyContext;
  readonly offers: Offers;
  readonly layers: Layers;
  /** Which pages may become latents. */
  readonly latentGuard: LatentGuard;
  /** λ, KLD per byte. */
  readonly price: number;
  /** The first trial of a slot is too old to be believed. */
  isStale(slot: number): boolean;
  lowMemoryBytes(situation: Situation): number | null;
  because(measured: number, bound: number): Because;
}

/** False when the session is expected to end before another page is sealed, or an open page in 8 bits grows. */
export function sealComes(
  { tokens, tokensExpected, urgent }: Situation,
  { openFormat = 'f16' }: Pick<PolicyContext, 'openFormat'>,
): boolean {
  const end = openFormat === 'f16' ? pageEnd(tokens) : roomEnd(tokens);
  return urgent || tokensExpected === null || tokens > tokensExpected || end < tokensExpected;
}

/** Bytes that this takes; 0 when none is expected. */
export const sealAhead = (situation: Situation, context: Pick<PolicyContext, 'openFormat'>): number =>
  sealComes(situation, context) ? situation.sealBytes : 0;

/** One plan under construction. */
export class Plan {
  readonly situation: Situation;
  /** Bytes freed and predicted KLD bought by what was taken so far. */
  freed = 0;
  kld = 0;
  readonly #state: PlanState;
  readonly #startPrice: number;
  /** Slot → rule under which its last step was taken, and the bytes that its steps free. */
  readonly #taken = new Map<number, { readonly rule: Rule; readonly bytesFreed: number }>();
  #aside: number[] = [];
  /** Sides that are put back, which comes first. */
  readonly #promotions: Decision[] = [];
  /** Layers whose quality stops them may move after all, because nothing else is left and the budget is hard. */
  isForced = false;
  /** Pages may become latents that the guard would hold back, because nothing else is left and the budget is hard. */
  latentsGiveWay = false;
  /** The guard has held back a page. */
  holdsBack = false;

  constructor(state: PlanState, situation: Situation) {
    this.#state = state;
    this.situation = situation;
    this.#startPrice = state.price;
  }

  get hasRoom(): boolean {
    return this.#taken.size < this.situation.movesMax;
  }

  get isEmpty(): boolean {
    return this.#taken.size === 0 && this.#promotions.length === 0;
  }

  /**
   * Cheapest offer that its layer allows now, −1 when there is none. Resting sides count when it is urgent and the move
   * is not early.
   */
  next(early: boolean): number {
    const { offers, layers } = this.#state;
    const { sides } = offers;
    for (;;) {
      const slot = offers.cheapest(this.situation.urgent && !early);
      if (slot < 0) return -1;
      const layer = sides.layer[slot]!;
      const isStopped = layers.stopped[layer] === 1;
      const shut = isStopped ? !this.isForced : TIER_RANK[offers.next[slot]!]! > layers.openTier[layer]!;
      const isHeldBack = !this.latentsGiveWay && this.isGuarded(slot);
      if (!shut && !isHeldBack && !(early && layers.held[layer] === 1)) return slot;
      this.holdsBack ||= isHeldBack;
      if (this.#aside.length === ASIDE_MAX && !this.situation.urgent) return -1;
      this.#aside.push(slot);
      offers.hide(slot);
    }
  }

  /** True if the page of a slot would become a latent, and its keys and values have to stay for now. */
  isGuarded(slot: number): boolean {
    const { offers, latentGuard } = this.#state;
    const { sides } = offers;
    if (PARTS[sides.side[slot]!] !== 'kv' || isLatent(FORMS[offers.aim(slot)]!)) return false;
    return latentGuard.refuses(sides.page[slot]!, this.situation) !== null;
  }

  take(slot: number, rule: Rule): number {
    const { offers } = this.#state;
    this.kld += offers.nextCost(slot);
    const freed = offers.take(slot);
    this.freed += freed;
    const before = this.#taken.get(slot);
    // A page that gave way stays one that did, however far it goes.
    const why = before?.rule === LATENT_GIVES_WAY ? before.rule : rule;
    this.#taken.set(slot, { rule: why, bytesFreed: freed + (before?.bytesFreed ?? 0) });
    return freed;
  }

  /** Puts a canary's original back. What it frees is the coded form, since the original is there already. */
  promote({ layer, page, side, from, to }: CanaryReport, because: Because): void {
    const { offers, layers, context } = this.#state;
    const { sides } = offers;
    const slot = sides.find(layer, page, SIDES.indexOf(side));
    if (slot < 0 || sides.pending[slot] === 1 || FORMAT_NAMES[sides.format[slot]!] !== to) return;
    const partner = sides.partner(slot);
    const other = partner < 0 ? from : FORMAT_NAMES[sides.format[partner]!]!;
    if (side === 'k' ? isUselessPair(from, other) : isUselessPair(other, from)) return;
    const decision: Decision = {
      layer,
      page,
      side,
      from: to,
      to: from,
      epsilonFrom: offers.epsilon(slot, sides.format[slot]!),
      epsilonTo: 0,
      price: null,
      bytesFreed: context.pageBytes[to] - context.pageBytes[from],
      retry: false,
      because,
    };
    sides.plan(slot, decision);
    offers.hide(slot);
    // Of a layer that is stopped nothing else moves.
    if (layers.stopped[layer] === 0) offers.raise(slot, from);
    this.freed += context.pageBytes[from];
    this.#promotions.push(decision);
  }

  /** Puts the offers that were set aside back into the heaps. */
  restore(): void {
    for (const slot of this.#aside) this.#state.offers.reprice(slot);
    this.#aside = [];
  }

  /** Decisions, cheapest first; their slots are under way from now on. */
  finish(): Decision[] {
    const { offers } = this.#state;
    const { sides } = offers;
    const decisions = [...this.#taken].map(([slot, taken]) => ({ slot, decision: this.#decision(slot, taken) }));
    decisions.sort((a, b) => a.decision.price! - b.decision.price! || sides.order(a.slot, b.slot));
    for (const { slot, decision } of decisions) {
      sides.plan(slot, decision);
      offers.hide(slot);
    }
    this.restore();
    return [...this.#promotions, ...decisions.map(({ decision }) => decision)];
  }

  #decision(slot: number, { rule, bytesFreed }: { readonly rule: Rule; readonly bytesFreed: number }): Decision {
    const { offers } = this.#state;
    const { sides } = offers;
    const from = sides.format[slot]!;
    const to = offers.aim(slot);
    const price = offers.cost(slot, from, to) / bytesFreed;
    return {
      layer: sides.layer[slot]!,
      page: sides.page[slot]!,
      side: PARTS[sides.side[slot]!]!,
      from: FORMS[from]!,
      to: FORMS[to]!,
      epsilonFrom: offers.epsilon(slot, from),
      epsilonTo: offers.epsilon(slot, to),
      price,
      bytesFreed,
      retry: this.#state.isStale(slot),
      because: this.#because(price, rule),
    };
  }

  #because(price: number, rule: Rule): Because {
    const state = this.#state;
    const { budgetBytes, kldBudget, bytes } = this.situation;
    const sealBytes = sealAhead(this.situation, state.context);
    if (rule === 'price')
      return state.because(price, kldBudget !== null && budgetBytes === null ? state.price : this.#startPrice);
    const low = rule === 'low-memory';
    const { id, value, origin } = thresholdOf(
      state.context.thresholds,
      low ? 'pressure.low-memory' : 'pressure.critical',
    );
    const target = low ? (state.lowMemoryBytes(this.situation) ?? 0) / value : (budgetBytes ?? 0);
    return {
      threshold: id,
      measured: (bytes + sealBytes) / Math.max(1, target),
      bound: low ? value : 1,
      unit: 'share',
      origin,
      rule,
    };
  }
}
