/**
 * The interface of the native cache. In array shapes, T is the number of tokens, H of query heads, n of key and value
 * heads, and d the size of a head. Arrays are row-major Float32Arrays unless stated otherwise. After close(), every
 * method throws KvError 'closed'.
 */
import type { FormatName, Part, Side, WindowName } from './format.ts';
import type { Isa, LatentName } from './layout.ts';

export { ISA_NAMES, type Isa } from './layout.ts';

/**
 * Where the native code comes from: `built` was compiled in this checkout, `prebuilt` is part of the package, and
 * `wasm` (WebAssembly) is for machines that no binary fits. `debug` and `thread` are builds with sanitizers, for tests.
 */
export const BINDING_NAMES = ['built', 'prebuilt', 'wasm', 'debug', 'thread'] as const;
/** See BINDING_NAMES. */
export type BindingName = (typeof BINDING_NAMES)[number];

export interface NativeInfo {
  /** The instruction set that is in use. */
  readonly isa: Isa;
  /** Every instruction set that this build contains and this CPU supports, best first. */
  readonly available: readonly Isa[];
  readonly compiler: string;
  readonly abi: string;
  readonly binding: BindingName;
  readonly file: string;
  /** Why a binding that would have been preferred is not used, or null if the preferred one is. */
  readonly passedOver: string | null;
}

/** A byte budget that any number of caches share. */
export interface PagePool {
  /** The most bytes that all caches of the pool may take together. */
  readonly budgetBytes: number;
  /** The bytes that all caches of the pool have allocated now. Pages that forks share count once. */
  readonly usedBytes: number;
  /** The most that usedBytes ever was. */
  readonly peakBytes: number;
  /**
   * The memory that the pool has taken from the system for these bytes: usedBytes, headers, and a little that is
   * unused.
   */
  readonly reservedBytes: number;
  /** The most that reservedBytes ever was. */
  readonly reservedPeakBytes: number;
  /** Raises or lowers the budget. Throws 'budget-too-small' if it would be below usedBytes. */
  setBudget(bytes: number): void;
  /** Adds up the sizes of all live buffers. The sum is usedBytes, or the accounting is wrong. */
  auditBytes(): number;
  /** Closes the pool. Open caches go on, and free their memory when they are closed. A second call does nothing. */
  close(): void;
}

/** The sizes of a model's attention, which decide how large its cache is. */
export interface CacheShape {
  /** The number of layers with attention, 1 to 4096. */
  readonly layers: number;
  /** The number of query heads of a layer, H: a multiple of kvHeads. */
  readonly queryHeads: number;
  /** The number of key and value heads of a layer, n. */
  readonly kvHeads: number;
  /** The number of channels of a head, d: 64, 80, 96, 128 or 256 for coded formats. */
  readonly headDim: number;
}

export interface KvCacheOptions {
  readonly shape: CacheShape;
  readonly pool: PagePool;
  /** The most bytes that this cache and its forks may take. Without it, only the budget of the pool limits them. */
  readonly budgetBytes?: number;
  /**
   * The format that a page gets when it is sealed: q8 (the default) or f16. Head sizes that q8 does not serve need f16.
   */
  readonly windowFormat?: WindowName;
  /**
   * The format of the page that tokens are appended to: f16, or the window format, in which rows are then coded as they
   * come. Default f16.
   */
  readonly openFormat?: WindowName;
  /** The factor that q·k is multiplied by: at most 1e20 in size, by default 1/sqrt(d). */
  readonly scale?: number;
  /**
   * Scores s = scale·q·k become scoreCap · tanh(s / scoreCap), before ALiBi and the softmax: from 1e-20 to 1e20. Null,
   * the default: they stay as they are.
   */
  readonly scoreCap?: number | null;
  /** For each layer, how many tokens a query may attend to, its own included. Null means all of them. */
  readonly slidingWindow?: readonly (number | null)[];
  /** The ALiBi slopes, [H]. A slope times (query position − key position) is subtracted from the score. */
  readonly alibiSlopes?: Float32Array;
  /**
   * How many threads attend() and trials use, by default 1. They belong to the pool, which has as many as its cache
   * with the most threads asks for.
   */
  readonly threads?: number;
  /**
   * The most bytes of keys and values recomputed from latents that this cache and its forks keep together, as part of
   * scratchBytes. Default 16 MiB.
   */
  readonly latentScratchBytes?: number;
  /**
   * The bytes of the latent that the caller will keep beside each sealed page with keepLatent(). They are part of
   * sealBytes. Default 0.
   */
  readonly sealLatentBytes?: number;
}

/** The weights with which the keys and values of a layer are recomputed from latents of width m. */
export interface LatentLayerWeights {
  /** The width of the latents, m: a multiple of 16 from 64 to 16384. */
  readonly width: number;
  /** The key projection, [n·d, m], as linear layers store it: k = x·wkᵀ. */
  readonly wk: Float32Array;
  /** The value projection, [n·d, m]: v = x·wvᵀ. */
  readonly wv: Float32Array;
  /** The bias of the keys, [n·d]. */
  readonly kBias?: Float32Array;
  /** The bias of the values, [n·d]. */
  readonly vBias?: Float32Array;
  /** The RMS norm of each key head before the rotary embedding, with gains [d]. */
  readonly kNorm?: { readonly gains: Float32Array; readonly epsilon: number };
}

/** The rotary embedding of every position that will be recomputed; see rope(). */
export interface RotaryTable {
  /** The cosines, [positions, rotaryDim / 2]. */
  readonly cos: Float32Array;
  /** The sines, of the same shape. */
  readonly sin: Float32Array;
  /** How many channels of each head are rotated: an even number, at most the head size. */
  readonly rotaryDim: number;
  /** True if channels 2i and 2i+1 are rotated together, instead of i and i + rotaryDim/2. */
  readonly interleaved: boolean;
}

/** Where the bytes of a cache are. */
export interface CacheMemory {
  /**
   * The open pages, in f16. Each has room for 16 tokens at first, which is doubled as tokens come until it is a whole
   * page.
   */
  readonly openBytes: number;
  /** The first four tokens, which always stay in f16. They are allocated with the last rows of the first page. */
  readonly sinkBytes: number;
  /** The sealed pages of every format, with their metadata, padding and latents. */
  readonly pageBytes: number;
  /**
   * openBytes + sinkBytes + pageBytes, which counts against the budget. Pages shared with a fork are in totalBytes of
   * both, but only once in usedBytes.
   */
  readonly totalBytes: number;
  /**
   * Memory that does not count against the budget: trials, pages that startMove() is encoding, and the working memory
   * of the threads, which all caches of a pool share.
   */
  readonly scratchBytes: number;
}

/**
 * How a sealed page is held. A `resident` page has keys and values, each in a format. A `latent` page has only the
 * latent from which both are recomputed. A `freed` page has nothing: the sliding window of its layer has left it
 * behind. An `evicted` page has nothing either, though queries would see it: attention skips it. A `foreign` page is
 * held as bytes that the caller alone understands: attention skips it as well, and the caller says what it would have
 * added (`AttendOptions.beside`). No page is `parked` yet: the name is reserved for pages outside the pool.
 */
export const PAGE_KINDS = ['resident', 'latent', 'parked', 'freed', 'evicted', 'foreign'] as const;
export type PageKind = (typeof PAGE_KINDS)[number];

/** The sealed pages of one layer in the order of their positions, as parallel arrays of length `pages`. */
export interface PageTable {
  readonly pages: number;
  /** Each page's kind, as an index into PAGE_KINDS. */
  readonly kind: Uint8Array;
  /** Each resident page's format of keys, as an index into FORMAT_NAMES; 255 for pages of other kinds. */
  readonly kFormat: Uint8Array;
  readonly vFormat: Uint8Array;
  /**
   * The format of each page's latent: 0 for none, otherwise 1 plus an index into LATENT_NAMES. `kind` says whether the
   * latent replaces keys and values or is kept beside them.
   */
  readonly latent: Uint8Array;
  /**
   * The attention that each page has received: the sum of its probabilities over queries and query heads, [pages + 1].
   * The last entry is the open page.
   */
  readonly mass: Float64Array;
  /**
   * What of the first page's mass the sinks received, which are exact whatever form the page has: mass[0] − sinkMass is
   * that of its coded rows. It is counted while the sinks are kept by themselves, so not while their page is in f16 or
   * held as a latent.
   */
  readonly sinkMass: number;
}

export interface AttendOptions {
  /**
   * For each token, the norm ‖x‖ of the residual stream that enters the layer, [T]. It is kept with the queries for
   * trials.
   */
  readonly xNorms?: Float32Array;
  /** Receives the log-sum-exp of each token and query head, [T, H]. */
  readonly lse?: Float32Array;
  /** True if to keep queries for trials and to count attention mass. Default true. */
  readonly observe?: boolean;
  /** What foreign pages add to the softmax of each row. */
  readonly beside?: Beside;
}

/** What the caller has computed of tokens that attention skips, to be one softmax with those that it sees. */
export interface Beside {
  /**
   * For each token and query head the natural logarithm of Σ exp(score), [T, H]; minus infinity where it sees none of
   * them. Scores are scaled and capped as those of the cache are.
   */
  readonly lse: Float32Array;
  /** The mean of their values by these scores, [T, H, d]; zeros where it sees none. */
  readonly out: Float32Array;
}

/** Keys and values of a page, each [128, n, d]. */
export interface PageRows {
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/**
 * A change that a trial tries: one side of a page, or both (`kv`), in another format, or the page held as its latent or
 * a lower one.
 */
export type TrialCandidate =
  | { readonly side: Part; readonly format: FormatName }
  | { readonly side: 'kv'; readonly format: LatentName };

/** A move in the background that has ended. */
export interface FinishedMove {
  readonly layer: number;
  readonly page: number;
  readonly side: Part;
  /** The formats that the page had when the move was started; null for a side that did not move. */
  readonly from: { readonly k: FormatName | null; readonly v: FormatName | null };
  readonly to: FormatName;
  /** By how many bytes usedBytes fell, as from transcode(). */
  readonly freedBytes: number;
  /**
   * 'budget-exceeded' if the page was left as it was because the budget had been lowered in the meantime, otherwise
   * null.
   */
  readonly refused: 'budget-exceeded' | null;
}

/** A row of a page side: that of one KV head, from 0, and one token of the page, from 0. */
export interface RowPlace {
  readonly head: number;
  readonly token: number;
}

/** One side of a page as bytes: the parts of its format, without a head and without the sinks. */
export interface StoredSide {
  readonly format: FormatName;
  readonly bytes: Uint8Array;
}

/** A page among bytes. */
export interface PageRecord {
  readonly at: number;
  readonly length: number;
  /** In which formats a predicted page is to be; null: it is a page as exportPage() wrote it. */
  readonly formats: Readonly<Record<Side, FormatName>> | null;
}

/** Every page of a cache that it is to have, page after page and of each layer by layer. */
export interface PageRecords {
  readonly bytes: Uint8Array;
  readonly records: readonly PageRecord[];
  /** For predicted pages: a PackedPredictor, and a table that reaches over all of them. */
  readonly predicted: { readonly predictor: { readonly handle: object }; readonly rotary: RotaryTable } | null;
}

export interface KvCache {
  readonly shape: CacheShape;
  /** How many tokens a layer holds, by default layer 0. During a step, layers may differ by the tokens of that step. */
  length(layer?: number): number;
  /**
   * Appends T rows to a layer: k (after RoPE) and v, each [T, n, d]. If the open page is full, it is sealed first.
   * Throws 'bad-value' for NaN, ±inf and numbers above 65504 in size, and 'budget-exceeded' when the rows, or a page
   * that must be sealed, do not fit. In both cases nothing is appended.
   */
  append(layer: number, k: Float32Array, v: Float32Array): void;
  /**
   * The bytes that appending so many tokens to every layer takes from the budget, for open pages that grow and for
   * pages that are sealed.
   */
  appendBytes(tokens: number): number;
  /**
   * Computes the causal attention of the last T tokens of the layer, from q [T, H, d] to out [T, H, d], with one
   * softmax over all tokens that each may attend to. Throws 'bad-value' when q holds NaN, ±inf or a number above 65504
   * in size, because queries are kept as f16, and 'unsupported' for tokens that see a freed page. In either case no
   * query is kept and no mass is counted.
   */
  attend(layer: number, q: Float32Array, out: Float32Array, options?: AttendOptions): void;
  /**
   * Lets decode steps skip values that hardly matter. The values of a page in a rot format are not read if everything
   * that a query skips has at most `share` of its probability. Each output row then differs from the full one by at
   * most share · V, where V is the largest ‖v̂ − mean of its page‖ among the skipped values. With 0, the default,
   * everything is read. Throws 'bad-argument' for a share outside 0..1.
   */
  setSkipShare(share: number): void;
  /**
   * Tells of a layer so far how many pages × KV heads had values that setSkipShare() allows to skip (`met`), and how
   * many were skipped.
   */
  skipped(layer: number): { readonly met: number; readonly skipped: number };
  /**
   * Forgets the tokens from position `tokens` on in every layer. Sealed pages go whole: `tokens` is in the open page or
   * a multiple of 128, and what forks share stays theirs. Throws 'unsupported' for a length within a sealed page, for
   * one before it while a move is under way, or for one from which a freed page would be seen again. The mass of the
   * open page starts again from 0: mass is counted by the page, so the part of the forgotten tokens is not known.
   */
  truncate(tokens: number): void;
  /** The bytes that sealing one page of one layer takes from the budget: both sides, and sealLatentBytes. */
  readonly sealBytes: number;
  table(layer: number): PageTable;
  /**
   * The format of one side of a sealed page. Throws 'unsupported' for a page that is held as a latent (see
   * table().kind), because it has none.
   */
  format(layer: number, page: number, side: Side): FormatName;
  /**
   * Measures how much attention would change if one sealed page were in another format, for each candidate by itself.
   * Returns the errors ε, [candidates], and changes nothing. An error is the mean over the kept queries of
   * ‖S·(o′−o)‖/‖x‖ if there are a sketch and norms, and otherwise of ‖o′−o‖/‖o‖, where o is the output with the page as
   * it is and o′ with the candidate. Queries that cannot see the whole page are left out; if none remains, ε is NaN. It
   * is also NaN for a latent from which a key or value beyond the range of f16 would be recomputed. Latents can be
   * tried for pages that have one, beside their keys and values or in place of them: the same format or a lower one.
   */
  trial(layer: number, page: number, candidates: readonly TrialCandidate[]): Float64Array;
  /**
   * Does the same as trial() on a background thread, with the queries and pages as they are at the time of the call. A
   * later call that changes a page waits until the trials have ended. Throws as trial() does. Where there are no
   * threads (WebAssembly), the call itself does the work.
   */
  startTrial(layer: number, page: number, candidates: readonly TrialCandidate[]): void;
  /** The number of trials that were started and not yet finished. */
  readonly trialsUnderWay: number;
  /**
   * Returns the errors of each trial that has ended, in the order in which they were started. With `wait` it waits for
   * all of them, and this thread helps; otherwise it stops before the first that has not ended.
   */
  finishTrials(wait: boolean): Float64Array[];
  /**
   * Keeps the form that one side of a sealed page has now, for when the side moves to another. It takes bytes from the
   * budget only from then on, and stays until it is dropped or restored, or until the page is held as a latent; it
   * belongs to the page, so forks share it, and exportPage() leaves it out. Throws 'unsupported' if an original of that
   * side is kept already, a move of it is under way, or the page is held as a latent.
   */
  keepOriginal(layer: number, page: number, side: Side): void;
  /** The format of a kept original, or null where there is none. */
  originalFormat(layer: number, page: number, side: Side): FormatName | null;
  /** Forgets a kept original and returns how many bytes that freed. Throws 'unsupported' where there is none. */
  dropOriginal(layer: number, page: number, side: Side): number;
  /**
   * Puts a kept original back in place of what the side has become, which is freed, and returns how many bytes that
   * freed. Throws 'unsupported' where there is none, and while a move of the side is under way.
   */
  restoreOriginal(layer: number, page: number, side: Side): number;
  /**
   * The error ε, as of trial(), that the present form of a side causes against its kept original, on the queries kept
   * now. Throws 'unsupported' where there is none.
   */
  trialOriginal(layer: number, page: number, side: Side): number;
  /**
   * Keeps some rows of one side of a sealed page as they are now, in 8 bits, and returns how many bytes they take of
   * the budget. They stay what they were, whatever the side becomes, until they are dropped, the page is gone or it is
   * held as a latent; they belong to the page, so forks share them, and exportPage() leaves them out. Places ascend by
   * head and token; sinks are exact and no such place. Throws 'unsupported' if rows of that side are kept already, a
   * move of it is under way, or the page is held as a latent, and 'budget-exceeded'.
   */
  keepRows(layer: number, page: number, side: Side, rows: readonly RowPlace[]): number;
  /**
   * Numbers that say whether the codes of sealed pages are still those that they were, of all or of one page: those of
   * its keys, its values and its latent, page after page, NaN for what it does not have. The same bytes in the same
   * form have the same number.
   */
  sideDigests(layer: number, page?: number): Float64Array;
  /** The number of rows that a side keeps. */
  keptRows(layer: number, page: number, side: Side): number;
  /** Forgets kept rows and returns how many bytes that freed. Throws 'unsupported' where there are none. */
  dropRows(layer: number, page: number, side: Side): number;
  /**
   * The error ε, as of trial(), that the present form of a side causes in its kept rows alone, on the queries kept now:
   * what attention would be with those rows as they were kept, against what it is. Throws 'unsupported' where there
   * are none.
   */
  trialRows(layer: number, page: number, side: Side): number;
  /** True if trial() relates errors to the residual stream, because the layer has a sketch and norms. */
  hasSketch(layer: number): boolean;
  /** Sets the sketch S·W_o of a layer, [32, H·d]. */
  setOutputSketch(layer: number, sketch: Float32Array): void;
  /**
   * Moves one side of a sealed page, or with 'kv' both, to another format, and returns how many bytes that freed
   * (negative if the page grew). The old bytes stay until the new ones are complete. A page may move from any format to
   * a lower one, and from q8 to f16. Throws 'unsupported' for other moves and for pages that are held as latents. A
   * page that forks share moves for all of them.
   */
  transcode(layer: number, page: number, side: Part, to: FormatName): number;
  /**
   * Does the same as transcode() on a background thread. The page keeps its bytes and format until finishMoves(). Any
   * number of moves may be under way, and the bytes that they will need are reserved for them. Throws as transcode()
   * does, and 'unsupported' while a move of the same side of the page is under way in this cache or in a fork that
   * shares the page; transcode() and holdLatent() then throw the same. A fork does not take over moves, but it sees a
   * shared page change when its move is finished. close() discards moves. Where there are no threads (WebAssembly), the
   * call itself encodes the page.
   */
  startMove(layer: number, page: number, side: Part, to: FormatName): void;
  /** The number of moves that were started and not yet finished. */
  readonly movesUnderWay: number;
  /**
   * Puts moves into effect in the order in which they were started, and returns them. With `wait` it waits for all of
   * them, and this thread helps; otherwise it stops before the first that has not been encoded yet.
   */
  finishMoves(wait: boolean): FinishedMove[];
  /**
   * Decodes one side of a sealed page, or of the open page if `page` is the number of sealed pages, to rows [tokens, n,
   * d] in `out` or a new array. Rows in a window format are such that append takes them again, and codes them alike.
   */
  decode(layer: number, page: number, side: Side, out?: Float32Array): Float32Array;
  /** Sets the weights for the latents of a layer. Throws 'unsupported' once the layer holds latents. */
  setLatentWeights(layer: number, weights: LatentLayerWeights): void;
  /**
   * Sets the rotary embedding of recomputed keys for all layers. Without it they are not rotated. Throws 'unsupported'
   * once latents are held.
   */
  setRotary(table: RotaryTable): void;
  /**
   * Replaces the keys and values of a sealed page by the latent of the same tokens, and returns how many bytes that
   * freed. `bytes` come from encodeLatent(format, x, width, page === 0 ? 4 : 0), where x are the rows that wk and wv
   * are applied to. From then on attention recomputes the page, transcode() throws 'unsupported' for it, and trial()
   * does for anything but lower latents.
   */
  holdLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): number;
  /**
   * Keeps such a latent beside the keys and values of a sealed page, which may still move to lower formats, so that
   * restore() can make them again. Throws 'budget-exceeded', and 'unsupported' if the layer has no weights or the page
   * already has a latent.
   */
  keepLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): void;
  /**
   * Holds a page as the latent that is kept beside it, or as a lower one made of that, and returns how many bytes that
   * freed: its keys and values and kept originals. A page that is held as a latent may go to a lower one. Throws
   * 'unsupported' if the page has no such latent or a move of it is under way, 'bad-value' if a recomputed key or value
   * would be beyond the range of f16, and 'budget-exceeded'.
   */
  toLatent(layer: number, page: number, format: LatentName): number;
  /**
   * Gives the bytes of a sealed page back that no query from now on sees, because the sliding window of its layer has
   * left it behind, and returns how many that are: those that no fork holds on, since forks keep the page. Latents and
   * kept originals go with it. Nothing brings it back, and what needs its keys and values throws 'unsupported' from
   * then on. A page that is freed already stays so. Throws 'unsupported' for a page that a later query may see, and
   * while a move of it is under way.
   */
  freePage(layer: number, page: number): number;
  /**
   * Gives the bytes of a sealed page back though queries would see it, and returns how many that are. From then on
   * attention skips the page: the softmax is over what is left, and other tokens keep their positions. The sinks of the
   * first page stay, since they are kept apart from it. A page that forks share is gone for all of them; latents and
   * kept originals go with it. Nothing brings it back, and what needs its keys and values throws 'unsupported' from
   * then on, as attention does for queries of its own tokens, or of tokens before it. A page that is evicted already
   * stays so. Throws 'unsupported' for a page that is freed, and while a move of it is under way.
   */
  evictPage(layer: number, page: number): number;
  /**
   * Holds a sealed page as bytes that the caller made of its keys and values, which count as they are, in whole 64
   * bytes. Returns how many bytes that freed. From then on attention skips the page as an evicted one, except for what
   * the caller gives `attend` beside it; the sinks of the first page stay. A page that forks share becomes this for
   * all of them; latents, kept rows and kept originals go. Truncating, freeing and evicting go on as for other pages;
   * trials and moves throw 'unsupported', and exportPage() gives these bytes. Throws 'budget-exceeded', and
   * 'unsupported' for a page of which nothing is left and while a move of it is under way.
   */
  holdForeign(layer: number, page: number, bytes: Uint8Array): number;
  /** The bytes of a foreign page, in `out` if it is given. Throws 'unsupported' for other pages. */
  foreignBytes(layer: number, page: number, out?: Uint8Array): Uint8Array;
  /**
   * Makes a foreign page again of these rows, both sides in `format`, and returns how many bytes that freed (usually a
   * negative number). Throws 'unsupported' for other pages, 'budget-exceeded', and 'bad-value' for rows beyond f16.
   */
  restoreForeign(layer: number, page: number, format: FormatName, rows: PageRows): number;
  /**
   * What attention would lose if the page had these keys, these values or both: as trial() measures it. Throws
   * 'unsupported' unless the page is resident, and 'bad-value' for rows beyond f16.
   */
  trialForeign(layer: number, page: number, rows: Partial<PageRows>): number;
  /**
   * Forgets the latent that is kept beside a page, and returns how many bytes that freed. Throws 'unsupported' if there
   * is none.
   */
  dropLatent(layer: number, page: number): number;
  /**
   * Makes keys and values from a page's latent, both in `format`, and returns how many bytes that freed (usually a
   * negative number). Unless keepLatent says otherwise, a latent that replaced them is removed, and one that was kept
   * beside them stays.
   */
  restore(layer: number, page: number, format: FormatName, options?: { readonly keepLatent?: boolean }): number;
  /** The bytes of a sealed page with everything that belongs to it, in the form that native/stored.ts describes. */
  exportPage(layer: number, page: number): Uint8Array;
  /** One side of a sealed page as bytes alone. Throws 'unsupported' for a page that is held as a latent. */
  exportSide(layer: number, page: number, side: Side): StoredSide;
  /**
   * Puts a side that exportSide() wrote, of this page or of another of the same head size and KV heads, in place of one
   * side of a sealed page, in whatever format, and returns how many bytes that freed (negative if the page grew). A
   * page that forks share changes for all of them. A kept original stays the one that was kept. If it throws, nothing
   * has changed. Throws 'unsupported' for a page that is held as a latent, for a format that does not serve the head
   * size, and while a move of the side is under way, 'bad-shape' if the bytes are not as long as the format says,
   * 'bad-value' if a row would decode to NaN or infinity, and 'budget-exceeded'. The bytes carry no checksum: the
   * caller vouches that they are those that were written.
   */
  exchangeSide(layer: number, page: number, side: Side, stored: StoredSide): number;
  /**
   * Appends a page that exportPage() wrote to a layer that ends at a page boundary, at the position that the page had.
   * If it throws, nothing has changed. Throws 'bad-argument' if the layer does not end at the page's position,
   * 'bad-file', 'checksum-mismatch', 'bad-shape', 'bad-value' if a row would decode to NaN or infinity, 'unsupported'
   * for an unknown format or layout version or a latent without weights, and 'budget-exceeded'.
   */
  importPage(layer: number, bytes: Uint8Array): void;
  /**
   * Puts all pages of a cache in place at once, stored or predicted, on as many threads as the cache has: behind those
   * that it was given by adopt(), if any. If it throws, nothing has changed. Throws 'unsupported' if the cache is not
   * otherwise empty or would see a freed page, 'bad-file' for a page that is damaged or holds numbers that are not
   * finite, and otherwise as importPage() does.
   */
  importPages(pages: PageRecords): void;
  memory(): CacheMemory;
  /** The budget of this cache and its forks, or null if only the pool has one. */
  readonly budgetBytes: number | null;
  /** The bytes of this cache and its forks. Pages that they share count once. */
  readonly usedBytes: number;
  readonly peakBytes: number;
  /**
   * What of usedBytes it holds together with caches that are no forks of it, or did (`adopt`). The pool counts it once.
   */
  readonly commonBytes: number;
  /** How many bytes can still be added within both budgets, besides those that moves under way will need. */
  readonly roomBytes: number;
  /**
   * Sets the budget of this cache and its forks, or removes it with null. Throws 'budget-too-small' if it would be
   * below usedBytes.
   */
  setBudget(bytes: number | null): void;
  /**
   * Adds up the sizes of all live buffers of this cache and its forks. The sum is usedBytes, or the accounting is
   * wrong.
   */
  auditBytes(): number;
  /**
   * Returns a cache that shares every sealed page and has a copy of the open rows. When either of the two changes how a
   * shared page is held, it changes for both. Each has its own appended tokens, attention mass, kept queries and
   * trials.
   */
  fork(): KvCache;
  /**
   * Begins this cache, which is empty, with the first sealed pages of another one of the same pool, which is no fork of
   * it and has the same shape and formats. When either changes the format of such a page, it changes for both; what is
   * evicted or freed, kept rows and originals, mass, queries and trials are each one's own. Throws 'bad-argument' for
   * another pool, other formats or more pages than are sealed, 'bad-shape', and 'unsupported' if this cache is not
   * empty, a page is moving, freed or evicted, or either has weights for latents.
   */
  adopt(from: KvCache, pages: number): void;
  /**
   * Closes this cache and then takes over the cache that `make` returns, which must have the same shape and must not be
   * used by anybody else. If `make` throws, this cache stays closed.
   */
  become(make: () => KvCache): void;
  close(): void;
}
