/**
 * The scheduling half of a step: which pages became movable, what a move would cost (trial), what the policy decides,
 * and the carrying out. Every stage is all or nothing, every decision becomes one log entry, accepted or not.
 */
import {
  assert,
  FORMAT_NAMES,
  type FormatName,
  type KvCache,
  KvError,
  PAGE_TOKENS,
  type PagePool,
  type Side,
} from '../native/index.ts';
import type {
  Decision,
  Outcome,
  Policy,
  PolicyContext,
  PolicySummary,
  Situation,
  TrialReport,
} from '../policy/index.ts';
import type { EntryBodies, WitnessLog } from '../witness/index.ts';
import { RecentLatency } from './latency.ts';
import { MassTrace } from './measure.ts';

/** Candidates of a first trial, best first. */
const CANDIDATES: readonly FormatName[] = ['rot4', 'rot3', 'rot2'];
/** Tokens over which the trials of one page are spread while writing, so that no single step carries them; done before the page leaves the window. */
const TRIAL_SPREAD_TOKENS = 48;
/** While writing, plans are made this often: what a plan and its entries cost is mostly waking up code that has not run for some steps. */
const DECIDE_EVERY_TOKENS = 8;
/** Moves per token at most while decoding. */
const MOVES_PER_TOKEN = 2;
/** Plans per scheduling point: a refused plan may be followed by another. */
const ROUNDS_MAX = 64;
/** Of these, the first ones in which a trial may still refuse. */
const ROUNDS_CHOOSY = 4;

export interface SchedulerOptions {
  readonly session: string;
  readonly cache: KvCache;
  readonly pool: PagePool;
  readonly policy: Policy;
  readonly context: PolicyContext;
  readonly budgetBytes: number | null;
  readonly kldBudget: number | null;
  readonly tokensExpected: number | null;
  /** p95 of decode steps that is wished for; null: none. */
  readonly stepLatencyBudgetMs?: number | null;
  readonly log: WitnessLog | null;
}

export interface SchedulerTimes {
  decideMs: number;
  trialMs: number;
  transcodeMs: number;
  witnessMs: number;
}

export interface LayerCounts {
  tried: number;
  accepted: number;
  refused: number;
  epsilonMax: number | null;
}

export class Scheduler {
  readonly times: SchedulerTimes = { decideMs: 0, trialMs: 0, transcodeMs: 0, witnessMs: 0 };
  readonly counts: LayerCounts[];
  /** Where attention went lately. */
  readonly masses: MassTrace;
  decisions = 0;
  refused = 0;
  /** Log entry of the accepted move with the largest ε so far: the one worth asking about. */
  notable: {
    readonly seq: number;
    readonly epsilon: number;
    readonly layer: number;
    readonly page: number;
    readonly side: Side;
    readonly from: FormatName;
    readonly to: FormatName;
  } | null = null;
  /** External low-memory signal, seen at the next scheduling point. */
  lowMemory = false;
  readonly #options: SchedulerOptions;
  readonly #spareBytes: number;
  #state: unknown;
  #index = 0;
  #pagesSeen = 0;
  #untried: { layer: number; page: number }[] = [];
  #tried: TrialReport[] = [];
  #tokensSince = 0;
  #outcomes: Outcome[] = [];
  #idle = false;
  readonly #latency = new RecentLatency();
  /** The newest page that has left the window, and what its moves freed at that boundary. */
  #leaving = { page: -1, freedBytes: 0 };
  #failure: { readonly error: unknown } | null = null;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    this.#state = options.policy.initial(options.context);
    this.masses = new MassTrace(options.cache);
    this.#spareBytes = Math.max(
      options.context.pageBytes.rot4,
      options.context.windowFormat === 'f16' ? options.context.pageBytes.q8 : 0,
    );
    this.counts = Array.from({ length: options.context.layers }, () => ({
      tried: 0,
      accepted: 0,
      refused: 0,
      epsilonMax: null,
    }));
  }

  get summary(): PolicySummary {
    return this.#options.policy.summary(this.#state);
  }

  /** Runs at a token boundary, after `tokensNew` were appended to every layer: trials of pages that left the window, and the moves they lead to. */
  run(tokens: number, tokensNew: number): void {
    this.masses.note(tokens);
    this.#once(() => this.#run(tokens, tokensNew));
  }

  #run(tokens: number, tokensNew: number): void {
    this.#admit(tokens);
    this.#try(Math.ceil((this.#options.context.layers * tokensNew) / TRIAL_SPREAD_TOKENS));
    const trials = this.#reports(tokens);
    this.#tokensSince += tokensNew;
    if (trials.length > 0) this.#idle = false;
    else if (this.#tokensSince < DECIDE_EVERY_TOKENS) return;
    if (this.#idle && !this.lowMemory) return;
    // What nobody had a use for while nothing could be decided is not made up for in one step.
    const moves = MOVES_PER_TOKEN * Math.max(tokensNew, Math.min(this.#tokensSince, DECIDE_EVERY_TOKENS));
    this.#tokensSince = 0;
    this.#decide(tokens, moves, trials, null);
  }

  /** Runs before tokens are appended: pages that they fill up will be sealed, and what that takes is freed now or a KvError 'budget-too-small' is thrown. */
  makeRoom(tokens: number, tokensNew: number): void {
    const { budgetBytes, pool, cache, context } = this.#options;
    const seals = sealsOf(tokens, tokensNew);
    if (seals === 0 || budgetBytes === null) return;
    const sealBytes = seals * cache.sealBytes * context.layers;
    if (pool.usedBytes + sealBytes <= budgetBytes - this.#spareBytes) return;
    this.#once(() => this.#decide(tokens, MOVES_PER_TOKEN * tokensNew, this.#reports(tokens), sealBytes));
  }

  /** Runs when a prompt has been read and tokens will follow: where it ends on a page boundary, the seal of its last page is its own work and not that of the first token written. */
  endPrompt(tokens: number): void {
    if (isFull(tokens)) this.makeRoom(tokens, PAGE_TOKENS);
  }

  /** How long a step that wrote one token took, all of it. */
  stepTook(ms: number): void {
    this.#latency.add(ms);
  }

  /** After a failure the policy has seen what the log has not: nothing is decided any more, every later call fails the same way. */
  #once(work: () => void): void {
    if (this.#failure !== null) throw this.#failure.error;
    try {
      work();
    } catch (error) {
      this.#failure = { error };
      throw error;
    }
  }

  /**
   * Pages to try: those that leave the window with the page that is open now, from its middle on. By then half a page of queries
   * sees them whole; reading a page at a time they are tried on all of them.
   */
  #admit(tokens: number): void {
    const admitted = Math.max(0, Math.floor((tokens + PAGE_TOKENS / 2) / PAGE_TOKENS) - 1);
    for (let page = this.#pagesSeen; page < admitted; page++) {
      for (let layer = 0; layer < this.#options.context.layers; layer++) this.#untried.push({ layer, page });
    }
    this.#pagesSeen = Math.max(this.#pagesSeen, admitted);
  }

  /** Reports of pages that have left the window: at least one page of newer tokens stands behind them. What is still untried is tried now. */
  #reports(tokens: number): TrialReport[] {
    const movable = Math.max(0, Math.floor(tokens / PAGE_TOKENS) - 1);
    this.#try(this.#untried.filter(({ page }) => page < movable).length);
    const ready = this.#tried.filter(({ page }) => page < movable);
    if (ready.length > 0) this.#tried = this.#tried.filter(({ page }) => page >= movable);
    return ready;
  }

  /**
   * What the next seal of all layers will need beyond what the page that leaves the window then gives back: as much as the
   * last one gave back, and not more than if it becomes as small as the others are on average.
   */
  #aheadBytes(tokens: number): number {
    const { cache, context, pool } = this.#options;
    const sealBytes = cache.sealBytes * context.layers;
    const pages = Math.floor((tokens - 1) / PAGE_TOKENS);
    if (pages < 2) return sealBytes;
    const windowBytes = 2 * context.layers * context.pageBytes[context.windowFormat];
    const average = (pool.usedBytes - context.fixedBytes - windowBytes) / (pages - 1);
    const givenBack = this.#leaving.page === pages - 2 ? this.#leaving.freedBytes : Number.POSITIVE_INFINITY;
    return Math.round(sealBytes - Math.max(0, Math.min(windowBytes - Math.max(average, 0), givenBack)));
  }

  #try(count: number): void {
    const { policy, context, cache } = this.#options;
    if (count === 0 || this.#untried.length === 0) return;
    const batch = this.#untried.splice(0, count);
    const start = performance.now();
    const reports = this.#tried;
    for (const { layer, page } of batch) {
      if (!policy.needsTrials || context.skipLayers.includes(layer)) {
        for (const side of ['k', 'v'] as const)
          reports.push({ layer, page, side, from: context.windowFormat, epsilon: {} });
        continue;
      }
      const candidates = (['k', 'v'] as const).flatMap((side) => CANDIDATES.map((format) => ({ side, format })));
      const epsilon = cache.trial(layer, page, candidates);
      let at = 0;
      for (const side of ['k', 'v'] as const) {
        const table: Partial<Record<FormatName, number>> = {};
        for (const format of CANDIDATES) {
          const value = epsilon[at++] as number;
          // No kept query sees the whole page (sliding window): nobody will miss it, but say nothing that was not measured.
          if (Number.isFinite(value)) table[format] = value;
        }
        reports.push({ layer, page, side, from: context.windowFormat, epsilon: table });
      }
      this.counts[layer]!.tried += CANDIDATES.length * 2;
    }
    this.times.trialMs += performance.now() - start;
  }

  /**
   * `dueBytes`: what seals take that are due now; null when none is. At a page boundary the page that leaves the window may move:
   * one half of its sides at the end of the step that fills the page behind it, the rest before the next, so that neither carries all.
   */
  #decide(tokens: number, moves: number, trials: TrialReport[], dueBytes: number | null): void {
    const { context, policy, pool, budgetBytes, kldBudget, tokensExpected } = this.#options;
    // A full page that is sealed next is makeRoom's business: whether more tokens come at all is not known yet.
    const full = isFull(tokens);
    let pressing = false;
    const sealBytes = dueBytes ?? (full ? 0 : this.#aheadBytes(tokens));
    let fresh: readonly TrialReport[] = trials;
    const latencyMsP95 = this.#latency.p95;
    for (let round = 0; round < ROUNDS_MAX; round++) {
      // A refused move is planned again at its corrected price, or another in its place; only then does the budget override the verdicts.
      const urgent = dueBytes !== null && (pressing || round >= ROUNDS_CHOOSY);
      const situation: Situation = {
        index: this.#index++,
        tokens,
        bytes: pool.usedBytes,
        sealBytes,
        budgetBytes: budgetBytes === null ? null : budgetBytes - this.#spareBytes,
        kldBudget,
        tokensExpected,
        movesMax: full ? Math.max(context.layers, moves) : moves,
        urgent,
        lowMemory: this.lowMemory,
        stepLatencyMsP95: latencyMsP95,
        stepLatencyBudgetMs: this.#options.stepLatencyBudgetMs ?? null,
        trials: fresh,
        outcomes: this.#outcomes,
      };
      this.#outcomes = [];
      fresh = [];
      const start = performance.now();
      const { decisions, state } = policy.decide(situation, this.#state);
      this.#state = state;
      this.times.decideMs += performance.now() - start;
      this.#record('situation', { situation });
      let order = 0;
      for (const decision of decisions) this.#carryOut(situation, order++, decision);
      const deficit = situation.budgetBytes === null ? 0 : pool.usedBytes + sealBytes - situation.budgetBytes;
      if (decisions.length === 0) {
        if (dueBytes !== null && deficit > 0) {
          if (urgent) throw noRoom(budgetBytes ?? 0, pool.usedBytes, sealBytes, tokens);
          pressing = true;
          continue;
        }
        this.#idle = true;
        return;
      }
      if (dueBytes === null || deficit <= 0) {
        this.#idle = false;
        return;
      }
    }
    throw noRoom(budgetBytes ?? 0, pool.usedBytes, sealBytes, tokens);
  }

  /** Trial, verdict, move, entry: in this order, and the entry says which of them happened. */
  #carryOut(situation: Situation, order: number, decision: Decision): void {
    const { cache, policy, pool } = this.#options;
    const { layer, page, side, from, to } = decision;
    const table = cache.table(layer);
    const now = FORMAT_NAMES[(side === 'k' ? table.kFormat : table.vFormat)[page] ?? -1];
    // A page that was restored from its latent is better than the policy knows; it moves on all the same.
    assert(
      now !== undefined && FORMAT_NAMES.indexOf(now) <= FORMAT_NAMES.indexOf(from),
      `decision of layer ${layer} page ${page} ${side} says ${from}, the cache says ${String(now)}`,
    );
    let epsilonNow: number | null = null;
    if (decision.retry) {
      const start = performance.now();
      const value = cache.trial(layer, page, [{ side, format: to }])[0] as number;
      epsilonNow = Number.isFinite(value) ? value : null;
      this.counts[layer]!.tried += 1;
      this.times.trialMs += performance.now() - start;
    }
    const verdict = policy.judge(decision, epsilonNow, this.#state);
    const bytesBefore = pool.usedBytes;
    let bytesFreed = 0;
    if (verdict.accepted) {
      const start = performance.now();
      bytesFreed = cache.transcode(layer, page, side as Side, to);
      this.times.transcodeMs += performance.now() - start;
    }
    if (isFull(situation.tokens) && page === situation.tokens / PAGE_TOKENS - 2) {
      if (page !== this.#leaving.page) this.#leaving = { page, freedBytes: 0 };
      this.#leaving.freedBytes += bytesFreed;
    }
    this.#count(layer, verdict.accepted, decision.epsilonTo);
    this.#outcomes.push({ layer, page, side, from, to, accepted: verdict.accepted, epsilonNow, bytesFreed });
    const seq = this.#record('decision', {
      situation: situation.index,
      order,
      decision,
      epsilonNow,
      verdict,
      bytesBefore,
      bytesAfter: pool.usedBytes,
      tokens: situation.tokens,
    });
    const epsilon = decision.epsilonTo ?? 0;
    if (verdict.accepted && seq !== null && epsilon >= (this.notable?.epsilon ?? 0))
      this.notable = { seq, epsilon, layer, page, side, from, to };
  }

  #count(layer: number, accepted: boolean, epsilon: number | null): void {
    this.decisions++;
    const counts = this.counts[layer]!;
    if (!accepted) {
      this.refused++;
      counts.refused++;
      return;
    }
    counts.accepted++;
    if (epsilon !== null) counts.epsilonMax = Math.max(counts.epsilonMax ?? 0, epsilon);
  }

  #record<K extends 'situation' | 'decision'>(kind: K, body: EntryBodies[K]): number | null {
    const { log, session } = this.#options;
    if (log === null) return null;
    const start = performance.now();
    const seq = log.append(session, kind, body);
    this.times.witnessMs += performance.now() - start;
    return seq;
  }
}

/** Pages of a layer that are sealed when `tokensNew` come behind `tokens`: a full page is sealed by the first token behind it. */
export function sealsOf(tokens: number, tokensNew: number): number {
  const sealed = (count: number): number => Math.max(0, Math.ceil(count / PAGE_TOKENS) - 1);
  return sealed(tokens + tokensNew) - sealed(tokens);
}

/** The open page has no free row. */
function isFull(tokens: number): boolean {
  return tokens > 0 && tokens % PAGE_TOKENS === 0;
}

function noRoom(budgetBytes: number, usedBytes: number, sealBytes: number, tokens: number): KvError {
  return new KvError(
    'budget-too-small',
    `the KV budget of ${budgetBytes} bytes is spent at ${tokens} tokens and no legal move frees enough`,
    {
      values: { budgetBytes, usedBytes, sealBytes, tokens },
      hint: 'raise the budget, allow lower formats, or shorten the context',
    },
  );
}
