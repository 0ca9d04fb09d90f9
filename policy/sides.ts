/**
 * The page sides a policy knows: one slot each, from the report that made them movable on. Slots are given in the order
 * of the reports, so memory grows with what was reported and not with what a page number claims.
 *
 * A page that has a latent is a third slot as long as it has one. While the page is held as the latent, its sides count
 * as if they were in the window format still, and the third slot counts what the page takes less than that.
 */
import {
  assert,
  firstToken,
  forecastMovablePages,
  freedPages,
  KvError,
  movablePages,
  PAGE_TOKENS,
  PARTS,
  sealedPages,
} from '../native/index.ts';
import { FIRST_LATENT, FORMS, isLatent, rank } from './ladder.ts';
import type { Decision, FormChange, LaterForm, Outcome, PageForm, PolicyContext, TrialReport } from './types.ts';

/**
 * Initial room, enough for 256 tokens of 30 layers; it doubles as pages come. Room that is not used costs memory all
 * the same, since an allocator gives what others have written on, and a server has many short sessions.
 */
export const SLOTS = 256;

const NONE: readonly number[] = [];

/** A change after which the page is still there. */
export type Remade<Change extends { readonly to: LaterForm } = FormChange> = Change & { readonly to: PageForm };

/** True if a page is still there after a change. */
export const isRemade = <Change extends { readonly to: LaterForm }>(change: Change): change is Remade<Change> =>
  change.to !== 'freed';

/** Index in PARTS of the slots of latents. */
export const BOTH = PARTS.indexOf('kv');

export class Sides {
  /** Slots given so far; those of pages that were taken back are not given again. */
  count = 0;
  layer = new Int32Array(SLOTS);
  page = new Int32Array(SLOTS);
  /** Index in PARTS: 0 keys, 1 values, 2 both, of a page that has a latent. */
  side = new Uint8Array(SLOTS);
  /** Rank of the form it has now (or had, while a move is pending). */
  format = new Uint8Array(SLOTS);
  /** 1 while a planned move has no outcome yet. */
  pending = new Uint8Array(SLOTS);
  /** Bytes of all known page sides as they are, and what pending moves will free. */
  bytes = 0;
  pendingBytes = 0;
  /** Bytes by slot, of planned moves. */
  #planned = new Float64Array(SLOTS);
  /** Highest page known, −1 at first. */
  pageMax = -1;
  /**
   * What a slot of each kind counts in each form, [PARTS][FORMS]. A log of an earlier version does not name every
   * format of today: no page has one that is not named.
   */
  readonly formBytes: readonly (readonly number[])[];
  readonly #context: PolicyContext;
  readonly #slots = new Map<number, number>();
  #latents = 0;

  constructor(context: PolicyContext) {
    this.#context = context;
    const { pageBytes, windowFormat, latents } = context;
    const side = FORMS.map((form) => (isLatent(form) ? undefined : pageBytes[form]) ?? Number.POSITIVE_INFINITY);
    const both = FORMS.map((form) =>
      isLatent(form)
        ? (pageBytes[form] ?? Number.POSITIVE_INFINITY) - 2 * pageBytes[windowFormat]
        : Number.POSITIVE_INFINITY,
    );
    if (latents !== undefined) both[rank(windowFormat)] = latentBytesBeside(context);
    this.formBytes = [side, side, both];
  }

  /**
   * Takes a report in. → its slot. Throws 'bad-value' for a page that cannot be movable at this length, or that is
   * known already.
   */
  add(report: TrialReport, tokens: number): number {
    const { layer, page, side, from, epsilon } = report;
    const sideIndex = PARTS.indexOf(side);
    const format = rank(from);
    const bad =
      !isIndex(layer, this.#context.layers) ||
      !isIndex(page, movablePages(tokens, this.#context.windowTokens)) ||
      !this.#fits(sideIndex, format) ||
      FORMS.some((name) => epsilon[name] !== undefined && !(epsilon[name] >= 0 && Number.isFinite(epsilon[name])));
    const key = this.#key(layer, page, sideIndex);
    if (bad || this.#slots.has(key)) {
      throw new KvError(
        'bad-value',
        `a trial report of layer ${layer} page ${page} ${side} at ${tokens} tokens cannot be`,
        {
          values: { layer, page, side, from, tokens, known: this.#slots.has(key) },
          hint: 'report each page side once, when it has left the window, with finite errors',
        },
      );
    }
    if (this.count === this.layer.length) this.#grow();
    const slot = this.count++;
    this.#slots.set(key, slot);
    this.layer[slot] = layer;
    this.page[slot] = page;
    this.side[slot] = sideIndex;
    this.format[slot] = format;
    this.pageMax = Math.max(this.pageMax, page);
    this.bytes += this.bytesOf(slot);
    if (sideIndex === BOTH) this.#latents++;
    return slot;
  }

  /** True if a side, or a page with a latent, can be in a form. */
  #fits(sideIndex: number, format: number): boolean {
    if (sideIndex !== BOTH) return sideIndex >= 0 && format >= 0 && format < FIRST_LATENT;
    return this.#context.latents !== undefined && Number.isFinite(this.formBytes[BOTH]![format]);
  }

  /** Slot of a page side, −1 when it was never reported. */
  find(layer: number, page: number, sideIndex: number): number {
    return this.#slots.get(this.#key(layer, page, sideIndex)) ?? -1;
  }

  /** Slot of the same page's other side, −1 when unknown. */
  partner(slot: number): number {
    return this.find(this.layer[slot]!, this.page[slot]!, 1 - this.side[slot]!);
  }

  /** Slot of the latent of a slot's page, −1 when it has none. */
  latent(slot: number): number {
    return this.#latents === 0 ? -1 : this.find(this.layer[slot]!, this.page[slot]!, BOTH);
  }

  /** Marks a decision as under way. */
  plan(slot: number, decision: Decision): void {
    assert(this.pending[slot] === 0, `layer ${decision.layer} page ${decision.page} ${decision.side} is planned twice`);
    this.pending[slot] = 1;
    this.#planned[slot] = decision.bytesFreed;
    this.pendingBytes += decision.bytesFreed;
  }

  /** Takes an outcome in. → its slot. Throws 'bad-value' for one that nobody planned. */
  settle(outcome: Outcome): number {
    const { layer, page, side, from, to, accepted } = outcome;
    const sideIndex = PARTS.indexOf(side);
    const slot = this.find(layer, page, sideIndex);
    const isPlanned = slot >= 0 && this.pending[slot] === 1 && this.format[slot] === rank(from);
    if (!isPlanned || to === from || to === 'freed' || !this.#fits(sideIndex, rank(to))) {
      throw new KvError(
        'bad-value',
        `no move of layer ${layer} page ${page} ${side} from ${from} to ${to} is under way`,
        {
          values: { layer, page, side, from, to },
          hint: 'report one outcome per decision, at the next scheduling point',
        },
      );
    }
    this.pending[slot] = 0;
    this.pendingBytes -= this.#planned[slot]!;
    if (accepted) this.#become(slot, to);
    return slot;
  }

  /** Books the form that a slot has now. */
  #become(slot: number, to: PageForm): void {
    const before = this.bytesOf(slot);
    this.format[slot] = rank(to);
    this.bytes += this.bytesOf(slot) - before;
  }

  /** Forgets the latent of a page, which it no longer has. */
  drop(latent: number): void {
    assert(this.side[latent] === BOTH, `slot ${latent} is not that of a latent`);
    this.bytes -= this.bytesOf(latent);
    this.#slots.delete(this.#key(this.layer[latent]!, this.page[latent]!, BOTH));
    this.#latents--;
  }

  /**
   * Tokens may have been taken back: pages that cannot be movable at this length are unknown again, and will be
   * reported anew. Sides with a move under way stay until its outcome is told. → slots that are forgotten
   */
  forget(tokens: number): readonly number[] {
    const pages = movablePages(tokens, this.#context.windowTokens);
    if (this.pageMax < pages) return NONE;
    const slots: number[] = [];
    this.pageMax = -1;
    for (const [key, slot] of this.#slots) {
      if (this.page[slot]! < pages || this.pending[slot] === 1) {
        this.pageMax = Math.max(this.pageMax, this.page[slot]!);
        continue;
      }
      this.#slots.delete(key);
      this.bytes -= this.bytesOf(slot);
      if (this.side[slot] === BOTH) this.#latents--;
      slots.push(slot);
    }
    return slots;
  }

  /** Page sides that are known now. */
  get known(): number {
    return this.#slots.size - this.#latents;
  }

  /** Their slots, in the order of the reports. */
  get slots(): Iterable<number> {
    return this.#slots.values();
  }

  /**
   * Takes in that a side changed its format without a plan. → its slot, −1 when the side is not known yet and its
   * report will tell
   */
  change({ layer, page, side, to }: Remade): number {
    const slot = this.find(layer, page, PARTS.indexOf(side));
    if (slot >= 0) this.#become(slot, to);
    return slot;
  }

  /** Nothing is left of a page: neither its sides nor its latent are known any more. → slots that are forgotten */
  free({ layer, page }: Pick<FormChange, 'layer' | 'page'>): readonly number[] {
    const slots = PARTS.flatMap((_, sideIndex) => {
      const slot = this.find(layer, page, sideIndex);
      return slot < 0 ? [] : [slot];
    });
    for (const slot of slots) {
      this.#slots.delete(this.#key(layer, page, this.side[slot]!));
      this.bytes -= this.bytesOf(slot);
      if (this.side[slot] === BOTH) this.#latents--;
      if (this.pending[slot] === 1) this.pendingBytes -= this.#planned[slot]!;
      this.pending[slot] = 0;
    }
    return slots;
  }

  /** The order of slots whose prices are equal: by layer, then page, then side. Negative when `a` comes first. */
  order(a: number, b: number): number {
    return this.layer[a]! - this.layer[b]! || this.page[a]! - this.page[b]! || this.side[a]! - this.side[b]!;
  }

  /** What a slot counts as it is. */
  bytesOf(slot: number): number {
    return this.formBytes[this.side[slot]!]![this.format[slot]!]!;
  }

  #key(layer: number, page: number, sideIndex: number): number {
    return (page * this.#context.layers + layer) * PARTS.length + sideIndex;
  }

  #grow(): void {
    const size = this.layer.length * 2;
    this.layer = grown(this.layer, new Int32Array(size));
    this.page = grown(this.page, new Int32Array(size));
    this.side = grown(this.side, new Uint8Array(size));
    this.format = grown(this.format, new Uint8Array(size));
    this.pending = grown(this.pending, new Uint8Array(size));
    this.#planned = grown(this.#planned, new Float64Array(size));
  }
}

/** Bytes of the latent beside a page in the window; 0 where none is kept. */
export const latentBytesBeside = ({ latents, pageBytes }: PolicyContext): number =>
  latents === undefined ? 0 : (pageBytes[latents.kept] ?? 0);

/** `target` with the content of `source` at its start. */
export function grown<A extends Int32Array | Uint8Array | Uint16Array | Float64Array>(source: A, target: A): A {
  target.set(source);
  return target;
}

const isIndex = (value: number, end: number): boolean => Number.isInteger(value) && value >= 0 && value < end;

/** Of so many pages that may move, those that a layer has let go by then. */
export const freedOf = (
  { slidingWindow, windowTokens = PAGE_TOKENS }: Pick<PolicyContext, 'slidingWindow' | 'windowTokens'>,
  layer: number,
  pages: number,
): number => Math.min(pages, freedPages(firstToken(pages) + windowTokens, slidingWindow?.[layer] ?? null));

/** Of so many pages of each layer that may move, those that are there, in all layers. */
export function heldPages(context: PolicyContext, pages: number): number {
  const { layers, slidingWindow } = context;
  if (slidingWindow === undefined) return layers * pages;
  let held = 0;
  for (let layer = 0; layer < layers; layer++) held += pages - freedOf(context, layer, pages);
  return held;
}

/**
 * Bytes of a session of this length if its movable page sides take `sideBytes` each on average and the page in the
 * window keeps its format.
 */
export function bytesAt(context: PolicyContext, tokens: number, sideBytes: number): number {
  const movable = forecastMovablePages(tokens, context.windowTokens);
  const side = context.pageBytes[context.windowFormat];
  const window = (sealedPages(tokens) - movable) * (side + latentBytesBeside(context) / 2);
  if (context.slidingWindow !== undefined)
    return context.fixedBytes + 2 * (heldPages(context, movable) * sideBytes + context.layers * window);
  return context.fixedBytes + 2 * context.layers * (movable * sideBytes + window);
}
