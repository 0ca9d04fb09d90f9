/**
 * The cache as JavaScript sees it. It checks arguments, fills in defaults, explains errors, and leaves the work to the
 * binary. types.ts describes every method. In array shapes, T is the number of tokens, H of query heads, n of KV heads,
 * d the head size.
 */
import * as account from './account.ts';
import {
  closed,
  fail,
  floats,
  formatNumber,
  integer,
  partId,
  partNumber,
  record,
  shapeError,
  show,
  sideId,
  sideNumber,
} from './arguments.ts';
import { KvError } from './error.ts';
import * as foreign from './foreign.ts';
import { FORMATS, type FormatName, nameOfId, type Part, type Side, sidesOf } from './format.ts';
import { firstToken, pageStart, sealsBetween } from './geometry.ts';
import * as held from './hold.ts';
import { keepRows, keptRows } from './kept-rows.ts';
import type { LatentName } from './latent.ts';
import { type KEPT_ROWS_OPERATIONS, type ORIGINAL_OPERATIONS, PAGE_TOKENS, SKETCH_ROWS } from './layout.ts';
import { type CacheHandle, check, codeOf, errorOf, loadBinary, type PoolHandle } from './load.ts';
import { checkMove, checkStatus, formatIn, Moves, type StartedMove, toRanks } from './moves.ts';
import { NativePool } from './pool.ts';
import { importPages } from './predicted.ts';
import { checkedQueries, tooFew } from './queries.ts';
import { badQuery, badValue } from './refusals.ts';
import { checkedOptions } from './shape.ts';
import * as shares from './shares.ts';
import { exchangeSide, exportSide } from './sides.ts';
import { evictPage, freedPage, freePage, seesFreed } from './sliding.ts';
import { exportPage, importPage } from './stored.ts';
import { checkCandidates, movesOf, original, REFUSED, Trials } from './trials.ts';
import type {
  AttendOptions,
  Beside,
  CacheMemory,
  CacheShape,
  FinishedMove,
  KvCache,
  KvCacheOptions,
  LatentLayerWeights,
  PageRecords,
  PageRows,
  PageTable,
  RotaryTable,
  RowPlace,
  StoredSide,
  TrialCandidate,
} from './types.ts';

/** The caches that openKvCache() makes. */
export class NativeCache implements KvCache {
  readonly shape: CacheShape;
  readonly sealBytes: number;
  readonly #pool: PoolHandle;
  readonly #pair = new Float64Array(2);
  readonly #one = new Float64Array(1);
  #moves = new Moves();
  #trials = new Trials();
  #handle: CacheHandle | undefined;
  readonly #latentBytes: number;

  constructor(handle: CacheHandle, pool: PoolHandle, shape: CacheShape, sealLatentBytes: number) {
    this.#handle = handle;
    this.#pool = pool;
    this.shape = shape;
    this.#latentBytes = sealLatentBytes;
    const memory = new Float64Array(5);
    check(handle.memory(memory), 'read the cache');
    this.sealBytes = memory[4]! + sealLatentBytes;
  }

  #open(): CacheHandle {
    return this.#handle ?? closed('cache');
  }

  /** The same cache. Throws 'bad-argument' for what does not come from openKvCache(). */
  static of(cache: unknown): NativeCache {
    if (typeof cache !== 'object' || cache === null || !(#handle in cache)) {
      fail('cache must come from openKvCache()', { cache: show(cache) });
    }
    return cache;
  }

  /** For a batch: what the binary knows the cache and its pool by. Throws 'closed'. */
  handles(): { readonly cache: CacheHandle; readonly pool: PoolHandle } {
    return { cache: this.#open(), pool: this.#pool };
  }

  #layer(layer: number): number {
    return integer(layer, 'layer', 0, this.shape.layers - 1);
  }

  /** The number of tokens and of sealed pages of a layer. */
  #count(layer: number): { tokens: number; pages: number } {
    check(this.#open().length(layer, this.#pair), 'read the cache', { layer });
    return { tokens: this.#pair[0]!, pages: this.#pair[1]! };
  }

  #sealedPage(layer: number, page: number): number {
    const { pages } = this.#count(layer);
    if (typeof page !== 'number' || !Number.isInteger(page) || page < 0 || page >= pages) {
      fail(`page must be one of the ${pages} sealed pages of layer ${layer}`, { page: show(page), pages });
    }
    return page;
  }

  length(layer = 0): number {
    this.#open();
    return this.#count(this.#layer(layer)).tokens;
  }

  truncate(tokens: number): void {
    const handle = this.#open();
    const { tokens: now, pages } = this.#count(0);
    integer(tokens, 'tokens', 0, now);
    if (tokens < firstToken(pages) && (tokens !== pageStart(tokens) || this.movesUnderWay > 0)) {
      throw new KvError('unsupported', `rows before ${firstToken(pages)} are sealed and go by whole pages`, {
        values: { tokens, sealed: firstToken(pages), length: now, movesUnderWay: this.movesUnderWay },
        hint: `take back to a multiple of ${PAGE_TOKENS} while no move is under way, or fork() before you append what you may want to take back`,
      });
    }
    const status = handle.truncate(tokens);
    if (codeOf(status) === 'unsupported') throw seesFreed('take tokens back', { tokens, length: now });
    check(status, 'truncate', { tokens, length: now });
  }

  append(layer: number, k: Float32Array, v: Float32Array): void {
    const handle = this.#open();
    this.#layer(layer);
    const row = this.shape.kvHeads * this.shape.headDim;
    floats(k, 'k');
    floats(v, 'v');
    if (k.length === 0 || k.length % row !== 0 || k.length !== v.length) {
      shapeError(`k and v must both hold T rows of ${row} numbers`, { k: k.length, v: v.length, row });
    }
    const status = handle.append(layer, k, v);
    if (status !== 0) throw this.appendRefusal(status, layer, k, v);
  }

  /** The error of an append that the binary has refused. */
  appendRefusal(status: number, layer: number, k: Float32Array, v: Float32Array): KvError {
    const row = this.shape.kvHeads * this.shape.headDim;
    const error = errorOf(status, 'append', { layer, tokens: k.length / row });
    if (error.code === 'bad-value') return badValue({ k, v }, layer, row);
    if (error.code !== 'budget-exceeded') return error;
    const tokens = k.length / row;
    const doing = sealsBetween(this.length(layer), tokens) > 0 ? 'seal a page' : 'open rows';
    return this.#full(error, `${doing} of layer ${layer}`, this.#appendBytes(layer, tokens));
  }

  appendBytes(tokens: number): number {
    this.#open();
    return this.#appendBytes(-1, integer(tokens, 'tokens', 0, 2 ** 30));
  }

  /** The bytes that appending so many tokens to one layer takes, or to all layers for −1. */
  #appendBytes(layer: number, tokens: number): number {
    check(this.#open().appendBytes(layer, tokens, this.#one), 'read the cache', { tokens });
    if (this.#latentBytes === 0) return this.#one[0]!;
    const layers = layer < 0 ? Array.from({ length: this.shape.layers }, (_, each) => each) : [layer];
    const seals = layers.reduce((sum, each) => sum + sealsBetween(this.length(each), tokens), 0);
    return this.#one[0]! + seals * this.#latentBytes;
  }

  attend(layer: number, q: Float32Array, out: Float32Array, options: AttendOptions = {}): void {
    const handle = this.#open();
    this.#layer(layer);
    const { tokens, xNorms, lse, observe, beside } = checkedQueries(this.shape, q, out, options);
    const { tokens: held } = this.#count(layer);
    if (tokens > held) throw tooFew(layer, tokens, held);
    const status = handle.attend(layer, q, out, xNorms, lse, observe, beside?.lse, beside?.out);
    if (status !== 0) throw this.attendRefusal(status, layer, q, beside);
  }

  /** The error of attention that the binary has refused. */
  attendRefusal(status: number, layer: number, q: Float32Array, beside?: Beside): KvError {
    const row = this.shape.queryHeads * this.shape.headDim;
    const { tokens: held } = this.#count(layer);
    const tokens = q.length / row;
    if (tokens > held) return tooFew(layer, tokens, held);
    const error = errorOf(status, `attend over layer ${layer}`, { layer, tokens });
    if (error.code === 'unsupported') return seesFreed(`attend over layer ${layer}`, { layer, tokens, held });
    return error.code === 'bad-value' ? badQuery(error, q, layer, row, beside) : error;
  }

  setSkipShare(share: number): void {
    shares.setSkipShare(this.#open(), share);
  }
  skipped(layer: number): { readonly met: number; readonly skipped: number } {
    return shares.skipped(this.#open(), this.#layer(layer));
  }

  table(layer: number): PageTable {
    const handle = this.#open();
    const { pages } = this.#count(this.#layer(layer));
    const column = (): Uint8Array => new Uint8Array(pages);
    const [kind, kFormat, vFormat, latent] = [column(), column(), column(), column()] as const;
    const mass = new Float64Array(pages + 1);
    check(handle.table(layer, kind, kFormat, vFormat, latent, mass, this.#one), 'read the page table', { layer });
    toRanks(kFormat);
    toRanks(vFormat);
    return { pages, kind, kFormat, vFormat, latent, mass, sinkMass: this.#one[0]! };
  }

  format(layer: number, page: number, side: Side): FormatName {
    const status = this.#open().format(layer, page, sideNumber(side), this.#one);
    if (status === 0) return nameOfId(this.#one[0]!);
    this.#sealedPage(this.#layer(layer), page);
    sideId(side);
    formatIn(this.table(layer), page, side);
    throw errorOf(status, 'read the cache', { layer, page, side });
  }

  trial(layer: number, page: number, candidates: readonly TrialCandidate[]): Float64Array {
    const handle = this.#open();
    const moves = movesOf(candidates);
    const errors = new Float64Array((moves?.length ?? 0) / 2);
    // The binary checks everything. Only when it refuses do we check again, to say what was wrong.
    const status = moves === null ? REFUSED : handle.trial(layer, page, moves, errors);
    if (status !== 0) this.#explainTrial(layer, page, candidates, status);
    return errors;
  }

  startTrial(layer: number, page: number, candidates: readonly TrialCandidate[]): void {
    const handle = this.#open();
    const moves = movesOf(candidates);
    const status = moves === null ? REFUSED : handle.startTrial(layer, page, moves);
    if (status !== 0) this.#explainTrial(layer, page, candidates, status);
    this.#trials.add(candidates.length);
  }

  keepOriginal(layer: number, page: number, side: Side): void {
    this.#original('keep', layer, page, side);
  }

  originalFormat(layer: number, page: number, side: Side): FormatName | null {
    const id = this.#original('format', layer, page, side);
    return Number.isNaN(id) ? null : nameOfId(id);
  }

  dropOriginal(layer: number, page: number, side: Side): number {
    return this.#original('drop', layer, page, side);
  }

  restoreOriginal(layer: number, page: number, side: Side): number {
    return this.#original('restore', layer, page, side);
  }

  trialOriginal(layer: number, page: number, side: Side): number {
    return this.#original('try', layer, page, side);
  }

  keepRows(layer: number, page: number, side: Side, rows: readonly RowPlace[]): number {
    return keepRows(this.#open(), layer, page, side, rows, () => this.#sealedPage(this.#layer(layer), page));
  }

  keptRows(layer: number, page: number, side: Side): number {
    return this.#keptRows('count', layer, page, side);
  }

  dropRows(layer: number, page: number, side: Side): number {
    return this.#keptRows('drop', layer, page, side);
  }

  trialRows(layer: number, page: number, side: Side): number {
    return this.#keptRows('try', layer, page, side);
  }

  #keptRows(operation: keyof typeof KEPT_ROWS_OPERATIONS, layer: number, page: number, side: Side): number {
    const check = (): unknown => this.#sealedPage(this.#layer(layer), page);
    return keptRows(this.#open(), operation, layer, page, side, null, check);
  }

  #original(operation: keyof typeof ORIGINAL_OPERATIONS, layer: number, page: number, side: Side): number {
    const check = (): unknown => this.#sealedPage(this.#layer(layer), page);
    return original(this.#open(), operation, layer, page, side, this.#one, check);
  }

  get trialsUnderWay(): number {
    this.#open();
    return this.#trials.count;
  }

  finishTrials(wait: boolean): Float64Array[] {
    return this.#trials.finish(this.#open(), wait);
  }

  #explainTrial(layer: number, page: number, candidates: readonly TrialCandidate[], status: number): never {
    this.#sealedPage(this.#layer(layer), page);
    checkCandidates(candidates, layer, page, this.table(layer), this.shape.headDim);
    throw errorOf(status, `try page ${page} of layer ${layer}`, { layer, page });
  }

  hasSketch(layer: number): boolean {
    const handle = this.#open();
    check(handle.hasSketch(this.#layer(layer), this.#one), 'read the cache', { layer });
    return this.#one[0] === 1;
  }

  setOutputSketch(layer: number, sketch: Float32Array): void {
    const handle = this.#open();
    this.#layer(layer);
    const wanted = SKETCH_ROWS * this.shape.queryHeads * this.shape.headDim;
    if (floats(sketch, 'sketch').length !== wanted) {
      shapeError(`the sketch must hold ${SKETCH_ROWS} rows of H·d numbers`, { sketch: sketch.length, wanted });
    }
    check(handle.setSketch(layer, sketch), 'set the output sketch', { layer });
  }

  transcode(layer: number, page: number, side: Part, to: FormatName): number {
    const handle = this.#open();
    const status = handle.transcode(layer, page, partNumber(side), formatNumber(to), this.#one);
    return status === 0 ? this.#one[0]! : this.#explainMove(layer, page, side, to, status);
  }

  #explainMove(layer: number, page: number, side: Part, to: FormatName, status: number): never {
    const move = this.#checkedMove(layer, page, side, to);
    const doing = `re-encode page ${page} of layer ${layer} as ${to}`;
    return this.#within(doing, () => {
      checkStatus(status, doing, move);
      throw errorOf(status, doing, move);
    });
  }

  startMove(layer: number, page: number, side: Part, to: FormatName): void {
    const handle = this.#open();
    const move = this.#checkedMove(layer, page, side, to);
    this.#within(`move page ${page} of layer ${layer} to ${to}`, () => this.#moves.start(handle, move));
  }

  get movesUnderWay(): number {
    this.#open();
    return this.#moves.count;
  }

  finishMoves(wait: boolean): FinishedMove[] {
    return this.#moves.finish(this.#open(), wait);
  }

  decode(layer: number, page: number, side: Side, out?: Float32Array): Float32Array {
    const handle = this.#open();
    const { tokens, pages } = this.#count(this.#layer(layer));
    integer(page, 'page', 0, pages);
    const wanted = Math.min(PAGE_TOKENS, tokens - firstToken(page)) * this.shape.kvHeads * this.shape.headDim;
    const found = out === undefined ? new Float32Array(wanted) : floats(out, 'out');
    if (found.length !== wanted) shapeError('out must be [tokens, n, d]', { out: found.length, wanted });
    const status = handle.decode(layer, page, sideId(side), found);
    if (codeOf(status) === 'unsupported') throw freedPage(page);
    check(status, `decode page ${page} of layer ${layer}`, { layer, page, side });
    return found;
  }

  setLatentWeights(layer: number, weights: LatentLayerWeights): void {
    held.setLatentWeights(this.#open(), this.shape, this.#layer(layer), weights);
  }

  setRotary(table: RotaryTable): void {
    held.setRotary(this.#open(), this.shape, table);
  }

  holdLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): number {
    return this.#latent('hold', layer, page, format, bytes);
  }

  keepLatent(layer: number, page: number, format: LatentName, bytes: Uint8Array): void {
    this.#latent('keep', layer, page, format, bytes);
  }

  toLatent(layer: number, page: number, format: LatentName): number {
    return this.#latent('move', layer, page, format);
  }

  dropLatent(layer: number, page: number): number {
    return this.#latent('drop', layer, page);
  }

  restore(layer: number, page: number, format: FormatName, options: { readonly keepLatent?: boolean } = {}): number {
    return this.#latent('restore', layer, page, format, options);
  }

  #latent(operation: held.PageOperation, layer: number, page: number, format?: string, given?: unknown): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    const [id, last] = held.checkedOperation(operation, format, given);
    const doing = `${operation} page ${page} of layer ${layer}${format === undefined ? '' : ` as ${format}`}`;
    return this.#within(doing, () => held.latentCall(handle, operation, layer, page, id, this.#one, last));
  }

  sideDigests(layer: number, page?: number): Float64Array {
    const handle = this.#open();
    const { pages } = this.#count(this.#layer(layer));
    if (page !== undefined) this.#sealedPage(layer, page);
    const digests = new Float64Array(page === undefined ? 3 * pages : 3);
    check(handle.sideDigests(layer, page ?? 0, digests), 'read the codes of a layer', { layer });
    return digests;
  }

  exportPage(layer: number, page: number): Uint8Array {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    return exportPage(handle, this.shape, layer, page, this.table(layer));
  }

  exportSide(layer: number, page: number, side: Side): StoredSide {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    return exportSide(handle, layer, page, side, () => formatIn(this.table(layer), page, side));
  }

  exchangeSide(layer: number, page: number, side: Side, stored: StoredSide): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    const refuse = (): unknown => formatIn(this.table(layer), page, side);
    return this.#within(`exchange a side of page ${page} of layer ${layer}`, () =>
      exchangeSide(handle, this.shape, layer, page, side, stored, refuse),
    );
  }

  freePage(layer: number, page: number): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    return freePage(handle, layer, page, this.#one, this.length(layer));
  }

  evictPage(layer: number, page: number): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    return evictPage(handle, layer, page, this.#one);
  }

  holdForeign(layer: number, page: number, bytes: Uint8Array): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    const doing = `hold page ${page} of layer ${layer} as bytes`;
    return this.#within(doing, () => foreign.holdForeign(handle, layer, page, bytes, this.#one));
  }

  foreignBytes(layer: number, page: number, out?: Uint8Array): Uint8Array {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    return foreign.foreignBytes(handle, layer, page, out);
  }

  restoreForeign(layer: number, page: number, format: FormatName, rows: PageRows): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    record(rows, 'rows');
    const at = { layer, page, format };
    return this.#within(`make page ${page} of layer ${layer} again`, () =>
      foreign.restoreForeign(handle, this.shape, at, rows, this.#one),
    );
  }

  trialForeign(layer: number, page: number, rows: Partial<PageRows>): number {
    const handle = this.#open();
    this.#sealedPage(this.#layer(layer), page);
    record(rows, 'rows');
    return foreign.trialForeign(handle, this.shape, layer, page, rows, this.#one);
  }

  importPage(layer: number, bytes: Uint8Array): void {
    const handle = this.#open();
    const { tokens } = this.#count(this.#layer(layer));
    this.#within(`import a page into layer ${layer}`, () => importPage(handle, this.shape, layer, tokens, bytes));
  }

  importPages(pages: PageRecords): void {
    const handle = this.#open();
    this.#within('import pages', () => importPages(handle, this.shape, pages, this.#count(0).pages));
  }

  get budgetBytes(): number | null {
    return account.counted(this.#open()).budgetBytes;
  }
  get usedBytes(): number {
    return account.counted(this.#open()).usedBytes;
  }
  get peakBytes(): number {
    return account.counted(this.#open()).peakBytes;
  }
  get roomBytes(): number {
    return account.counted(this.#open()).roomBytes;
  }
  get commonBytes(): number {
    return account.counted(this.#open()).commonBytes;
  }
  auditBytes(): number {
    return account.auditBytes(this.#open());
  }

  setBudget(bytes: number | null): void {
    const handle = this.#open();
    const budgetBytes = account.checkedBudget(bytes);
    account.refuseBelow(this.usedBytes, budgetBytes);
    check(handle.setBudget(budgetBytes), 'change the budget', { budgetBytes });
  }

  memory(): CacheMemory {
    const numbers = new Float64Array(5);
    check(this.#open().memory(numbers), 'read the cache');
    const [openBytes, sinkBytes, pageBytes, scratchBytes] = numbers as unknown as [number, number, number, number];
    return { openBytes, sinkBytes, pageBytes, totalBytes: openBytes + sinkBytes + pageBytes, scratchBytes };
  }

  fork(): KvCache {
    const parent = this.#open();
    const { Cache } = loadBinary();
    const handle = new Cache();
    try {
      check(handle.openFork(parent), 'fork the cache');
    } catch (error) {
      if (!(error instanceof KvError && error.code === 'budget-exceeded')) throw error;
      throw this.#full(error, 'fork the cache', undefined);
    }
    return new NativeCache(handle, this.#pool, this.shape, this.#latentBytes);
  }

  adopt(from: KvCache, pages: number): void {
    const handle = this.#open();
    const source = NativeCache.of(from);
    const status = handle.adopt(source.#open(), integer(pages, 'pages', 1, 2 ** 24));
    if (status === 0) return;
    const error = errorOf(status, 'begin with the pages of another cache', { pages, held: this.length() });
    if (error.code === 'budget-exceeded') throw this.#full(error, 'begin with the pages of another cache', undefined);
    throw error;
  }

  become(make: () => KvCache): void {
    this.close();
    const other = make() as NativeCache;
    this.#handle = other.#open();
    [this.#moves, this.#trials] = [new Moves(), new Trials()];
    other.#handle = undefined;
  }

  close(): void {
    const handle = this.#open();
    this.#handle = undefined;
    handle.close();
  }

  /** Checks that a move is possible and describes it. Throws otherwise. */
  #checkedMove(layer: number, page: number, side: Part, to: FormatName): StartedMove {
    this.#sealedPage(this.#layer(layer), page);
    partId(side);
    const table = this.table(layer);
    checkMove({ layer, page, side, to }, table, this.shape.headDim);
    const from = (of: Side): FormatName | null => (sidesOf(side).includes(of) ? formatIn(table, page, of) : null);
    return { layer, page, side, from: { k: from('k'), v: from('v') }, to };
  }

  /** Runs `work`. If a budget is full, the error says what could not be done and how to make room. */
  #within<Result>(doing: string, work: () => Result): Result {
    try {
      return work();
    } catch (error) {
      if (error instanceof KvError && error.code === 'budget-exceeded') throw this.#full(error, doing, undefined);
      throw error;
    }
  }

  #full(cause: KvError, doing: string, neededBytes: number | undefined): KvError {
    const hint = `${this.#moves.count > 0 ? 'finish the moves, ' : ''}demote pages, close a cache or raise the budget`;
    return account.full(this.#open(), this.#pool, cause, { doing, neededBytes, hint });
  }
}

/**
 * Opens a cache, which takes nothing from the budget until tokens are appended. Throws 'bad-argument', 'unsupported' if
 * windowFormat does not serve the head size, and 'closed' if the pool is closed.
 */
export function openKvCache(options: KvCacheOptions): KvCache {
  record(options, 'options');
  const pool = NativePool.handleOf(options.pool);
  const { shape, windowFormat, openFormat, scale, scoreCap, threads, windows, slopes } = checkedOptions(options);
  const scratchBytes = integer(
    options.latentScratchBytes ?? held.LATENT_SCRATCH_BYTES,
    'latentScratchBytes',
    0,
    held.MAX_SCRATCH,
  );
  const budgetBytes = account.checkedBudget(options.budgetBytes);
  const sealLatentBytes = integer(options.sealLatentBytes ?? 0, 'sealLatentBytes', 0, held.MAX_SCRATCH);
  const { Cache } = loadBinary();
  const handle = new Cache();
  const numbers = Int32Array.of(
    shape.layers,
    shape.queryHeads,
    shape.kvHeads,
    shape.headDim,
    FORMATS[windowFormat].id,
    threads,
    FORMATS[openFormat].id,
  );
  check(handle.open(pool, numbers, scale, windows, slopes, budgetBytes, scoreCap ?? undefined), 'open a cache');
  held.setLatentScratch(handle, scratchBytes);
  return new NativeCache(handle, pool, shape, sealLatentBytes);
}
