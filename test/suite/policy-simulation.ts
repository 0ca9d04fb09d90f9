/**
 * A cache of bytes without content: pages appear, leave the window and are moved as a policy decides, on random tables
 * of errors, in the order of a real session. Every rule of the house that can be checked from outside is checked at
 * each move.
 */

import {
  FORMAT_NAMES,
  type FormatName,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
  movablePages,
  PAGE_TOKENS,
  PARTS,
  type Part,
  pageBytes,
  SIDES,
  type Side,
  sealedPages,
} from '../../native/index.ts';
import {
  type CanaryReport,
  type Decision,
  defaultLaw,
  defaultThresholds,
  FORMS,
  isLatent,
  isUselessPair,
  type Outcome,
  openPolicy,
  type PageForm,
  type Policy,
  type PolicyContext,
  type PolicySession,
  type PolicySummary,
  type Situation,
  type ThresholdSet,
  type TrialReport,
  unsafe,
  type Verdict,
} from '../../policy/index.ts';
import { must } from '../must.ts';
import { mulberry32 } from '../random.ts';

export interface Shape {
  readonly layers: number;
  readonly kvHeads?: number;
  readonly headDim?: number;
  readonly thresholds?: Partial<ThresholdSet>;
  readonly skipLayers?: readonly number[];
  readonly floor?: PolicyContext['floor'];
  readonly windowFormat?: 'q8' | 'f16';
  /** Latents of this width are kept beside pages; the operations of a page as PolicyContext says. */
  readonly latents?: { readonly kept: LatentName; readonly width: number; readonly operations?: number };
}

export function contextOf({
  layers,
  kvHeads = 3,
  headDim = 64,
  thresholds,
  skipLayers = [],
  floor = null,
  windowFormat = 'q8',
  latents,
}: Shape): PolicyContext {
  const row = kvHeads * headDim * 2;
  return {
    layers,
    kvHeads,
    headDim,
    windowFormat,
    pageBytes: Object.fromEntries([
      ...FORMAT_NAMES.map((name) => [name, pageBytes(name, kvHeads, headDim)]),
      ...(latents === undefined
        ? []
        : LATENT_NAMES.slice(LATENT_NAMES.indexOf(latents.kept)).map((name) => [
            name,
            latentBytes(name, latents.width),
          ])),
    ]) as PolicyContext['pageBytes'],
    ...(latents === undefined ? {} : { latents: { kept: latents.kept, operations: latents.operations ?? 0.01 } }),
    fixedBytes: layers * 2 * (PAGE_TOKENS + 4) * row,
    thresholds: { ...defaultThresholds(layers), ...thresholds },
    skipLayers,
    floor,
  };
}

/** A law under which errors do not fade, as those of a simulation do not. */
export const lasting = (layers: number): Pick<ThresholdSet, 'law'> => ({
  law: { ...defaultLaw(layers), offset: { value: 1e6, sd: 0.2, samples: 1 } },
});

export type Epsilon = Readonly<Partial<Record<PageForm, number>>>;

/**
 * Errors as they are measured: 2-bit keys some four times 2-bit values, layers e^±0.7 apart, pages e^±0.6, widths by
 * the codes' MSE.
 */
export function epsilonOf(seed: number, latent = 1): (layer: number, page: number, side: Part) => Epsilon {
  return (layer, page, side) => {
    if (side === 'kv') return ofLatent(epsilonOf(seed), layer, page, latent);
    const sideIndex = side === 'k' ? 1 : 2;
    const ofLayer = mulberry32(seed * 7919 + layer * 31 + sideIndex)();
    const own = mulberry32(seed * 104729 + layer * 8191 + page * 131 + sideIndex);
    const base = (side === 'k' ? 0.012 : 0.003) * Math.exp(1.4 * (ofLayer - 0.5) + 1.2 * (own() - 0.5));
    const keys = { rot4: base, rot3: base * (1.8 + 0.4 * own()), rot2: base * (3.4 + own()) };
    return side === 'k' ? keys : { ...keys, rot1: base * (6.8 + 2 * own()) };
  };
}

/** A latent errs as its keys and values in codes of as many bits do, both together. */
function ofLatent(
  of: (layer: number, page: number, side: Part) => Epsilon,
  layer: number,
  page: number,
  factor: number,
): Epsilon {
  const [k, v] = [of(layer, page, 'k'), of(layer, page, 'v')];
  const both = (form: PageForm): number => factor * Math.hypot(k[form] ?? 0, v[form] ?? 0);
  const like: Readonly<Record<string, number>> = { xq8: both('rot4') / 10, xq4: both('rot4'), xq3: both('rot3') };
  return Object.fromEntries(LATENT_NAMES.map((name) => [name, like[name]!]));
}

export interface Run {
  readonly policy: Policy;
  readonly context: PolicyContext;
  readonly tokens: number;
  readonly budgetBytes?: number | null;
  readonly kldBudget?: number | null;
  readonly tokensExpected?: number | null;
  /** Tokens per step: 128 as in prefill, 1 as in decode. */
  readonly chunk?: number;
  readonly epsilon?: (layer: number, page: number, side: Part) => Epsilon;
  /** Attention that a page receives; evenly spread by default. For policies that ask for it. */
  readonly mass?: (layer: number, page: number, tokens: number) => number;
  /** Factor on the error that a repeated trial measures against the predicted one; 1 by default. */
  readonly drift?: (decision: Decision, tokens: number) => number | null;
  /** True if pages in the window format are tried again when they are one to seven pages old, and err as before. */
  readonly again?: boolean;
  readonly lowMemoryFrom?: number;
  /** Originals kept at once; none by default. */
  readonly originals?: number;
  /** What a canary measures now over what was promised. */
  readonly ratio?: (layer: number, tokens: number) => number;
  /** True if memory is low, and how long steps take against a budget of 1 ms, at so many tokens. */
  readonly low?: (tokens: number) => boolean;
  readonly latencyMs?: (tokens: number) => number;
  /** Called after each situation with what the policy says of its layers. */
  readonly see?: (summary: PolicySummary) => void;
  readonly stepLatencyBudgetMs?: number;
  /** Once at so many tokens, all behind so many others are taken back. */
  readonly back?: { readonly at: number; readonly to: number };
}

export interface Entry {
  readonly situation: Situation;
  readonly decisions: readonly Decision[];
  readonly verdicts: readonly Verdict[];
  /** What trials before the moves measured. */
  readonly epsilonNow: readonly (number | null)[];
}

export interface Result {
  readonly entries: readonly Entry[];
  /** By `sideKey`; of 'kv' where a page has a latent. */
  readonly formats: ReadonlyMap<string, PageForm>;
  readonly bytes: number;
  readonly summary: PolicySummary;
  /** Σ ε² of all moved page sides by their first trial. */
  readonly epsilon2: number;
}

export const sideKey = (layer: number, page: number, side: Part): string => `${layer}/${page}/${side}`;

/** Runs a session to its end. Throws what the policy throws; every broken rule fails the test. */
export function simulate(run: Run): Result {
  const {
    budgetBytes = null,
    kldBudget = null,
    tokensExpected = run.tokens,
    chunk = PAGE_TOKENS,
    epsilon = epsilonOf(1),
  } = run;
  let { back } = run;
  const session = new Session(run, budgetBytes, kldBudget, tokensExpected, epsilon);
  for (let tokens = chunk; tokens <= run.tokens; tokens += chunk) {
    session.stepLatencyBudgetMs = run.stepLatencyBudgetMs ?? null;
    session.lowMemory = run.low?.(tokens) === true || (run.lowMemoryFrom !== undefined && tokens >= run.lowMemoryFrom);
    session.makeRoom(tokens - chunk);
    session.append(tokens, chunk);
    if (tokens !== back?.at) continue;
    session.takeBack(back.to);
    tokens = back.to;
    back = undefined;
  }
  return session.result();
}

class Session {
  lowMemory = false;
  stepLatencyBudgetMs: number | null = null;
  readonly #policy: PolicySession;
  readonly #needsTrials: boolean;
  readonly #context: PolicyContext;
  readonly #budgetBytes: number | null;
  readonly #kldBudget: number | null;
  readonly #tokensExpected: number | null;
  readonly #epsilon: (layer: number, page: number, side: Part) => Epsilon;
  readonly #drift: (decision: Decision, tokens: number) => number | null;
  readonly #formats = new Map<string, PageForm>();
  readonly #entries: Entry[] = [];
  #bytes: number;
  #sealed = 0;
  #reported = 0;
  #untried: { layer: number; page: number }[] = [];
  #outcomes: Outcome[] = [];
  #epsilon2 = 0;

  readonly #run: Run;
  /** Formats of kept originals, and what the present form of their sides was promised to cost. */
  readonly #originals = new Map<string, { readonly from: FormatName; promised: number; readonly since: number }>();

  constructor(
    run: Run,
    budgetBytes: number | null,
    kldBudget: number | null,
    tokensExpected: number | null,
    epsilon: (layer: number, page: number, side: Part) => Epsilon,
  ) {
    const { policy, context, drift = () => 1 } = run;
    this.#run = run;
    this.#policy = openPolicy(policy, context);
    this.#needsTrials = policy.needsTrials;
    this.#context = context;
    this.#budgetBytes = budgetBytes;
    this.#kldBudget = kldBudget;
    this.#tokensExpected = tokensExpected;
    this.#epsilon = epsilon;
    this.#drift = drift;
    this.#bytes = context.fixedBytes;
  }

  /** What originals leave of it. */
  get #budget(): number | null {
    return this.#budgetBytes === null ? null : this.#budgetBytes - this.#canaryBytes;
  }

  get #canaryBytes(): number {
    return this.#originals.size * this.#context.pageBytes[this.#context.windowFormat];
  }

  get #sealBytes(): number {
    return this.#context.layers * (2 * this.#context.pageBytes[this.#context.windowFormat] + this.#besideBytes);
  }

  /** Bytes of the latent beside a page. */
  get #besideBytes(): number {
    const { latents, pageBytes: bytes } = this.#context;
    return latents === undefined ? 0 : bytes[latents.kept]!;
  }

  /** Bytes of a page as it is now, with its latent. */
  #bytesOf(layer: number, page: number): number {
    const { pageBytes: bytes } = this.#context;
    const latent = this.#formats.get(sideKey(layer, page, 'kv'));
    if (latent !== undefined && isLatent(latent)) return bytes[latent]!;
    const formOf = (side: Side): PageForm | undefined => this.#formats.get(sideKey(layer, page, side));
    const sides = SIDES.reduce((sum, side) => sum + (bytes[formOf(side)!] ?? 0), 0);
    return sides + (latent === undefined ? 0 : this.#besideBytes);
  }

  /** Before a token is appended to a full page: what its seal takes must be there. */
  makeRoom(tokens: number): void {
    if (tokens === 0 || tokens % PAGE_TOKENS !== 0) return;
    const lacks = () => this.#budget !== null && this.#bytes + this.#sealBytes > this.#budget;
    for (let round = 0; lacks(); round++) {
      must(round < 64, () => 'an urgent plan takes fewer than 64 rounds');
      try {
        const moves = this.#decide(tokens, [], true);
        must(moves > 0, () => 'an urgent plan is never empty');
      } catch (error) {
        // As in the engine, originals go before a session fails.
        if ((error as { code?: string }).code !== 'budget-too-small' || this.#originals.size === 0) throw error;
        this.#originals.clear();
      }
    }
    for (let layer = 0; layer < this.#context.layers; layer++) {
      for (const side of this.#context.latents === undefined ? SIDES : PARTS)
        this.#formats.set(sideKey(layer, this.#sealed, side), this.#context.windowFormat);
    }
    this.#sealed++;
    this.#bytes += this.#sealBytes;
    must(this.#budget === null || this.#bytes <= this.#budget, () => `${this.#bytes} bytes within ${this.#budget}`);
  }

  append(tokens: number, tokensNew: number): void {
    const movable = movablePages(tokens);
    for (; this.#reported < movable; this.#reported++) {
      for (let layer = 0; layer < this.#context.layers; layer++) this.#untried.push({ layer, page: this.#reported });
    }
    // As many as a page's tries need to be done in half a page; all of them when the page is full.
    const share =
      tokens % PAGE_TOKENS === 0 ? this.#untried.length : Math.ceil((this.#context.layers * tokensNew) / 64);
    const trials = this.#untried.splice(0, share).flatMap(({ layer, page }) =>
      PARTS.filter((side) => this.#formats.has(sideKey(layer, page, side))).map((side): TrialReport => {
        const tried = this.#needsTrials && !this.#context.skipLayers.includes(layer);
        return {
          layer,
          page,
          side,
          from: this.#formats.get(sideKey(layer, page, side))!,
          epsilon: tried ? this.#epsilon(layer, page, side) : {},
        };
      }),
    );
    this.#decide(tokens, trials, false, tokensNew);
  }

  /**
   * Pages that are not sealed at this length are gone, and those that are in the window again are reported once more.
   */
  takeBack(tokens: number): void {
    this.#sealed = sealedPages(tokens);
    this.#reported = movablePages(tokens);
    this.#untried = this.#untried.filter(({ page }) => page < this.#reported);
    const gone = [...this.#formats.keys()].filter((key) => Number(key.split('/')[1]) >= this.#sealed);
    for (const key of gone) {
      const [layer, page, side] = key.split('/') as [string, string, Part];
      if (side === 'k') this.#bytes -= this.#bytesOf(Number(layer), Number(page));
    }
    for (const key of gone) {
      this.#formats.delete(key);
      this.#originals.delete(key);
    }
    this.#decide(tokens, [], false);
  }

  result(): Result {
    return {
      entries: this.#entries,
      formats: this.#formats,
      bytes: this.#bytes,
      summary: this.#policy.summary(),
      epsilon2: this.#epsilon2,
    };
  }

  #decide(tokens: number, trials: TrialReport[], urgent: boolean, tokensNew = 0): number {
    const { layers } = this.#context;
    const full = tokens % PAGE_TOKENS === 0;
    const situation: Situation = {
      index: this.#entries.length,
      tokens,
      bytes: this.#bytes,
      sealBytes: full && !urgent ? 0 : this.#sealBytes,
      budgetBytes: this.#budget,
      kldBudget: this.#kldBudget,
      tokensExpected: this.#tokensExpected,
      movesMax: full ? layers * 8 : Math.max(1, 2 * tokensNew),
      urgent,
      lowMemory: this.lowMemory,
      stepLatencyMsP95: this.#run.latencyMs?.(tokens) ?? 0,
      stepLatencyBudgetMs: this.#run.latencyMs === undefined ? this.stepLatencyBudgetMs : 1,
      trials,
      outcomes: this.#outcomes,
      ...(this.#run.again === true && full && !urgent ? { again: this.#again(tokens) } : {}),
      ...this.#canaries(tokens, full && !urgent),
      ...(trials.length === 0 ? {} : this.#masses(tokens)),
    };
    const decisions = this.#policy.decide(situation);
    this.#outcomes = [];
    this.#run.see?.(this.#policy.summary());
    const movesMax = situation.movesMax + (situation.canaries?.length ?? 0);
    must(urgent || decisions.length <= movesMax, () => `${decisions.length} moves are at most ${movesMax}`);
    const verdicts = decisions.map((decision) => this.#carryOut(decision, situation));
    const epsilonNow = this.#outcomes.map((outcome) => outcome.epsilonNow);
    this.#entries.push({ situation, decisions, verdicts, epsilonNow });
    return decisions.length;
  }

  #again(tokens: number): TrialReport[] {
    const newest = movablePages(tokens) - 1;
    return [...this.#formats].flatMap(([key, from]): TrialReport[] => {
      const [layer, page, side] = key.split('/') as [string, string, Part];
      const age = newest - Number(page);
      if (from !== this.#context.windowFormat || age < 1 || age > 7) return [];
      const epsilon = this.#epsilon(Number(layer), Number(page), side);
      const lowest = FORMS.findLast((form) => epsilon[form] !== undefined)!;
      return [{ layer: Number(layer), page: Number(page), side, from, epsilon: { [lowest]: epsilon[lowest]! } }];
    });
  }

  /** What the situation says of attention, to a policy that asks. */
  #masses(tokens: number): Pick<Situation, 'masses'> {
    if (this.#run.policy.readsMasses !== true) return {};
    const { mass = () => 1 } = this.#run;
    const sharesOf = (layer: number): number[] => {
      const received = Array.from({ length: this.#sealed }, (_, page) => mass(layer, page, tokens));
      const total = received.reduce((sum, one) => sum + one, 0);
      return received.map((one) => one / total);
    };
    return {
      masses: Array.from({ length: this.#context.layers }, (_, layer) => ({ layer, shares: sharesOf(layer) })),
    };
  }

  /** What the situation says about originals: their bytes, and at full pages their probes. */
  #canaries(tokens: number, areProbed: boolean): Pick<Situation, 'canaryBytes' | 'canaries'> {
    if (this.#originals.size === 0) return {};
    const { ratio = () => 1 } = this.#run;
    const canaries = [...this.#originals].map(([key, { from, promised, since }]): CanaryReport => {
      const [layer, page, side] = key.split('/') as [string, string, Side];
      const epsilonNow = promised * ratio(Number(layer), tokens);
      const place = { layer: Number(layer), page: Number(page), side };
      return {
        ...place,
        from,
        to: this.#formats.get(key) as FormatName,
        epsilonPromised: promised,
        epsilonNow,
        age: tokens - since,
      };
    });
    return { canaryBytes: this.#canaryBytes, ...(areProbed ? { canaries } : {}) };
  }

  /**
   * Keeps the original of a side that leaves the window format, one for each layer as long as there is room; gives it
   * back to one that returns.
   */
  #original({ layer, from, to, epsilonTo }: Decision, key: string, tokens: number): void {
    const kept = this.#originals.get(key);
    if (to === 'freed' || isLatent(from) || isLatent(to)) return;
    if (FORMAT_NAMES.indexOf(to) < FORMAT_NAMES.indexOf(from)) {
      must(kept?.from === to, () => `only a kept original comes back: ${kept?.from}, not ${to}`);
      this.#originals.delete(key);
    } else if (kept !== undefined) {
      kept.promised = epsilonTo ?? kept.promised;
    } else if (from === this.#context.windowFormat && this.#originals.size < (this.#run.originals ?? 0)) {
      const isFree = ![...this.#originals.keys()].some((other) => other.startsWith(`${layer}/`));
      if (isFree && epsilonTo !== null && epsilonTo > 0)
        this.#originals.set(key, { from, promised: epsilonTo, since: tokens });
    }
  }

  #carryOut(decision: Decision, { tokens }: Situation): Verdict {
    const { layer, page, side, from, to } = decision;
    const { floor, skipLayers } = this.#context;
    const key = sideKey(layer, page, side);
    const isBroken =
      side === 'kv' &&
      !SIDES.every((one) => this.#formats.get(sideKey(layer, page, one)) === this.#context.windowFormat);
    must(!isBroken, () => `${key} is whole`);
    const partner = this.#formats.get(sideKey(layer, page, side === 'k' ? 'v' : 'k')) as FormatName;
    const movable = page < movablePages(tokens) && page < this.#reported;
    const what = (): string => `${key} ${from} to ${to} beside ${partner}`;
    const has = this.#formats.get(to === 'freed' ? sideKey(layer, page, 'k') : key);
    must(has === from, () => `${what()}: it is in ${has}`);
    const reason =
      this.#originals.get(key)?.from === to
        ? null
        : unsafe({ side, from, to, partner, movable, evicts: this.#run.policy.evicts === true });
    must(reason === null, () => `${what()}: ${JSON.stringify(reason)}`);
    must(!skipLayers.includes(layer), () => `${what()}: the layer is skipped`);
    if (floor !== null && to !== 'freed' && side !== 'kv')
      must(FORMS.indexOf(to) <= FORMS.indexOf(floor[side]), () => `${what()}: the floor is ${floor[side]}`);
    const { measured, bound } = decision.because;
    must(Number.isFinite(measured) && Number.isFinite(bound), () => `${what()}: ${measured} and ${bound} are numbers`);
    let epsilonNow: number | null = null;
    if (decision.retry) {
      const factor = this.#drift(decision, tokens);
      epsilonNow =
        factor === null ? null : factor * Math.sqrt(Math.max(0, decision.epsilonTo! ** 2 - decision.epsilonFrom! ** 2));
    }
    const verdict = this.#policy.judge(decision, epsilonNow);
    must(verdict.because.threshold !== 'unsafe', () => `${what()} is judged unsafe`);
    let bytesFreed = 0;
    if (verdict.accepted) {
      const before = this.#bytesOf(layer, page);
      const hadLatent = this.#formats.has(sideKey(layer, page, 'kv'));
      if (to === 'freed') for (const part of PARTS) this.#formats.delete(sideKey(layer, page, part));
      else this.#formats.set(key, to);
      // The latent beside a page goes with the first of its sides that moves, and the plan may have counted it with the
      // other.
      if (side !== 'kv') this.#formats.delete(sideKey(layer, page, 'kv'));
      bytesFreed = before - this.#bytesOf(layer, page);
      const differs = bytesFreed - decision.bytesFreed;
      const besideBytes = hadLatent ? this.#besideBytes : -this.#besideBytes;
      must(differs === 0 || differs === besideBytes, () => `${what()} frees ${differs} bytes more than it says`);
      this.#original(decision, key, tokens);
      this.#bytes -= bytesFreed;
      const table = this.#epsilon(layer, page, side);
      this.#epsilon2 += (to === 'freed' ? 0 : (table[to] ?? 0)) ** 2 - (table[from] ?? 0) ** 2;
      const [keys, values] = SIDES.map((one) => this.#formats.get(sideKey(layer, page, one)) as FormatName);
      must(
        to === 'freed' || !isUselessPair(keys!, values!),
        () => `${what()} makes a useless pair: ${keys}, ${values}`,
      );
    }
    this.#outcomes.push({
      layer,
      page,
      side,
      from,
      to,
      accepted: verdict.accepted,
      epsilonNow,
      bytesFreed,
    });
    return verdict;
  }
}

/** Bytes of a plain f16 cache of this length. */
export const f16Bytes = ({ layers, kvHeads, headDim }: PolicyContext, tokens: number): number =>
  tokens * layers * kvHeads * headDim * 4;
