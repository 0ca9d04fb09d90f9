/**
 * Three tiers of sizes that somebody chooses: pages enter the hot one when they leave the window, go to the warm one
 * when others have more right to its places, and from there to the cold one, which has no end. Some of the places of a
 * tier are for the pages that attention goes to, the others for the newest. Nothing is tried; under a byte budget that
 * cannot hold the tiers as they are asked for, the hot one gives way first and then the warm one.
 *
 * A page never comes back to a higher tier, because its bytes would and what they said would not.
 */
import { type FormatPair, SIDES, type Side } from '../../native/index.ts';
import { rank } from '../ladder.ts';
import type { Sides } from '../sides.ts';
import type { Because, Decision, MassReport, Policy, PolicyContext, Situation } from '../types.ts';
import { type Aim, allowed, followPolicy, pairBytes, refuseKldBudget } from './follow.ts';
import { checkGroup, checkOwnSizes, roomOf, TIER_NAMES, type TiersAsked, tiersAsked } from './tier-options.ts';
import { movableBytes, pagesAhead, unitsOf } from './uniform.ts';

const HOT = 0;
const WARM = 1;
const COLD = 2;

/** Where a page stands among those that its tier could hold, from 1 on, and how many places there are. */
interface Standing {
  readonly place: number;
  readonly places: number;
}

/** Of a page that had left the tier before this session could give it a place. */
const MOVED: Standing = { place: 1, places: 0 };

/** What is known of the pages of one layer. */
interface LayerPages {
  /** Tier of each page, which only rises. */
  tiers: number[];
  /** Attention that each page received, earlier queries counting less. */
  weights: number[];
  /** What put each page into its tier. */
  standings: Standing[];
}

class TiersAim implements Aim {
  readonly #context: PolicyContext;
  readonly #asked: TiersAsked;
  /** The pairs of the tiers, raised to the floor of the session. */
  readonly #pairs: readonly FormatPair[];
  readonly #layers: readonly LayerPages[];
  /** Layers whose pages move, in order: the first of them have the places that are left over. */
  readonly #active: readonly number[];
  /** Bytes that turned out to be missing, beyond what was worked out. */
  #reserve = 0;
  /** Places and pages as they were when the tiers were last made. */
  #seen = '';
  #isBound = false;

  constructor(context: PolicyContext, asked: TiersAsked) {
    checkGroup(asked, context);
    this.#context = context;
    this.#asked = asked;
    this.#pairs = TIER_NAMES.map((name) => allowed(asked[name].types, context));
    this.#layers = Array.from({ length: context.layers }, () => ({ tiers: [], weights: [], standings: [] }));
    this.#active = Array.from({ length: context.layers }, (_, layer) => layer).filter(
      (layer) => !context.skipLayers.includes(layer),
    );
  }

  steer(situation: Situation, sides: Sides, lackBytes: number): boolean {
    refuseKldBudget('tiers', situation);
    this.#reserve += lackBytes;
    this.#weigh(situation.masses ?? []);
    const pages = pagesAhead(situation, this.#context);
    const known = sides.pageMax + 1;
    const [hot, better] = this.#places(situation, pages);
    const key = `${hot} ${better} ${known}`;
    if (key === this.#seen) return false;
    this.#seen = key;
    for (const layer of this.#layers) {
      layer.tiers.length = Math.min(layer.tiers.length, known);
      layer.weights.length = Math.min(layer.weights.length, known);
      layer.standings.length = Math.min(layer.standings.length, known);
      for (let page = layer.tiers.length; page < known; page++) layer.tiers.push(HOT);
    }
    this.#takeIn(sides);
    for (const [i, layer] of this.#active.entries()) {
      const share = (units: number): number => Math.floor((units + i) / this.#active.length);
      const here = this.#layers[layer]!;
      this.#settle(here, HOT, share(hot));
      this.#settle(here, WARM, share(better) - share(hot));
    }
    return true;
  }

  target(layer: number, page: number): FormatPair {
    return this.#pairs[this.#layers[layer]!.tiers[page] ?? HOT]!;
  }

  because({ layer, page }: Omit<Decision, 'because'>): Because {
    const { tiers, standings } = this.#layers[layer]!;
    const tier = tiers[page]!;
    const { place, places } = standings[page]!;
    return {
      // A page is warm because the hot tier is full, and cold because the warm one is.
      threshold: tier === COLD ? 'tiers.warm' : 'tiers.hot',
      measured: place,
      bound: places,
      unit: 'places',
      origin: this.#isBound ? 'controller' : 'option',
      rule: `tier-${TIER_NAMES[tier]}`,
    };
  }

  /** Takes in where attention went. What page 0 received is mostly that of the sinks, and says nothing of its codes. */
  #weigh(masses: readonly MassReport[]): void {
    for (const { layer, shares } of masses) {
      const here = this.#layers[layer];
      if (here === undefined) continue;
      here.weights = shares.map((share, page) =>
        page === 0 ? 0 : this.#asked.decay * (here.weights[page] ?? 0) + share,
      );
    }
  }

  /** A page that something else moved, or that came so from a parked session, is at best in the tier of its formats. */
  #takeIn(sides: Sides): void {
    for (const slot of sides.slots) {
      const side: Side | undefined = SIDES[sides.side[slot]!];
      if (side === undefined) continue;
      const { tiers, standings } = this.#layers[sides.layer[slot]!]!;
      const page = sides.page[slot]!;
      while (tiers[page]! < COLD && sides.format[slot]! > rank(this.#pairs[tiers[page]!]![side])) {
        tiers[page]!++;
        standings[page] ??= MOVED;
      }
    }
  }

  /**
   * Places, in units (layer of a page), of the hot tier and of the hot and the warm one together: as many as are asked
   * for, and no more than the budget has room for.
   */
  #places(situation: Situation, pages: number): readonly [hot: number, better: number] {
    const { budgetBytes } = situation;
    const units = unitsOf(this.#context, pages).length;
    const [hot, warm, cold] = this.#pairs.map((pair) => pairBytes(pair, this.#context)) as [number, number, number];
    const asked = (name: 'hot' | 'warm', bytes: number): number => this.#unitsAsked(name, budgetBytes, bytes);
    const wanted = Math.max(asked('hot', hot), this.#asked.anchors.length * this.#active.length);
    const betterWanted = wanted + asked('warm', warm);
    if (budgetBytes === null) return [wanted, betterWanted];
    const spare = movableBytes(this.#context, budgetBytes, pages) - this.#reserve - units * cold;
    const most = (bytes: number, each: number): number => (each <= 0 ? units : Math.max(0, Math.floor(bytes / each)));
    const better = Math.min(betterWanted, most(spare, warm - cold));
    const left = spare - Math.min(units, better) * (warm - cold);
    const hotter = Math.min(wanted, better, most(left, hot - warm));
    this.#isBound = better < Math.min(units, betterWanted) || hotter < Math.min(units, wanted);
    return [hotter, better];
  }

  #unitsAsked(name: 'hot' | 'warm', budgetBytes: number | null, unitBytes: number): number {
    const room = roomOf(`${name}.size`, this.#asked[name].size);
    if ('pages' in room) return room.pages * this.#active.length;
    if (budgetBytes === null) checkOwnSizes(this.#asked);
    return Math.floor((room.share * budgetBytes!) / unitBytes);
  }

  /** Pages of a tier that it has no place for go to the next one. */
  #settle(layer: LayerPages, tier: number, places: number): void {
    const members = this.#ordered(layer, tier, places);
    for (const [i, page] of members.entries()) {
      // A page that stays is told by what brought it here.
      if (i >= places || tier === HOT) layer.standings[page] = { place: i + 1, places };
      if (i >= places) layer.tiers[page] = tier + 1;
    }
  }

  /** The pages of a tier by their right to its places: anchors, then those with most attention, then the newest. */
  #ordered({ tiers, weights }: LayerPages, tier: number, places: number): readonly number[] {
    const { anchors, importance } = this.#asked;
    const members = tiers.flatMap((one, page) => (one === tier ? [page] : [])).reverse();
    const named = members.filter((page) => anchors.includes(page));
    const others = members.filter((page) => !anchors.includes(page));
    const weight = (page: number): number => weights[page] ?? 0;
    const byAttention = [...others].sort((a, b) => weight(b) - weight(a) || b - a);
    const chosen = byAttention.slice(0, Math.round(importance * Math.max(0, places - named.length)));
    return [...named, ...chosen, ...others.filter((page) => !chosen.includes(page))];
  }
}

/** Throws 'bad-argument', 'unsupported'. */
export function tiersPolicy(options: unknown): Policy {
  const asked = tiersAsked(options);
  const pairs = TIER_NAMES.map((name) => asked[name].types);
  const more = { lowest: asked.cold.types, pairs, ...(asked.importance > 0 ? { readsMasses: true } : {}) };
  return followPolicy('tiers', 1, (context) => new TiersAim(context, asked), more);
}
