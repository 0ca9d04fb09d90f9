/**
 * The page sides a policy knows: one slot each, from the report that made them movable on. Slots are given in the order of
 * the reports, so memory grows with what was reported and not with what a page number claims.
 */
import {
  assert,
  FORMAT_NAMES,
  forecastMovablePages,
  KvError,
  movablePages,
  SIDES,
  sealedPages,
} from '../native/index.ts';
import { rank } from './ladder.ts';
import type { Decision, FormChange, Outcome, PolicyContext, TrialReport } from './types.ts';

/** Initial room, enough for 4,096 tokens of 64 layers. Unused room takes no memory, while growing takes as long as ten decisions. */
export const SLOTS = 4096;

const NONE: readonly number[] = [];

export class Sides {
  /** Slots given so far; those of pages that were taken back are not given again. */
  count = 0;
  layer = new Int32Array(SLOTS);
  page = new Int32Array(SLOTS);
  /** Index in SIDES: 0 keys, 1 values. */
  side = new Uint8Array(SLOTS);
  /** Rank of the format it has now (or had, while a move is pending). */
  format = new Uint8Array(SLOTS);
  /** 1 while a planned move has no outcome yet. */
  pending = new Uint8Array(SLOTS);
  /** Bytes of all known page sides as they are, and what pending moves will free. */
  bytes = 0;
  pendingBytes = 0;
  /** Highest page known, −1 at first. */
  pageMax = -1;
  readonly #context: PolicyContext;
  readonly #slots = new Map<number, number>();

  constructor(context: PolicyContext) {
    this.#context = context;
  }

  /** Takes a report in. → its slot. Throws 'bad-value' for a page that cannot be movable at this length, or that is known already. */
  add(report: TrialReport, tokens: number): number {
    const { layer, page, side, from, epsilon } = report;
    const sideIndex = SIDES.indexOf(side);
    const format = rank(from);
    const bad =
      !isIndex(layer, this.#context.layers) ||
      !isIndex(page, movablePages(tokens, this.#context.windowTokens)) ||
      sideIndex < 0 ||
      format < 0 ||
      FORMAT_NAMES.some(
        (name) => epsilon[name] !== undefined && !(epsilon[name] >= 0 && Number.isFinite(epsilon[name])),
      );
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
    this.bytes += this.#bytesOf(format);
    return slot;
  }

  /** Slot of a page side, −1 when it was never reported. */
  find(layer: number, page: number, sideIndex: number): number {
    return this.#slots.get(this.#key(layer, page, sideIndex)) ?? -1;
  }

  /** Slot of the same page's other side, −1 when unknown. */
  partner(slot: number): number {
    return this.find(this.layer[slot]!, this.page[slot]!, 1 - this.side[slot]!);
  }

  /** Marks a decision as under way. */
  plan(slot: number, decision: Decision): void {
    assert(this.pending[slot] === 0, `layer ${decision.layer} page ${decision.page} ${decision.side} is planned twice`);
    this.pending[slot] = 1;
    this.pendingBytes += decision.bytesFreed;
  }

  /** Takes an outcome in. → its slot. Throws 'bad-value' for one that nobody planned. */
  settle(outcome: Outcome): number {
    const { layer, page, side, from, to, accepted } = outcome;
    const slot = this.find(layer, page, SIDES.indexOf(side));
    if (slot < 0 || this.pending[slot] !== 1 || this.format[slot] !== rank(from) || to === from) {
      throw new KvError(
        'bad-value',
        `no move of layer ${layer} page ${page} ${side} from ${from} to ${to} is under way`,
        {
          values: { layer, page, side, from, to },
          hint: 'report one outcome per decision, at the next scheduling point',
        },
      );
    }
    const freed = this.#bytesOf(rank(from)) - this.#bytesOf(rank(to));
    this.pending[slot] = 0;
    this.pendingBytes -= freed;
    if (accepted) {
      this.format[slot] = rank(to);
      this.bytes -= freed;
    }
    return slot;
  }

  /**
   * Tokens may have been taken back: pages that cannot be movable at this length are unknown again, and will be reported anew. Sides with a
   * move under way stay until its outcome is told. → slots that are forgotten
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
      this.bytes -= this.#bytesOf(this.format[slot]!);
      slots.push(slot);
    }
    return slots;
  }

  /** Page sides that are known now. */
  get known(): number {
    return this.#slots.size;
  }

  /** Their slots, in the order of the reports. */
  get slots(): Iterable<number> {
    return this.#slots.values();
  }

  /** Takes in that a side changed its format without a plan. → its slot, −1 when the side is not known yet and its report will tell */
  change({ layer, page, side, to }: FormChange): number {
    const slot = this.find(layer, page, SIDES.indexOf(side));
    if (slot < 0) return -1;
    this.bytes += this.#bytesOf(rank(to)) - this.#bytesOf(this.format[slot]!);
    this.format[slot] = rank(to);
    return slot;
  }

  /** The order of slots whose prices are equal: by layer, then page, then side. Negative when `a` comes first. */
  order(a: number, b: number): number {
    return this.layer[a]! - this.layer[b]! || this.page[a]! - this.page[b]! || this.side[a]! - this.side[b]!;
  }

  #bytesOf(format: number): number {
    return this.#context.pageBytes[FORMAT_NAMES[format]!];
  }

  #key(layer: number, page: number, sideIndex: number): number {
    return (page * this.#context.layers + layer) * 2 + sideIndex;
  }

  #grow(): void {
    const size = this.layer.length * 2;
    this.layer = grown(this.layer, new Int32Array(size));
    this.page = grown(this.page, new Int32Array(size));
    this.side = grown(this.side, new Uint8Array(size));
    this.format = grown(this.format, new Uint8Array(size));
    this.pending = grown(this.pending, new Uint8Array(size));
  }
}

/** `target` with the content of `source` at its start. */
export function grown<A extends Int32Array | Uint8Array | Uint16Array | Float64Array>(source: A, target: A): A {
  target.set(source);
  return target;
}

const isIndex = (value: number, end: number): boolean => Number.isInteger(value) && value >= 0 && value < end;

/** Bytes of a session of this length if its movable page sides take `sideBytes` each on average and the page in the window keeps its format. */
export function bytesAt(context: PolicyContext, tokens: number, sideBytes: number): number {
  const movable = forecastMovablePages(tokens, context.windowTokens);
  const window = (sealedPages(tokens) - movable) * context.pageBytes[context.windowFormat];
  return context.fixedBytes + 2 * context.layers * (movable * sideBytes + window);
}
