/**
 * Pages of a cache that live in the codec of a kernel pack. Their bytes are in the native cache, counted as all others
 * are; what they add to attention is computed here, by the pack, before each native call, which makes one softmax of
 * both. A pack that breaks its contract is never asked for a new page again: another instance of it reads what was
 * written, once, and the pages go on in a format of ours.
 *
 * A cache and its forks share pages, as native caches do: a change of one is made once for all of them. Each has an
 * instance of its own, and no instance that has seen more than a page of all writes it: pages that others share do not
 * go to the pack, and leave it by an instance that is opened for that.
 */
import {
  type CacheShape,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  type FormatPair,
  firstToken,
  isForeign,
  isFreed,
  type KvCache,
  type KvCacheOptions,
  KvError,
  PAGE_PART_ALIGN,
  PAGE_TOKENS,
  type PageTable,
  padded,
  pageBytes,
  ROW_MOST,
  SIDES,
  SINK_TOKENS,
  type Side,
} from '../../native/index.ts';
import type { PackContext } from '../../policy/index.ts';
import { packFormatName } from '../packs/manifest.ts';
import type { PackCodec } from '../packs/types.ts';
import type { Terms } from './terms.ts';

/** What a session has of a pack, for life. */
export interface SessionPack {
  readonly name: string;
  /** SHA-256 of its module, hexadecimal. */
  readonly digest: string;
  /**
   * An instance of its own: a module could carry rows of one session into pages of another. Until it is closed, its
   * pages are read.
   */
  open(): PackCodec;
  /**
   * Whether it may write pages still, or only read those that there are, or is gone: nobody may ask it for anything. It
   * is asked at the end of each page; left out: it may write.
   */
  standing?(): PackStanding;
  /** Hears how an instance broke its contract ('bad-pack'). */
  onFault?(fault: KvError): void;
}

/** What formats, notes and errors call it. */
export const packId = ({ name, digest }: Pick<SessionPack, 'name' | 'digest'>): string => packFormatName(name, digest);

export type PackStanding = 'writes' | 'reads' | 'gone';

/** Throws 'bad-pack' where the pack breaks its contract when it is asked for the size of a page. */
export function packContext(pack: SessionPack, kvHeads: number, headDim: number): PackContext {
  const codec = pack.open();
  try {
    const bytes = 2 * kvHeads * codec.pageBytes(PAGE_TOKENS, headDim);
    return { id: packId(pack), pageBytes: padded(bytes, PAGE_PART_ALIGN) };
  } finally {
    codec.close();
  }
}

/** Formats in which pages of a pack go on, from the finest. */
const RESTORED: readonly FormatName[] = ['f16', 'q8', 'trellis4', 'trellis3', 'trellis2'];
/** Most queries that a pack is asked at once. */
const QUERIES_AT_ONCE = 64;

interface PackPagesOptions {
  readonly pack: SessionPack;
  readonly kv: KvCache;
  /** As the native cache was opened with. */
  readonly attention: Pick<KvCacheOptions, 'scale' | 'scoreCap' | 'slidingWindow' | 'alibiSlopes'>;
  /** In which pages go on where there is no room for them: the least that the session allows. */
  readonly lowest: FormatPair;
  /** Whether pages that are gone may come back. */
  readonly mayGoBack: () => boolean;
  /** Whether another cache holds a page as well. */
  readonly isShared: (page: number) => boolean;
  /** Hears why so many pages went on in a format of ours. */
  readonly onLeft: (why: string, pages: number) => void;
}

export class PackPages {
  readonly #options: PackPagesOptions;
  readonly #headBytes: number;
  /** What a cache and its forks have together: how often pages went to the pack or left it. */
  #family = { changes: 0 };
  /** The same when pages were last looked up. */
  #seen = 0;
  #codec: PackCodec;
  /** Pages of each layer that are in the pack, in order; null: to be looked up. */
  #pages: (readonly number[] | null)[];
  /** Pages that have been in it, so that trials pass them by. */
  readonly #known: Set<number>[];
  /** Whether new pages go there. */
  #isOpen = true;
  /** Whether nobody may even read those that are there. */
  #isGone = false;
  #page: Uint8Array;
  #scores = new Float32Array(QUERIES_AT_ONCE * PAGE_TOKENS);
  #q: Float32Array;
  #mixed: Float32Array;

  constructor(options: PackPagesOptions) {
    this.#options = options;
    const { layers, kvHeads, headDim } = options.kv.shape;
    this.#codec = options.pack.open();
    this.#headBytes = this.#codec.pageBytes(PAGE_TOKENS, headDim);
    this.#pages = new Array<null>(layers).fill(null);
    this.#known = Array.from({ length: layers }, () => new Set<number>());
    this.#page = new Uint8Array(2 * kvHeads * this.#headBytes);
    this.#q = new Float32Array(QUERIES_AT_ONCE * headDim);
    this.#mixed = new Float32Array(QUERIES_AT_ONCE * headDim);
  }

  /** False once the pack broke its contract, or its pages were taken back. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Pages that are in the pack now, of all layers. */
  get count(): number {
    return this.#pages.reduce((sum, _, layer) => sum + this.#in(layer).length, 0);
  }

  /** True if a page is in the pack, or was: policies think that it is freed. */
  knows(layer: number, page: number): boolean {
    return this.#known[layer]!.has(page);
  }

  /** Another number where any page of it or of its forks went to the pack or left it. */
  get changes(): number {
    return this.#family.changes;
  }

  /** Pages that are in the pack or have been, of each layer in order. */
  get known(): number[][] {
    return this.#known.map((pages) => [...pages].sort((a, b) => a - b));
  }

  /** A page of a layer is freed as far as policies know: a fork says so, or whoever wrote a file. */
  know(layer: number, page: number): void {
    this.#known[layer]!.add(page);
    this.#pages[layer] = null;
  }

  /** Goes on, empty, where the pages of another cache are, of which its own is a fork. */
  follow(origin: PackPages): void {
    this.#family = origin.#family;
    this.#isOpen = origin.#isOpen;
    this.#isGone = origin.#isGone;
    for (const [layer, pages] of origin.#known.entries()) for (const page of pages) this.know(layer, page);
  }

  /** The native cache holds other pages than before; of a pack that was left, they go on as others did. */
  changed(): void {
    this.#pages.fill(null);
    const { kv } = this.#options;
    if (!this.#isOpen && !this.#isGone) this.#restoreAll();
    for (const [layer, known] of this.#known.entries()) {
      const { pages } = kv.table(layer);
      for (const page of known) if (page >= pages) known.delete(page);
    }
  }

  /** The native cache is emptied, and what comes back are the same pages, as they are or made again. */
  emptied(): void {
    this.#pages.fill(null);
  }

  /**
   * Pages were put into the native cache that others say are of this pack: an instance that nobody else asks reads them
   * once. Throws 'bad-file' for what are no pages of it; then nobody doubts the pack.
   */
  check(): void {
    this.#pages.fill(null);
    if (this.count === 0) return;
    const { pack, kv } = this.#options;
    const codec = pack.open();
    try {
      for (const layer of this.#pages.keys())
        for (const page of this.#in(layer)) {
          const bytes = kv.foreignBytes(layer, page, this.#page);
          const rows = SIDES.map((_, at) => this.#decoded(bytes.subarray((at * bytes.length) / 2), codec));
          if (!rows.every((side) => side.every((value) => Math.abs(value) <= ROW_MOST)))
            throw new KvError('bad-value', 'its rows are beyond f16');
          this.know(layer, page);
        }
    } catch (cause) {
      if (!(cause instanceof KvError)) throw cause;
      throw new KvError('bad-file', `its pages are none of the pack ${pack.name}: ${cause.message}`, {
        values: { pack: packId(pack) },
        cause,
      });
    } finally {
      codec.close();
    }
  }

  /**
   * What attention would lose if a page were in the pack, as trials measure it; null: no kept query sees it, or the
   * pack cannot have it.
   */
  epsilon(layer: number, page: number): number | null {
    const { kv, isShared } = this.#options;
    if (isShared(page) || isFreed(kv.table(layer), page)) return null;
    const rows = this.#tried(() => {
      const [k, v] = (['k', 'v'] as const).map((side) => this.#decoded(this.#encoded(layer, page, side)));
      return { k: k!, v: v! };
    });
    if (rows === null) return null;
    const epsilon = kv.trialForeign(layer, page, rows);
    return Number.isFinite(epsilon) ? epsilon : null;
  }

  /** Moves a page to the pack; where that is left, or others share it, to a format of ours at once. → bytes freed */
  hold(layer: number, page: number): number {
    const { kv, isShared } = this.#options;
    const bytes = isShared(page)
      ? null
      : this.#tried(() => {
          const all = new Uint8Array(this.#page.length);
          for (const [at, side] of (['k', 'v'] as const).entries())
            all.set(this.#encoded(layer, page, side), (at * all.length) / 2);
          return all;
        });
    this.know(layer, page);
    if (bytes === null) return this.#lower(layer, page);
    this.#family.changes++;
    return kv.holdForeign(layer, page, bytes);
  }

  /**
   * What the pages of a layer in the pack add to attention, for rows of queries at positions from `first` on, in the
   * places of these rows in `lse` and `out`; nothing is written where there are none. Where the pack fails, its pages
   * are pages of ours from then on, and add nothing here. → whether anything was written
   */
  beside(layer: number, q: Float32Array, first: number, lse: Float32Array, out: Float32Array): boolean {
    if (this.#in(layer).length === 0) return false;
    const done = this.#tried(() => {
      this.#attend(layer, q, first, lse, out);
      return true;
    });
    if (done !== null) return true;
    lse.fill(Number.NEGATIVE_INFINITY);
    out.fill(0);
    return false;
  }

  /** Pages that could take less: those in the pack, and those that left it for more than the lowest formats. */
  get lowerable(): number {
    return this.#lowerable().reduce((sum, { layers }) => sum + layers.length, 0);
  }

  /** Such pages go to the lowest formats of ours, those of the oldest tokens first, until there is room. */
  giveBack(hasRoom: () => boolean): void {
    const { kv, lowest, onLeft } = this.#options;
    let left = 0;
    for (const { page, layers } of this.#lowerable()) {
      if (hasRoom()) break;
      for (const layer of layers) {
        const table = kv.table(layer);
        if (isForeign(table, page)) {
          if (this.#tried(() => this.#restore(layer, page, lowest.k)) === null) return;
          left++;
        }
        for (const side of this.#above(kv.table(layer), page)) kv.transcode(layer, page, side, lowest[side]);
      }
    }
    if (left > 0) onLeft('room', left);
  }

  /**
   * Looks whether the pack is still what it was. One that may only read is left, and let go when none of its pages can
   * come back; of one that is gone nobody may ask the pages. Throws 'bad-pack' then.
   */
  look(): void {
    const { pack } = this.#options;
    const standing = this.#isOpen ? (pack.standing?.() ?? 'writes') : 'writes';
    if (standing === 'reads') this.leave();
    if (standing === 'gone') this.#isOpen = false;
    if (!this.#isOpen && this.count === 0 && !this.#options.mayGoBack()) this.#codec.close();
    if (standing !== 'gone') return;
    this.#isGone = true;
    if (this.count === 0) return;
    throw new KvError('bad-pack', `the pack of ${this.count} pages of this session was revoked`, {
      values: { pack: packId(pack), pages: this.count },
      hint: 'open another session: it reads its text anew',
    });
  }

  /** No page goes to the pack from now on, and those that are there go on in a format of ours. */
  leave(): void {
    this.#leave(null);
  }

  close(): void {
    this.#codec.close();
  }

  /** Each such page with the layers in which it is one, the oldest first. */
  #lowerable(): readonly { readonly page: number; readonly layers: readonly number[] }[] {
    const found = new Map<number, number[]>();
    for (const [layer, known] of this.#known.entries()) {
      const table = this.#options.kv.table(layer);
      const isLowerable = (page: number): boolean =>
        isForeign(table, page) || (!isFreed(table, page) && this.#above(table, page).length > 0);
      for (const page of known) if (isLowerable(page)) found.set(page, [...(found.get(page) ?? []), layer]);
    }
    return Array.from(found, ([page, layers]) => ({ page, layers })).sort((a, b) => a.page - b.page);
  }

  /** Sides of a page of ours that are in finer formats than the lowest. */
  #above({ kFormat, vFormat }: PageTable, page: number): Side[] {
    const { lowest } = this.#options;
    const held = { k: FORMAT_NAMES[kFormat[page]!]!, v: FORMAT_NAMES[vFormat[page]!]! };
    return SIDES.filter((side) => FORMATS[held[side]].rank < FORMATS[lowest[side]].rank);
  }

  #in(layer: number): readonly number[] {
    if (this.#seen !== this.#family.changes) this.#pages.fill(null);
    this.#seen = this.#family.changes;
    const known = this.#pages[layer];
    if (known != null) return known;
    const table = this.#options.kv.table(layer);
    const pages = Array.from(table.kind, (_, page) => page).filter((page) => isForeign(table, page));
    this.#pages[layer] = pages;
    return pages;
  }

  /** Has the pack do something; null: it is left, or is by that. */
  #tried<Result>(work: () => Result): Result | null {
    if (!this.#isOpen) return null;
    try {
      return work();
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      this.#leave(error);
      return null;
    }
  }

  /** fault: what the pack broke; null: nobody doubts it. Throws what another instance of it throws. */
  #leave(fault: KvError | null): void {
    if (!this.#isOpen) return;
    const { pack, onLeft } = this.#options;
    this.#isOpen = false;
    if (fault !== null) {
      if (fault.code === 'bad-pack') pack.onFault?.(fault);
      // After a trap its memory is in a state that nobody knows.
      const broken = this.#codec;
      this.#codec = pack.open();
      broken.close();
    }
    onLeft(fault?.message ?? 'asked', this.#restoreAll());
  }

  /** All pages go on in formats of ours. → how many */
  #restoreAll(): number {
    let pages = 0;
    for (const layer of this.#pages.keys())
      for (const page of this.#in(layer)) {
        this.#restore(layer, page, null);
        pages++;
      }
    return pages;
  }

  /** A page goes on in this format, or in the finest of ours that takes no more bytes, if any. → true */
  #restore(layer: number, page: number, format: FormatName | null): true {
    const { kv, pack, isShared } = this.#options;
    const bytes = kv.foreignBytes(layer, page, this.#page);
    const half = bytes.length / 2;
    const isOfOthers = isShared(page);
    const codec = isOfOthers ? pack.open() : this.#codec;
    try {
      const [k, v] = [this.#decoded(bytes.subarray(0, half), codec), this.#decoded(bytes.subarray(half), codec)];
      kv.restoreForeign(layer, page, format ?? this.#fitting, { k, v });
    } finally {
      if (isOfOthers) codec.close();
    }
    this.#family.changes++;
    return true;
  }

  /** As a page would be that had been in the pack. → bytes freed */
  #lower(layer: number, page: number): number {
    const { kv } = this.#options;
    const format = this.#fitting;
    const isLower = (side: Side): boolean => FORMATS[kv.format(layer, page, side)].rank < FORMATS[format].rank;
    const sides = SIDES.filter(isLower);
    return sides.reduce((freed, side) => freed + kv.transcode(layer, page, side, format), 0);
  }

  /** The finest format of ours in which a page takes no more bytes, or the lowest. */
  get #fitting(): FormatName {
    const { kvHeads, headDim } = this.#options.kv.shape;
    const most = padded(this.#page.length, PAGE_PART_ALIGN);
    const fits = (name: FormatName): boolean => 2 * pageBytes(name, kvHeads, headDim) <= most;
    return RESTORED.find(fits) ?? RESTORED.at(-1)!;
  }

  /** One side of a page as the pack codes it, head after head. */
  #encoded(layer: number, page: number, side: 'k' | 'v'): Uint8Array {
    const { kv } = this.#options;
    const { kvHeads, headDim } = kv.shape;
    const rows = kv.decode(layer, page, side);
    const bytes = new Uint8Array(kvHeads * this.#headBytes);
    const x = new Float32Array(PAGE_TOKENS * headDim);
    for (let head = 0; head < kvHeads; head++) {
      for (let t = 0; t < PAGE_TOKENS; t++) {
        const from = (t * kvHeads + head) * headDim;
        x.set(rows.subarray(from, from + headDim), t * headDim);
      }
      bytes.set(this.#codec.encode(x, PAGE_TOKENS, headDim), head * this.#headBytes);
    }
    return bytes;
  }

  /** One side of a page: [tokens, n, d]. */
  #decoded(bytes: Uint8Array, codec = this.#codec): Float32Array {
    const { kvHeads, headDim } = this.#options.kv.shape;
    const rows = new Float32Array(PAGE_TOKENS * kvHeads * headDim);
    for (let head = 0; head < kvHeads; head++) {
      const one = bytes.subarray(head * this.#headBytes, (head + 1) * this.#headBytes);
      const x = codec.decode(one, PAGE_TOKENS, headDim);
      for (let t = 0; t < PAGE_TOKENS; t++)
        rows.set(x.subarray(t * headDim, (t + 1) * headDim), (t * kvHeads + head) * headDim);
    }
    return rows;
  }

  #attend(layer: number, q: Float32Array, first: number, lse: Float32Array, out: Float32Array): void {
    const { kv } = this.#options;
    const { queryHeads, kvHeads } = kv.shape;
    const tokens = lse.length / queryHeads;
    const group = queryHeads / kvHeads;
    const max = new Float64Array(lse.length).fill(Number.NEGATIVE_INFINITY);
    const sum = new Float64Array(lse.length);
    out.fill(0);
    for (const page of this.#in(layer)) {
      const bytes = kv.foreignBytes(layer, page, this.#page);
      for (let head = 0; head < kvHeads; head++) {
        const rows = { layer, page, head, q, first, max, sum, out };
        for (let from = 0; from < tokens * group; from += QUERIES_AT_ONCE)
          this.#meet(bytes, rows, from, Math.min(tokens * group - from, QUERIES_AT_ONCE));
      }
    }
    this.#finish(max, sum, lse, out);
  }

  #finish(max: Float64Array, sum: Float64Array, lse: Float32Array, out: Float32Array): void {
    const { headDim } = this.#options.kv.shape;
    for (let row = 0; row < lse.length; row++) {
      const all = sum[row]!;
      lse[row] = all > 0 ? max[row]! + Math.log(all) : Number.NEGATIVE_INFINITY;
      for (let c = row * headDim; all > 0 && c < (row + 1) * headDim; c++) out[c]! /= all;
    }
  }

  /** So many queries of the group of a KV head, token after token, meet one head of a page. */
  #meet(
    bytes: Uint8Array,
    {
      layer,
      page,
      head,
      q,
      first,
      max,
      sum,
      out,
    }: {
      readonly layer: number;
      readonly page: number;
      readonly head: number;
      readonly q: Float32Array;
      readonly first: number;
      readonly max: Float64Array;
      readonly sum: Float64Array;
      readonly out: Float32Array;
    },
    from: number,
    count: number,
  ): void {
    const { slidingWindow } = this.#options.attention;
    const { queryHeads, kvHeads, headDim: d } = this.#options.kv.shape;
    const group = queryHeads / kvHeads;
    const rowOf = (i: number): number =>
      Math.floor((from + i) / group) * queryHeads + head * group + ((from + i) % group);
    const [queries, scores, mixed] = [
      this.#q.subarray(0, count * d),
      this.#scores.subarray(0, count * PAGE_TOKENS),
      this.#mixed.subarray(0, count * d).fill(0),
    ];
    for (let i = 0; i < count; i++) queries.set(q.subarray(rowOf(i) * d, (rowOf(i) + 1) * d), i * d);
    const half = bytes.length / 2;
    const [k, v] = [head * this.#headBytes, half + head * this.#headBytes];
    this.#codec.dots(bytes.subarray(k, k + this.#headBytes), queries, scores, PAGE_TOKENS, d, count);
    const window = slidingWindow?.[layer] ?? null;
    for (let i = 0; i < count; i++) {
      const position = first + Math.floor((from + i) / group);
      // Sinks are met by the native cache, and what a window has left behind by nobody.
      const behind = window === null ? 0 : position - window + 1 - firstToken(page);
      const skip = Math.min(PAGE_TOKENS, Math.max(page === 0 ? SINK_TOKENS : 0, behind));
      const row = { row: rowOf(i), distance: position - firstToken(page), skip };
      this.#weigh(scores.subarray(i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS), row, { max, sum, out });
    }
    this.#codec.mix(bytes.subarray(v, v + this.#headBytes), scores, mixed, PAGE_TOKENS, d, count);
    for (let i = 0; i < count; i++) for (let c = 0; c < d; c++) out[rowOf(i) * d + c]! += mixed[i * d + c]!;
  }

  /**
   * Products become weights relative to the largest score so far, and what a row has is scaled to that. distance: from
   * the first token of the page to that of the query.
   */
  #weigh(
    scores: Float32Array,
    { row, distance, skip }: { readonly row: number; readonly distance: number; readonly skip: number },
    { max, sum, out }: { readonly max: Float64Array; readonly sum: Float64Array; readonly out: Float32Array },
  ): void {
    const { headDim: d, queryHeads } = this.#options.kv.shape;
    const { scale = 1 / Math.sqrt(d), scoreCap = null, alibiSlopes } = this.#options.attention;
    const slope = alibiSlopes?.[row % queryHeads] ?? 0;
    let top = max[row]!;
    for (let t = skip; t < PAGE_TOKENS; t++) {
      const score = scores[t]! * scale;
      scores[t] = (scoreCap === null ? score : scoreCap * Math.tanh(score / scoreCap)) - slope * (distance - t);
      top = Math.max(top, scores[t]!);
    }
    scores.fill(0, 0, skip);
    if (skip === PAGE_TOKENS) return;
    const kept = Math.exp(max[row]! - top);
    sum[row]! *= kept;
    if (kept !== 1) for (let c = row * d; c < (row + 1) * d; c++) out[c]! *= kept;
    for (let t = skip; t < PAGE_TOKENS; t++) {
      scores[t] = Math.exp(scores[t]! - top);
      sum[row]! += scores[t]!;
    }
    max[row] = top;
  }
}

/** The same terms, with the codec of a pack as a place for pages. Throws what `packContext` throws. */
export function withPack(terms: Terms, { kvHeads, headDim }: CacheShape, pack: SessionPack | undefined): Terms {
  if (pack === undefined) return terms;
  return { ...terms, context: { ...terms.context, pack: packContext(pack, kvHeads, headDim) } };
}
