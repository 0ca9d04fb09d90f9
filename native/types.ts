/**
 * The surface of the native cache. Legend: T tokens, H query heads, n KV heads, d head_dim, g = H/n, R trial queries.
 * All arrays are row-major Float32Array unless said otherwise. Every method throws KvError 'closed' after close().
 */
import type { FormatName, Part, Side, WindowName } from './format.ts';
import type { Isa, LatentName } from './layout.ts';

export { ISA_NAMES, type Isa } from './layout.ts';

/**
 * Where the compiled half comes from: `built` in this checkout, `prebuilt` in the package, `wasm` (WebAssembly) where no
 * binary fits; `debug` and `thread` are the builds with sanitizers, for tests.
 */
export const BINDING_NAMES = ['built', 'prebuilt', 'wasm', 'debug', 'thread'] as const;
/** See BINDING_NAMES. */
export type BindingName = (typeof BINDING_NAMES)[number];

export interface NativeInfo {
  /** Instruction set in use now. */
  readonly isa: Isa;
  /** Every instruction set that this build has and this CPU runs, best first. */
  readonly available: readonly Isa[];
  readonly compiler: string;
  readonly abi: string;
  readonly binding: BindingName;
  readonly file: string;
  /** Why a binding that would have been preferred was not taken; null when there was no such thing. */
  readonly passedOver: string | null;
}

/** One byte budget for the sum of any number of caches. */
export interface PagePool {
  /** Most bytes that all caches of the pool may take. */
  readonly budgetBytes: number;
  /** Bytes allocated now by every cache of the pool, shared pages counted once. */
  readonly usedBytes: number;
  /** The most that usedBytes ever was. */
  readonly peakBytes: number;
  /** Memory that the pool holds of the system for these bytes: usedBytes, headers, and a little that lies idle. */
  readonly reservedBytes: number;
  /** The most that reservedBytes ever was. */
  readonly reservedPeakBytes: number;
  /** Raises or lowers the budget; throws 'budget-too-small' when below usedBytes. */
  setBudget(bytes: number): void;
  /** Walks every live buffer and sums its size: equals usedBytes, or the accounting is broken. */
  auditBytes(): number;
  /** Lets go of the pool; open caches go on and free their memory themselves. A second call does nothing. */
  close(): void;
}

/** The attention of a model: what the size of a cache follows from. */
export interface CacheShape {
  /** Layers that attend. */
  readonly layers: number;
  /** Query heads H of a layer: a multiple of kvHeads. */
  readonly queryHeads: number;
  /** Key and value heads n of a layer. */
  readonly kvHeads: number;
  /** Channels d of a head. */
  readonly headDim: number;
}

export interface KvCacheOptions {
  readonly shape: CacheShape;
  readonly pool: PagePool;
  /** Most bytes of this cache and its forks; without it the pool alone bounds them. */
  readonly budgetBytes?: number;
  /** Format a page gets when it is sealed: q8 (default) or f16. Head sizes without codes need f16. */
  readonly windowFormat?: WindowName;
  /** Factor on q·k, default 1/sqrt(d); at most 1e20 in size. */
  readonly scale?: number;
  /** Tokens a query may look back, itself included, per layer; null = all. */
  readonly slidingWindow?: readonly (number | null)[];
  /** ALiBi slopes, [H]; score += -slope·(query position − key position). */
  readonly alibiSlopes?: Float32Array;
  /** Threads that take part in attend and trials, default 1: those of the pool, which has as many as the cache with the most of them asks for. */
  readonly threads?: number;
  /** Most bytes of keys and values recomputed from latents and kept, for all forks together: part of scratchBytes. Default 16 MiB. */
  readonly latentScratchBytes?: number;
  /** Bytes of the latent that the caller will keep beside every sealed page of a layer (keepLatent): sealBytes counts them. Default 0. */
  readonly sealLatentBytes?: number;
}

/** What keys and values of one layer are recomputed with. Legend: m width of the latents. */
export interface LatentLayerWeights {
  /** Width of the latents: a multiple of 16 from 64 to 16384. */
  readonly width: number;
  /** [n·d, m] each, as linear layers keep them: k = x·wkᵀ. */
  readonly wk: Float32Array;
  /** Likewise for values: v = x·wvᵀ. */
  readonly wv: Float32Array;
  /** [n·d] each. */
  readonly kBias?: Float32Array;
  /** Likewise for values. */
  readonly vBias?: Float32Array;
  /** RMS norm of each key head before the rotary embedding: gains [d]. */
  readonly kNorm?: { readonly gains: Float32Array; readonly epsilon: number };
}

/** Rotary embedding of every position that will be recomputed: cos, sin [positions, rotaryDim/2]; see rope(). */
export interface RotaryTable {
  /** Cosines, [positions, rotaryDim / 2]. */
  readonly cos: Float32Array;
  /** Sines, of the same shape. */
  readonly sin: Float32Array;
  /** Channels of each head that are rotated: even, at most the head size. */
  readonly rotaryDim: number;
  /** Pairs (2i, 2i+1) instead of (i, i + rotaryDim/2). */
  readonly interleaved: boolean;
}

/** Where the bytes of a cache are. */
export interface CacheMemory {
  /** The open f16 pages: room for 16 tokens at first, doubled as they come, up to a page. */
  readonly openBytes: number;
  /** The first tokens, kept in f16 for ever; allocated with the last rows of the first page. */
  readonly sinkBytes: number;
  /** Sealed pages of every format, metadata, padding and latents included. */
  readonly pageBytes: number;
  /** openBytes + sinkBytes + pageBytes: what counts against the budget. Pages shared with a fork count in both caches but once in usedBytes. */
  readonly totalBytes: number;
  /** Trial state, pages that are being encoded (startMove), and the scratch of the threads, which all caches of a pool share: reported beside, not counted. */
  readonly scratchBytes: number;
}

/**
 * What a sealed page is held as: `resident`, keys and values each in a format; `latent`, only what both are recomputed from. `parked`, outside
 * the pool, is for later.
 */
export const PAGE_KINDS = ['resident', 'latent', 'parked'] as const;
export type PageKind = (typeof PAGE_KINDS)[number];

/** The sealed pages of one layer, position order. Parallel arrays of length `pages`. */
export interface PageTable {
  readonly pages: number;
  /** Index into PAGE_KINDS. */
  readonly kind: Uint8Array;
  /** Places in FORMAT_NAMES of resident pages; 255, no format, of every other. */
  readonly kFormat: Uint8Array;
  readonly vFormat: Uint8Array;
  /** The page's latent, in place of keys and values or kept beside them (`kind` says which): 0 for none, 1 for xq8, 2 for xq4. */
  readonly latent: Uint8Array;
  /** Attention mass received so far: sum over queries and query heads of probability. The last entry is the open page. [pages + 1] */
  readonly mass: Float64Array;
}

export interface AttendOptions {
  /** ‖x‖ of the residual stream entering the layer for each query token, [T]; kept with the trial queries. */
  readonly xNorms?: Float32Array;
  /** Receives log-sum-exp per query token and head, [T, H]. */
  readonly lse?: Float32Array;
  /** Keep queries for trials and count mass, default true. */
  readonly observe?: boolean;
}

/** What a page would be: one side, or both (`kv`), in a format. */
export interface TrialCandidate {
  readonly side: Part;
  readonly format: FormatName;
}

/** A move in the background that has ended. */
export interface FinishedMove {
  readonly layer: number;
  readonly page: number;
  readonly side: Part;
  /** Formats that the page had when the move was started; of a side that did not move null. */
  readonly from: { readonly k: FormatName | null; readonly v: FormatName | null };
  readonly to: FormatName;
  /** Bytes by which usedBytes fell, as transcode() answers. */
  readonly freedBytes: number;
  /** 'budget-exceeded': the page is as it was, because the budget was lowered meanwhile. Else null. */
  readonly refused: 'budget-exceeded' | null;
}

export interface KvCache {
  readonly shape: CacheShape;
  /** Tokens appended to every layer (layers may differ by one chunk while a step is under way: this is layer 0's). */
  length(layer?: number): number;
  /**
   * Appends T rows to a layer: k (after RoPE) and v, each [T, n, d]. An open page that is full is sealed first.
   * Throws 'bad-value' on NaN, ±inf or |x| > 65504, 'budget-exceeded' when rows or a page to seal do not fit: nothing is appended then.
   */
  append(layer: number, k: Float32Array, v: Float32Array): void;
  /** Bytes that appending T tokens to every layer takes from the budget: rows of open pages that grow, and pages that are sealed (sealBytes each). */
  appendBytes(tokens: number): number;
  /**
   * Causal attention of the last T tokens of the layer: q [T, H, d] → out [T, H, d]. One softmax over sinks, pages of every format and the open page.
   * Throws 'bad-value' when q holds NaN, ±inf or |q| > 65504 (queries are kept as f16): nothing is counted or kept then.
   */
  attend(layer: number, q: Float32Array, out: Float32Array, options?: AttendOptions): void;
  /**
   * Lets decode steps leave out values that cannot matter: those of a page in a rot format are not read where all that a query leaves out holds
   * at most `share` of its probability. Each output row stays within share · V of the full one, V the largest ‖v̂ − mean of its page‖ among the
   * values left out. 0 (the default) reads everything. Throws 'bad-argument' outside 0..1.
   */
  setSkipShare(share: number): void;
  /** What setSkipShare() has spared a layer so far, counted in pages × KV heads. */
  skipped(layer: number): { readonly met: number; readonly skipped: number };
  /**
   * Forgets the tokens from `tokens` on in every layer. Only rows of the open page can be taken back: 'unsupported' otherwise. The open page's mass
   * counts from nothing again, because mass is counted by the page and the part of forgotten tokens is not known.
   */
  truncate(tokens: number): void;
  /** Bytes that sealing one full open page of one layer takes from the budget: both sides, and the latent that is promised (sealLatentBytes). */
  readonly sealBytes: number;
  table(layer: number): PageTable;
  /** Format of one side of a sealed page. Throws 'unsupported' for a page held as a latent: it has none (table().kind tells). */
  format(layer: number, page: number, side: Side): FormatName;
  /**
   * Attention error of candidates for one sealed page (one side, or both at once) against its bytes of now, each tried alone by swapping the
   * page's contribution for the kept queries: ε = mean ‖S·(o′−o)‖/‖x‖ with a sketch and norms, else mean ‖o′−o‖/‖o‖.
   * Queries that cannot see the page whole are left out; with none left ε is NaN. Changes nothing. → [candidates]
   */
  trial(layer: number, page: number, candidates: readonly TrialCandidate[]): Float64Array;
  /**
   * The same as trial(), on a background thread while everything else goes on: on the queries and the bytes of now, whatever changes
   * meanwhile. A change of a page waits for trials to end. Throws as trial() does. Without threads (WebAssembly) the call tries.
   */
  startTrial(layer: number, page: number, candidates: readonly TrialCandidate[]): void;
  /** Trials started and not yet finished. */
  readonly trialsUnderWay: number;
  /** In the order of their start: with `wait` all of them (the caller helps), else up to the first that has not ended. → errors of each */
  finishTrials(wait: boolean): Float64Array[];
  /** True when trial() measures against the residual stream (sketch and norms are there). */
  hasSketch(layer: number): boolean;
  /** S·W_o of a layer, [32, H·d]. */
  setOutputSketch(layer: number, sketch: Float32Array): void;
  /**
   * Moves one side of a sealed page, or with 'kv' both, to a format; the old bytes live until the new are complete. → bytes freed (negative when
   * it grew). Legal: any format to a lower one; f16 ↔ q8 as well. rot → rot works on codes alone. Throws 'unsupported' for promotions and pages
   * held as latents. A page that forks share is one object: it has moved for all of them, and its bytes fall once.
   */
  transcode(layer: number, page: number, side: Part, to: FormatName): number;
  /**
   * The same as transcode(), encoded on a background thread while everything else goes on: the page keeps its bytes and format until
   * finishMoves(). Any number may be under way; what they will need is kept free for them until then. Throws as transcode() does, and
   * 'unsupported' while a move of the same page side is under way, in this cache or in a fork that shares the page; so do transcode() and
   * holdLatent(). A move is its cache's own: a fork does not take it over, but sees the page change when it is finished; close() drops it.
   * Without threads (WebAssembly) the call encodes.
   */
  startMove(layer: number, page: number, side: Part, to: FormatName): void;
  /** Moves started and not yet finished. */
  readonly movesUnderWay: number;
  /**
   * Puts moves in place, in the order of their start: with `wait` all of them (the caller helps), else up to the first that is not encoded yet.
   * → those that ended.
   */
  finishMoves(wait: boolean): FinishedMove[];
  /** Decoded rows of one side of a sealed page or (page === pages) of the open one, sinks exact: [tokens, n, d], in `out` if given. */
  decode(layer: number, page: number, side: Side, out?: Float32Array): Float32Array;
  /** Weights for the latents of a layer, packed once (scratch). Throws 'unsupported' once the layer holds latents. */
  setLatentWeights(layer: number, weights: LatentLayerWeights): void;
  /** The rotary embedding of recomputed keys, all layers; without it they are taken as they come. Throws 'unsupported' once latents are held. */
  setRotary(table: RotaryTable): void;
  /**
   * Replaces keys and values of a sealed page by the latent of the same tokens: bytes from encodeLatent(format, x, width, page === 0 ? 4 : 0),
   * x as wk and wv meet it. → bytes freed. Attention recomputes the page from then on; trials and transcoding of it are 'unsupported'.
   */
  holdLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): number;
  /**
   * Keeps the same bytes beside the keys and values of a sealed page, which may go on to lower formats: what restore() makes them from again.
   * Throws 'budget-exceeded', 'unsupported' (no weights, a page that has a latent).
   */
  keepLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): void;
  /** Makes keys and values of a page that has a latent again, both in `format`; a held latent goes, a kept one stays. → bytes freed (mostly negative). */
  restore(layer: number, page: number, format: FormatName): number;
  /** The stored bytes of a sealed page, latent and of page 0 the sinks included: they say what they are (native/stored.ts). */
  exportPage(layer: number, page: number): Uint8Array;
  /**
   * Appends a page that exportPage() wrote, of the same position, behind the last full page of a layer. Throws 'bad-argument' (not at a page
   * boundary, or a page of another position), 'bad-file', 'checksum-mismatch', 'bad-shape', 'bad-value' (a row would be no number),
   * 'unsupported' (format, layout version, or a latent without its weights), 'budget-exceeded': nothing is changed then.
   */
  importPage(layer: number, bytes: Uint8Array): void;
  memory(): CacheMemory;
  /** Bound of this cache and its forks; null when only the pool has one. */
  readonly budgetBytes: number | null;
  /** Bytes of this cache and its forks, shared pages counted once. */
  readonly usedBytes: number;
  readonly peakBytes: number;
  /** Bytes that may still be added: what both budgets leave beside what is used and what moves under way will need. */
  readonly roomBytes: number;
  /** Sets the budget of this cache and its forks, null for none; throws 'budget-too-small' when below usedBytes. */
  setBudget(bytes: number | null): void;
  /** Walks every live buffer of this cache and its forks and sums its size: equals usedBytes, or the accounting is broken. */
  auditBytes(): number;
  /**
   * A cache that shares every sealed page and copies the rows of the open ones. What either does to a shared page (move, hold, keep, restore) is done for
   * both; what it appends, its attention mass, kept queries and trials are its own.
   */
  fork(): KvCache;
  /** Closes what this cache is and goes on as the one that `make` returns, which has the same shape and is nobody else's. Closed when `make` throws. */
  become(make: () => KvCache): void;
  close(): void;
}
