/**
 * The cache for people who bring their own runtime: they project, we keep, attend and decide. Synchronous, in the caller's
 * thread (a worker is fine); one step is append + attention for every layer in order.
 */
import { loadThresholdFile, type QdrantOptions, saveThresholdFile } from '../memory/index.ts';
import {
  type CacheShape,
  checkKeys,
  type FormatName,
  KvError,
  type PagePool,
  show,
  type WindowName,
} from '../native/index.ts';
import { defaultThresholds, type Policy, type Priority, type ThresholdSet } from '../policy/index.ts';
import type { AnchorOptions, FailureMode, LogRule, WitnessLog } from '../witness/index.ts';
import { f16CacheBytes } from './budget.ts';
import { Governed, type GovernedOptions } from './governed.ts';
import { type LatentOptions, planWithLatents } from './latents.ts';
import { leave, type StartValues, startValues } from './learn.ts';
import type { Names } from './option-names.ts';
import type { SessionPlan } from './plan.ts';
import { reportOf } from './report.ts';
import { metricsText } from './serve/kv-bytes.ts';
import { openState, type State } from './state.ts';
import { fork, makeRoom, rowNorm, settle } from './step.ts';
import type { CacheTypes, KvBudget, MemoryUsage, QualityFeedback, SessionReport } from './types.ts';

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
  /** Which budget is kept where both are given and cannot be. Default 'bytes'. */
  readonly priority?: Priority;
  /** Tokens planned for; needed by a budget in percent. */
  readonly tokensExpected?: number;
  /**
   * What moves pages: 'price' (default with a budget), 'uniform', 'age', 'fixed' (default with one pair of cacheTypes and no budget), 'table'
   * (with one pair for every layer), 'none' (default otherwise), or a policy of your own.
   */
  readonly policy?: string | Policy;
  /** Wanted 95th percentile of the time of a step that writes one token. Above it, pages move only when they must. Default: none. */
  readonly stepLatencyBudgetMs?: number;
  /** Formats of keys and values. Without a budget one pair is what every page gets; with a budget it is the lowest that a policy may use. One pair for every layer means policy 'table'. */
  readonly cacheTypes?: CacheTypes;
  /** Layers that stay in the window format. Default: none. */
  readonly skipLayers?: readonly number[];
  /** Format of the page that tokens are appended to: 'q8', in which rows are coded as they come, or 'f16'. Default q8 under a budget of bytes, else f16. */
  readonly openFormat?: WindowName;
  /** Newer tokens that keep a sealed page in the window, where it may not move: 128 or 64. Default 128, or 64 where such a page takes more than a twelfth of the budget. */
  readonly windowTokens?: number;
  /** Factor on q·k, default 1/sqrt(headDim). */
  readonly scale?: number;
  /** Tokens that a query may look back, itself included, one entry per layer; null: all. Default: all. */
  readonly slidingWindow?: readonly (number | null)[];
  /** ALiBi slopes, [queryHeads]: score −= slope · distance. Default: none. */
  readonly alibiSlopes?: Float32Array;
  /** A pool (openPool) whose bytes several caches share, each within its kvBudget or all within the pool's. Default: one of its own. Close it last. */
  readonly pool?: PagePool;
  /** Threads of attention and trials. Default 1. */
  readonly threads?: number;
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page, so that its keys and values can be made again (restore) after they went to
   * lower formats. append then needs `x`; the latents count against the budget. Left out: `x` serves trials only.
   */
  readonly latents?: LatentOptions;
  /** S·W_o per layer, [32, H·d] each: prices are then relative to the residual stream (pass `x` to append as well). */
  readonly outputSketch?: readonly Float32Array[];
  /** Folder for the witness log and what earlier caches of the same `modelDigest` taught; left out: nothing is written. */
  readonly stateDir?: string;
  /** What to do when the log cannot be written. Default 'block'. */
  readonly onLogFailure?: FailureMode;
  /** What must not be written to the log. An entry to which a rule cannot be applied is left out and counted. Default: nothing is left out. */
  readonly logRules?: readonly LogRule[];
  /** Where signed checkpoints of the log go while it is written. Default: nowhere. */
  readonly anchor?: AnchorOptions;
  /** A Qdrant server where caches of the same `modelDigest` on other machines share what they learned. Needs stateDir. Default: none. */
  readonly qdrant?: QdrantOptions;
  /** Thresholds and gains to start from, for example those that adaptThresholds returned. Default: what was learned, else the built-in ones. */
  readonly thresholds?: ThresholdSet;
  /** Likewise a file of them, that saveThresholds wrote. */
  readonly thresholdsPath?: string;
  /** Identifies the model in log and threshold files, e.g. a SHA-256 of the weights. Without it nothing is learned from earlier caches. */
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

const CACHE_OPTIONS: Names<OpenCacheOptions> = {
  layers: true,
  queryHeads: true,
  kvHeads: true,
  headDim: true,
  kvBudget: true,
  kldBudget: true,
  priority: true,
  tokensExpected: true,
  policy: true,
  cacheTypes: true,
  skipLayers: true,
  stepLatencyBudgetMs: true,
  openFormat: true,
  windowTokens: true,
  scale: true,
  slidingWindow: true,
  alibiSlopes: true,
  threads: true,
  pool: true,
  latents: true,
  outputSketch: true,
  stateDir: true,
  onLogFailure: true,
  logRules: true,
  anchor: true,
  qdrant: true,
  thresholds: true,
  thresholdsPath: true,
  modelDigest: true,
};

/** Opens a cache. Throws 'bad-argument', 'bad-shape', 'budget-too-small', 'unsupported', 'io', 'bad-log'. */
export async function openCache(options: OpenCacheOptions): Promise<PolicyCache> {
  checkKeys(options, CACHE_OPTIONS, 'openCache');
  checkShape(options);
  // Refuse bad options before making a folder.
  const { stateDir, thresholdsPath, latents, onLogFailure = 'block', qdrant, logRules, anchor } = options;
  const plan = (thresholds: ThresholdSet): SessionPlan =>
    planWithLatents(shapeOf(options), requestOf(options), thresholds, latents);
  if (qdrant !== undefined && stateDir === undefined)
    throw new KvError('bad-argument', 'sessions are shared from a state folder', {
      hint: 'add stateDir, or leave out qdrant',
    });
  const { budgetBytes } = plan(options.thresholds ?? defaultThresholds(options.layers));
  for (const [name, path] of Object.entries({ stateDir, thresholdsPath }))
    if (path !== undefined && (typeof path !== 'string' || path === ''))
      throw new KvError('bad-argument', `${name} must be a path`, { values: { [name]: show(path) } });
  const state =
    stateDir === undefined ? null : await openState(stateDir, onLogFailure, qdrant, logRules, undefined, anchor);
  try {
    const start = await startOf(options, budgetBytes, state);
    return PolicyCache.open(options, plan(start.thresholds), state, start);
  } catch (error) {
    await state?.close();
    throw error;
  }
}

/** Only a model that the caller names is known again. What else ran in the state folder is no kin of it, since nothing says what that is. */
function startOf(options: OpenCacheOptions, budgetBytes: number | null, state: State | null): Promise<StartValues> {
  const { modelDigest, tokensExpected, thresholds, thresholdsPath } = options;
  const book = modelDigest === undefined ? null : (state?.book ?? null);
  const model = modelDigest ?? '';
  const tokens = tokensExpected ?? 0;
  return startValues(
    { shape: shapeOf(options), modelDigest: model, family: model, tokens, budgetBytes, thresholds, thresholdsPath },
    book,
  );
}

const shapeOf = ({ layers, queryHeads, kvHeads, headDim }: OpenCacheOptions): CacheShape => ({
  layers,
  queryHeads,
  kvHeads,
  headDim,
});

/** A pool that bounds several caches is the budget of one that has none of its own. */
const requestOf = (options: OpenCacheOptions): OpenCacheOptions => {
  const kvBudget = options.kvBudget ?? options.pool?.budgetBytes;
  return kvBudget === undefined ? options : { ...options, kvBudget };
};

interface SharedState {
  readonly state: State;
  users: number;
}

/** The cache alone, for programs with a runtime of their own: they project, it keeps, attends and decides. */
export class PolicyCache {
  /** As it was opened. */
  readonly shape: CacheShape;
  readonly #options: OpenCacheOptions;
  /** Shared with its forks: the last one closes it. */
  readonly #shared: SharedState | null;
  #governed: Governed;
  /** Norms of the rows appended to each layer since its last attention. */
  readonly #pendingNorms: (Float32Array | null)[];
  #closed = false;

  private constructor(options: OpenCacheOptions, governed: Governed, shared: SharedState | null) {
    this.shape = governed.shape;
    this.#options = options;
    this.#shared = shared;
    this.#pendingNorms = new Array<Float32Array | null>(this.shape.layers).fill(null);
    this.#governed = governed;
    if (shared !== null) shared.users++;
  }

  /** @internal use openCache */
  static open(options: OpenCacheOptions, plan: SessionPlan, state: State | null, start: StartValues): PolicyCache {
    const governed = govern(options, plan, state?.log ?? null, start);
    return new PolicyCache(options, governed, state === null ? null : { state, users: 0 });
  }

  /**
   * A cache that goes on from here, between two steps: pages are shared, and so is the budget. It decides by itself; a change of a shared page is
   * one for all that share it. It keeps no latents. Closed on its own.
   */
  fork(): PolicyCache {
    this.#open();
    const { kv, length } = this.#governed;
    if (kv.length(this.shape.layers - 1) !== length || kv.length(0) !== length)
      throw new KvError('busy', 'a cache is forked between two steps', {
        values: { tokens: length },
        hint: 'call attention of the last layer first',
      });
    const { latents: _, ...options } = this.#options;
    return new PolicyCache(options, fork(this.#governed), this.#shared);
  }

  /** Tells the policy that memory is short; pressure rises when the next step ends. */
  set lowMemory(value: boolean) {
    this.#governed.lowMemory = value === true;
  }

  /** The id under which its entries stand in the log. */
  get session(): string {
    return this.#governed.id;
  }

  /**
   * Appends T tokens to a layer. k, v: [T, kvHeads, headDim], keys after RoPE. x: residual stream entering the layer. Its norms make trial
   * errors comparable between layers: [T, any width], optional. In a cache with `latents` it is what they are made of: [T, latents.width],
   * needed; in one without, nothing of it is kept but those norms. Layers come in order, each with the same T. Under a budget
   * pieces should end where pages of 128 do, or divide them: what is refused as too small a budget is reckoned for those. A refused call has appended nothing.
   */
  append(layer: number, k: Float32Array, v: Float32Array, x?: Float32Array): void {
    this.#open();
    const tokens = k instanceof Float32Array ? k.length / (this.shape.kvHeads * this.shape.headDim) : 0;
    // Leave a bad shape to the native cache, which names what is wrong with it.
    const plausible = Number.isInteger(tokens) && tokens > 0 && v instanceof Float32Array && v.length === k.length;
    if (!plausible) {
      this.#governed.kv.append(layer, k, v);
      return;
    }
    const norms = x === undefined ? null : normsOf(x, tokens);
    const inputs = this.#governed.inputs(layer, x, tokens);
    this.#inTurn(layer, tokens);
    if (layer === 0) makeRoom(this.#governed, tokens);
    this.#governed.append(layer, k, v, inputs);
    this.#pendingNorms[layer] = norms;
  }

  /** Layers in order, the same tokens in each. */
  #inTurn(layer: number, tokens: number): void {
    const { kv, length } = this.#governed;
    const expected = layer === 0 ? length : kv.length(0) - tokens;
    const before = kv.length(layer);
    if (before !== length || expected !== length || (layer > 0 && kv.length(layer - 1) !== length + tokens)) {
      throw new KvError('bad-argument', `layer ${layer} holds ${before} tokens and cannot take ${tokens} more now`, {
        values: { layer, held: before, tokens, tokensBefore: length },
        hint: 'one step is the same tokens for every layer in order, and attention of the last layer ends it',
      });
    }
  }

  /** Causal attention of the last T tokens of a layer. q: [T, queryHeads, headDim] → the same shape. The last layer ends the step: pages are tried, moved and written down. */
  attention(layer: number, q: Float32Array): Float32Array {
    this.#open();
    const length = q instanceof Float32Array ? q.length : 0;
    const out = new Float32Array(length);
    const norms = this.#pendingNorms[layer] ?? null;
    const rows = length / (this.shape.queryHeads * this.shape.headDim);
    this.#governed.kv.attend(layer, q, out, norms !== null && norms.length === rows ? { xNorms: norms } : {});
    if (layer === this.shape.layers - 1) {
      const tokensNew = this.#governed.kv.length(layer) - this.#governed.length;
      if (tokensNew > 0) settle(this.#governed, tokensNew);
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
  restore(layer: number, page: number, format?: FormatName): number {
    this.#open();
    return this.#governed.restore(layer, page, format);
  }

  /** Bytes of the cache. scratchBytes includes the inputs that wait for their page to be sealed. */
  memoryUsage(): MemoryUsage {
    this.#open();
    return this.#governed.memoryUsage();
  }

  /** Predictions and counts of decisions so far. */
  qualityMetrics(): QualityMetrics {
    this.#open();
    const { summary, mover, kv, shape, length } = this.#governed;
    const f16 = f16CacheBytes(shape, length);
    return {
      tokens: length,
      predictedKld: summary.predictedKld,
      effectiveBits: f16 === 0 ? 0 : (16 * kv.memory().totalBytes) / f16,
      decisions: mover.decisions,
      refusedTrials: mover.refused,
      priceThreshold: summary.priceThreshold,
      layerEpsilonMax: summary.layerEpsilonMax,
    };
  }

  /** The cache in numbers, as a session reports itself. */
  report(): SessionReport {
    this.#open();
    return reportOf(this.#governed, { dense: 'caller', denseMs: 0, attentionMs: 0 });
  }

  /** As Engine.metrics(), of this cache and its forks: what they did, and the bytes that this one holds. */
  metrics(): string {
    this.#open();
    return metricsText(this.#governed.meter, [this.#governed], this.#governed.log);
  }

  /** As EngineSession.adaptThresholds: what was measured moves the constant of the error law, for caches opened with the thresholds saved from here. */
  adaptThresholds(feedback: QualityFeedback): ThresholdSet {
    this.#open();
    return this.#governed.learnt.adapt(feedback);
  }

  /** Waits until every decision so far is on disk. → highest acknowledged sequence number, −1 without a log. */
  async flush(): Promise<number> {
    this.#open();
    return (await this.#shared?.state.log.flush()) ?? -1;
  }

  /** Writes what was learned into a threshold file. Throws 'bad-argument', 'io'. */
  async saveThresholds(path: string): Promise<void> {
    this.#open();
    checkPath(path);
    await saveThresholdFile(path, this.#governed.learnt.thresholds(), {
      modelDigest: this.#options.modelDigest ?? '',
      shape: this.shape,
      log: this.#shared?.state.log ?? null,
    });
  }

  /** Uses a threshold file from now on; only before the first token, since decisions must be repeatable from their session's start. */
  async loadThresholds(path: string): Promise<void> {
    this.#unused();
    checkPath(path);
    const loaded = await loadThresholdFile(path, { modelDigest: this.#options.modelDigest ?? '', shape: this.shape });
    // Tokens may have been appended, or close() called, while the file was being read.
    this.#unused();
    const before = this.#governed;
    const plan = planWithLatents(this.shape, requestOf(this.#options), loaded, this.#options.latents);
    this.#governed = govern(this.#options, plan, this.#shared?.state.log ?? null);
    before.close();
  }

  /** Writes the session's last entry, then frees everything, also when the log refuses. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    try {
      await leave(this.#governed, this.#shared?.state.book ?? null, 'done');
    } finally {
      this.#governed.close();
      if (this.#shared !== null && --this.#shared.users === 0) await this.#shared.state.close();
    }
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #unused(): void {
    this.#open();
    const tokens = this.#governed.kv.length();
    if (tokens > 0)
      throw new KvError('busy', 'thresholds can be loaded before the first token only', {
        values: { tokens },
        hint: 'open a new cache',
      });
  }

  #open(): void {
    if (this.#closed) throw new KvError('closed', 'the cache was closed', { values: { session: this.session } });
  }
}

/** Checks the sizes that are used in computations before the native cache sees them. */
function checkShape({ layers, queryHeads, kvHeads, headDim }: CacheShape): void {
  for (const [name, value] of Object.entries({ layers, queryHeads, kvHeads, headDim })) {
    if (!Number.isInteger(value) || value < 1 || value > 4096)
      throw new KvError('bad-argument', `${name} must be a whole number from 1 to 4096`, {
        values: { [name]: show(value) },
      });
  }
}

function checkPath(path: unknown): void {
  if (typeof path !== 'string' || path === '')
    throw new KvError('bad-argument', 'a threshold file needs a path', { values: { path: show(path) } });
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

function govern(
  options: OpenCacheOptions,
  plan: SessionPlan,
  log: WitnessLog | null,
  evidence?: GovernedOptions['evidence'],
): Governed {
  const { layers, pool, latents, outputSketch = [] } = options;
  const { scale, slidingWindow, alibiSlopes, threads } = options;
  const { modelDigest, kvBudget, kldBudget, policy } = options;
  if (outputSketch.length !== 0 && outputSketch.length !== layers) {
    throw new KvError('bad-shape', `outputSketch must have one entry per layer`, {
      values: { outputSketch: outputSketch.length, layers },
    });
  }
  return Governed.open({
    shape: shapeOf(options),
    plan,
    pool,
    native: {
      ...(scale === undefined ? {} : { scale }),
      ...(slidingWindow === undefined ? {} : { slidingWindow }),
      ...(alibiSlopes === undefined ? {} : { alibiSlopes }),
      ...(threads === undefined ? {} : { threads }),
    },
    sketches: outputSketch,
    latents,
    log,
    opened: {
      model: { name: 'caller', digest: modelDigest ?? '', architecture: 'caller' },
      requested: {
        kvBudget: kvBudget ?? null,
        kldBudget: kldBudget ?? null,
        policy: (typeof policy === 'object' ? policy.id : policy) ?? null,
      },
      effective: {},
    },
    ...(evidence === undefined ? {} : { evidence }),
  });
}
