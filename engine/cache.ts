/**
 * The cache for people who bring their own runtime: they project, we keep, attend and decide. Synchronous, in the caller's
 * thread (a worker is fine); one step is append + attention for every layer in order, and the scheduler runs after the last one.
 */
import { randomUUID } from 'node:crypto';
import {
  type CacheMemory,
  type CacheShape,
  type FormatPair,
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  type PagePool,
} from '../native/index.ts';
import { loadThresholdFile, saveThresholdFile } from '../memory/index.ts';
import { defaultThresholds, machineDigest, type ThresholdSet } from '../policy/index.ts';
import { openWitnessLog, type WitnessLog } from '../witness/index.ts';
import { f16CacheBytes } from './budget.ts';
import { planSession } from './plan.ts';
import { Scheduler } from './scheduler.ts';
import { logDir } from './state.ts';
import { rowNorm } from './step.ts';
import type { KvBudget } from './types.ts';

export interface OpenCacheOptions {
  readonly layers: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  /** 64, 80, 96, 128 or 256 for coded formats. */
  readonly headDim: number;
  readonly kvBudget?: KvBudget;
  readonly kldBudget?: number;
  /** Tokens planned for; needed by a budget in percent. */
  readonly tokensExpected?: number;
  readonly policy?: string;
  readonly cacheTypes?: FormatPair;
  readonly skipLayers?: readonly number[];
  /** Factor on q·k, default 1/sqrt(headDim). */
  readonly scale?: number;
  readonly slidingWindow?: readonly (number | null)[];
  readonly alibiSlopes?: Float32Array;
  readonly threads?: number;
  /** S·W_o per layer, [32, H·d] each: prices are then relative to the residual stream (pass `x` to append as well). */
  readonly outputSketch?: readonly Float32Array[];
  /** Folder for the witness log; left out: nothing is written. */
  readonly stateDir?: string;
  readonly thresholds?: ThresholdSet;
  /** Identifies the model in log and threshold files, e.g. a SHA-256 of the weights. */
  readonly modelDigest?: string;
}

export interface QualityMetrics {
  readonly tokens: number;
  /** Predicted mean KLD of everything moved so far, c·Σ g·ε². Null for policies without trials. */
  readonly predictedKld: number;
  readonly effectiveBits: number;
  readonly decisions: number;
  readonly refusedTrials: number;
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
  const log = options.stateDir === undefined ? null : await openWitnessLog({ dir: logDir(options.stateDir) });
  try {
    return new PolicyCache(options, log);
  } catch (error) {
    await log?.close();
    throw error;
  }
}

export class PolicyCache {
  readonly session = randomUUID().slice(0, 8);
  readonly shape: CacheShape;
  readonly #options: OpenCacheOptions;
  readonly #cache: KvCache;
  readonly #pool: PagePool;
  readonly #log: WitnessLog | null;
  readonly #budgetBytes: number | null;
  #thresholds: ThresholdSet;
  #scheduler: Scheduler;
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
    this.#budgetBytes = planSession(this.shape, options, this.#thresholds).budgetBytes;
    this.#pool = openPool(this.#budgetBytes ?? 2 ** 45);
    try {
      this.#cache = openKvCache({
        shape: this.shape,
        pool: this.#pool,
        ...(options.scale === undefined ? {} : { scale: options.scale }),
        ...(options.slidingWindow === undefined ? {} : { slidingWindow: options.slidingWindow }),
        ...(options.alibiSlopes === undefined ? {} : { alibiSlopes: options.alibiSlopes }),
        ...(options.threads === undefined ? {} : { threads: options.threads }),
      });
    } catch (error) {
      this.#pool.close();
      throw error;
    }
    options.outputSketch?.forEach((sketch, layer) => this.#cache.setOutputSketch(layer, sketch));
    this.#pendingNorms = new Array<Float32Array | null>(layers).fill(null);
    this.#scheduler = this.#schedule();
  }

  /**
   * Appends T tokens to a layer. k, v: [T, kvHeads, headDim], keys after RoPE. x (optional): residual stream entering the
   * layer, [T, any width]: its norms make trial errors comparable between layers.
   */
  append(layer: number, k: Float32Array, v: Float32Array, x?: Float32Array): void {
    this.#open();
    if (layer === 0) this.#scheduler.makeRoom(this.#tokens);
    this.#cache.append(layer, k, v);
    const tokens = k.length / (this.shape.kvHeads * this.shape.headDim);
    if (x === undefined) {
      this.#pendingNorms[layer] = null;
      return;
    }
    const width = x.length / tokens;
    if (!Number.isInteger(width) || width === 0) {
      throw new KvError('bad-shape', `x has ${x.length} numbers, not a multiple of ${tokens} tokens`, { values: { length: x.length, tokens } });
    }
    const norms = new Float32Array(tokens);
    for (let t = 0; t < tokens; t++) norms[t] = rowNorm(x, t, width);
    this.#pendingNorms[layer] = norms;
  }

  /** Causal attention of the last T tokens of a layer. q: [T, queryHeads, headDim] → the same shape. After the last layer the scheduler runs. */
  attention(layer: number, q: Float32Array): Float32Array {
    this.#open();
    const out = new Float32Array(q.length);
    const norms = this.#pendingNorms[layer] ?? null;
    const rows = q.length / (this.shape.queryHeads * this.shape.headDim);
    this.#cache.attend(layer, q, out, norms !== null && norms.length === rows ? { xNorms: norms } : {});
    if (layer === this.shape.layers - 1) {
      const length = this.#cache.length(layer);
      this.#scheduler.run(length, length - this.#tokens);
      this.#tokens = length;
    }
    return out;
  }

  memoryUsage(): CacheMemory & { readonly budgetBytes: number | null; readonly peakBytes: number; readonly f16Bytes: number } {
    this.#open();
    return { ...this.#cache.memory(), budgetBytes: this.#budgetBytes, peakBytes: this.#pool.peakBytes, f16Bytes: f16CacheBytes(this.shape, this.#tokens) };
  }

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
    if (!Number.isFinite(feedback.meanKld) || feedback.meanKld < 0) {
      throw new KvError('bad-value', `meanKld must be a number ≥ 0, not ${feedback.meanKld}`, { values: { meanKld: feedback.meanKld } });
    }
    const predicted = this.#scheduler.summary.predictedKld;
    if (predicted > 0 && feedback.meanKld > 0) {
      const c = this.#thresholds.c * Math.sqrt(feedback.meanKld / predicted);
      this.#thresholds = { ...this.#thresholds, c: Math.min(64, Math.max(1 / 16, c)) };
    }
    return this.#thresholds;
  }

  /** Waits until every decision so far is on disk. → highest acknowledged sequence number, −1 without a log. */
  async flush(): Promise<number> {
    this.#open();
    return (await this.#log?.flush()) ?? -1;
  }

  async saveThresholds(path: string): Promise<void> {
    this.#open();
    const learned = { ...this.#thresholds };
    await saveThresholdFile(path, learned, { modelDigest: this.#options.modelDigest ?? '', shape: this.shape, log: this.#log });
  }

  /** Uses a threshold file from now on; only before the first token, since decisions must be repeatable from their session's start. */
  async loadThresholds(path: string): Promise<void> {
    this.#open();
    if (this.#tokens > 0) throw new KvError('busy', 'thresholds can be loaded before the first token only', { values: { tokens: this.#tokens }, hint: 'open a new cache' });
    this.#thresholds = await loadThresholdFile(path, { modelDigest: this.#options.modelDigest ?? '', shape: this.shape });
    this.#scheduler = this.#schedule();
  }

  async close(): Promise<void> {
    this.#open();
    this.#closed = true;
    this.#cache.close();
    this.#pool.close();
    await this.#log?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#closed) await this.close();
  }

  #schedule(): Scheduler {
    const options = this.#options;
    const { policy, policyOptions, context, budgetBytes, tokensExpected } = planSession(this.shape, options, this.#thresholds);
    this.#log?.append(this.session, 'open', {
      model: { name: 'caller', digest: options.modelDigest ?? '', architecture: 'caller' },
      shape: this.shape,
      policy: { id: policy.id, version: policy.version, options: policyOptions, machine: machineDigest() },
      context,
      requested: { kvBudget: options.kvBudget ?? null, kldBudget: options.kldBudget ?? null, policy: options.policy ?? null },
      effective: { budgetBytes, policy: policy.id, windowFormat: context.windowFormat },
    });
    return new Scheduler({
      session: this.session,
      cache: this.#cache,
      pool: this.#pool,
      policy,
      context,
      budgetBytes,
      kldBudget: options.kldBudget ?? null,
      tokensExpected,
      log: this.#log,
    });
  }

  #open(): void {
    if (this.#closed) throw new KvError('closed', 'the cache was closed', { values: { session: this.session } });
  }
}
