/**
 * Policies that let whole pages of a layer go, keys and values at once, and keep the others in the format of the
 * window: what published rules do with single tokens, at the grain at which pages move here. A rule says which pages
 * stay; this finds how many may, plans who goes, and remembers what is there. Nothing is tried, and nothing that is
 * gone comes back. The window stays whatever a rule says, and so do the sinks, which are kept apart from the pages.
 */
import { assert, FORMAT_NAMES, KvError, PARTS, SIDES } from '../../native/index.ts';
import { isRemade, Sides } from '../sides.ts';
import { checkThresholds } from '../thresholds.ts';
import type {
  Decision,
  MassReport,
  Outcome,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Situation,
  Verdict,
} from '../types.ts';
import { refuseKldBudget } from './follow.ts';
import { movableBytes, pagesAhead } from './uniform.ts';

/** Which pages stay. */
export interface Keeping {
  /** Takes in where attention went lately. */
  see?(masses: readonly MassReport[]): void;
  /** How many of `places` pages each of the layers may keep, which hold at most `pages` now; left out: all alike. */
  share?(places: number, layers: number, pages: number): readonly number[];
  /** Of the pages of a layer, in ascending order and more than it has places, those that stay. */
  stay(layer: number, pages: readonly number[], places: number): readonly number[];
}

/** As many for each layer, the first of them having what is left over. */
function alike(places: number, layers: number): readonly number[] {
  return Array.from({ length: layers }, (_, i) => Math.floor(places / layers) + (i < places % layers ? 1 : 0));
}

/** A page of a layer that is to go, and what it was compared with. */
interface Going {
  readonly layer: number;
  readonly page: number;
  /** Pages that the layer had, and those that it may have. */
  readonly held: number;
  readonly places: number;
}

class EvictSession implements PolicySession {
  readonly #id: string;
  readonly #context: PolicyContext;
  readonly #keeping: Keeping;
  readonly #sides: Sides;
  /** Layers whose pages may go. */
  readonly #active: readonly number[];
  /** Pages of each layer that are there and do not go yet, in ascending order. */
  readonly #held: number[][];
  /** In the order in which they go. */
  #going: Going[] = [];
  /** Under way, by their keys. */
  readonly #planned = new Map<number, Going & Pick<Decision, 'from' | 'bytesFreed'>>();
  /** Bytes that turned out to be missing, beyond what was worked out: somebody else shares the pool. */
  #reserve = 0;

  constructor(id: string, context: PolicyContext, keeping: Keeping) {
    checkThresholds(context.thresholds, context.layers);
    if (context.floor !== null) {
      const { k, v } = context.floor;
      throw new KvError('unsupported', `policy '${id}' lets pages go, and cannot end at ${k}:${v}`, {
        values: { policy: id, k, v },
        hint: "leave out the cache types, or use policy 'price'",
      });
    }
    this.#id = id;
    this.#context = context;
    this.#keeping = keeping;
    this.#sides = new Sides(context);
    this.#held = Array.from({ length: context.layers }, () => []);
    this.#active = this.#held.flatMap((_, layer) => (context.skipLayers.includes(layer) ? [] : [layer]));
  }

  decide(situation: Situation): Decision[] {
    refuseKldBudget(this.#id, situation);
    this.#takeIn(situation);
    const { bytes, sealBytes, budgetBytes, urgent, movesMax, tokens } = situation;
    if (budgetBytes === null) return [];
    const lack = bytes + sealBytes - this.#pendingBytes - budgetBytes;
    this.#choose(situation);
    // What was worked out does not do. Whoever gives way must yield at least a page, or nothing would change.
    while (
      urgent &&
      lack > 0 &&
      this.#going.length === 0 &&
      this.#active.some((layer) => this.#held[layer]!.length > 0)
    ) {
      this.#reserve += Math.max(lack, 2 * this.#context.pageBytes[this.#context.windowFormat]);
      this.#choose(situation);
    }
    const decisions = this.#going.splice(0, urgent ? this.#going.length : movesMax).map((one) => this.#plan(one));
    if (urgent && lack > 0 && decisions.length === 0) {
      throw new KvError(
        'budget-too-small',
        `policy '${this.#id}' has no page left to let go at ${tokens} tokens, and ${lack} bytes are missing`,
        {
          values: { policy: this.#id, budgetBytes, bytes, sealBytes, deficitBytes: lack, tokens },
          hint: 'raise the budget: the open page and the window are always there',
        },
      );
    }
    return decisions;
  }

  judge({ because }: Decision): Verdict {
    return { accepted: true, because };
  }

  summary(): PolicySummary {
    return { priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] };
  }

  get #pendingBytes(): number {
    let sum = 0;
    for (const { bytesFreed } of this.#planned.values()) sum += bytesFreed;
    return sum;
  }

  /** What has become of pages, and which have left the window since. */
  #takeIn(situation: Situation): void {
    const { tokens, outcomes, trials, changes = [], masses = [] } = situation;
    for (const outcome of outcomes) this.#settle(outcome);
    const gone = new Set(this.#sides.forget(tokens));
    for (const change of changes)
      if (isRemade(change)) this.#sides.change(change);
      else for (const slot of this.#sides.free(change)) gone.add(slot);
    for (const report of trials) {
      this.#sides.add(report, tokens);
      if (report.side === 'k') this.#held[report.layer]!.push(report.page);
    }
    if (gone.size > 0) this.#lose();
    if (trials.length > 0) for (const pages of this.#held) pages.sort((a, b) => a - b);
    if (masses.length > 0) this.#keeping.see?.(masses);
  }

  /** Pages of which nothing is known any more neither stay nor go. */
  #lose(): void {
    const isKnown = (layer: number, page: number): boolean => this.#sides.find(layer, page, 0) >= 0;
    for (const [layer, pages] of this.#held.entries()) this.#held[layer] = pages.filter((page) => isKnown(layer, page));
    this.#going = this.#going.filter(({ layer, page }) => isKnown(layer, page));
  }

  /** Throws 'bad-value' for an outcome of what was not planned. */
  #settle(outcome: Outcome): void {
    const { layer, page, side, from, to, accepted } = outcome;
    const key = this.#key(layer, page);
    const planned = this.#planned.get(key);
    if (planned === undefined || side !== 'kv' || to !== 'freed' || from !== planned.from) {
      throw new KvError(
        'bad-value',
        `no move of layer ${layer} page ${page} ${side} from ${from} to ${to} is under way`,
        {
          values: { layer, page, side, from, to },
          hint: 'report one outcome per decision, at the next scheduling point',
        },
      );
    }
    this.#planned.delete(key);
    if (accepted) this.#sides.free(outcome);
    else if (this.#sides.find(layer, page, 0) >= 0)
      this.#held[layer] = [...this.#held[layer]!, page].sort((a, b) => a - b);
  }

  /** Of layers that have more pages than places, those go that the rule does not keep. */
  #choose(situation: Situation): void {
    const { layers, pageBytes, windowFormat } = this.#context;
    const pages = Math.max(pagesAhead(situation, this.#context), this.#sides.pageMax + 1);
    const spare = movableBytes(this.#context, situation.budgetBytes!, pages) - this.#reserve;
    const most = Math.max(0, Math.floor(spare / (2 * pageBytes[windowFormat])));
    const largest = this.#active.reduce((sum, layer) => Math.max(sum, this.#held[layer]!.length), 0);
    const share = this.#keeping.share ?? alike;
    const places = share(most, this.#active.length, largest);
    assert(places.length <= layers, `${places.length} layers of ${layers} have places`);
    for (const [i, layer] of this.#active.entries()) {
      const held = this.#held[layer]!;
      if (held.length <= places[i]!) continue;
      const staying = new Set(this.#keeping.stay(layer, held, places[i]!));
      for (const page of held)
        if (!staying.has(page)) this.#going.push({ layer, page, held: held.length, places: places[i]! });
      this.#held[layer] = held.filter((page) => staying.has(page));
    }
  }

  #plan(going: Going): Decision {
    const { layer, page, held, places } = going;
    const sides = this.#sides;
    const slots = PARTS.map((_, index) => sides.find(layer, page, index)).filter((slot) => slot >= 0);
    assert(slots.length >= SIDES.length, `layer ${layer} page ${page} has ${slots.length} sides`);
    const from = FORMAT_NAMES[sides.format[slots[0]!]!]!;
    const bytesFreed = slots.reduce((sum, slot) => sum + sides.bytesOf(slot), 0);
    this.#planned.set(this.#key(layer, page), { ...going, from, bytesFreed });
    return {
      ...{ layer, page, side: 'kv', from, to: 'freed' },
      ...{ epsilonFrom: null, epsilonTo: null, price: null, bytesFreed, retry: false },
      because: {
        threshold: `${this.#id}.places`,
        measured: held,
        bound: places,
        unit: 'pages',
        origin: 'controller',
        rule: this.#id,
      },
    };
  }

  #key(layer: number, page: number): number {
    return page * this.#context.layers + layer;
  }
}

/** Makes a policy of a rule. */
export function evictPolicy(
  id: string,
  keeping: (context: PolicyContext) => Keeping,
  more: Pick<Policy, 'readsMasses'> = {},
): Policy {
  return {
    ...more,
    ...{ id, version: 1, needsTrials: false, evicts: true },
    open: (context) => new EvictSession(id, context, keeping(context)),
  };
}

/** The newest of some pages in ascending order. */
export const newest = (pages: readonly number[], count: number): readonly number[] =>
  pages.slice(Math.max(0, pages.length - count));

/** The pages with the largest numbers, and of equal ones the newest. */
export const first = (pages: readonly number[], count: number, of: (page: number) => number): readonly number[] =>
  [...pages].sort((a, b) => of(b) - of(a) || b - a).slice(0, Math.max(0, count));
