/**
 * Every page takes the same step of the ladder, and the next one is taken by as many pages as it needs to keep the
 * budget at the expected length: what a program without measurements can do best at equal bytes, and so the yardstick.
 * Where the length is not known the steps are taken as the cache grows.
 */
import { forecastMovablePages, PAGE_TOKENS, partOfPage, SIDES, sealedPages } from '../../native/index.ts';
import { STEPS, STEPS_OF_ROT, type Steps } from '../ladder.ts';
import { freedOf, latentBytesBeside, type Sides } from '../sides.ts';
import type { Because, Decision, PolicyContext, Situation } from '../types.ts';
import { type Aim, allowed, followPolicy, pairBytes, refuseKldBudget, widthBecause } from './follow.ts';

/**
 * 1/φ: multiples of it, taken modulo 1, lie as evenly as any sequence can, for every count of them (Weyl, Steinhaus).
 */
const GOLDEN = 0.618_033_988_749_894_9;
const spread = (unit: number): number => (unit * GOLDEN) % 1;

class UniformAim implements Aim {
  readonly #context: PolicyContext;
  readonly #steps: Steps;
  #step = 0;
  /** Units (layer of a page) whose place in the sequence is not above this take the next step as well; −1: none. */
  #share = -1;
  /** Bytes that turned out to be missing, beyond what was worked out: somebody else shares the pool. */
  #reserve = 0;
  #seen = '';

  constructor(context: PolicyContext, steps: Steps) {
    this.#context = context;
    // A log of an earlier version does not name every format of today.
    const known = steps.filter((pair) => SIDES.every((side) => Object.hasOwn(context.pageBytes, pair[side])));
    const { windowFormat } = context;
    this.#steps = known[0]?.k === windowFormat ? known : [{ k: windowFormat, v: windowFormat }, ...known];
  }

  steer(situation: Situation, _sides: Sides, lackBytes: number): boolean {
    refuseKldBudget('uniform', situation);
    const { budgetBytes } = situation;
    if (budgetBytes === null) return false;
    this.#reserve += lackBytes;
    const pages = pagesAhead(situation, this.#context);
    const key = `${budgetBytes} ${pages} ${this.#reserve}`;
    if (key === this.#seen) return false;
    this.#seen = key;
    const [step, share] = this.#fit(pages, movableBytes(this.#context, budgetBytes, pages) - this.#reserve);
    if (step < this.#step || (step === this.#step && share <= this.#share)) return false;
    this.#step = step;
    this.#share = share;
    return true;
  }

  target(layer: number, page: number): Steps[number] {
    const further = spread(page * this.#context.layers + layer) <= this.#share ? 1 : 0;
    return this.#steps[Math.min(this.#steps.length - 1, this.#step + further)]!;
  }

  because(decision: Omit<Decision, 'because'>): Because {
    return widthBecause(decision, 'uniform.step', 'controller', 'uniform');
  }

  /** First step and share of the next one whose pages fit into `bytes`; the last step when nothing does. */
  #fit(pages: number, bytes: number): readonly [step: number, share: number] {
    const units = unitsOf(this.#context, pages);
    const cost = this.#steps.map((pair) => pairBytes(allowed(pair, this.#context), this.#context));
    const last = this.#steps.length - 1;
    for (let step = 0; step < last; step++) {
      const over = units.length * cost[step]! - bytes;
      if (over <= 0) return [step, -1];
      if (units.length * cost[step + 1]! > bytes) continue;
      const count = Math.ceil(over / (cost[step]! - cost[step + 1]!));
      return [step, units.map(spread).sort((a, b) => a - b)[count - 1]!];
    }
    return [last, -1];
  }
}

/** Movable pages of one layer to reckon with: those of the expected end, and beyond it those of the next seal. */
export function pagesAhead({ tokens, tokensExpected }: Situation, { windowTokens }: PolicyContext): number {
  return tokensExpected !== null && tokens <= tokensExpected
    ? forecastMovablePages(tokensExpected, windowTokens)
    : sealedPages(tokens);
}

/**
 * What a budget leaves for pages that may move: without open pages, sinks, the window's page and layers that stay as
 * they are.
 */
export function movableBytes(context: PolicyContext, budgetBytes: number, pages: number): number {
  const { layers, fixedBytes, pageBytes, windowFormat, windowTokens = PAGE_TOKENS, skipLayers } = context;
  const page = 2 * pageBytes[windowFormat];
  const window = layers * partOfPage(page + latentBytesBeside(context), windowTokens);
  const skipped = [...new Set(skipLayers)].reduce((sum, layer) => sum + pages - freedOf(context, layer, pages), 0);
  return budgetBytes - fixedBytes - window - skipped * page;
}

/** Numbers of all units (page · layers + layer) that may move and are there when so many pages of a layer may. */
export function unitsOf(context: PolicyContext, pages: number): number[] {
  const { layers, skipLayers } = context;
  const freed = Array.from({ length: layers }, (_, layer) => freedOf(context, layer, pages));
  return Array.from({ length: pages * layers }, (_, unit) => unit).filter(
    (unit) => !skipLayers.includes(unit % layers) && Math.floor(unit / layers) >= freed[unit % layers]!,
  );
}

export const uniform = followPolicy('uniform', 2, (context) => new UniformAim(context, STEPS));
/** The policy of the time before trellis codes, for its logs. */
export const uniformOne = followPolicy('uniform', 1, (context) => new UniformAim(context, STEPS_OF_ROT));
