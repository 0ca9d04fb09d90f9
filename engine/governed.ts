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
  KvError,
  LATENT_NAMES,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  type PageTable,
  pageOf,
  sealedPages,
} from '../native/index.ts';
import {
  type FormChange,
  machineDigest,
  type Outcome,
  openPolicy,
  type PolicySession,
  type PolicySummary,
  type Priority,
  type Situation,
  type TrialReport,
  thresholdOf,
} from '../policy/index.ts';
import { newId, type OpenBody, type WitnessLog } from '../witness/index.ts';
import { WayBack } from './back.ts';
import { f16CacheBytes, memoryBytes, spareBytes } from './budget.ts';
import { Canaries } from './canaries.ts';
import type { Content } from './content.ts';
import { type CheckedInputs, Latents, noLatents } from './latents.ts';
import { Learnt } from './learnt.ts';
import { MassTrace } from './measure.ts';
import { Meter } from './metrics/meter.ts';
import { type LayerCounts, Mover, type Spent } from './mover.ts';
import { type NativeOptions, openNative } from './open-native.ts';
import { Pacing } from './pacing.ts';
import type { Away, Neighbours } from './park/away.ts';
import type { SessionPlan } from './plan.ts';
import { TrialQueue } from './trials.ts';
import type { MemoryUsage } from './types.ts';

export interface GovernedOptions extends NativeOptions {
  /** A pool that other caches share; left out: one of its own. Its owner closes it. */
  readonly pool?: PagePool | undefined;
  /** Sessions of that pool that wait, and give their memory up when it is short. */
  readonly idle?: Neighbours | undefined;
  readonly log: WitnessLog | null;
  /** Counts what it does; left out: one of its own, which nobody reads. */
  readonly meter?: Meter | undefined;
  readonly opened: Pick<OpenBody, 'model' | 'requested' | 'effective'>;
  /** Where the thresholds came from. */
  readonly evidence?: { readonly lookup?: Lookup | null; readonly fingerprint?: Fingerprint };
}

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
  /** What it has learned for sessions to come. */
  readonly learnt: Learnt;
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
  /** What is known of its pages while they are parked and the native cache is empty; null: they are there. */
  away: Away | null = null;
  readonly #options: GovernedOptions;
  readonly #family: Family;
  /** Pages from 0 on that this cache shares with each of its relatives. */
  readonly #shared = new Map<Governed, number>();
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
    this.#budgetBytes = plan.budgetBytes;
    this.policy = openPolicy(plan.policy, context);
    this.learnt = new Learnt(context.thresholds, shape.layers, this.policy);
    setShares(kv, plan);
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

  /**
   * The byte budget of this cache and its forks without the bytes of kept originals: as planned until it has given way to the divergence budget, and at
   * most what others leave of a shared pool, what idle ones would give up included.
   */
  get budgetBytes(): number | null {
    const { pool, idle } = this.#options;
    const own = this.#budgetBytes === null ? null : this.#budgetBytes - this.canaryBytes;
    if (own === null || pool === undefined) return own;
    const left = this.usedBytes + this.kv.roomBytes;
    return left >= own ? own : Math.min(own, left + (idle?.reclaimableBytes(this) ?? 0));
  }

  /** Bytes that the shared pool leaves now; null: the pool is its own. */
  get poolRoomBytes(): number | null {
    const { pool } = this.#options;
    return pool === undefined ? null : pool.budgetBytes - pool.usedBytes;
  }

  /** Has idle sessions of the pool make room for `dueBytes`, and for a move beside them, as far as the own budget allows so much. */
  askRoom(dueBytes: number): void {
    const { poolRoomBytes } = this;
    const ownBytes = this.#budgetBytes === null ? Number.POSITIVE_INFINITY : this.#budgetBytes - this.kv.usedBytes;
    const neededBytes = Math.min(dueBytes + this.spareBytes, ownBytes);
    if (poolRoomBytes !== null && neededBytes > poolRoomBytes)
      this.#options.idle?.makeRoom(this, neededBytes - poolRoomBytes);
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
    const { kv, shape, latents, hasForks, plan } = this;
    return new WayBack({ kv, shape, latents, hasForks, windowFormat: plan.context.windowFormat }, tokens, tokensNew);
  }

  /** Takes `way`: moves of pages that are still there stay made. `takeBack` of step.ts tells the policy. */
  goBack(way: WayBack): void {
    const { tokens } = way;
    this.trials.takeBack(tokens);
    this.pacing.takeBack(tokens);
    this.#peakBytes = this.peakBytes;
    const pages = pageOf(tokens);
    const pagesGo = this.kv.table(0).pages > pages;
    // A fork may hold these pages on, and nobody would count their originals.
    if (pagesGo && way.isInPlace) this.canaries.dropAll(pages);
    const isSame = way.take(() => this.#reopen());
    if (!isSame || pagesGo) this.masses.forget(tokens);
    this.canaries.sync();
    for (const [relative, count] of this.#shared) {
      this.#shared.set(relative, Math.min(count, pages));
      relative.#shared.set(this, Math.min(count, pages));
    }
    this.length = tokens;
  }

  /** Frees the memory of the native cache, which is empty then; whoever has taken what was in it puts it back. What attention has seen is forgotten. */
  vacate(): void {
    this.canaries.dropAll();
    this.#peakBytes = this.peakBytes;
    this.kv.become(() => this.#reopen());
    this.masses.forget(this.length);
  }

  #reopen(): KvCache {
    const kv = openNative(this.#options, this.pool, this.#budgetBytes);
    setShares(kv, this.plan);
    return kv;
  }

  /** Whether a fork shares its pages. */
  get hasForks(): boolean {
    return this.#family.users > 1;
  }

  /** The pages of a layer; while they are parked, as they come back. */
  table(layer: number): PageTable {
    return this.away?.tables[layer] ?? this.kv.table(layer);
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
      parkedBytes: this.away?.heldBytes ?? 0,
      budgetBytes: this.plan.budgetBytes,
      peakBytes: this.peakBytes,
      reservedBytes: this.pool.reservedBytes,
      f16Bytes: f16CacheBytes(this.shape, this.length),
    };
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const relative of this.#shared.keys()) relative.#shared.delete(this);
    // Nobody would probe what relatives still share.
    if (this.hasForks) this.canaries.dropAll();
    this.kv.close();
    // Forks count bytes in the same pool: the last one closes it.
    if (--this.#family.users === 0 && this.#options.pool === undefined) this.pool.close();
  }
}

/** What attention may leave out. The policy has checked the thresholds. */
function setShares(kv: KvCache, { context: { thresholds } }: SessionPlan): void {
  kv.setSkipShare(thresholdOf(thresholds, 'attention.skip').value);
}
