/**
 * The cache for people who bring their own runtime: they project, we keep, attend and decide. Synchronous, in the
 * caller's thread (a worker is fine); one step is append + attention for every layer in order.
 */
import { loadThresholdFile, saveThresholdFile } from '../../memory/index.ts';
import {
  type CacheShape,
  checkKeys,
  checkOptions,
  checkPath,
  checkShape,
  type FormatName,
  KvError,
} from '../../native/index.ts';
import { defaultThresholds, predictedBy, type ThresholdSet } from '../../policy/index.ts';
import type { WitnessLog } from '../../witness/index.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import { Governed, type GovernedOptions } from '../cache/governed.ts';
import { metricsText } from '../cache/kv-bytes.ts';
import { termsWithLatents } from '../cache/latents.ts';
import { rowNorm } from '../cache/pass.ts';
import { reportOf } from '../cache/report.ts';
import { cutTo, fork, makeRoom, settle } from '../cache/step.ts';
import { askedOf, type Terms, withThresholds } from '../cache/terms.ts';
import type { MemoryUsage, QualityFeedback, SessionReport } from '../cache/types.ts';
import { type OpenCacheOptions, requestOf, shapeOf } from '../options/cache-options.ts';
import { withPolicyFile } from '../options/policy-file.ts';
import { type Ready, withPolicyModule } from '../options/policy-module.ts';
import { CACHE_OPTIONS, STATE_OPTIONS } from '../options/table.ts';
import { openState, type State } from '../state/folder.ts';
import { leave, type StartValues, startValues } from './experience.ts';
import { writeParked } from './park/folder.ts';
import { checkSaved, fillSaved, readSaved, type SavedCache, savedBytes } from './park/saved-cache.ts';

/** What the cache predicts its moves to have cost. */
export interface QualityMetrics {
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Predicted mean KLD of everything moved so far, c·Σ g·ε². Null for policies without trials. */
  readonly predictedKld: number | null;
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

/** Options of loadCache: those of openCache; a shape that is given must be that of the file. */
export type LoadCacheOptions = Omit<OpenCacheOptions, keyof CacheShape> & Partial<CacheShape>;

/**
 * A cache that PolicyCache.save wrote, under the options that it is to go on with: openFormat, windowTokens and policy
 * must be as they were. Throws 'not-found', 'bad-file', 'checksum-mismatch', 'model-mismatch', 'budget-exceeded', and
 * what openCache throws.
 */
export async function loadCache(path: string, options: LoadCacheOptions = {}): Promise<PolicyCache> {
  checkPath(path, 'a saved cache');
  checkKeys(options as OpenCacheOptions, CACHE_OPTIONS, 'loadCache');
  const asked = withPolicyFile(options);
  const saved = readSaved(path);
  const { shape, modelDigest, session: resumedFrom, tokens } = saved.head;
  checkSaved(saved, path, asked, asked.modelDigest);
  const known = modelDigest === '' ? {} : { modelDigest };
  const cache = await open({ ...known, ...asked, ...shape }, { resumedFrom, tokens });
  try {
    cache.fill(saved, path);
    return cache;
  } catch (error) {
    await cache.close();
    throw error;
  }
}

/** Opens a cache. Throws 'bad-argument', 'bad-shape', 'budget-too-small', 'unsupported', 'io', 'bad-log'. */
export async function openCache(options: OpenCacheOptions): Promise<PolicyCache> {
  checkKeys(options, CACHE_OPTIONS, 'openCache');
  return open(withPolicyFile(options));
}

/** Where the tokens of a cache come from that begins with some. */
interface Origin {
  readonly resumedFrom: string;
  readonly tokens: number;
}

/** What a cache is opened with, its policy loaded. */
type Opened = Ready<OpenCacheOptions>;

async function open(asked: OpenCacheOptions, origin?: Origin): Promise<PolicyCache> {
  checkShape(asked);
  checkOptions(asked, CACHE_OPTIONS);
  const options = await withPolicyModule(asked);
  // Refuse bad options before making a folder.
  const { stateDir, latents, onLogFailure = STATE_OPTIONS.onLogFailure.default, qdrant, logRules, anchor } = options;
  if (qdrant !== undefined && stateDir === undefined)
    throw new KvError('bad-argument', 'sessions are shared from a state folder', {
      hint: 'add stateDir, or leave out qdrant',
    });
  const unlearned = options.thresholds ?? defaultThresholds(options.layers);
  const terms = termsWithLatents(shapeOf(options), requestOf(options), unlearned, latents);
  const state =
    stateDir === undefined ? null : await openState(stateDir, { mode: onLogFailure, qdrant, rules: logRules, anchor });
  try {
    const start = await startOf(options, terms.budgetBytes, state);
    return PolicyCache.open(options, withThresholds(terms, start.thresholds), state, start, origin);
  } catch (error) {
    await state?.close();
    throw error;
  }
}

/**
 * Only a model that the caller names is known again. What else ran in the state folder is no kin of it, since nothing
 * says what that is.
 */
function startOf(options: Opened, budgetBytes: number | null, state: State | null): Promise<StartValues> {
  const { modelDigest, tokensExpected, thresholds, thresholdsPath } = options;
  const book = modelDigest === undefined ? null : (state?.book ?? null);
  const model = modelDigest ?? '';
  const tokens = tokensExpected ?? 0;
  return startValues(
    { shape: shapeOf(options), modelDigest: model, family: model, tokens, budgetBytes, thresholds, thresholdsPath },
    book,
  );
}

interface SharedState {
  readonly state: State;
  users: number;
}

/** The cache alone, for programs with a runtime of their own: they project, it keeps, attends and decides. */
export class PolicyCache {
  /** The shape that it was opened with. */
  readonly shape: CacheShape;
  readonly #options: Opened;
  /** Shared with its forks: the last one closes it. */
  readonly #shared: SharedState | null;
  #governed: Governed;
  /** Norms of the rows appended to each layer since its last attention. */
  readonly #pendingNorms: (Float32Array | null)[];
  #closed = false;

  private constructor(options: Opened, governed: Governed, shared: SharedState | null) {
    this.shape = governed.shape;
    this.#options = options;
    this.#shared = shared;
    this.#pendingNorms = new Array<Float32Array | null>(this.shape.layers).fill(null);
    this.#governed = governed;
    if (shared !== null) shared.users++;
  }

  /** @internal use openCache */
  static open(options: Opened, terms: Terms, state: State | null, start: StartValues, origin?: Origin): PolicyCache {
    const governed = govern(options, terms, state?.log ?? null, start, origin);
    return new PolicyCache(options, governed, state === null ? null : { state, users: 0 });
  }

  /**
   * A cache that goes on from here, between two steps: pages that have left the window are shared, and so is the
   * budget. It decides by itself; a change of a shared page is one for all that share it. It keeps no latents. Closed
   * on its own.
   */
  fork(): PolicyCache {
    this.#between('forked');
    const { latents: _, ...options } = this.#options;
    return new PolicyCache(options, fork(this.#governed), this.#shared);
  }

  /** Tokens that every layer holds. */
  get length(): number {
    this.#open();
    return this.#governed.length;
  }

  /**
   * Takes back the newest tokens, so that `tokens` stay, between two steps. Rows of a page that was sealed meanwhile
   * come back as they are stored. Throws 'unsupported' where that page has left the window for lower formats, or is
   * shared with a fork, unless all of it goes: fork() before you append what may be taken back.
   */
  truncate(tokens: number): void {
    this.#between('truncated');
    cutTo(this.#governed, tokens);
    this.#pendingNorms.fill(null);
  }

  /**
   * Begins again, empty, as a session of its own in the log; what was learned until now counts as that of a cache that
   * was closed.
   */
  async reset(): Promise<void> {
    this.#open();
    const before = this.#governed;
    // Opened first: where that fails, the cache stays as it was.
    const after = govern(this.#options, before.terms, before.log);
    this.#governed = after;
    this.#pendingNorms.fill(null);
    try {
      await leave(before, this.#shared?.state.book ?? null, 'done');
    } finally {
      before.close();
    }
  }

  /**
   * Writes the cache into a file that loadCache opens, between two steps; the file is there whole or not at all. It is
   * not encrypted, and what was said can be read out of keys and values. Throws 'unsupported' for a cache with latents,
   * 'io'.
   */
  save(path: string): void {
    this.#between('saved');
    checkPath(path, 'a saved cache');
    if (this.#governed.latents !== null)
      throw new KvError('unsupported', 'a cache with latents cannot be saved', {
        hint: 'save a fork(): it keeps none',
      });
    writeParked(path, savedBytes(this.#governed, this.#options.modelDigest ?? ''));
  }

  /** @internal use loadCache */
  fill(saved: SavedCache, path: string): void {
    this.#governed.begin();
    fillSaved(this.#governed, saved, path);
  }

  /** Whether all layers hold the same tokens. → how many. Throws 'busy'. */
  #between(what: string): number {
    this.#open();
    const { kv, length } = this.#governed;
    if (kv.length(this.shape.layers - 1) !== length || kv.length(0) !== length)
      throw new KvError('busy', `a cache is ${what} between two steps`, {
        values: { tokens: length },
        hint: 'call attention of the last layer first',
      });
    return length;
  }

  /** Tells the policy that memory is short; pressure rises when the next step ends. */
  set lowMemory(value: boolean) {
    this.#governed.memoryIsLow(value === true);
  }

  /** The id under which its entries stand in the log. */
  get session(): string {
    return this.#governed.id;
  }

  /**
   * Appends T tokens to a layer. k, v: [T, kvHeads, headDim], keys after RoPE. x: residual stream entering the layer.
   * Its norms make trial errors comparable between layers: [T, any width], optional. In a cache with `latents` it is
   * what they are made of: [T, latents.width], needed; in one without, nothing of it is kept but those norms. Layers
   * come in order, each with the same T. Under a budget pieces should end where pages of 128 do, or divide them: what
   * is refused as too small a budget is reckoned for those. A refused call has appended nothing.
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

  /**
   * Causal attention of the last T tokens of a layer. q: [T, queryHeads, headDim] → the same shape, in `out` if it is
   * given. The last layer ends the step: pages are tried, moved and written down.
   */
  attention(
    layer: number,
    q: Float32Array,
    out = new Float32Array(q instanceof Float32Array ? q.length : 0),
  ): Float32Array {
    this.#open();
    const length = q instanceof Float32Array ? q.length : 0;
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
   * Makes keys and values of a sealed page again from the latent that is kept beside it, both in `format` (default:
   * that of the window, q8 unless the cache is f16), which must not be below the one that either has: they are exact up
   * to the error of the latent and of that format. The latent stays. What this takes counts against the budget. It
   * lasts until a page is to be sealed for which there is no room: then restored pages go back to the formats in which
   * the policy had left them, those restored first first. → bytes by which the cache grew. Throws 'unsupported' (no
   * latents, a lower format), 'bad-argument' (no such page), 'budget-exceeded'.
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
    const { terms, summary, tally, kv, shape, length } = this.#governed;
    const f16 = f16CacheBytes(shape, length);
    return {
      tokens: length,
      predictedKld: predictedBy(terms.policy.id, summary.predictedKld),
      effectiveBits: f16 === 0 ? 0 : (16 * kv.memory().totalBytes) / f16,
      decisions: tally.decisions,
      refusedTrials: tally.refused,
      priceThreshold: summary.priceThreshold,
      layerEpsilonMax: summary.layerEpsilonMax,
    };
  }

  /** The cache in numbers, as a session reports itself. */
  report(): SessionReport {
    this.#open();
    const beside = { dense: 'caller', activations: null, denseMs: 0, attentionMs: 0, pressure: null };
    return reportOf(this.#governed, beside);
  }

  /**
   * Tells what Engine.metrics() tells, of this cache and its forks: what they did, and the bytes that this one holds.
   */
  metrics(): string {
    this.#open();
    return metricsText(this.#governed.meter, [this.#governed], this.#governed.log);
  }

  /**
   * Does what EngineSession.adaptThresholds says: what was measured moves the constant of the error law, for caches
   * opened with the thresholds saved from here.
   */
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
    checkPath(path, 'a threshold file');
    await saveThresholdFile(path, this.#governed.learnt.thresholds(), {
      modelDigest: this.#options.modelDigest ?? '',
      shape: this.shape,
      log: this.#shared?.state.log ?? null,
    });
  }

  /**
   * Uses a threshold file from now on; only before the first token, since decisions must be repeatable from their
   * session's start.
   */
  async loadThresholds(path: string): Promise<void> {
    this.#unused();
    checkPath(path, 'a threshold file');
    const loaded = await loadThresholdFile(path, { modelDigest: this.#options.modelDigest ?? '', shape: this.shape });
    // Tokens may have been appended, or close() called, while the file was being read.
    this.#unused();
    const before = this.#governed;
    const terms = withThresholds(before.terms, loaded);
    this.#governed = govern(this.#options, terms, this.#shared?.state.log ?? null);
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
  options: Opened,
  terms: Terms,
  log: WitnessLog | null,
  evidence?: GovernedOptions['evidence'],
  origin?: Origin,
): Governed {
  const { layers, pool, latents, outputSketch = [] } = options;
  const { scale, scoreCap, slidingWindow, alibiSlopes, threads } = options;
  const { modelDigest } = options;
  if (outputSketch.length !== 0 && outputSketch.length !== layers) {
    throw new KvError('bad-shape', `outputSketch must have one entry per layer`, {
      values: { outputSketch: outputSketch.length, layers },
    });
  }
  return Governed.open({
    shape: shapeOf(options),
    terms,
    pool,
    native: {
      ...(scale === undefined ? {} : { scale }),
      ...(scoreCap === undefined ? {} : { scoreCap }),
      ...(slidingWindow === undefined ? {} : { slidingWindow }),
      ...(alibiSlopes === undefined ? {} : { alibiSlopes }),
      ...(threads === undefined ? {} : { threads }),
    },
    sketches: outputSketch,
    latents,
    log,
    opened: {
      model: { name: 'caller', digest: modelDigest ?? '', architecture: 'caller' },
      requested: askedOf(options),
      effective: { ...origin },
    },
    ...(evidence === undefined ? {} : { evidence }),
  });
}
