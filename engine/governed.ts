/**
 * One conversation's cache with everything that governs it: the native cache in its pool, the policy's session, trials, moves, pacing,
 * latents, and the log that it is written to. A `Session` is this plus a model and tokens, a `PolicyCache` this plus the caller's arrays.
 * In what order its parts act is said in step.ts.
 */
import type { Fingerprint, Lookup, SharedStatus } from '../memory/index.ts';
import {
  type CacheShape,
  type FormatName,
  type KvCache,
  type KvCacheOptions,
  KvError,
  LATENT_NAMES,
  latentBytes,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  sealedPages,
} from '../native/index.ts';
import {
  defaultLaw,
  type FormChange,
  machineDigest,
  type Outcome,
  observed,
  type PolicySession,
  type PolicySummary,
  type Priority,
  type Situation,
  type ThresholdSet,
  type TrialReport,
  thresholdOf,
} from '../policy/index.ts';
import { newId, type OpenBody, type WitnessLog } from '../witness/index.ts';
import { WayBack } from './back.ts';
import { f16CacheBytes, memoryBytes, spareBytes } from './budget.ts';
import { Canaries } from './canaries.ts';
import type { Content } from './content.ts';
import { type CheckedInputs, type LatentOptions, Latents, noLatents } from './latents.ts';
import { MassTrace } from './measure.ts';
import { type LayerCounts, Mover, type Spent } from './mover.ts';
import { Pacing } from './pacing.ts';
import type { SessionPlan } from './plan.ts';
import { Meter } from './serve/meter.ts';
import { TrialQueue } from './trials.ts';
import type { MemoryUsage, QualityFeedback } from './types.ts';

export interface GovernedOptions {
  readonly shape: CacheShape;
  readonly plan: SessionPlan;
  /** A pool that other caches share; left out: one of its own. Its owner closes it. */
  readonly pool?: PagePool | undefined;
  readonly native: Pick<KvCacheOptions, 'scale' | 'slidingWindow' | 'alibiSlopes' | 'threads'>;
  /** S·W_o of every layer, or none. */
  readonly sketches: readonly Float32Array[];
  readonly latents?: LatentOptions | undefined;
  readonly log: WitnessLog | null;
  /** Counts what it does; left out: one of its own, which nobody reads. */
  readonly meter?: Meter | undefined;
  readonly opened: Pick<OpenBody, 'model' | 'requested' | 'effective'>;
  /** Where the thresholds came from. */
  readonly evidence?: { readonly lookup?: Lookup | null; readonly fingerprint?: Fingerprint };
}

/** Standard deviation of ln(measured over predicted) where the text is the same: 0.20 over 30 runs of SmolLM2-135M. */
const COMPARED_SD = 0.2;

/** A cache and its forks. */
interface Family {
  /** Those that are open. */
  users: number;
  /** Of the cache that the others were forked from: originals belong to pages, so the family shares them. */
  canaries?: Canaries;
}

export class Governed {
  readonly id: string;
  readonly shape: CacheShape;
  readonly plan: SessionPlan;
  readonly kv: KvCache;
  readonly pool: PagePool;
  readonly log: WitnessLog | null;
  readonly meter: Meter;
  readonly policy: PolicySession;
  readonly trials: TrialQueue;
  readonly canaries: Canaries;
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
  /** What a probe found, and what earlier sessions say now that more is known; no situation has told it yet. */
  found: Pick<Situation, 'probe' | 'text'> = {};
  /** What kind of text it holds, as far as its owner knows. */
  content: Content = {};
  /** The budget that could not be kept beside the other one. */
  gaveWay: Priority | null = null;
  readonly #options: GovernedOptions;
  readonly #family: Family;
  /** Pages from 0 on that this cache shares with each of its relatives. */
  readonly #shared = new Map<Governed, number>();
  #learnt: ThresholdSet;
  #measured: { readonly meanKld: number; readonly predicted: number } | null = null;
  #budgetBytes: number | null;
  #index = 0;
  #failure: { readonly error: unknown } | null = null;
  /** Of the native caches before this one. */
  #peakBytes = 0;
  #closed = false;

  private constructor(id: string, options: GovernedOptions, kv: KvCache, pool: PagePool, family: Family) {
    const { shape, plan, log } = options;
    const { context } = plan;
    const { pageBytes, latents } = context;
    this.id = id;
    this.shape = shape;
    this.plan = plan;
    this.kv = kv;
    this.pool = pool;
    this.log = log;
    this.meter = options.meter ?? new Meter();
    this.#options = options;
    this.#family = family;
    this.#learnt = context.thresholds;
    this.#budgetBytes = plan.budgetBytes;
    this.policy = plan.policy.open(context);
    // The policy has checked the thresholds.
    kv.setSkipShare(thresholdOf(context.thresholds, 'attention.skip').value);
    this.counts = Array.from({ length: shape.layers }, () => ({ tried: 0, accepted: 0, refused: 0, epsilonMax: null }));
    this.trials = new TrialQueue(kv, context, plan.policy, this.counts, this.spent);
    this.canaries = new Canaries(kv, plan, this.spent, (layer) => this.policy.haste?.(layer) ?? 1);
    this.mover = new Mover(
      id,
      kv,
      log,
      this.meter,
      this.counts,
      this.spent,
      this.canaries,
      context.latents !== undefined,
      (move, bytesBefore) => this.#tell(move, bytesBefore),
    );
    this.pacing = new Pacing(context, kv.sealBytes * shape.layers);
    this.latents =
      options.latents === undefined
        ? null
        : new Latents(options.latents, kv, shape, latents === undefined ? [] : context.skipLayers);
    this.masses = new MassTrace(kv);
    // A lower latent is made beside the kept one.
    const lower = LATENT_NAMES.filter((name) => name !== latents?.kept).map((name) => pageBytes[name] ?? 0);
    this.spareBytes = Math.max(spareBytes(pageBytes, context.windowFormat), ...lower);
    family.users++;
    family.canaries ??= this.canaries;
  }

  /** Throws what a plan, a pool, a cache or latents refuse; nothing is left behind then. */
  static open(options: GovernedOptions): Governed {
    const pool = options.pool ?? openPool(memoryBytes());
    let kv: KvCache | null = null;
    try {
      kv = openNative(options, pool, options.plan.budgetBytes);
      const governed = new Governed(newId(), options, kv, pool, { users: 0 });
      if (governed.shared !== null && governed.shared.trouble !== null)
        governed.meter.fallbacks.add({ reason: 'shared' });
      return governed;
    } catch (error) {
      kv?.close();
      if (options.pool === undefined) pool.close();
      throw error;
    }
  }

  /**
   * A cache that goes on from here. Pages are shared, and so are the budget and every change of a shared page, which counts once; each
   * decides by itself and writes entries of its own. Latents stay with this one.
   */
  fork(): Governed {
    const { opened } = this.#options;
    const options = {
      ...this.#options,
      latents: undefined,
      meter: this.meter,
      opened: { ...opened, effective: { ...opened.effective, forkOf: this.id, tokens: this.length } },
    };
    const fork = new Governed(newId(), options, this.kv.fork(), this.pool, this.#family);
    fork.length = this.length;
    fork.lowMemory = this.lowMemory;
    fork.#budgetBytes = this.#budgetBytes;
    fork.trials.follow(this.trials.left(false));
    const pages = sealedPages(this.length);
    for (const [relative, count] of [...this.#shared, [this, pages] as const]) {
      fork.#shared.set(relative, Math.min(count, pages));
      relative.#shared.set(fork, Math.min(count, pages));
    }
    return fork;
  }

  /** A page was moved: whoever shares it is told. */
  #tell(move: FormChange, bytesBefore: number): void {
    for (const [relative, pages] of this.#shared)
      if (move.page < pages) relative.mover.tell('shared', [move], bytesBefore, relative.length);
  }

  /** Whether the other is this one, its origin, or a fork of either: they have one budget. */
  isKin(other: Governed): boolean {
    return this.#family === other.#family;
  }

  /** Pages from 0 on that a relative holds as well. */
  sharedWith(relative: Governed): number {
    return this.#shared.get(relative) ?? 0;
  }

  /** Lets the lower-ranked of two budgets give way, because both cannot be kept. The log says so once. */
  giveWay(which: Priority, neededBytes = 0): void {
    const { budgetBytes, plan, length } = this;
    if (which === 'bytes') {
      this.#budgetBytes = neededBytes + this.canaryBytes;
      this.kv.setBudget(this.#budgetBytes);
    }
    if (this.gaveWay === which) return;
    this.gaveWay = which;
    this.meter.fallbacks.add({ reason: which === 'kld' ? 'kld-budget' : 'byte-budget' });
    this.mover.write('note', { gaveWay: which, tokens: length, budgetBytes, kldBudget: plan.kldBudget });
  }

  /** The byte budget of this cache and its forks without the bytes of kept originals: as planned until it has given way to the divergence budget, and at most what others leave of a shared pool. */
  get budgetBytes(): number | null {
    const own = this.#budgetBytes === null ? null : this.#budgetBytes - this.canaryBytes;
    return own === null || this.#options.pool === undefined ? own : Math.min(own, this.usedBytes + this.kv.roomBytes);
  }

  /** Bytes without those of kept originals. */
  get usedBytes(): number {
    return this.kv.usedBytes - this.canaryBytes;
  }

  /** Bytes of the originals that this cache and its relatives keep. */
  get canaryBytes(): number {
    return this.#family.canaries!.bytes;
  }

  /** Bytes that originals may take: none in forks, which share those of their origin. */
  get canaryBytesMax(): number {
    if (this.#family.canaries !== this.canaries) return 0;
    return this.canaries.allowanceBytes(this.#budgetBytes ?? this.kv.usedBytes);
  }

  /** Tokens that are best read at once: up to where the next page fills up or leaves the window. */
  get tokensAtOnce(): number {
    const { windowTokens = PAGE_TOKENS } = this.plan.context;
    return windowTokens - (this.length % windowTokens);
  }

  get peakBytes(): number {
    return Math.max(this.#peakBytes, this.kv.peakBytes);
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

  /** The server that start values were asked of, as it was then; null: none was. */
  get shared(): SharedStatus | null {
    return this.#options.evidence?.lookup?.shared ?? null;
  }

  /** The way back to a length, where the cache is now unless another is named, for one that reads `tokensNew` behind it. Whoever asked closes it. */
  wayBack(tokensNew: number, tokens = this.length): WayBack {
    return new WayBack(this.kv, this.shape, this.latents, tokens, tokensNew, this.#family.users > 1);
  }

  /** Takes `way`: moves of pages that are still there stay made. `takeBack` of step.ts tells the policy. */
  goBack(way: WayBack): void {
    const { tokens } = way;
    this.trials.takeBack(tokens);
    this.pacing.takeBack(tokens);
    this.#peakBytes = this.peakBytes;
    const isSame = way.take(() => {
      const kv = openNative(this.#options, this.pool, this.#budgetBytes);
      kv.setSkipShare(thresholdOf(this.plan.context.thresholds, 'attention.skip').value);
      return kv;
    });
    if (!isSame) this.masses.forget(tokens);
    this.canaries.sync();
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

  /** Makes the situation that the policy sees now. Its budget is smaller than the real one by what must stay free. */
  situate(
    now: Pick<Situation, 'bytes' | 'sealBytes' | 'movesMax' | 'urgent' | 'stepLatencyMsP95'>,
    trials: readonly TrialReport[],
    outcomes: readonly Outcome[],
    changes: readonly FormChange[],
    again: readonly TrialReport[],
  ): Situation {
    const { budgetBytes, canaryBytes } = this;
    const canaries = this.canaries.take();
    const { kldBudget, tokensExpected, stepLatencyBudgetMs } = this.plan;
    const { found } = this;
    this.found = {};
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
      ...(changes.length === 0 ? {} : { changes }),
      ...(again.length === 0 ? {} : { again }),
      ...found,
      ...(canaryBytes === 0 ? {} : { canaryBytes }),
      ...(canaries.length === 0 ? {} : { canaries }),
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
      // Running out of room is not a failure: nothing was half done, and there may be room later.
      if (!(error instanceof KvError && error.code === 'budget-too-small')) this.#failure = { error };
      throw error;
    } finally {
      spent.decideMs += performance.now() - spent.trialMs - spent.transcodeMs - spent.witnessMs - start;
    }
  }

  /** As PolicyCache.restore. */
  restore(layer: number, page: number, format: FormatName = this.plan.context.windowFormat): number {
    const { latents } = this;
    if (latents === null) throw noLatents(layer, page);
    const restore = (): number => latents.restore(layer, page, format);
    // Leave a page that does not exist to the native cache, which names it.
    const isThere = page < sealedPages(this.length) && page >= 0 && Number.isInteger(page) && layer in this.counts;
    return isThere ? this.mover.change('restore', layer, page, this.length, restore) : restore();
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
   * Moves the text factor of the error law, and half as far its constant c, which version 1 of the price policy uses, towards what was measured
   * (in the logarithm), from what the prediction was made with: the same measurement again changes nothing. Used by caches opened with the
   * thresholds saved from here; running decisions keep what their log entry names.
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
      const law = thresholds.law ?? defaultLaw(this.shape.layers);
      const text = observed(law.text, law.text.value * (meanKld / predicted), COMPARED_SD);
      this.#learnt = { ...thresholds, c: Math.min(64, Math.max(1 / 16, c)), law: { ...law, text } };
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
    for (const relative of this.#shared.keys()) relative.#shared.delete(this);
    // Nobody would probe what relatives still share.
    if (this.#family.users > 1) this.canaries.dropAll();
    this.kv.close();
    // Forks count bytes in the same pool: the last one closes it.
    if (--this.#family.users === 0 && this.#options.pool === undefined) this.pool.close();
  }
}

/** An empty cache in the pool. Its owner closes it. */
function openNative(
  { shape, plan, native, sketches, latents }: GovernedOptions,
  pool: PagePool,
  budgetBytes: number | null,
): KvCache {
  const kv = openKvCache({
    shape,
    pool,
    ...(budgetBytes === null ? {} : { budgetBytes }),
    ...native,
    windowFormat: plan.context.windowFormat,
    openFormat: plan.context.openFormat ?? 'f16',
    ...(latents === undefined ? {} : { sealLatentBytes: latentBytes(latents.format, latents.width) }),
  });
  try {
    for (const [layer, sketch] of sketches.entries()) kv.setOutputSketch(layer, sketch);
    return kv;
  } catch (error) {
    kv.close();
    throw error;
  }
}
