/**
 * The cache for people who bring their own runtime: they project, we keep, attend and decide. Synchronous, in the caller's
 * thread (a worker is fine); one step is append + attention for every layer in order, and the scheduler runs after the last one.
 */
import { fingerprint, loadThresholdFile, saveThresholdFile } from '../memory/index.ts';
import {
  type CacheMemory,
  type CacheShape,
  checkKeys,
  type FormatName,
  type FormatPair,
  type KvCache,
  KvError,
  latentBytes,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  sealsBetween,
} from '../native/index.ts';
import { defaultThresholds, machineDigest, type ThresholdSet, thresholdOf } from '../policy/index.ts';
import { newId, openWitnessLog, type WitnessLog } from '../witness/index.ts';
import { f16CacheBytes } from './budget.ts';
import { checkLatentBudget, checkLatents, type LatentOptions, Latents, noLatents } from './latents.ts';
import { withPrice } from './learn.ts';
import { measureWork } from './measure.ts';
import { CACHE_OPTIONS } from './option-names.ts';
import { planSession, type SessionPlan } from './plan.ts';
import { Scheduler } from './scheduler.ts';
import { logDir } from './state.ts';
import { rowNorm } from './step.ts';
import type { KvBudget } from './types.ts';

/** Options of openCache. Only the shape is needed. */
export interface OpenCacheOptions {
  /** Layers that attend, 1 to 4096. */
  readonly layers: number;
  /** Query heads of a layer: a multiple of kvHeads. */
  readonly queryHeads: number;
  /** Key and value heads of a layer. */
  readonly kvHeads: number;
  /** 64, 80, 96, 128 or 256 for coded formats. */
  readonly headDim: number;
  /** Most bytes of the cache. Default: no budget, so sealed pages are 8-bit and nothing moves further. */
  readonly kvBudget?: KvBudget;
  /** Mean KLD against the exact cache, in nats, that may be spent instead of a byte budget. Default: none. */
  readonly kldBudget?: number;
  /** Tokens planned for; needed by a budget in percent. */
  readonly tokensExpected?: number;
  /** What moves pages: 'price' (default with a budget), 'uniform', 'age', 'fixed' (default with cacheTypes and no budget) or 'none' (default otherwise). */
  readonly policy?: string;
  /** Formats of keys and values, as a pair or as 'rot4:rot2' or 'rot4'. Fixed without a budget; with one, the lowest that a policy may go to. */
  readonly cacheTypes?: FormatPair | string;
  /** Layers that stay in the window format. Default: none. */
  readonly skipLayers?: readonly number[];
  /** Factor on q·k, default 1/sqrt(headDim). */
  readonly scale?: number;
  /** Tokens that a query may look back, itself included, one entry per layer; null: all. Default: all. */
  readonly slidingWindow?: readonly (number | null)[];
  /** ALiBi slopes, [queryHeads]: score −= slope · distance. Default: none. */
  readonly alibiSlopes?: Float32Array;
  /** Threads of attention and trials. Default 1. */
  readonly threads?: number;
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page, so that its keys and values can be made again (restore) after they went to
   * lower formats. append then needs `x`; the latents count against the budget. Left out: `x` serves trials only.
   */
  readonly latents?: LatentOptions;
  /** S·W_o per layer, [32, H·d] each: prices are then relative to the residual stream (pass `x` to append as well). */
  readonly outputSketch?: readonly Float32Array[];
  /** Folder for the witness log; left out: nothing is written. */
  readonly stateDir?: string;
  /** Thresholds and gains to start from, for example those that adaptThresholds returned. Default: the built-in ones. */
  readonly thresholds?: ThresholdSet;
  /** Identifies the model in log and threshold files, e.g. a SHA-256 of the weights. */
  readonly modelDigest?: string;
}

/** What the cache predicts its moves to have cost. */
export interface QualityMetrics {
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Predicted mean KLD of everything moved so far, c·Σ g·ε². Null for policies without trials. */
  readonly predictedKld: number;
  /** 16 · bytes / bytes of f16: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Moves refused after their trial. */
  readonly refusedTrials: number;
  /** Price per byte, in nats, up to which moves are made now. */
  readonly priceThreshold: number;
  /** Worst ε accepted per layer; 0 where nothing moved. */
  readonly layerEpsilonMax: readonly number[];
}

/** What a caller measured: the constant of the error law is moved towards it. */
export interface QualityFeedback {
  /** Mean KLD against an exact run over the same tokens, in nats. */
  readonly meanKld: number;
}

/** Opens a cache. Throws 'bad-argument', 'budget-too-small', 'unsupported', 'locked'. */
export async function openCache(options: OpenCacheOptions): Promise<PolicyCache> {
  checkKeys(options, CACHE_OPTIONS, 'openCache');
  checkShape(options);
  // What is wrong with the rest is said before a folder is made.
  const plan = (kvBudget: KvBudget | undefined): SessionPlan =>
    planSession(options, { ...options, kvBudget }, options.thresholds ?? defaultThresholds(options.layers));
  const { budgetBytes } = plan(options.kvBudget);
  if (options.latents !== undefined) {
    checkLatents(options.latents, options.layers);
    if (budgetBytes !== null) checkLatentBudget(options.latents, options, budgetBytes, plan);
  }
  if (options.stateDir !== undefined && typeof options.stateDir !== 'string')
    throw new KvError('bad-argument', 'stateDir must be a path', { values: { stateDir: String(options.stateDir) } });
  const log = options.stateDir === undefined ? null : await openWitnessLog({ dir: logDir(options.stateDir) });
  try {
    return new PolicyCache(options, log);
  } catch (error) {
    await log?.close();
    throw error;
  }
}

/** The cache alone, for programs with a runtime of their own: they project, it keeps, attends and decides. */
export class PolicyCache {
  /** Its name in the log. */
  readonly session = newId();
  /** As it was opened. */
  readonly shape: CacheShape;
  readonly #options: OpenCacheOptions;
  readonly #cache: KvCache;
  readonly #pool: PagePool;
  readonly #log: WitnessLog | null;
  readonly #budgetBytes: number | null;
  readonly #latents: Latents | null;
  #thresholds: ThresholdSet;
  #plan: SessionPlan;
  #scheduler: Scheduler;
  #logged = false;
  /** Rows appended to each layer since its last attention. */
  readonly #pendingNorms: (Float32Array | null)[];
  #tokens = 0;
  #closed = false;

  /** @internal use openCache */
  constructor(options: OpenCacheOptions, log: WitnessLog | null) {
    const { layers, queryHeads, kvHeads, headDim } = options;
    this.shape = { layers, queryHeads, kvHeads, headDim };
    this.#options = options;
    this.#log = log;
    this.#thresholds = options.thresholds ?? defaultThresholds(layers);
    this.#plan = planSession(this.shape, options, this.#thresholds);
    this.#budgetBytes = this.#plan.budgetBytes;
    this.#pool = openPool(this.#budgetBytes ?? 2 ** 45);
    try {
      this.#cache = openKvCache({
        shape: this.shape,
        pool: this.#pool,
        windowFormat: this.#plan.context.windowFormat,
        ...(options.scale === undefined ? {} : { scale: options.scale }),
        ...(options.slidingWindow === undefined ? {} : { slidingWindow: options.slidingWindow }),
        ...(options.alibiSlopes === undefined ? {} : { alibiSlopes: options.alibiSlopes }),
        ...(options.threads === undefined ? {} : { threads: options.threads }),
        ...(options.latents === undefined
          ? {}
          : { sealLatentBytes: latentBytes(options.latents.format, options.latents.width) }),
      });
    } catch (error) {
      this.#pool.close();
      throw error;
    }
    this.#pendingNorms = new Array<Float32Array | null>(layers).fill(null);
    try {
      const sketches = options.outputSketch ?? [];
      if (sketches.length !== 0 && sketches.length !== layers) {
        throw new KvError('bad-shape', `outputSketch must have one entry per layer`, {
          values: { outputSketch: sketches.length, layers },
        });
      }
      for (const [layer, sketch] of sketches.entries()) this.#cache.setOutputSketch(layer, sketch);
      this.#latents = options.latents === undefined ? null : new Latents(options.latents, this.#cache, this.shape);
      this.#scheduler = this.#schedule();
    } catch (error) {
      this.#cache.close();
      this.#pool.close();
      throw error;
    }
  }

  /**
   * Appends T tokens to a layer. k, v: [T, kvHeads, headDim], keys after RoPE. x: residual stream entering the layer. Its norms make trial
   * errors comparable between layers: [T, any width], optional. In a cache with `latents` it is what they are made of: [T, latents.width],
   * needed; in one without, nothing of it is kept but those norms. Layers come in order, each with the same T; under a budget, T is best a page
   * of 128 or less. A refused call has appended nothing.
   */
  append(layer: number, k: Float32Array, v: Float32Array, x?: Float32Array): void {
    this.#open();
    const tokens = k instanceof Float32Array ? k.length / (this.shape.kvHeads * this.shape.headDim) : 0;
    // A shape that the native cache will refuse is left to it: it names what is wrong.
    const plausible = Number.isInteger(tokens) && tokens > 0 && v instanceof Float32Array && v.length === k.length;
    const norms = x === undefined || !plausible ? null : normsOf(x, tokens);
    const inputs = plausible ? (this.#latents?.check(layer, x, tokens, this.#tokens) ?? null) : null;
    if (plausible) this.#prepare(layer, tokens);
    this.#cache.append(layer, k, v);
    this.#pendingNorms[layer] = norms;
    if (inputs !== null) this.#latents?.add(layer, inputs, tokens, this.#tokens);
  }

  /** Layers in order, the same tokens in each, and room in all of them before the first is changed. */
  #prepare(layer: number, tokens: number): void {
    const expected = layer === 0 ? this.#tokens : this.#cache.length(0) - tokens;
    const before = this.#cache.length(layer);
    if (
      before !== this.#tokens ||
      expected !== this.#tokens ||
      (layer > 0 && this.#cache.length(layer - 1) !== this.#tokens + tokens)
    ) {
      throw new KvError('bad-argument', `layer ${layer} holds ${before} tokens and cannot take ${tokens} more now`, {
        values: { layer, held: before, tokens, tokensBefore: this.#tokens },
        hint: 'one step is the same tokens for every layer in order, and attention of the last layer ends it',
      });
    }
    if (layer > 0) return;
    this.#logOpen();
    const seals = sealsBetween(this.#tokens, tokens);
    const neededBytes = seals * this.#cache.sealBytes * this.shape.layers;
    // The scheduler keeps a page side free (one of q8 at most), so that a move finds room.
    const leastRoom = neededBytes + this.#plan.context.pageBytes.q8;
    if (seals > 0) this.#latents?.giveBack(() => this.#pool.usedBytes + leastRoom <= this.#pool.budgetBytes);
    const { usedBytes, budgetBytes } = this.#pool;
    if (seals > 1 && usedBytes + neededBytes > budgetBytes) {
      throw new KvError(
        'budget-exceeded',
        `${tokens} tokens at once fill ${seals} pages, and the KV budget of ${budgetBytes} bytes has room for less`,
        {
          values: { tokens, seals, neededBytes, usedBytes, budgetBytes },
          hint: `append at most ${PAGE_TOKENS} tokens at a time, so that older pages can be moved in between`,
        },
      );
    }
    this.#scheduler.makeRoom(this.#tokens, tokens);
  }

  /** Causal attention of the last T tokens of a layer. q: [T, queryHeads, headDim] → the same shape. After the last layer the scheduler runs. */
  attention(layer: number, q: Float32Array): Float32Array {
    this.#open();
    const length = q instanceof Float32Array ? q.length : 0;
    const out = new Float32Array(length);
    const norms = this.#pendingNorms[layer] ?? null;
    const rows = length / (this.shape.queryHeads * this.shape.headDim);
    this.#cache.attend(layer, q, out, norms !== null && norms.length === rows ? { xNorms: norms } : {});
    if (layer === this.shape.layers - 1) {
      const tokensNew = this.#cache.length(layer) - this.#tokens;
      this.#tokens += tokensNew;
      if (tokensNew > 0) this.#scheduler.run(this.#tokens, tokensNew);
    }
    return out;
  }

  /**
   * Makes keys and values of a sealed page again from the latent that is kept beside it, both in `format` (default: that of the window, q8 unless
   * the cache is f16), which must not be below the one that either has: they are exact up to the error of the latent and of that format. The
   * latent stays. What this takes counts against the budget. It lasts until a page is to be sealed for which there is no room: then restored
   * pages go back to the formats in which the policy had left them, those restored first first. → bytes by which the cache grew.
   * Throws 'unsupported' (no latents, a lower format), 'bad-argument' (no such page), 'budget-exceeded'.
   */
  restore(layer: number, page: number, format: FormatName = this.#plan.context.windowFormat): number {
    this.#open();
    if (this.#latents === null) throw noLatents(layer, page);
    return this.#latents.restore(layer, page, format);
  }

  /** Bytes of the cache. latentBytes: those of pageBytes that are latents. scratchBytes includes the inputs that wait for their page to be sealed. */
  memoryUsage(): CacheMemory & {
    readonly latentBytes: number;
    readonly budgetBytes: number | null;
    readonly peakBytes: number;
    readonly f16Bytes: number;
  } {
    this.#open();
    const memory = this.#cache.memory();
    return {
      ...memory,
      scratchBytes: memory.scratchBytes + (this.#latents?.scratchBytes ?? 0),
      latentBytes: this.#latents?.keptBytes ?? 0,
      budgetBytes: this.#budgetBytes,
      peakBytes: this.#pool.peakBytes,
      f16Bytes: f16CacheBytes(this.shape, this.#tokens),
    };
  }

  /** Predictions and counts of decisions so far. */
  qualityMetrics(): QualityMetrics {
    this.#open();
    const summary = this.#scheduler.summary;
    const f16 = f16CacheBytes(this.shape, this.#tokens);
    return {
      tokens: this.#tokens,
      predictedKld: summary.predictedKld,
      effectiveBits: f16 === 0 ? 0 : (16 * this.#cache.memory().totalBytes) / f16,
      decisions: this.#scheduler.decisions,
      refusedTrials: this.#scheduler.refused,
      priceThreshold: summary.priceThreshold,
      layerEpsilonMax: summary.layerEpsilonMax,
    };
  }

  /**
   * Moves the constant c of the error law halfway (in the logarithm) towards what was measured; it is used by caches opened
   * with the thresholds saved from here. Running decisions keep the constant that their log entry names.
   */
  adaptThresholds(feedback: QualityFeedback): ThresholdSet {
    this.#open();
    const meanKld: unknown = feedback?.meanKld;
    if (typeof meanKld !== 'number' || !Number.isFinite(meanKld) || meanKld < 0) {
      throw new KvError('bad-value', `meanKld must be a number ≥ 0, not ${String(meanKld)}`, {
        values: { meanKld: String(meanKld) },
      });
    }
    const predicted = this.#scheduler.summary.predictedKld;
    if (predicted > 0 && meanKld > 0) {
      const c = this.#thresholds.c * Math.sqrt(meanKld / predicted);
      this.#thresholds = { ...this.#thresholds, c: Math.min(64, Math.max(1 / 16, c)) };
    }
    return this.#thresholds;
  }

  /** Waits until every decision so far is on disk. → highest acknowledged sequence number, −1 without a log. */
  async flush(): Promise<number> {
    this.#open();
    return (await this.#log?.flush()) ?? -1;
  }

  /** Writes what was learned into a threshold file. Throws 'bad-argument', 'io'. */
  async saveThresholds(path: string): Promise<void> {
    this.#open();
    checkPath(path);
    const learned = withPrice(this.#thresholds, this.#scheduler.summary.priceThreshold);
    await saveThresholdFile(path, learned, {
      modelDigest: this.#options.modelDigest ?? '',
      shape: this.shape,
      log: this.#log,
    });
  }

  /** Uses a threshold file from now on; only before the first token, since decisions must be repeatable from their session's start. */
  async loadThresholds(path: string): Promise<void> {
    this.#open();
    checkPath(path);
    if (this.#cache.length() > 0)
      throw new KvError('busy', 'thresholds can be loaded before the first token only', {
        values: { tokens: this.#tokens },
        hint: 'open a new cache',
      });
    const loaded = await loadThresholdFile(path, { modelDigest: this.#options.modelDigest ?? '', shape: this.shape });
    this.#open();
    const plan = planSession(this.shape, this.#options, loaded);
    this.#thresholds = loaded;
    this.#plan = plan;
    this.#scheduler = this.#schedule();
  }

  /** Writes the session's last entry, then frees everything, also when the log refuses. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    try {
      this.#logClose();
    } finally {
      this.#cache.close();
      this.#pool.close();
      await this.#log?.close();
    }
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #schedule(): Scheduler {
    const { policy, context, budgetBytes, tokensExpected } = this.#plan;
    const scheduler = new Scheduler({
      session: this.session,
      cache: this.#cache,
      pool: this.#pool,
      policy,
      context,
      budgetBytes,
      kldBudget: this.#options.kldBudget ?? null,
      tokensExpected,
      log: this.#log,
    });
    // The scheduler has checked them.
    this.#cache.setSkipShare(thresholdOf(this.#plan.context.thresholds, 'attention.skip').value);
    return scheduler;
  }

  /** The first entry, once the thresholds are final: when the first tokens come. */
  #logOpen(): void {
    if (this.#logged || this.#log === null) return;
    this.#logged = true;
    const { policy, policyOptions, context, budgetBytes } = this.#plan;
    const { modelDigest, kvBudget, kldBudget } = this.#options;
    this.#log.append(this.session, 'open', {
      model: { name: 'caller', digest: modelDigest ?? '', architecture: 'caller' },
      shape: this.shape,
      policy: { id: policy.id, version: policy.version, options: policyOptions, machine: machineDigest() },
      context,
      requested: { kvBudget: kvBudget ?? null, kldBudget: kldBudget ?? null, policy: this.#options.policy ?? null },
      effective: { budgetBytes, policy: policy.id, windowFormat: context.windowFormat },
    });
  }

  #logClose(): void {
    if (!this.#logged) return;
    const { thresholds } = this.#plan.context;
    const summary = this.#scheduler.summary;
    const kvBytes = this.#pool.peakBytes;
    const kvBytesF16 = f16CacheBytes(this.shape, this.#tokens);
    const pressure =
      this.#budgetBytes === null || kvBytesF16 === 0 ? null : Math.min(1, this.#budgetBytes / kvBytesF16);
    this.#log?.append(this.session, 'close', {
      tokens: this.#tokens,
      kvBytes,
      kvBytesF16,
      effectiveBits: kvBytesF16 === 0 ? 0 : (16 * kvBytes) / kvBytesF16,
      decisions: this.#scheduler.decisions,
      refused: this.#scheduler.refused,
      priceThreshold: summary.priceThreshold,
      predictedKld: summary.predictedKld,
      meanKld: null,
      fingerprint: [
        ...fingerprint({
          ...this.shape,
          tokens: Math.max(1, this.#tokens),
          pressure,
          ...measureWork(this.#cache, this.#scheduler.masses),
        }),
      ],
      gains: thresholds.gains,
      c: thresholds.c,
      reason: 'done',
    });
  }

  #open(): void {
    if (this.#closed) throw new KvError('closed', 'the cache was closed', { values: { session: this.session } });
  }
}

/** The sizes that are computed with before the native cache sees them. */
function checkShape({ layers, queryHeads, kvHeads, headDim }: CacheShape): void {
  for (const [name, value] of Object.entries({ layers, queryHeads, kvHeads, headDim })) {
    if (!Number.isInteger(value) || value < 1 || value > 4096)
      throw new KvError('bad-argument', `${name} must be a whole number from 1 to 4096`, {
        values: { [name]: String(value) },
      });
  }
}

function checkPath(path: unknown): void {
  if (typeof path !== 'string' || path === '')
    throw new KvError('bad-argument', 'a threshold file needs a path', { values: { path: String(path) } });
}

/** ‖x‖ per token of x [tokens, any width]. */
function normsOf(x: Float32Array, tokens: number): Float32Array {
  const width = x instanceof Float32Array ? x.length / tokens : 0;
  if (!Number.isInteger(width) || width === 0) {
    throw new KvError(
      'bad-shape',
      `x must be a Float32Array with the same number of values for each of ${tokens} tokens`,
      { values: { length: x?.length, tokens } },
    );
  }
  const norms = new Float32Array(tokens);
  for (let t = 0; t < tokens; t++) {
    norms[t] = rowNorm(x, t, width);
    if (!Number.isFinite(norms[t]))
      throw new KvError('bad-value', `x holds no finite norm at row ${t}`, { values: { row: t } });
  }
  return norms;
}
