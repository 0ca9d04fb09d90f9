/**
 * The default policy. A move is judged by its price: predicted divergence added per byte saved, c·g·(ε_to² −
 * ε_from²)/bytes, with ε measured for every page side on its own. Under a byte budget it fills like water: nothing
 * moves before the budget binds, then the cheapest moves are made, wherever they are; the price of the last one is the
 * threshold λ. Under a divergence budget the predicted sum is held and bytes move instead. policy/README.md tells why.
 */
import { forecastMovablePages, movablePages, PAGE_TOKENS, PARTS, pageOf, tokensBehind } from '../../native/index.ts';
import type { Course } from '../course.ts';
import { OUTLIER_KEYS } from '../decisions.gen.ts';
import { believable, Evidence } from '../evidence.ts';
import { LATENT_GIVES_WAY, LatentGuard } from '../latent-guard.ts';
import { defaultLaw, FITTED_TOKENS } from '../law.ts';
import { Layers } from '../layers.ts';
import { type LayerMachine, layerMachine } from '../machine.ts';
import { Measured } from '../measured.ts';
import { Offers } from '../offers.ts';
import { bytesAt, heldPages } from '../sides.ts';
import { TextFactor } from '../text-factor.ts';
import { checkThresholds, type ThresholdId, thresholdOf } from '../thresholds.ts';
import { isSampled } from '../trust.ts';
import {
  type Because,
  type CanaryReport,
  type Decision,
  KLD_GIVES_WAY,
  type LayerChange,
  type Policy,
  type PolicyContext,
  type PolicySession,
  type PolicySummary,
  type Situation,
  type Threshold,
  type Verdict,
  type WantedSide,
} from '../types.ts';
import { type Bounds, boundsOf } from './price-bounds.ts';
import { LatentChoice } from './price-latents.ts';
import { Plan, type Rule, sealAhead, sealComes } from './price-plan.ts';
import { bothBind, nothingLeft } from './price-refusals.ts';

/**
 * A divergence budget is spent as this power of the share of the expected tokens that were read. Spent evenly, early
 * moves save bytes where none are short, and their errors stay in all that is read later: 7% more bytes for the same
 * divergence. With 5 the peak lies before the end (measured: SmolLM2-135M, 2,048 tokens, four texts).
 */
const SPENT_LATE = 3;
/** How many times as often as others the canaries of a layer are probed that is not healthy. */
const HASTE = 4;

const NO_SIDES: readonly WantedSide[] = [];

/** What a session decides from. */
export interface Sources {
  readonly context: PolicyContext;
  readonly offers: Offers;
  readonly bounds: Bounds;
  /** How much an error costs in this text beside others: by earlier sessions, and by what this one has measured. */
  readonly text: TextFactor;
  /** Layers with a gain that is not believed. */
  readonly doubted: ReadonlySet<number>;
}

/** What versions since the third decide from. */
export function sourcesOf(given: PolicyContext, learns: 'persistence' | 'levels' = 'levels'): Sources {
  const { thresholds, doubted } = believable(given.thresholds);
  const context = { ...given, thresholds };
  const law = thresholds.law ?? defaultLaw(context.layers);
  const bounds = boundsOf(given.thresholds);
  return {
    context,
    offers: new Offers(context, law, learns),
    bounds,
    text: new TextFactor(law, bounds.probeGain),
    doubted,
  };
}

/**
 * What a session knows so far, and what it decides by it. Earlier versions decide some of it otherwise
 * (price-earlier.ts), and nobody else overrides anything.
 */
export class PriceSession implements PolicySession {
  readonly context: PolicyContext;
  readonly offers: Offers;
  readonly layers: Layers;
  /** λ, KLD per byte. */
  price = 0;
  priceSet = false;
  urgent = false;
  readonly #price: Readonly<Record<'slack' | 'rise', Threshold>>;
  protected readonly bounds: Bounds;
  /** λ when the current page began: it may rise only so far within one page. */
  #pagePrice: number;
  protected page = -1;
  protected tokens = 0;
  /** Bytes that low memory is measured against, fixed when it was signalled. */
  #lowMemoryBase: number | null = null;
  protected readonly text: TextFactor;
  /** What reading tokens twice has found of the divergence. */
  readonly #measured: Measured;
  /** What the session has learned about its predictions. */
  readonly #evidence: Evidence;
  readonly #doubted: ReadonlySet<number>;
  #changes: LayerChange[] = [];
  /** null: no latents are kept. */
  readonly #latents: LatentChoice | null;
  readonly latentGuard: LatentGuard;

  constructor(given: PolicyContext, sources: (given: PolicyContext) => Sources = (asked) => sourcesOf(asked)) {
    checkThresholds(given.thresholds, given.layers);
    const { context, offers, bounds, text, doubted } = sources(given);
    const threshold = (id: ThresholdId): Threshold => thresholdOf(given.thresholds, id);
    this.context = context;
    this.offers = offers;
    this.bounds = bounds;
    this.text = text;
    this.#doubted = doubted;
    this.#measured = new Measured(bounds);
    this.#evidence = new Evidence(context.layers);
    this.layers = new Layers(context.layers, context.thresholds, this.machine);
    this.#pagePrice = this.price;
    this.#price = { slack: threshold('price.slack'), rise: threshold('price.rise') };
    this.latentGuard = new LatentGuard(context);
    this.#latents = context.latents === undefined ? null : new LatentChoice(context, offers, bounds.operations);
  }

  /** Sets λ before anything is decided. */
  protected begin(price: number): void {
    this.price = price;
    this.#pagePrice = price;
  }

  get predictedKld(): number {
    const { divergence } = this.offers;
    return this.#factor * (divergence.total(this.tokens) + this.bounds.past * divergence.past);
  }

  /**
   * The same at the ages that pages had when they were moved, a page of tokens ago. Budgets are spent by these, and by
   * the next plan much has faded, so what is measured is compared with them as well.
   */
  get #plannedKld(): number {
    const { divergence } = this.offers;
    return this.#factor * (divergence.total(this.tokens - PAGE_TOKENS) + this.bounds.past * divergence.past);
  }

  /** What is expected of the moves so far, as measured where it was. */
  get #expectedKld(): number {
    return this.#measured.isKnown ? this.#measured.level.value * this.#plannedKld : this.predictedKld;
  }

  /** What moves of this sum will add to what is expected. */
  protected nats(cost: number): number {
    const nats = this.#factor * cost;
    return this.#measured.isKnown ? this.#measured.level.value * nats : nats;
  }

  /** What costs by the law count as in this text at this length, for moves that were chosen because they seem cheap. */
  get #factor(): number {
    return this.bounds.chosen * this.#growthAt(this.tokens) * this.text.used.value;
  }

  /** How much more than the law says divergence is behind so many tokens. */
  #growthAt(tokens: number): number {
    return Math.max(1, tokens / FITTED_TOKENS) ** this.bounds.length;
  }

  decide(situation: Situation): Decision[] {
    this.#absorb(situation);
    return this.#plan(situation);
  }

  summary(): PolicySummary {
    const { layers, offers } = this;
    const { divergence } = offers;
    const measured = this.#measured.told(this.#plannedKld);
    const share = this.predictedKld / Math.max(Number.MIN_VALUE, divergence.total(this.tokens));
    return {
      priceThreshold: this.priceSet ? this.price : 0,
      predictedKld: this.predictedKld,
      layerStates: Array.from({ length: layers.count }, (_, layer) => layers.stateName(layer)),
      layerEpsilonMax: [...offers.layerEpsilonMax],
      layerKld: Array.from(divergence.byLayer(this.tokens), (kld) => kld * share),
      text: { used: this.text.used, measured: this.text.measured },
      ...(measured === undefined ? {} : { measured }),
    };
  }

  /** What became of the last plan, and what is new. */
  #absorb(situation: Situation): void {
    const { tokens, reread } = situation;
    const { offers } = this;
    this.urgent = situation.urgent;
    this.tokens = tokens;
    if (!this.priceSet && this.movesEarly(situation))
      this.price = thresholdOf(this.context.thresholds, 'price.start').value;
    const page = pageOf(tokens);
    const fresh = page !== this.page || situation.outcomes.length > 0;
    if (page !== this.page) {
      this.#pagePrice = this.price;
      this.#evidence.fade();
      offers.learn();
    }
    this.page = page;
    offers.wake(tokens);
    offers.divergence.pass(tokens);
    for (const outcome of situation.outcomes) {
      this.committed(outcome.layer, offers.settle(outcome, tokens, tokens + this.bounds.dwell));
    }
    this.#measured.expect(tokens, this.#plannedKld);
    if (reread !== undefined) this.#measured.learn(reread);
    offers.forget(tokens, this.leavesRests);
    for (const change of situation.changes ?? []) offers.change(change);
    for (const report of situation.trials) offers.add(report, tokens);
    this.learn(situation);
    if (situation.later !== undefined) offers.know(situation.later);
    if (situation.sharers !== undefined) offers.share(situation.sharers);
    for (const report of situation.again ?? []) offers.again(report, tokens);
    if (situation.text !== undefined) this.text.expected = situation.text;
    if (situation.probe !== undefined) this.text.learn(situation.probe);
    if (fresh || situation.canaries !== undefined || situation.damaged !== undefined)
      for (let layer = 0; layer < this.layers.count; layer++) this.layers.set('quality', layer, this.severity(layer));
    if (fresh) this.#trust();
    this.#signal(situation);
    if (fresh || situation.canaries !== undefined) this.correct();
    this.#latents?.choose(situation, this.price, this.layers.held.includes(1));
  }

  /** Tells the machine how far each layer goes the way that earlier sessions told; not at all where none did. */
  #trust(): void {
    const { layers, offers } = this;
    if (this.context.thresholds.course === undefined) return;
    for (let layer = 0; layer < layers.count; layer++)
      layers.set('agreement', layer, layers.isHealthy(layer) ? offers.agreement.of(layer) : 0);
  }

  /** Of a trusted layer a sample of the pages is tried again. */
  repeats(layer: number, page: number, newest: number): boolean {
    return this.layers.sampled[layer] === 0 || isSampled(layer, page, newest);
  }

  course(): Course | null {
    return this.offers.course();
  }

  /** What the situation says about earlier predictions. */
  protected learn({ tokens, trials, again = [], canaries = [], damaged = [] }: Situation): void {
    const evidence = this.#evidence;
    for (const { layer, mended = false } of damaged) if (!mended) evidence.damaged(layer, tokens);
    if (trials.length > 0) evidence.trials(trials);
    for (const report of again) evidence.again(report.layer, pageOf(tokens) - report.page, this.offers.known(report));
    for (const report of canaries) evidence.canary(report);
    evidence.settle(tokens, this.bounds.shift);
  }

  /** Layers whose errors exceed what was promised cost as much more from now on, until they are healthy again. */
  protected correct(): void {
    for (let layer = 0; layer < this.layers.count; layer++) {
      const ratio = this.layers.isHealthy(layer) ? 1 : this.#evidence.ratio(layer);
      this.offers.correct(layer, Math.max(1, this.dearer(ratio)));
    }
  }

  /**
   * By how much a layer costs more whose errors are so many times what was promised. Costs go by their square, and half
   * of that stands already in how long the errors of the layer are seen to last, which its repeated trials teach too:
   * with the square planted faults cost more than they did by themselves (docs/lab/policy.md).
   */
  protected dearer(ratio: number): number {
    return ratio;
  }

  /** What a layer may do in which state. */
  protected get machine(): LayerMachine {
    return layerMachine;
  }

  /**
   * Of degraded layers the sides that cost most for a byte that they would take more, as far as they cost more than a
   * byte does elsewhere.
   */
  wanted(): readonly WantedSide[] {
    const { comesBackIn } = this.context;
    const { worth } = this.bounds;
    if (comesBackIn === undefined || worth === 0) return NO_SIDES;
    return this.offers.dearest((layer) => this.layers.isDegraded(layer), comesBackIn, worth * this.price);
  }

  cheapest(): number | null {
    const slot = this.offers.cheapest(true);
    return slot < 0 ? null : this.nats(this.offers.price[slot]!);
  }

  movesLeft(): number {
    return this.offers.count;
  }

  takeChanges(): readonly LayerChange[] {
    const changes = this.#changes;
    if (changes.length > 0) this.#changes = [];
    return changes;
  }

  /** The power of the share of the expected tokens by which a divergence budget is spent. */
  protected get spentLate(): number {
    return SPENT_LATE;
  }

  /** True if a rest of what pages cost stays when they are taken back. */
  protected get leavesRests(): boolean {
    return false;
  }

  /** True if layers that are stopped must move where nothing else keeps the budget. */
  protected get qualityGivesWay(): boolean {
    return false;
  }

  haste(layer: number): number {
    return this.layers.isHealthy(layer) ? 1 : HASTE;
  }

  /** Plans for this scheduling point, cheapest moves first. Throws 'budget-too-small'. */
  #plan(situation: Situation): Decision[] {
    const plan = new Plan(this, situation);
    try {
      return this.#fill(plan, situation);
    } finally {
      // Offers that were set aside come back even when there was no way to keep the budget.
      plan.restore();
    }
  }

  #fill(plan: Plan, situation: Situation): Decision[] {
    for (const report of situation.canaries ?? [])
      if (report.rows === undefined && this.layers.isDegraded(report.layer))
        plan.promote(report, this.#reversal(report));
    if (situation.kldBudget !== null && situation.budgetBytes === null) this.spend(plan, situation.kldBudget);
    else if (this.price > 0 && this.movesEarly(situation)) this.#early(plan, this.price);
    // Moves that were held back may have to be made after all.
    plan.restore();
    this.#closeDeficit(plan);
    if (situation.lowMemory) this.#shrink(plan);
    return plan.finish();
  }

  /** Why a side of a degraded layer is put back. */
  #reversal({ layer }: CanaryReport): Because {
    const { id, unit, origin, value } = thresholdOf(this.context.thresholds, 'quality.degraded');
    return { threshold: id, measured: this.severity(layer), bound: value, unit, origin, rule: 'put-back' };
  }

  judge(decision: Decision, epsilonNow: number | null): Verdict {
    if (decision.because.rule === 'put-back') return { accepted: true, because: decision.because };
    const slot = this.offers.sides.find(decision.layer, decision.page, PARTS.indexOf(decision.side));
    const planned = decision.price ?? 0;
    const bound = this.#price.slack.value * Math.max(planned, this.price);
    if (epsilonNow === null) {
      // No recent query sees this page, so there is no reason to doubt its first trial.
      const rule = decision.retry ? 'not-seen' : this.#isSettled(decision.page) ? 'settled-trial' : 'fresh-trial';
      return this.#verdict(true, planned, bound, rule);
    }
    const now = (this.offers.weight(slot) * this.offers.outlook(slot) * epsilonNow * epsilonNow) / decision.bytesFreed;
    if (now <= bound) return this.#verdict(true, now, bound, 'trial-again');
    return this.urgent
      ? this.#verdict(true, now, bound, 'deficit-override')
      : this.#verdict(false, now, bound, 'trial-again');
  }

  #verdict(accepted: boolean, measured: number, bound: number, rule: string): Verdict {
    const { id, origin } = this.#price.slack;
    return { accepted, because: { threshold: id, measured, bound, unit: 'KLD/byte', origin, rule } };
  }

  /**
   * True when the trial of a slot must be repeated before its move is made: it is old, and its page is not yet so old
   * that errors have faded for good.
   */
  isStale(slot: number): boolean {
    return (
      this.tokens - this.offers.triedAt[slot]! >= this.bounds.trialAge &&
      !this.#isSettled(this.offers.sides.page[slot]!)
    );
  }

  /** The page left the window so long ago that its first trial is a safe bound. */
  #isSettled(page: number): boolean {
    return tokensBehind(page, this.tokens) >= this.bounds.settled;
  }

  /** Bytes aimed at while low memory is signalled, null otherwise. */
  lowMemoryBytes(situation: Situation): number | null {
    if (!situation.lowMemory) this.#lowMemoryBase = null;
    else this.#lowMemoryBase ??= situation.budgetBytes ?? situation.bytes;
    return this.#lowMemoryBase === null ? null : this.bounds.lowMemory * this.#lowMemoryBase;
  }

  /** λ for a Because: the start value until the controller sets another. */
  because(measured: number, bound: number): Because {
    const { id, unit, origin } = thresholdOf(this.context.thresholds, 'price.start');
    return { threshold: id, measured, bound, unit, origin: this.priceSet ? 'controller' : origin, rule: 'price' };
  }

  #setPrice(price: number): void {
    if (price === this.price) return;
    this.price = price;
    this.priceSet = true;
  }

  /** Bytes at the expected end if page sides go on as those known now; null when the length is not known. */
  #projected({ tokensExpected, tokens }: Situation): number | null {
    const { sides } = this.offers;
    if (tokensExpected === null || sides.known === 0) return null;
    return bytesAt(this.context, Math.max(tokens, tokensExpected), (sides.bytes - sides.pendingBytes) / sides.known);
  }

  #signal(situation: Situation): void {
    const { layers } = this;
    const { budgetBytes, kldBudget, bytes, stepLatencyMsP95, stepLatencyBudgetMs } = situation;
    const needed = bytes + sealAhead(situation, this.context) - this.offers.sides.pendingBytes;
    const low = this.lowMemoryBytes(situation);
    const pressure = Math.max(
      budgetBytes === null ? 0 : needed / Math.max(1, budgetBytes),
      low === null ? 0 : needed / Math.max(1, low),
    );
    layers.setAll('pressure', pressure);
    let demand = kldBudget !== null && budgetBytes === null ? 1 : pressure;
    if (this.price > 0 && this.movesEarly(situation) && budgetBytes !== null)
      demand = Math.max(demand, (this.#projected(situation) ?? 0) / Math.max(1, budgetBytes));
    layers.setAll('demand', demand);
    layers.setAll('latency', stepLatencyBudgetMs === null ? 0 : stepLatencyMsP95 / stepLatencyBudgetMs);
    this.tell(layers.update());
  }

  /** The quality of some layers has changed, or their trust. */
  protected tell(arrows: ReturnType<Layers['update']>): void {
    for (const { layer, event } of arrows) {
      const { threshold, measured, bound } = event;
      if (event.type.startsWith('agreement'))
        this.#changes.push({
          layer,
          state: this.layers.stateName(layer),
          threshold,
          measured,
          bound,
          source: 'agreement',
        });
      if (!event.type.startsWith('quality')) continue;
      const isError = this.#errorSeverity(layer) >= measured;
      const source = isError ? 'error' : this.#doubtOf(layer);
      this.#changes.push({ layer, state: this.layers.stateName(layer), threshold, measured, bound, source });
    }
  }

  /** Why a layer is watched whose errors are as promised. */
  #doubtOf(layer: number): LayerChange['source'] {
    if (this.#doubted.has(layer)) return 'gain';
    return this.#evidence.isDamaged(layer, this.tokens) ? 'codes' : 'topic';
  }

  /** Measured over promised error of a layer against what is too much. */
  #errorSeverity(layer: number): number {
    return this.#evidence.ratio(layer) / this.bounds.ratio;
  }

  /**
   * How bad a layer is, 1 being too much: how far its errors exceed what was promised; a layer whose gain is not
   * believed or whose codes were damaged, and every layer after a change of topic, is watched at least.
   */
  protected severity(layer: number): number {
    const { tokens } = this;
    const evidence = this.#evidence;
    const isDoubtful = this.#doubted.has(layer) || evidence.hasShifted(tokens) || evidence.isDamaged(layer, tokens);
    return Math.max(this.#errorSeverity(layer), isDoubtful ? this.bounds.watched : 0);
  }

  /** A move with this ε was made. */
  protected committed(_layer: number, _epsilon: number): void {}

  /**
   * True if moves at or under λ are made before they must be. Bytes that were paid for then stay unused for a while,
   * which costs quality, and all that is gained is that later steps have less to do. So it is done only against a
   * latency budget.
   */
  protected movesEarly({ stepLatencyBudgetMs }: Situation): boolean {
    return stepLatencyBudgetMs !== null;
  }

  /** Moves at or under λ before they must be made, as long as the budget is foreseen to bind. */
  #early(plan: Plan, price: number): void {
    const { situation } = plan;
    const { budgetBytes, bytes, tokens, tokensExpected } = situation;
    if (budgetBytes === null || !sealComes(situation, this.context)) return;
    const { sides } = this.offers;
    const projected = this.#projected(situation);
    // By how much the end will exceed the budget, and how much of that one byte freed now takes away.
    const scale =
      projected === null || tokensExpected === null
        ? 1
        : (2 *
            heldPages(
              this.context,
              forecastMovablePages(Math.max(tokens, tokensExpected), this.context.windowTokens),
            )) /
          sides.known;
    let over =
      projected === null
        ? bytes + sealAhead(situation, this.context) - sides.pendingBytes - this.bounds.relaxed * budgetBytes
        : projected - budgetBytes;
    while (over > 0 && plan.hasRoom) {
      const slot = plan.next(true);
      if (slot < 0 || this.offers.price[slot]! > price) return;
      over -= plan.take(slot, 'price') * scale;
    }
  }

  /**
   * Divergence budget: the cheapest moves until what all moves cost at the present age of their pages reaches the
   * budget, at its cautious end, with what will stay of it in later rows and as much more as divergence grows until the
   * expected length. Costs fade, so what they leave of the budget is spent on further moves.
   */
  protected spend(plan: Plan, kldBudget: number): void {
    const { tokens, tokensExpected } = plan.situation;
    const { cautious, aim } = this.bounds;
    const reserve = this.#measured.isKnown
      ? this.#measured.levelAhead((tokensExpected ?? tokens) - tokens, cautious) / aim
      : Math.exp(cautious * this.text.used.sd);
    const power = tokensExpected === null ? 0 : this.spentLate;
    // What is decided now stands until the next page is full.
    const share = power === 0 ? 1 : Math.min(1, (tokens + PAGE_TOKENS) / tokensExpected!) ** power;
    const later = (this.#growthAt(Math.max(tokens, tokensExpected ?? 0)) / this.#growthAt(tokens)) ** this.bounds.ahead;
    const allowed = (share * kldBudget) / (this.#factor * later * reserve * (1 + this.bounds.past / (1 + power)));
    this.spendUpTo(plan, allowed, this.offers.divergence.total(this.tokens));
  }

  /** Makes the cheapest moves until they cost what is allowed, beside what was spent. */
  protected spendUpTo(plan: Plan, allowed: number, spent: number): void {
    while (plan.hasRoom) {
      const slot = plan.next(true);
      if (slot < 0 || spent + plan.kld + this.offers.nextCost(slot) > allowed) return;
      this.#setPrice(this.offers.price[slot]!);
      plan.take(slot, 'price');
    }
  }

  /**
   * The budget is hard: cheapest moves until the next seal fits. λ is the price of the last. While there is time,
   * nothing is decided before every page that has left the window was tried: the newest pages often have the cheapest
   * offers.
   */
  #closeDeficit(plan: Plan): void {
    const { budgetBytes, kldBudget, tokens, bytes, urgent } = plan.situation;
    if (budgetBytes === null) return;
    const sealBytes = sealAhead(plan.situation, this.context);
    const { sides } = this.offers;
    const movable = movablePages(tokens, this.context.windowTokens);
    if (!urgent && sides.known < 2 * this.context.layers * movable) return;
    const cap = urgent || this.#pagePrice === 0 ? Number.POSITIVE_INFINITY : this.#pagePrice * this.#price.rise.value;
    const committed = this.#expectedKld;
    for (;;) {
      const deficit = bytes + sealBytes - sides.pendingBytes - plan.freed - budgetBytes;
      if (deficit <= 0 || !(urgent || plan.hasRoom)) return;
      const slot = plan.next(false);
      if (slot < 0 && urgent && plan.holdsBack && !plan.latentsGiveWay) {
        plan.latentsGiveWay = true;
        plan.restore();
        continue;
      }
      if (slot < 0 && urgent && this.qualityGivesWay && !plan.isForced) {
        plan.isForced = true;
        plan.restore();
        continue;
      }
      if (slot < 0) {
        if (urgent && plan.isEmpty) throw nothingLeft(this, plan.situation, deficit);
        return;
      }
      if (this.offers.price[slot]! > cap) return;
      const kld = committed + this.nats(plan.kld + this.offers.nextCost(slot));
      const isOver = kldBudget !== null && kld > kldBudget;
      // Both budgets bind: the one that is not ranked first gives way, that in bytes by the engine's hand.
      const { priority } = this.context;
      if (isOver && urgent && priority === undefined) throw bothBind(plan.situation, deficit, kld);
      if (isOver && (!urgent || priority === 'kld')) return;
      this.#setPrice(Math.max(this.price, this.offers.price[slot]!));
      plan.take(slot, isOver ? KLD_GIVES_WAY : this.#ruleOf(plan, slot));
    }
  }

  /** Why a move is made that keeps the budget: another bound may have given way for it. */
  #ruleOf(plan: Plan, slot: number): Rule {
    return plan.isForced ? 'quality-gives-way' : plan.isGuarded(slot) ? LATENT_GIVES_WAY : 'deficit';
  }

  /** Low memory: like a deficit against a smaller budget, but never urgent. */
  #shrink(plan: Plan): void {
    const target = this.lowMemoryBytes(plan.situation);
    const { bytes, kldBudget } = plan.situation;
    const sealBytes = sealAhead(plan.situation, this.context);
    const committed = this.#expectedKld;
    while (
      target !== null &&
      plan.hasRoom &&
      bytes + sealBytes - this.offers.sides.pendingBytes - plan.freed > target
    ) {
      const slot = plan.next(false);
      if (slot < 0 || (kldBudget !== null && committed + this.nats(plan.kld + this.offers.nextCost(slot)) > kldBudget))
        return;
      plan.take(slot, 'low-memory');
    }
  }
}

/** What all versions have in common. */
export const PRICE = { id: 'price', needsTrials: true, skipsReplaced: true } as const;

export const price: Policy = {
  ...PRICE,
  version: 5,
  triesAgain: true,
  probes: true,
  rereads: true,
  takesBack: true,
  keepsOriginals: true,
  holdsLatents: true,
  outlierKeys: OUTLIER_KEYS,
  open: (context) => new PriceSession(context),
};
