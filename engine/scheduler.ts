/**
 * The scheduling half of a step: which pages became movable, what a move would cost (trial), what the policy decides,
 * and the carrying out. Every stage is all or nothing, every decision becomes one log entry, accepted or not.
 */
import {
  assert,
  FORMATS,
  type FormatName,
  halvesReached,
  isPageFull,
  type KvCache,
  KvError,
  movablePages,
  nextHalf,
  PAGE_TOKENS,
  type PagePool,
  type Side,
  sealedPages,
  sealsBetween,
  type TrialCandidate,
} from '../native/index.ts';
import type {
  Decision,
  Outcome,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Situation,
  TrialReport,
} from '../policy/index.ts';
import type { EntryBodies, WitnessLog } from '../witness/index.ts';
import { RecentLatency } from './latency.ts';
import { MassTrace } from './measure.ts';

/** Candidates of a first trial, best first. */
const CANDIDATES: readonly FormatName[] = ['rot4', 'rot3', 'rot2'];
const FIRST_TRIAL: readonly TrialCandidate[] = (['k', 'v'] as const).flatMap((side) =>
  CANDIDATES.map((format) => ({ side, format })),
);
const NOTHING = new Float64Array(0);
/** Tokens over which the trials of one page are spread while writing, so that no single step carries them; done before the page leaves the window. */
const TRIAL_SPREAD_TOKENS = 48;
/** While writing, trials are made some at a time: between steps their code and data leave the caches, and bringing them back costs half a trial. */
const TRIALS_AT_ONCE = 5;
/** While writing, plans are made this often: half of what a plan and its entries cost is waking up code that has not run for some steps. */
const DECIDE_EVERY_TOKENS = 8;
/** Moves per token at most while a prompt is read. */
const MOVES_PER_TOKEN = 2;
/** Moves of one plan while writing, or half a side of each layer where there are more: two steps at a page boundary move one page. */
const MOVES_AT_ONCE = 16;
/** How much of what an average page gives back the page that leaves the window gives: the newest stay larger. Measured on SmolLM2-135M, 25% of f16. */
const GIVEN_BACK = 0.8;
/** Plans per scheduling point: a refused plan may be followed by another. */
const ROUNDS_MAX = 64;
/** Of these, the first ones in which a trial may still refuse. */
const ROUNDS_CHOOSY = 4;
const NO_TRIALS: readonly TrialReport[] = [];

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
  /** All that is not one of the others. */
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
  readonly #policy: PolicySession;
  #index = 0;
  #pagesSeen = 0;
  /** Trials that are due by the tokens since the last ones. */
  #trialsDue = 0;
  #untried: { layer: number; page: number }[] = [];
  /** On their way. */
  #started: { layer: number; page: number }[] = [];
  #tried: TrialReport[] = [];
  #tokensSince = 0;
  /** Tokens before which pages neither come to be tried nor leave the window. */
  #nextPoint = 0;
  #outcomes: Outcome[] = [];
  #idle = false;
  readonly #latency = new RecentLatency();
  #failure: { readonly error: unknown } | null = null;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    this.#policy = options.policy.open(options.context);
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
    return this.#policy.summary();
  }

  /** Runs at a token boundary, after `tokensNew` were appended to every layer: trials of pages that left the window, and the moves they lead to. */
  run(tokens: number, tokensNew: number): void {
    this.#tokensSince += tokensNew;
    // Most steps: nothing is due, and what is not touched need not be fetched from memory.
    if (this.#untried.length > 0) this.#trialsDue += this.#trialsIn(tokensNew);
    if (tokens < this.#nextPoint && !this.#trialsAreDue && !this.#planIsDue && this.#failure === null) return;
    this.#timed(() => this.#run(tokens, tokensNew));
  }

  /** Trials that belong to so many tokens. */
  #trialsIn(tokens: number): number {
    return (this.#options.context.layers * tokens) / TRIAL_SPREAD_TOKENS;
  }

  /** A step that plans makes no trials beside it: they can wait for the next one. */
  get #trialsAreDue(): boolean {
    return (
      this.#trialsDue >= Math.min(TRIALS_AT_ONCE, this.#untried.length) && this.#untried.length > 0 && !this.#planIsDue
    );
  }

  get #planIsDue(): boolean {
    return this.#tokensSince >= DECIDE_EVERY_TOKENS && !(this.#idle && !this.lowMemory);
  }

  #run(tokens: number, tokensNew: number): void {
    this.#nextPoint = nextHalf(tokens);
    this.masses.note(tokens);
    this.#admit(tokens, tokensNew);
    if (this.#trialsAreDue) this.#start(Math.floor(this.#trialsDue));
    const trials = this.#reports(tokens);
    if (trials.length > 0) this.#idle = false;
    else if (!this.#planIsDue) return;
    this.#tokensSince = 0;
    // A full page that is sealed next is makeRoom's business: whether more tokens come at all is not known yet.
    this.#decide(tokens, tokensNew, trials, null, isPageFull(tokens) ? 0 : this.#aheadBytes(tokens));
  }

  /** Runs before tokens are appended: pages that they fill up will be sealed, and what that takes is freed now or a KvError 'budget-too-small' is thrown. */
  makeRoom(tokens: number, tokensNew: number): void {
    const { budgetBytes, pool, cache, context } = this.#options;
    const seals = sealsBetween(tokens, tokensNew);
    if (seals === 0 || budgetBytes === null) return;
    const sealBytes = seals * cache.sealBytes * context.layers;
    if (pool.usedBytes + sealBytes <= budgetBytes - this.#spareBytes) return;
    this.#timed(() => this.#decide(tokens, tokensNew, this.#reports(tokens), sealBytes, 0));
  }

  /** Runs when a prompt has been read and tokens will follow: where it ends on a page boundary, the seal of its last page is its own work and not that of the first token written. */
  endPrompt(tokens: number): void {
    if (isPageFull(tokens)) this.makeRoom(tokens, PAGE_TOKENS);
  }

  /** How long a step that wrote one token took, all of it. */
  stepTook(ms: number): void {
    this.#latency.add(ms);
  }

  /**
   * Does work and counts its time. After a failure the policy has seen what the log has not: nothing is decided any more, every later
   * call fails the same way.
   */
  #timed(work: () => void): void {
    if (this.#failure !== null) throw this.#failure.error;
    const { times } = this;
    const start = performance.now() - times.trialMs - times.transcodeMs - times.witnessMs;
    try {
      work();
    } catch (error) {
      this.#failure = { error };
      throw error;
    } finally {
      times.decideMs += performance.now() - times.trialMs - times.transcodeMs - times.witnessMs - start;
    }
  }

  /**
   * Pages to try: those that leave the window with the page that is open now, from its middle on. By then half a page of queries
   * sees them whole; reading a page at a time they are tried on all of them.
   */
  #admit(tokens: number, tokensNew: number): void {
    const admitted = Math.max(0, halvesReached(tokens) - 1);
    if (admitted > this.#pagesSeen && this.#untried.length === 0) this.#trialsDue = this.#trialsIn(tokensNew);
    for (let page = this.#pagesSeen; page < admitted; page++) {
      for (let layer = 0; layer < this.#options.context.layers; layer++) this.#untried.push({ layer, page });
    }
    this.#pagesSeen = Math.max(this.#pagesSeen, admitted);
  }

  /** Reports of pages that have left the window: at least one page of newer tokens stands behind them. What is still untried is tried now. */
  #reports(tokens: number): readonly TrialReport[] {
    const movable = movablePages(tokens);
    // All three lists are in the order of pages.
    const first = this.#tried[0] ?? this.#started[0] ?? this.#untried[0];
    if (first === undefined || first.page >= movable) return NO_TRIALS;
    this.#try(this.#untried.filter(({ page }) => page < movable).length);
    const ready = this.#tried.filter(({ page }) => page < movable);
    if (ready.length > 0) this.#tried = this.#tried.filter(({ page }) => page >= movable);
    return ready;
  }

  /** Of one step. */
  get #movesAtBoundary(): number {
    return Math.max(MOVES_AT_ONCE, Math.ceil(this.#options.context.layers / 2));
  }

  /** What the next seal of all layers will need beyond what the page that leaves the window gives back in the two steps around the boundary. */
  #aheadBytes(tokens: number): number {
    const { cache, context } = this.#options;
    const share = Math.min(1, this.#movesAtBoundary / context.layers);
    return Math.round(cache.sealBytes * context.layers - share * this.#givenBack(tokens));
  }

  /** What a page that leaves the window gives back if its sides become as small as the others are on average, or nearly. */
  #givenBack(tokens: number): number {
    const { context, pool } = this.#options;
    const pages = sealedPages(tokens);
    if (pages < 2) return 0;
    const windowBytes = 2 * context.layers * context.pageBytes[context.windowFormat];
    const average = (pool.usedBytes - context.fixedBytes - windowBytes) / (pages - 1);
    return GIVEN_BACK * Math.max(0, windowBytes - Math.max(average, 0));
  }

  /** Tries pages at once. */
  #try(count: number): void {
    this.#collect(true);
    if (count === 0) return;
    const start = performance.now();
    for (const { layer, page } of this.#untried.splice(0, count)) {
      this.#report(layer, page, this.#isTried(layer) ? this.#options.cache.trial(layer, page, FIRST_TRIAL) : NOTHING);
    }
    this.times.trialMs += performance.now() - start;
  }

  /** Has pages tried while the next steps go on. Nobody waits for them before they are reported. */
  #start(count: number): void {
    this.#collect(false);
    const start = performance.now();
    this.#trialsDue = Math.max(0, this.#trialsDue - count);
    for (const one of this.#untried.splice(0, count)) {
      if (this.#isTried(one.layer)) this.#options.cache.startTrial(one.layer, one.page, FIRST_TRIAL);
      this.#started.push(one);
    }
    this.times.trialMs += performance.now() - start;
  }

  /** What trials that were started have found: all of them, or those that have ended. */
  #collect(wait: boolean): void {
    if (this.#started.length === 0) return;
    const start = performance.now();
    const found = this.#options.cache.finishTrials(wait);
    let at = 0;
    let done = 0;
    for (; done < this.#started.length; done++) {
      const { layer, page } = this.#started[done]!;
      if (this.#isTried(layer) && at === found.length) break;
      this.#report(layer, page, this.#isTried(layer) ? found[at++]! : NOTHING);
    }
    this.#started.splice(0, done);
    this.times.trialMs += performance.now() - start;
  }

  #isTried(layer: number): boolean {
    const { policy, context } = this.#options;
    return policy.needsTrials && !context.skipLayers.includes(layer);
  }

  /** `errors`: of FIRST_TRIAL, or nothing. */
  #report(layer: number, page: number, errors: Float64Array): void {
    const from = this.#options.context.windowFormat;
    for (let at = 0; at < FIRST_TRIAL.length; at += CANDIDATES.length) {
      const epsilon: Partial<Record<FormatName, number>> = {};
      for (let i = at; i < at + CANDIDATES.length && i < errors.length; i++) {
        // No kept query sees the whole page (sliding window): nobody will miss it, but say nothing that was not measured.
        if (Number.isFinite(errors[i])) epsilon[FIRST_TRIAL[i]!.format] = errors[i]!;
      }
      this.#tried.push({ layer, page, side: FIRST_TRIAL[at]!.side, from, epsilon });
    }
    this.counts[layer]!.tried += errors.length;
  }

  /**
   * `dueBytes`: what seals take that are due now; null when none is, and `aheadBytes` is what they will take. At a page boundary the page that leaves the window may move:
   * one half of its sides at the end of the step that fills the page behind it, the rest before the next, so that neither carries all.
   */
  #decide(
    tokens: number,
    tokensNew: number,
    trials: readonly TrialReport[],
    dueBytes: number | null,
    aheadBytes: number,
  ): void {
    const { pool, budgetBytes, kldBudget, tokensExpected } = this.#options;
    const full = isPageFull(tokens);
    let pressing = false;
    const sealBytes = dueBytes ?? aheadBytes;
    let fresh = trials;
    let bytes = pool.usedBytes;
    const latencyMsP95 = this.#latency.p95;
    for (let round = 0; round < ROUNDS_MAX; round++) {
      // A refused move is planned again at its corrected price, or another in its place; only then does the budget override the verdicts.
      const urgent = dueBytes !== null && (pressing || round >= ROUNDS_CHOOSY);
      const situation: Situation = {
        index: this.#index++,
        tokens,
        bytes,
        sealBytes,
        budgetBytes: budgetBytes === null ? null : budgetBytes - this.#spareBytes,
        kldBudget,
        tokensExpected,
        movesMax: Math.max(full ? this.#movesAtBoundary : MOVES_AT_ONCE, MOVES_PER_TOKEN * tokensNew),
        urgent,
        lowMemory: this.lowMemory,
        stepLatencyMsP95: latencyMsP95,
        stepLatencyBudgetMs: this.#options.stepLatencyBudgetMs ?? null,
        trials: fresh,
        outcomes: this.#outcomes,
      };
      this.#outcomes = [];
      fresh = NO_TRIALS;
      const decisions = this.#policy.decide(situation);
      this.#record('situation', { situation });
      let order = 0;
      for (const decision of decisions) bytes = this.#carryOut(situation, order++, decision, bytes);
      const deficit = situation.budgetBytes === null ? 0 : bytes + sealBytes - situation.budgetBytes;
      if (decisions.length === 0) {
        if (dueBytes !== null && deficit > 0) {
          if (urgent) throw noRoom(budgetBytes ?? 0, bytes, sealBytes, tokens);
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
    throw noRoom(budgetBytes ?? 0, bytes, sealBytes, tokens);
  }

  /**
   * Trial, verdict, move, entry: in this order, and the entry says which of them happened. `bytesBefore`: in use in the pool.
   * → bytes in use afterwards; nobody else allocates meanwhile, so what a move frees is all that changes them
   */
  #carryOut(situation: Situation, order: number, decision: Decision, bytesBefore: number): number {
    const { cache } = this.#options;
    const { layer, page, side, from, to } = decision;
    const now = cache.format(layer, page, side);
    // A page that was restored from its latent is better than the policy knows; it moves on all the same.
    if (FORMATS[now].id > FORMATS[from].id)
      assert(false, `decision of layer ${layer} page ${page} ${side} says ${from}, the cache says ${now}`);
    let epsilonNow: number | null = null;
    if (decision.retry) {
      const start = performance.now();
      const value = cache.trial(layer, page, [{ side, format: to }])[0]!;
      epsilonNow = Number.isFinite(value) ? value : null;
      this.counts[layer]!.tried += 1;
      this.times.trialMs += performance.now() - start;
    }
    const verdict = this.#policy.judge(decision, epsilonNow);
    let bytesFreed = 0;
    if (verdict.accepted) {
      const start = performance.now();
      bytesFreed = cache.transcode(layer, page, side, to);
      this.times.transcodeMs += performance.now() - start;
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
      bytesAfter: bytesBefore - bytesFreed,
      tokens: situation.tokens,
    });
    const epsilon = decision.epsilonTo ?? 0;
    if (verdict.accepted && seq !== null && epsilon >= (this.notable?.epsilon ?? 0))
      this.notable = { seq, epsilon, layer, page, side, from, to };
    return bytesBefore - bytesFreed;
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
