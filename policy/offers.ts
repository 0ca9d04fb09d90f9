/**
 * What every page side offers next: one step down its hull, with its price. Offers lie in two heaps, those that may be
 * taken and those of sides that rest after a move, so the cheapest is at hand without looking at the others.
 */
import {
  assert,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isAutomatic,
  LOWEST_FORMATS,
  PARTS,
  SIDES,
} from '../native/index.ts';
import { type Course, fourDigits } from './course.ts';
import { ageOf, Divergence } from './divergence.ts';
import type { Repeated } from './evidence.ts';
import { Fading } from './fading.ts';
import { SlotHeap } from './heap.ts';
import { FIRST_LATENT, FORM_COUNT, FORMS, fillEpsilon2, nextRung, rank, rungPrice, UNTRIED } from './ladder.ts';
import { Later } from './later.ts';
import type { Estimate, Law } from './law.ts';
import { Levels } from './levels.ts';
import { OutlierKeys } from './outlier-keys.ts';
import { MOVED, Persistence } from './persistence.ts';
import { BOTH, grown, isRemade, Sides, SLOTS } from './sides.ts';
import { Agreement } from './trust.ts';
import type {
  FormChange,
  LaterReport,
  Outcome,
  PageForm,
  PolicyContext,
  SharedPages,
  TrialReport,
  WantedSide,
} from './types.ts';
import { COARSE_KEY_BITS, isUselessPair } from './unsafe.ts';
import { endPrice, isLatentBetter, type PagePoints, type Point } from './ways.ts';

/** The coarsest format that keys may take whatever the values are in. */
const LOWEST_FREE_KEYS = FORMAT_NAMES.findLastIndex(
  (name) => FORMATS[name].codeBits > COARSE_KEY_BITS && isAutomatic(name),
);

/** Pages that errors are looked ahead at. */
const AHEAD_PAGES = 4;

export class Offers {
  readonly sides: Sides;
  /** Rank of the format that the next step leads to. Only meaningful for a slot that lies in a heap. */
  next = new Uint8Array(SLOTS);
  /** Price of the next step, KLD per byte. */
  price = new Float64Array(SLOTS);
  /** Tokens in the cache when the side was last measured. */
  triedAt = new Float64Array(SLOTS);
  /**
   * Predicted KLD that moved sides cost, per layer, and the worst ε committed to. Used by version 1; `divergence` is
   * what it costs at the present age.
   */
  readonly layerKld: Float64Array;
  readonly divergence: Divergence;
  readonly layerEpsilonMax: Float64Array;
  /** Whether repeated trials find what was expected of them. */
  readonly agreement: Agreement;
  readonly #context: PolicyContext;
  readonly #lowest: readonly number[];
  readonly #skip: Uint8Array;
  /** By what evidence raises the weight of each layer; 1 without any. */
  readonly #factor: Float64Array;
  /** What trials of pages have in common; null: each is believed as it is, as in the first three versions. */
  readonly #levels: Levels | null;
  /** What others know of the pages of its beginning. */
  readonly #later = new Later();
  /** Who holds pages together with this session. */
  #sharers: readonly SharedPages[] = [];
  /** Times that a slot was measured. */
  #tries = new Uint16Array(SLOTS);
  /** ε² as it is known now over that of the first trial. */
  #change = new Float64Array(SLOTS);
  /** ε by the trials of a slot, the last as much as all before it, over that of the first one. */
  #recent = new Float64Array(SLOTS);
  /**
   * Divergence per ε², [layers][PARTS]; where both sides come from a latent, the mean of theirs, since nobody has
   * measured a better one.
   */
  readonly #weights: Float64Array;
  /** By what moves that were refused have raised ε². */
  #raised = new Float64Array(SLOTS).fill(1);
  /** What #change times what errors last was when a slot was priced last. */
  #priced = new Float64Array(SLOTS);
  /** What is left of errors ahead, by age in pages; worked out anew once a page, so that all pages of one go by it. */
  #aheadByAge: number[] = [];
  readonly #fading: Fading | null;
  /** null: errors last equally long in all layers, as in versions 1 and 2. */
  readonly #persistence: Persistence | null;
  /** Layers whose keys have outlier channels. */
  readonly #outliers: OutlierKeys;
  readonly #ready: SlotHeap;
  readonly #resting: SlotHeap;
  /** ε² per slot and format, [slots, FORM_COUNT]. */
  #epsilon2 = new Float64Array(SLOTS * FORM_COUNT);
  /** Rank that the plan under construction has taken a slot to; its format otherwise. */
  #aim = new Uint8Array(SLOTS);
  #restUntil = new Float64Array(SLOTS);
  /** Resting slots in the order in which their rest ends. */
  #rests: { readonly slot: number; readonly until: number }[] = [];
  #restsDone = 0;
  #tokens = 0;
  /**
   * Pages that are held as latents, or will be when planned moves are made; how many may be; and whether that is all.
   */
  #latents = 0;
  #latentsMax = 0;
  #isFull = true;
  /** The price by which the way of a page that has a latent is chosen. */
  #endPrice = 0;

  /**
   * With a law, a repeated trial is averaged with those before it, and errors fade. Without one (version 1 of the price
   * policy) it counts only where it is worse, nothing fades, and c·g takes the place of the law. What a session
   * `learns` of its trials: versions 1 and 2 nothing; version 3 for how long errors last in each layer and side; the
   * present one also how far a single trial can be believed.
   */
  constructor(context: PolicyContext, law: Law | null, learns: 'nothing' | 'persistence' | 'levels') {
    this.#context = context;
    const course = learns === 'levels' ? context.thresholds.course : undefined;
    this.#fading = law === null ? null : new Fading(law, course);
    this.#persistence =
      learns === 'nothing'
        ? null
        : new Persistence(2 * context.layers, learns === 'levels' ? 'sums' : 'logarithms', course);
    this.#levels = learns === 'levels' ? new Levels(PARTS.length * context.layers, course?.noise) : null;
    this.agreement = new Agreement(context.layers);
    this.divergence = new Divergence(context.layers, this.#fading);
    const { c, gains } = context.thresholds;
    const weights = SIDES.map((side) =>
      gains[side].map((gain, layer) => (law === null ? c * gain : law.coefficient[side][layer]!.value * gain)),
    );
    this.#weights = Float64Array.from({ length: PARTS.length * context.layers }, (_, at) => {
      const [part, layer] = [at % PARTS.length, Math.floor(at / PARTS.length)];
      return weights[part]?.[layer] ?? (weights[0]![layer]! + weights[1]![layer]!) / 2;
    });
    this.#outliers = new OutlierKeys(context);
    this.sides = new Sides(context);
    this.#lowest = SIDES.map((side) =>
      Math.min(rank(context.floor?.[side] ?? LOWEST_FORMATS[side]), rank(LOWEST_FORMATS[side])),
    ).concat(FORM_COUNT - 1);
    this.#skip = new Uint8Array(context.layers);
    for (const layer of context.skipLayers) this.#skip[layer] = 1;
    this.#factor = new Float64Array(context.layers).fill(1);
    this.layerKld = new Float64Array(context.layers);
    this.layerEpsilonMax = new Float64Array(context.layers);
    // Ties end in (layer, page, side), so that the same offers always come in the same order.
    const before = (a: number, b: number): boolean => (this.price[a]! - this.price[b]! || this.sides.order(a, b)) < 0;
    this.#ready = new SlotHeap(before);
    this.#resting = new SlotHeap(before);
  }

  /** A page side became movable. Throws what Sides.add throws. */
  add(report: TrialReport, tokens: number): void {
    const slot = this.sides.add(report, tokens);
    if (slot >= this.next.length) this.#grow();
    fillEpsilon2(this.#epsilon2, slot * FORM_COUNT, this.#outliers.admit(report));
    this.triedAt[slot] = tokens;
    this.#tries[slot] = 1;
    this.#change[slot] = 1;
    this.#recent[slot] = 1;
    this.#raised[slot] = 1;
    this.#aim[slot] = 0;
    this.#meet(slot);
    this.#setAim(slot, this.sides.format[slot]!);
    this.#repricePage(slot);
  }

  /** A page side is compared with the others of its layer and side, by its error in the lowest form it was tried in. */
  #meet(slot: number): void {
    const at = slot * FORM_COUNT;
    const lowest = this.#epsilon2.subarray(at, at + FORM_COUNT).findLastIndex((epsilon2) => epsilon2 > 0);
    if (this.#levels === null || lowest < 0) return;
    const place = PARTS.length * this.sides.layer[slot]! + this.sides.side[slot]!;
    this.#levels.first(slot, place, 0.5 * Math.log(this.#epsilon2[at + lowest]!));
    this.#shrink(this.#levels, slot);
  }

  /** Brings the errors of a side to what is expected of its page. */
  #shrink(levels: Levels, slot: number): void {
    this.#scale(slot, this.#expected(levels, slot) / this.#change[slot]!);
  }

  /** What is expected of ε² of a side over its first trial. */
  #expected(levels: Levels, slot: number): number {
    return this.#raised[slot]! * Math.exp(2 * levels.shift(slot));
  }

  /** The errors of all forms of a side change in the same proportion. */
  #scale(slot: number, ratio: number): void {
    const at = slot * FORM_COUNT;
    for (let form = 0; form < FORM_COUNT; form++)
      if (this.#epsilon2[at + form]! > 0) this.#epsilon2[at + form]! *= ratio;
    this.#change[slot]! *= ratio;
  }

  /** Earlier sessions know these pages: what they say changes the order in which they move. */
  know(reports: readonly LaterReport[]): void {
    for (const report of reports) this.#later.know(report);
    const pages = new Set(reports.map(({ page }) => page));
    for (const slot of this.sides.slots) if (pages.has(this.sides.page[slot]!)) this.#repricePage(slot);
  }

  /** Errors in a page cost everybody who holds it, and its bytes are there once: its price is that of all together. */
  share(sharers: readonly SharedPages[]): void {
    const before = this.#sharers;
    this.#sharers = sharers;
    const pages = Math.max(0, ...[...before, ...sharers].map((one) => one.pages));
    for (const slot of this.sides.slots) if (this.sides.page[slot]! < pages) this.reprice(slot);
  }

  /** How many sessions hold a page, this one among them. */
  #holders(page: number): number {
    return this.#sharers.reduce((sum, { pages, sessions }) => sum + (page < pages ? sessions : 0), 1);
  }

  /**
   * A page side was tried again. How the first trial's error compares with this one tells how errors fade. Where the
   * side still has its first format, the error of each format becomes what is expected of it by all trials (in earlier
   * versions their mean); one that was not tried this time is taken to have changed in proportion to one that was.
   * Reports of sides that are not known, or have moved since, are passed over.
   */
  again({ layer, page, side, from, epsilon }: TrialReport, tokens: number): void {
    const slot = this.sides.find(layer, page, PARTS.indexOf(side));
    if (slot < 0 || this.sides.pending[slot] === 1 || this.sides.format[slot] !== rank(from)) return;
    const at = slot * FORM_COUNT;
    const now = rank(from);
    const to = FORMS.findIndex((name, format) => epsilon[name] !== undefined && this.#epsilon2[at + format]! > 0);
    if (to < 0) return;
    const measured = epsilon[FORMS[to]!]!;
    const promised = this.#added(slot, now, to) / this.#change[slot]!;
    this.#learn(slot, tokens, promised, this.weight(slot) * measured * measured);
    if (from !== this.#context.windowFormat) return;
    const known = Math.sqrt(this.#epsilon2[at + to]!);
    if (this.#levels !== null) {
      this.#follow(slot, known, measured);
      this.#shrink(this.#levels, slot);
    } else {
      const ratio = this.#meanRatio(slot, known, measured);
      this.#scale(slot, ratio * ratio);
    }
    this.#tries[slot]! += 1;
    this.triedAt[slot] = tokens;
    this.#setAim(slot, this.sides.format[slot]!);
    this.#repricePage(slot);
  }

  /**
   * What was found of a step beside what its first trial promised, both in nats, teaches how errors fade and last.
   * Moves that are tried again before they are made were chosen, so they are no sample of their layer.
   */
  #learn(slot: number, tokens: number, promised: number, found: number, isChosen = false): void {
    const [fading, persistence, levels] = [this.#fading, this.#persistence, this.#levels];
    const age = ageOf(this.sides.page[slot]!, tokens);
    const isOne = persistence !== null && this.sides.side[slot] !== BOTH;
    // What is not found again of a first trial says nothing of its layer.
    const expected = levels === null ? promised : promised * Math.exp(-2 * levels.excess(slot));
    if (fading !== null && age > 1 && isOne && !isChosen)
      persistence.learn(this.#place(slot), expected * fading.energyAt(age), found);
    fading?.learn(age, expected, found);
    if (levels === null || fading === null) return;
    const lasting = isOne ? persistence.factor(this.#place(slot)) : 1;
    const foreseen = promised * fading.energyAt(age) * lasting;
    levels.again(slot, 0.5 * Math.log(found / foreseen));
    if (!isChosen) this.agreement.note(this.sides.layer[slot]!, foreseen, found);
  }

  /** What the session has found of errors behind their first trials; null: nothing yet. */
  course(): Course | null {
    const [persistence, noise] = [this.#persistence, this.#levels?.noise];
    if (persistence === null || noise == null) return null;
    const told = ({ value, samples }: Estimate): Estimate => ({
      value: fourDigits(value),
      sd: fourDigits(2 * Math.sqrt(noise.chance / Math.max(1, samples))),
      samples,
    });
    const ofSide = (side: number): Estimate[] =>
      Array.from({ length: this.#context.layers }, (_, layer) => told(persistence.found(2 * layer + side)));
    return {
      persistence: { k: ofSide(0), v: ofSide(1) },
      left: (this.#fading?.found ?? []).map(told),
      noise: { found: fourDigits(noise.found), page: fourDigits(noise.page), chance: fourDigits(noise.chance) },
    };
  }

  /** By what factor the mean of a slot's trials changes with another one. */
  #meanRatio(slot: number, mean: number, measured: number): number {
    const tries = this.#tries[slot]!;
    return (tries * mean + measured) / ((tries + 1) * mean);
  }

  /** Takes in one more trial of a slot; `expected` is what is expected of the ε that was measured. */
  #follow(slot: number, expected: number, measured: number): void {
    const recent = expected * this.#overExpected(slot);
    this.#recent[slot]! *= (recent + measured) / (2 * recent);
  }

  /** ε by the trials of a slot, the last as much as all before it, over what is expected of it. */
  #overExpected(slot: number): number {
    return this.#levels === null ? 1 : this.#recent[slot]! / Math.sqrt(this.#change[slot]!);
  }

  /**
   * Takes in what became of a planned move. When it was made, its cost is committed and the side rests until
   * `restUntil` tokens. When it cost more than its trial said, all lower formats of that side grow dearer in
   * proportion. → ε committed to, 0 when refused
   */
  settle(outcome: Outcome, tokens: number, restUntil: number): number {
    const slot = this.sides.settle(outcome);
    assert(isRemade(outcome), `layer ${outcome.layer} page ${outcome.page} was let go, and no offer says so`);
    const from = rank(outcome.from);
    const to = rank(outcome.to);
    const { epsilonNow } = outcome;
    if (epsilonNow !== null) this.#correct(slot, from, to, epsilonNow * epsilonNow, !outcome.accepted);
    let committed = 0;
    if (!outcome.accepted) {
      if (epsilonNow !== null) this.triedAt[slot] = tokens;
    } else {
      committed = this.epsilon(slot, to) ?? 0;
      const layer = outcome.layer;
      const isFiner = to < from;
      this.#commit(slot, isFiner ? -this.#added(slot, to, from) : this.#added(slot, from, to));
      this.layerEpsilonMax[layer] = Math.max(this.layerEpsilonMax[layer]!, committed);
      // A side that was put back rests until it must move.
      this.#restUntil[slot] = isFiner ? Number.POSITIVE_INFINITY : restUntil;
      if (!isFiner) this.#rests.push({ slot, until: restUntil });
      this.#dropLatent(slot);
      // The other side of the page may have been waiting for this one.
      const partner = this.sides.partner(slot);
      if (partner >= 0) this.reprice(partner);
    }
    this.#setAim(slot, this.sides.format[slot]!);
    this.#repricePage(slot);
    return committed;
  }

  /** A side was moved by itself, so the latent of its page is gone. */
  #dropLatent(slot: number): void {
    const latent = this.sides.latent(slot);
    if (latent < 0 || latent === slot) return;
    this.hide(latent);
    this.#setAim(latent, 0);
    this.sides.drop(latent);
  }

  /**
   * Tokens may have been taken back: pages that are unknown again offer nothing and cost nothing. What is believed of
   * their errors may have changed since they were counted; `leavesRests`: then a rest stays, as in the first four
   * versions.
   */
  forget(tokens: number, leavesRests: boolean): void {
    const slots = this.sides.forget(tokens);
    this.#withdraw(slots);
    if (leavesRests) return;
    for (const slot of slots)
      if (this.sides.side[slot] !== BOTH)
        for (const place of this.#places(slot)) this.divergence.drop(place, this.sides.page[slot]!);
  }

  /** Sides that are not known any more offer nothing and cost nothing. */
  #withdraw(slots: readonly number[]): void {
    for (const slot of slots) {
      this.hide(slot);
      this.#setAim(slot, 0);
      this.#commit(slot, -this.#added(slot, rank(this.#context.windowFormat), this.sides.format[slot]!));
    }
  }

  /**
   * Takes in that a side changed its format without a plan. Its cost becomes that of the new format; a side that became
   * finer rests until it must move. Of a page that is freed nobody sees what its moves have cost.
   */
  change(change: FormChange): void {
    if (!isRemade(change)) {
      this.#withdraw(this.sides.free(change));
      return;
    }
    const slot = this.sides.change(change);
    if (slot < 0) return;
    const [from, to] = [rank(change.from), rank(change.to)];
    // Keys and values that were made of a latent took its place; a side that moved by itself has none any more.
    const isMadeAgain = this.sides.side[slot] === BOTH && to < FIRST_LATENT;
    const isFiner = to < from;
    // Nobody tried a page with a latent in formats: what its latent costs is over.
    const finer = isMadeAgain ? rank(this.#context.windowFormat) : to;
    this.#commit(slot, isFiner ? -this.#added(slot, finer, from) : this.#added(slot, from, to));
    this.#setAim(slot, to);
    const sides = isMadeAgain ? this.#sidesOf(slot) : [slot];
    if (isMadeAgain) {
      this.hide(slot);
      this.sides.drop(slot);
    } else this.#dropLatent(slot);
    for (const one of sides) {
      if (isMadeAgain) {
        this.sides.change({ ...change, side: PARTS[this.sides.side[one]!]! });
        this.#commit(one, this.#added(one, finer, to));
      }
      this.#restUntil[one] = isFiner ? Number.POSITIVE_INFINITY : 0;
      this.#setAim(one, to);
      this.#repricePage(one);
      const partner = this.sides.partner(one);
      if (partner >= 0) this.reprice(partner);
    }
  }

  /**
   * Ends the rest of sides whose time has come; called first at every scheduling point. All rests are equally long, so
   * they end in the order in which they began.
   */
  wake(tokens: number): void {
    this.#tokens = tokens;
    for (; this.#restsDone < this.#rests.length; this.#restsDone++) {
      const { slot, until } = this.#rests[this.#restsDone]!;
      if (until > tokens) break;
      // A side that was moved again in the meantime rests longer and stands in the queue a second time.
      if (this.#restUntil[slot] !== until || !this.#resting.has(slot)) continue;
      this.#resting.remove(slot);
      this.#ready.add(slot);
    }
    if (this.#restsDone > 1024 && this.#restsDone * 2 > this.#rests.length) {
      this.#rests = this.#rests.slice(this.#restsDone);
      this.#restsDone = 0;
    }
  }

  /** Sides that offer a move, resting ones among them. */
  get count(): number {
    return this.#ready.size + this.#resting.size;
  }

  /** Slot of the cheapest offer, −1 when there is none; resting sides only when asked for. */
  cheapest(withResting: boolean): number {
    const ready = this.#ready.first;
    const resting = withResting ? this.#resting.first : -1;
    if (ready < 0 || resting < 0) return Math.max(ready, resting);
    return (this.price[ready]! - this.price[resting]! || this.sides.order(ready, resting)) < 0 ? ready : resting;
  }

  /** Takes the next step of a slot into the plan and offers the one after it. → bytes it frees */
  take(slot: number): number {
    const [from, to] = [this.#aim[slot]!, this.next[slot]!];
    const bytes = this.sides.formBytes[this.sides.side[slot]!]!;
    const freed = bytes[from]! - bytes[to]! + this.#bytesBeside(slot);
    this.#setAim(slot, to);
    this.#repricePage(slot);
    if (this.sides.side[slot] === BOTH) this.setLatents(this.#latentsMax, this.#endPrice);
    return freed;
  }

  /** Bytes of the latent that goes with the next step of a side: none where it has gone with the other side. */
  #bytesBeside(slot: number): number {
    const latent = this.sides.latent(slot);
    return latent < 0 || latent === slot || !this.#isWhole(latent) ? 0 : this.sides.bytesOf(latent);
  }

  /** Neither side of the page of a latent has moved by itself, or will by the plan under construction. */
  #isWhole(latent: number): boolean {
    const window = rank(this.#context.windowFormat);
    const sides = this.#sidesOf(latent);
    return (
      sides.length === 2 && sides.every((slot) => this.sides.format[slot] === window && this.#aim[slot] === window)
    );
  }

  /** True if the page of a latent is to become it. Once it has gone either way that stands. */
  #goesToLatent(latent: number): boolean {
    if (this.#aim[latent]! >= FIRST_LATENT) return true;
    return this.#isWhole(latent) && !this.#isFull && isLatentBetter(this.#points(latent), this.#endPrice);
  }

  /** All that the page of a latent may end as. */
  #points(latent: number): PagePoints {
    const points = (slot: number, first: number, last: number, more: number): Point[] => {
      const found: Point[] = [];
      const lasting = this.#lasting(slot);
      const bytes = this.sides.formBytes[this.sides.side[slot]!]!;
      for (let form = first; form <= last; form++) {
        const epsilon2 = this.#epsilon2[slot * FORM_COUNT + form]!;
        if (epsilon2 >= 0 && Number.isFinite(bytes[form]))
          found.push({ cost: lasting * this.weight(slot) * epsilon2, bytes: bytes[form]! + more });
      }
      return found;
    };
    const window = rank(this.#context.windowFormat);
    const windowBytes = 2 * this.#context.pageBytes[this.#context.windowFormat];
    return {
      sides: this.#sidesOf(latent).map((slot) => points(slot, window, this.#lowest[this.sides.side[slot]!]!, 0)),
      latents: points(latent, FIRST_LATENT, FORM_COUNT - 1, windowBytes),
    };
  }

  /** Slots of the keys and the values of a slot's page, as far as they are known. */
  #sidesOf(slot: number): number[] {
    const { layer, page } = this.sides;
    return [0, 1].map((side) => this.sides.find(layer[slot]!, page[slot]!, side)).filter((found) => found >= 0);
  }

  /**
   * The price that ends at so many bytes a page, by the pages that were reported last; null where none of them has a
   * latent.
   */
  endPrice(pageBytes: number, page: number): number | null {
    const pages: PagePoints[] = [];
    for (let layer = 0; layer < this.#context.layers; layer++) {
      const latent = this.sides.find(layer, page, BOTH);
      if (latent >= 0 && this.#skip[layer] === 0) pages.push(this.#points(latent));
    }
    return pages.length === 0 ? null : endPrice(pages, pageBytes);
  }

  /** Says how many pages may be held as latents, and at which price per byte it is chosen what becomes one. */
  setLatents(most: number, price: number): void {
    this.#latentsMax = most;
    const isFull = this.#latents >= most;
    if (isFull === this.#isFull && (isFull || price === this.#endPrice)) return;
    this.#isFull = isFull;
    this.#endPrice = price;
    for (const slot of this.sides.slots) if (this.sides.side[slot] === BOTH) this.#repricePage(slot);
  }

  #setAim(slot: number, aim: number): void {
    const before = this.#aim[slot]!;
    this.#aim[slot] = aim;
    if (this.sides.side[slot] === BOTH) this.#latents += Number(aim >= FIRST_LATENT) - Number(before >= FIRST_LATENT);
  }

  /** Predicted KLD of the next step, at the present age of its page. */
  nextCost(slot: number): number {
    const cost = Math.sqrt(this.#persisting(slot)) * this.#added(slot, this.#aim[slot]!, this.next[slot]!);
    if (this.#fading === null) return cost;
    return this.#atFirst(slot, cost) * this.#fading.energyAt(ageOf(this.sides.page[slot]!, this.#tokens));
  }

  /** A cost as its first trial promised it, less what is not expected to be found again. */
  #atFirst(slot: number, cost: number): number {
    const first = cost / this.#change[slot]!;
    return this.#levels === null ? first : first * Math.exp(-2 * this.#levels.excess(slot));
  }

  /** Books what a move costs, negative where one was taken back. */
  #commit(slot: number, cost: number): void {
    const layer = this.sides.layer[slot]!;
    this.layerKld[layer] = Math.max(0, this.layerKld[layer]! + cost);
    const places = this.#persistence === null ? [2 * layer] : this.#places(slot);
    const part = this.#atFirst(slot, cost) / places.length;
    for (const place of places) this.divergence.add(place, this.sides.page[slot]!, part);
  }

  /** Rank that the plan takes a slot to. */
  aim(slot: number): number {
    return this.#aim[slot]!;
  }

  /**
   * Sides of layers that would cost less in a finer format, and pages that would with keys and values in it in place of
   * their latent, by more than `price` for each byte that they would take more; the one that costs most for a byte
   * first.
   */
  dearest(isAsked: (layer: number) => boolean, to: FormatName, price: number): readonly WantedSide[] {
    const { sides } = this;
    const found: { readonly slot: number; readonly worth: number }[] = [];
    const finest = rank(to);
    for (const slot of sides.slots) {
      if (!isAsked(sides.layer[slot]!) || sides.pending[slot] === 1) continue;
      const worth = sides.side[slot] === BOTH ? this.#worthOfPage(slot, finest) : this.#worthOfSide(slot, finest);
      if (worth > price) found.push({ slot, worth });
    }
    found.sort((a, b) => b.worth - a.worth || sides.order(a.slot, b.slot));
    return found.map(({ slot }) => ({
      layer: sides.layer[slot]!,
      page: sides.page[slot]!,
      side: PARTS[sides.side[slot]!]!,
      from: FORMS[sides.format[slot]!]!,
      to,
    }));
  }

  /** What a side would cost less in a finer format, for each byte that it would take more; 0: it cannot come there. */
  #worthOfSide(slot: number, finest: number): number {
    const { sides } = this;
    const now = sides.format[slot]!;
    if (now <= finest || this.epsilon(slot, finest) === null) return 0;
    const bytes = sides.formBytes[sides.side[slot]!]!;
    const more = bytes[finest]! - bytes[now]!;
    const partner = sides.partner(slot);
    const other = FORMAT_NAMES[partner < 0 ? finest : sides.format[partner]!]!;
    // Fine values beside coarse keys are no use: the keys come first.
    if (more <= 0 || (sides.side[slot] === 1 && isUselessPair(other, FORMAT_NAMES[finest]!))) return 0;
    return this.cost(slot, finest, now) / more;
  }

  /** The same of a page that is held as a latent, with keys and values in its place. */
  #worthOfPage(latent: number, finest: number): number {
    const now = this.sides.format[latent]!;
    if (now < FIRST_LATENT) return 0;
    const window = rank(this.#context.windowFormat);
    const both = this.#sidesOf(latent);
    if (both.length < SIDES.length || both.some((slot) => this.epsilon(slot, finest) === null)) return 0;
    // Its sides count as if they were in the window format.
    const taken = [latent, ...both].reduce((sum, slot) => sum + this.sides.bytesOf(slot), 0);
    const more = both.reduce((sum, slot) => sum + this.sides.formBytes[this.sides.side[slot]!]![finest]!, -taken);
    const cost = both.reduce((sum, slot) => sum - this.cost(slot, window, finest), this.cost(latent, window, now));
    return more <= 0 ? 0 : cost / more;
  }

  /** A slot is to become finer by this plan: the keys of its page go no lower than that allows. */
  raise(slot: number, form: PageForm): void {
    this.#setAim(slot, rank(form));
    const partner = this.sides.partner(slot);
    if (partner >= 0) this.reprice(partner);
  }

  /** Keeps a slot out of the heaps until `reprice`. */
  hide(slot: number): void {
    this.#ready.remove(slot);
    this.#resting.remove(slot);
  }

  /** Works out the next step of a slot, and those of the other slots of its page where that has a latent. */
  #repricePage(slot: number): void {
    const latent = this.sides.latent(slot);
    if (latent < 0) this.reprice(slot);
    else for (const one of [...this.#sidesOf(slot), latent]) this.reprice(one);
  }

  /** Works out the next step of a slot and puts it where it belongs. */
  reprice(slot: number): void {
    this.hide(slot);
    const { sides } = this;
    const lasting = this.#lasting(slot);
    this.#priced[slot] = this.#change[slot]! * lasting;
    if (sides.pending[slot] === 1 || this.#skip[sides.layer[slot]!] === 1) return;
    const latent = sides.latent(slot);
    if (latent >= 0 && this.#goesToLatent(latent) !== (latent === slot)) return;
    const [at, from] = [slot * FORM_COUNT, this.#aim[slot]!];
    const bytes = sides.formBytes[sides.side[slot]!]!;
    const beside = this.#bytesBeside(slot);
    const to = nextRung(this.#epsilon2, at, bytes, from, this.#lowestOf(slot), beside);
    if (to < 0) return;
    this.next[slot] = to;
    const price = lasting * this.weight(slot) * rungPrice(this.#epsilon2, at, bytes, from, to, beside);
    this.price[slot] = price * this.#holders(sides.page[slot]!);
    (this.#restUntil[slot]! > this.#tokens ? this.#resting : this.#ready).add(slot);
  }

  /**
   * Sets by how much evidence raises the weight of a layer, and prices its sides anew. What was committed before stays
   * as it was predicted.
   */
  correct(layer: number, factor: number): void {
    const before = this.#factor[layer]!;
    if (before === factor) return;
    this.#factor[layer] = factor;
    for (let part = 0; part < PARTS.length; part++) this.#weights[PARTS.length * layer + part]! *= factor / before;
    for (const slot of this.sides.slots) if (this.sides.layer[slot] === layer) this.reprice(slot);
  }

  /**
   * What was measured again of a reported side, and what is known of it: the error that the same step down was tried to
   * add.
   */
  known({ layer, page, side, from, epsilon }: TrialReport): Repeated {
    const slot = this.sides.find(layer, page, PARTS.indexOf(side));
    const to = FORMS.findIndex((name) => epsilon[name] !== undefined);
    if (slot < 0 || to < 0 || this.sides.format[slot] !== rank(from)) return { measured: 0, promised: 0, tries: 0 };
    const at = slot * FORM_COUNT;
    const squared = this.#epsilon2[at + to]! - Math.max(0, this.#epsilon2[at + rank(from)]!);
    const measured = epsilon[FORMS[to]!]!;
    const promised = this.#overExpected(slot) * Math.sqrt(Math.max(0, squared));
    return { measured, promised, tries: this.#tries[slot]! };
  }

  /** Divergence per ε² of a slot's layer and side, for the queries that ε was measured with. */
  weight(slot: number): number {
    return this.#weights[PARTS.length * this.sides.layer[slot]! + this.sides.side[slot]!]!;
  }

  /** What earlier trials say changes prices from now on; called once a page, between two plans. */
  learn(): void {
    const moved = this.#persistence?.settle() ?? null;
    if (moved !== null) this.divergence.weigh(this.#persistence!.expected);
    const levels = this.#levels;
    levels?.settle();
    this.agreement.fade();
    this.#aheadByAge = [];
    for (const slot of this.sides.slots)
      if (levels !== null) this.#expect(levels, slot);
      else if (moved !== null && this.#places(slot).some((place) => moved[place] === 1)) this.#repricePage(slot);
  }

  /** Works out anew what is expected of a side, and its price if that has moved. */
  #expect(levels: Levels, slot: number): void {
    const level = this.#expected(levels, slot) * this.#lasting(slot);
    const moved = level / this.#priced[slot]!;
    if (Math.abs(moved - 1) < MOVED) return;
    this.#shrink(levels, slot);
    // All forms of the side move alike, so its next step stays the same, unless it depends on the way of its page.
    const heap = this.#ready.has(slot) ? this.#ready : this.#resting;
    if (this.sides.latent(slot) >= 0 || !heap.has(slot)) {
      this.#repricePage(slot);
      return;
    }
    heap.remove(slot);
    this.#priced[slot] = level;
    this.price[slot]! *= moved;
    heap.add(slot);
  }

  /** The place of keys or of values of a layer, where it is learned how long errors last. */
  #place(slot: number): number {
    return 2 * this.sides.layer[slot]! + this.sides.side[slot]!;
  }

  /** The same of a latent, which stands for both. */
  #places(slot: number): readonly number[] {
    const keys = 2 * this.sides.layer[slot]!;
    return this.sides.side[slot] === BOTH ? [keys, keys + 1] : [this.#place(slot)];
  }

  /** What ε² is multiplied with to stand for later queries, beside other layers and pages of other ages. */
  #lasting(slot: number): number {
    const lasting = this.#persisting(slot);
    return this.#levels === null ? lasting : this.#asOthersSay(slot, lasting * this.#ahead(slot));
  }

  /** The same with what others know of the page. */
  #asOthersSay(slot: number, lasting: number): number {
    const [layer, page, side] = [this.sides.layer[slot]!, this.sides.page[slot]!, this.sides.side[slot]!];
    if (this.#later.isEmpty || side === BOTH) return lasting;
    const at = slot * FORM_COUNT;
    const known = this.#epsilon2.subarray(at, at + FORM_COUNT);
    const lowest = known[known.findLastIndex((epsilon2) => epsilon2 > 0)] ?? 0;
    return lowest === 0 ? lasting : this.#later.expected(layer, page, side, lasting * lowest) / lowest;
  }

  /** What stays of the errors of its layer and side beside others. */
  #persisting(slot: number): number {
    const persistence = this.#persistence;
    if (persistence === null) return 1;
    if (this.sides.side[slot] !== BOTH) return persistence.factor(this.#place(slot));
    const keys = 2 * this.sides.layer[slot]!;
    return (persistence.factor(keys) + persistence.factor(keys + 1)) / 2;
  }

  /**
   * What is left of the errors of a page over the next pages, which is what a move made now costs, beside what is left
   * of those of a page that has just left the window. SmolLM2-135M has 0.26 of the divergence of `uniform` without it
   * and 0.22 with it, the reference model 0.54 and 0.66 (25% of f16; two and eight texts).
   */
  #ahead(slot: number): number {
    const age = ageOf(this.sides.page[slot]!, this.#tokens);
    const known = this.#aheadByAge;
    for (let next = known.length; next <= age; next++) known.push(this.#energyAhead(next) / this.#energyAhead(1));
    return known[age]!;
  }

  #energyAhead(age: number): number {
    let sum = 0;
    for (let pages = 0; pages < AHEAD_PAGES; pages++) sum += this.#fading!.energyAt(age + pages);
    return sum / AHEAD_PAGES;
  }

  /** What an error that was measured now stands for in prices: 1 for a page that has just left the window. */
  outlook(slot: number): number {
    if (this.#levels === null || this.#fading === null) return 1;
    return this.#ahead(slot) / this.#fading.energyAt(ageOf(this.sides.page[slot]!, this.#tokens));
  }

  /** What moves are ranked by: c·g·(ε_to² − ε_from²) for later queries, never below 0. */
  cost(slot: number, from: number, to: number): number {
    return this.#lasting(slot) * this.#added(slot, from, to);
  }

  /** c·g·(ε_to² − ε_from²) as if errors lasted equally long everywhere. */
  #added(slot: number, from: number, to: number): number {
    const at = slot * FORM_COUNT;
    return this.weight(slot) * Math.max(0, this.#epsilon2[at + to]! - this.#epsilon2[at + from]!);
  }

  /**
   * ε of a slot in a format by its trials, null when it was not tried: the last counts as much as all before it, in
   * earlier versions all alike. Later errors are compared with it; prices go by what is expected.
   */
  epsilon(slot: number, format: number): number | null {
    const value = this.#epsilon2[slot * FORM_COUNT + format]!;
    return value < 0 ? null : this.#overExpected(slot) * Math.sqrt(value);
  }

  /** Keys may go to 2 bits only where the values are confirmed below 4 (unsafe.ts). */
  #lowestOf(slot: number): number {
    const { sides } = this;
    const lowest = this.#lowest[sides.side[slot]!]!;
    if (sides.side[slot] !== 0 || lowest <= LOWEST_FREE_KEYS) return lowest;
    const partner = sides.partner(slot);
    if (partner < 0) return LOWEST_FREE_KEYS;
    // What is still to go lower does not count; what is to become finer does.
    const values = Math.min(sides.format[partner]!, this.#aim[partner]!);
    return isUselessPair(FORMAT_NAMES[lowest]!, FORMAT_NAMES[values]!) ? LOWEST_FREE_KEYS : lowest;
  }

  #correct(slot: number, from: number, to: number, measured: number, refused: boolean): void {
    const at = slot * FORM_COUNT;
    const base = Math.max(0, this.#epsilon2[at + from]!);
    const predicted = this.#epsilon2[at + to]! - base;
    if (this.#fading !== null && predicted > 0) {
      const weight = this.weight(slot);
      this.#learn(slot, this.#tokens, (weight * predicted) / this.#change[slot]!, weight * measured, true);
      const ratio = this.#meanRatio(slot, Math.sqrt(predicted), Math.sqrt(measured));
      this.#tries[slot]! += 1;
      if (this.#levels !== null) {
        this.#follow(slot, Math.sqrt(predicted), Math.sqrt(measured));
        if (refused) this.#raised[slot]! *= ratio * ratio;
        this.#shrink(this.#levels, slot);
        return;
      }
      measured = predicted * ratio * ratio;
      this.#change[slot]! *= ratio * ratio;
    } else if (predicted > 0 ? measured <= predicted && !refused : measured <= 0) return;
    for (let format = from + 1; format < FORM_COUNT; format++) {
      const known = this.#epsilon2[at + format]!;
      if (known === UNTRIED) continue;
      this.#epsilon2[at + format] =
        predicted > 0 ? base + Math.max(0, known - base) * (measured / predicted) : Math.max(known, base + measured);
    }
  }

  #grow(): void {
    const size = this.next.length * 2;
    this.next = grown(this.next, new Uint8Array(size));
    this.price = grown(this.price, new Float64Array(size));
    this.triedAt = grown(this.triedAt, new Float64Array(size));
    this.#tries = grown(this.#tries, new Uint16Array(size));
    this.#change = grown(this.#change, new Float64Array(size));
    this.#recent = grown(this.#recent, new Float64Array(size));
    this.#priced = grown(this.#priced, new Float64Array(size));
    this.#raised = grown(this.#raised, new Float64Array(size).fill(1));
    this.#epsilon2 = grown(this.#epsilon2, new Float64Array(size * FORM_COUNT));
    this.#aim = grown(this.#aim, new Uint8Array(size));
    this.#restUntil = grown(this.#restUntil, new Float64Array(size));
  }
}
