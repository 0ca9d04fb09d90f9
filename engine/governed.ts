/**
 * One conversation's cache with everything that governs it: the native cache in its pool, the policy's session, trials, moves, pacing,
 * latents, and the log that it is written to. A `Session` is this plus a model and tokens, a `PolicyCache` this plus the caller's arrays.
 * In what order its parts act is said in step.ts.
 */
import type { Fingerprint, Lookup } from '../memory/index.ts';
import {
  type CacheMemory,
  type CacheShape,
  type FormatName,
  type KvCache,
  type KvCacheOptions,
  KvError,
  latentBytes,
  openKvCache,
  openPool,
  type PagePool,
} from '../native/index.ts';
import {
  machineDigest,
  type Outcome,
  type PolicySession,
  type PolicySummary,
  type Priority,
  type Situation,
  type ThresholdSet,
  type TrialReport,
  thresholdOf,
} from '../policy/index.ts';
import { newId, type OpenBody, type WitnessLog } from '../witness/index.ts';
import { f16CacheBytes, memoryBytes, spareBytes } from './budget.ts';
import { type CheckedInputs, type LatentOptions, Latents, noLatents } from './latents.ts';
import { MassTrace } from './measure.ts';
import { type LayerCounts, Mover, type Spent } from './mover.ts';
import { Pacing } from './pacing.ts';
import { FORK, type SessionPlan } from './plan.ts';
import { TrialQueue } from './trials.ts';

export interface GovernedOptions {
  readonly shape: CacheShape;
  readonly plan: SessionPlan;
  readonly native: Pick<KvCacheOptions, 'scale' | 'slidingWindow' | 'alibiSlopes' | 'threads'>;
  /** S·W_o of every layer, or none. */
  readonly sketches: readonly Float32Array[];
  readonly latents?: LatentOptions | undefined;
  readonly log: WitnessLog | null;
  readonly opened: Pick<OpenBody, 'model' | 'requested' | 'effective'>;
  /** Where the thresholds came from. */
  readonly evidence?: { readonly lookup?: Lookup | null; readonly fingerprint?: Fingerprint };
}

/** What a caller measured: the constant of the error law is moved towards it. */
export interface QualityFeedback {
  /** Mean KLD against an exact run over the same tokens, in nats. */
  readonly meanKld: number;
}

/** Where the bytes of a cache are, and what bounds them. */
export interface MemoryUsage extends CacheMemory {
  /** Those of pageBytes that are latents. */
  readonly latentBytes: number;
  /** The budget; null: none. */
  readonly budgetBytes: number | null;
  /** Most bytes that it ever had. */
  readonly peakBytes: number;
  /** Memory that the pool holds of the system now, for this cache and its forks. */
  readonly reservedBytes: number;
  /** Bytes of a plain f16 cache of this length. */
  readonly f16Bytes: number;
}

export class Governed {
  readonly id: string;
  readonly shape: CacheShape;
  readonly plan: SessionPlan;
  readonly kv: KvCache;
  readonly pool: PagePool;
  readonly log: WitnessLog | null;
  readonly policy: PolicySession;
  readonly trials: TrialQueue;
  readonly mover: Mover;
  readonly pacing: Pacing;
  readonly latents: Latents | null;
  /** Where attention went lately. */
  readonly masses: MassTrace;
  readonly spent: Spent = { decideMs: 0, trialMs: 0, transcodeMs: 0, witnessMs: 0 };
  readonly counts: readonly LayerCounts[];
  /** Bytes of the budget that stay free: the source page of a move lives until the new one is complete. */
  readonly spareBytes: number;
  /** Tokens that every layer holds. */
  length = 0;
  /** External low-memory signal, seen at the next scheduling point. */
  lowMemory = false;
  /** Sequence number of the first log entry, −1 before it and where none is written. */
  openSeq = -1;
  /** The budget in bytes: as planned, until it has given way to the one in divergence. */
  budgetBytes: number | null;
  /** The budget that could not be kept beside the other one. */
  gaveWay: Priority | null = null;
  readonly #options: GovernedOptions;
  readonly #family: { users: number; forks: number };
  #learnt: ThresholdSet;
  #measured: { readonly meanKld: number; readonly predicted: number } | null = null;
  #index = 0;
  #failure: { readonly error: unknown } | null = null;
  #closed = false;

  private constructor(
    id: string,
    options: GovernedOptions,
    kv: KvCache,
    pool: PagePool,
    family: { users: number; forks: number },
  ) {
    const { shape, plan, log } = options;
    const { context } = plan;
    this.id = id;
    this.shape = shape;
    this.plan = plan;
    this.kv = kv;
    this.pool = pool;
    this.log = log;
    this.#options = options;
    this.#family = family;
    this.#learnt = context.thresholds;
    this.budgetBytes = plan.budgetBytes;
    this.policy = plan.policy.open(context);
    // The policy has checked the thresholds.
    kv.setSkipShare(thresholdOf(context.thresholds, 'attention.skip').value);
    this.counts = Array.from({ length: shape.layers }, () => ({ tried: 0, accepted: 0, refused: 0, epsilonMax: null }));
    this.trials = new TrialQueue(kv, context, plan.policy.needsTrials, this.counts, this.spent);
    this.mover = new Mover(id, kv, log, this.counts, this.spent);
    this.pacing = new Pacing(context, kv.sealBytes * shape.layers);
    this.latents = options.latents === undefined ? null : new Latents(options.latents, kv, shape);
    this.masses = new MassTrace(kv);
    this.spareBytes = spareBytes(context.pageBytes, context.windowFormat);
    family.users++;
  }

  /** Throws what a plan, a pool, a cache or latents refuse; nothing is left behind then. */
  static open(options: GovernedOptions): Governed {
    const { shape, plan, native, sketches, latents } = options;
    const pool = openPool(plan.budgetBytes ?? memoryBytes());
    let kv: KvCache | null = null;
    try {
      kv = openKvCache({
        shape,
        pool,
        ...native,
        windowFormat: plan.context.windowFormat,
        ...(latents === undefined ? {} : { sealLatentBytes: latentBytes(latents.format, latents.width) }),
      });
      for (const [layer, sketch] of sketches.entries()) kv.setOutputSketch(layer, sketch);
      return new Governed(newId(), options, kv, pool, { users: 0, forks: 0 });
    } catch (error) {
      kv?.close();
      pool.close();
      throw error;
    }
  }

  /** A cache that goes on from here without touching this one: pages are shared, its own pages are never moved, nothing is logged. */
  fork(): Governed {
    const options = { ...this.#options, plan: { ...this.plan, ...FORK }, latents: undefined, log: null };
    const fork = new Governed(`${this.id}+${++this.#family.forks}`, options, this.kv.fork(), this.pool, this.#family);
    fork.length = this.length;
    return fork;
  }

  /** One of two budgets cannot be kept beside the other, which is ranked first: it gives way from now on, and the log says so once. */
  giveWay(which: Priority, neededBytes = 0): void {
    const { budgetBytes, plan, length } = this;
    if (which === 'bytes') {
      this.pool.setBudget(Math.max(this.pool.budgetBytes, neededBytes));
      this.budgetBytes = neededBytes;
    }
    if (this.gaveWay === which) return;
    this.gaveWay = which;
    this.mover.write('note', { gaveWay: which, tokens: length, budgetBytes, kldBudget: plan.kldBudget });
  }

  get usedBytes(): number {
    return this.kv.usedBytes;
  }

  get peakBytes(): number {
    return this.kv.peakBytes;
  }

  get summary(): PolicySummary {
    return this.policy.summary();
  }

  /** Writes the first entry, once. */
  begin(): void {
    if (this.log === null || this.openSeq >= 0) return;
    const { policy, policyOptions, context, budgetBytes } = this.plan;
    const { model, requested, effective } = this.#options.opened;
    const seq = this.log.append(this.id, 'open', {
      model,
      shape: this.shape,
      policy: { id: policy.id, version: policy.version, options: policyOptions, machine: machineDigest() },
      context,
      requested,
      effective: { budgetBytes, policy: policy.id, windowFormat: context.windowFormat, ...effective },
    });
    this.openSeq = seq ?? -1;
    const { lookup, fingerprint } = this.#options.evidence ?? {};
    if (lookup == null || fingerprint === undefined) return;
    this.log.append(this.id, 'evidence', {
      fingerprint,
      neighbours: lookup.neighbours,
      thresholds: context.thresholds,
    });
  }

  /** Forgets the tokens from `tokens` on; their rows must still be in the open page. */
  truncate(tokens: number): void {
    this.kv.truncate(tokens);
    this.length = tokens;
  }

  /** What latents are made of x, the inputs of a layer [T, width]; nothing where none are kept. Throws what Latents.check throws. */
  inputs(layer: number, x: Float32Array | undefined, tokens: number): CheckedInputs | undefined {
    return this.latents?.check(layer, x, tokens, this.length);
  }

  /** Appends T tokens to a layer. A refused call has appended nothing. */
  append(layer: number, k: Float32Array, v: Float32Array, inputs: CheckedInputs | undefined): void {
    this.kv.append(layer, k, v);
    if (inputs !== undefined)
      this.latents!.add(layer, inputs, k.length / (this.shape.kvHeads * this.shape.headDim), this.length);
  }

  /** What the policy is shown now. The budget is told smaller by what must stay free. */
  situate(
    now: Pick<Situation, 'bytes' | 'sealBytes' | 'movesMax' | 'urgent' | 'stepLatencyMsP95'>,
    trials: readonly TrialReport[],
    outcomes: readonly Outcome[],
  ): Situation {
    const { budgetBytes } = this;
    const { kldBudget, tokensExpected, stepLatencyBudgetMs } = this.plan;
    return {
      index: this.#index++,
      tokens: this.length,
      bytes: now.bytes,
      sealBytes: now.sealBytes,
      budgetBytes: budgetBytes === null ? null : budgetBytes - this.spareBytes,
      kldBudget,
      tokensExpected,
      movesMax: now.movesMax,
      urgent: now.urgent,
      lowMemory: this.lowMemory,
      stepLatencyMsP95: now.stepLatencyMsP95,
      stepLatencyBudgetMs,
      trials,
      outcomes,
    };
  }

  get hasFailed(): boolean {
    return this.#failure !== null;
  }

  /**
   * Does work and counts its time. After a failure the policy has seen what the log has not: nothing is decided any more, every later
   * call fails the same way.
   */
  governing(work: () => void): void {
    if (this.#failure !== null) throw this.#failure.error;
    const { spent } = this;
    const start = performance.now() - spent.trialMs - spent.transcodeMs - spent.witnessMs;
    try {
      work();
    } catch (error) {
      this.#failure = { error };
      throw error;
    } finally {
      spent.decideMs += performance.now() - spent.trialMs - spent.transcodeMs - spent.witnessMs - start;
    }
  }

  /** As PolicyCache.restore. */
  restore(layer: number, page: number, format: FormatName = this.plan.context.windowFormat): number {
    if (this.latents === null) throw noLatents(layer, page);
    return this.latents.restore(layer, page, format);
  }

  memoryUsage(): MemoryUsage {
    const memory = this.kv.memory();
    return {
      ...memory,
      scratchBytes: memory.scratchBytes + (this.latents?.scratchBytes ?? 0),
      latentBytes: this.latents?.keptBytes ?? 0,
      budgetBytes: this.plan.budgetBytes,
      peakBytes: this.peakBytes,
      reservedBytes: this.pool.reservedBytes,
      f16Bytes: f16CacheBytes(this.shape, this.length),
    };
  }

  /**
   * Moves the constant c of the error law halfway (in the logarithm) towards what was measured, from the constant that the prediction
   * was made with: the same measurement again changes nothing. Used by caches opened with the thresholds saved from here; running
   * decisions keep the constant that their log entry names.
   */
  adaptThresholds(feedback: QualityFeedback): ThresholdSet {
    const meanKld: unknown = feedback?.meanKld;
    if (typeof meanKld !== 'number' || !Number.isFinite(meanKld) || meanKld < 0) {
      throw new KvError('bad-value', `meanKld must be a number ≥ 0, not ${String(meanKld)}`, {
        values: { meanKld: String(meanKld) },
      });
    }
    const predicted = this.summary.predictedKld;
    this.#measured = { meanKld, predicted };
    if (predicted > 0 && meanKld > 0) {
      const { thresholds } = this.plan.context;
      const c = thresholds.c * Math.sqrt(meanKld / predicted);
      this.#learnt = { ...thresholds, c: Math.min(64, Math.max(1 / 16, c)) };
    }
    return this.#learnt;
  }

  /** What adaptThresholds was told, as long as nothing was moved since that would make it another; else null. */
  get meanKld(): number | null {
    return this.#measured?.predicted === this.summary.predictedKld ? this.#measured.meanKld : null;
  }

  /** The thresholds of this session with what it has learned so far: what was measured, and its final price as the price to start with. */
  learned(): ThresholdSet {
    const set = this.#learnt;
    const price = this.summary.priceThreshold;
    const start = set.thresholds['price.start'];
    // A price of 0 teaches nothing.
    if (start === undefined || price === 0) return set;
    return {
      ...set,
      thresholds: {
        ...set.thresholds,
        'price.start': { ...start, value: price, origin: 'controller', samples: start.samples + 1 },
      },
    };
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.kv.close();
    // Forks count bytes in the same pool: the last one closes it.
    if (--this.#family.users === 0) this.pool.close();
  }
}
