/**
 * Rows of demoted page sides that are kept as they were, so that what the form of a side does to them can be measured
 * on the queries of today, against what it did to the same rows when the side was moved. They take so little that every
 * layer and side has some within any budget.
 */
import {
  type FormatName,
  KEPT_ROWS_MAX,
  type KvCache,
  keptRowsBytes,
  PAGE_TOKENS,
  type RowPlace,
  SINK_TOKENS,
  type Side,
} from '../../native/index.ts';
import { type CanaryReport, type PolicyContext, thresholdOf } from '../../policy/index.ts';
import { dueAfter, isWatched, type Pace, type SideMove, scatter } from './watching.ts';

/** Pages of a layer and side that have rows at a time, at most. */
const PAGES_MAX = 4;

interface Kept {
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly from: FormatName;
  to: FormatName;
  readonly rows: number;
  readonly bytes: number;
  readonly since: number;
  /** ε of the form in these rows when the side was moved to it; NaN where no query saw them then. */
  epsilonPromised: number;
  dueAt: number;
}

/** How many rows each side has that is watched, what they take, and of how many pages. */
interface Share {
  readonly rows: number;
  readonly bytes: number;
  /** Of all layers and sides together. */
  readonly places: number;
}

export class CanaryRows {
  readonly #cache: KvCache;
  readonly #context: PolicyContext;
  readonly #pace: Pace;
  readonly #rowsMost: number;
  #list: Kept[] = [];
  #bytes = 0;
  /** Those whose move is being made. */
  #moving: Kept | null = null;

  constructor(cache: KvCache, context: PolicyContext, pace: Pace) {
    this.#cache = cache;
    this.#context = context;
    this.#pace = pace;
    this.#rowsMost = thresholdOf(context.thresholds, 'canary.rows').value;
  }

  get bytes(): number {
    return this.#bytes;
  }

  get count(): number {
    return this.#list.length;
  }

  /** Tokens at which the next of them is due. */
  get dueAt(): number {
    return this.#list.reduce((least, { dueAt }) => Math.min(least, dueAt), Number.POSITIVE_INFINITY);
  }

  /** What rows may take of what all originals may. */
  bytesMax(allowanceBytes: number): number {
    const { bytes, places } = this.#shareOf(allowanceBytes);
    return bytes * places;
  }

  /** As many rows a side as all layers and sides can have; where that is none, some of them have one. */
  #shareOf(allowanceBytes: number): Share {
    const { layers } = this.#context;
    const each = Math.floor(allowanceBytes / (2 * layers));
    let rows = Math.min(this.#rowsMost, KEPT_ROWS_MAX);
    while (rows > 1 && this.#bytesOf(rows) > each) rows--;
    if (rows === 0) return { rows, bytes: 0, places: 0 };
    const bytes = this.#bytesOf(rows);
    if (bytes > each) return { rows, bytes, places: Math.floor(allowanceBytes / bytes) };
    return { rows, bytes, places: 2 * layers * Math.min(PAGES_MAX, Math.floor(each / bytes)) };
  }

  #bytesOf(rows: number): number {
    return keptRowsBytes(rows, this.#cache.shape.headDim);
  }

  /** Called before a move is carried out: keeps rows of a side that leaves the window format. */
  before(move: SideMove, tokens: number, allowanceBytes: number): void {
    const { layer, page, side, from, to } = move;
    this.#moving = this.#list.find((it) => it.layer === layer && it.page === page && it.side === side) ?? null;
    if (this.#moving !== null || from !== this.#context.windowFormat || from === to) return;
    const { rows, bytes, places } = this.#shareOf(allowanceBytes);
    if (rows === 0 || this.#cache.roomBytes < this.#context.pageBytes[to] + bytes) return;
    const stretch = this.#pace.stretchOf(tokens);
    if (!isWatched({ layer, side, stretch, places, layers: this.#context.layers, haste: this.#pace.haste })) return;
    const same = this.#list.filter((it) => it.layer === layer && it.side === side);
    const most = Math.max(1, Math.floor(places / (2 * this.#context.layers)));
    const isFull = same.length >= most || this.#list.length >= places;
    const leaving = same.length >= most ? same[0] : this.#list[0];
    if (isFull && leaving !== undefined) {
      // Rows of this stretch stay to its end.
      if (this.#pace.stretchOf(leaving.since) === stretch) return;
      this.#drop(leaving);
    }
    this.#cache.keepRows(layer, page, side, this.#placesOf(layer, page, side, rows));
    // Rows that were kept at one boundary are not all measured at once.
    const dueAt = dueAfter(tokens, this.#pace.every * (1 - scatter(layer, page) / 2));
    const epsilonPromised = Number.NaN;
    this.#moving = { layer, page, side, from, to, rows, bytes, since: tokens, epsilonPromised, dueAt };
    this.#hold([...this.#list, this.#moving]);
  }

  /** Called after the move: what the form does to the rows now is what it promises. */
  after({ layer, page, side, to }: SideMove): void {
    const kept = this.#moving;
    this.#moving = null;
    if (kept === null) return;
    kept.to = to;
    kept.epsilonPromised = this.#cache.trialRows(layer, page, side);
  }

  /**
   * Places that follow from the position in the session alone, so that no content decides what is watched: one token in
   * each of so many parts of the page, of the heads in turn.
   */
  #placesOf(layer: number, page: number, side: Side, rows: number): readonly RowPlace[] {
    const { kvHeads } = this.#cache.shape;
    const first = page === 0 ? SINK_TOKENS : 0;
    const part = (PAGE_TOKENS - first) / rows;
    return Array.from({ length: rows }, (_, i) => ({
      head: (i + page + layer) % kvHeads,
      token: first + Math.floor((i + scatter(2 * page + (side === 'k' ? 0 : 1), rows * layer + i)) * part),
    })).sort((a, b) => a.head - b.head || a.token - b.token);
  }

  /** Measures those that are due. */
  probe(tokens: number): CanaryReport[] {
    const reports: CanaryReport[] = [];
    for (const kept of this.#list) {
      if (kept.dueAt > tokens) continue;
      kept.dueAt = dueAfter(tokens, this.#pace.every / this.#pace.haste(kept.layer));
      const { layer, page, side, from, to, epsilonPromised, since, rows } = kept;
      // A page that is better for the time of an answer says nothing about its form.
      if (this.#cache.format(layer, page, side) !== to) continue;
      const epsilonNow = this.#cache.trialRows(layer, page, side);
      // NaN: no kept query saw the page, or sees it.
      if (epsilonNow > 0 && epsilonPromised > 0)
        reports.push({ layer, page, side, from, to, epsilonPromised, epsilonNow, age: tokens - since, rows });
    }
    return reports;
  }

  /** Forgets rows that are gone with their page. */
  sync(): void {
    // All layers have as many pages between two steps, and this comes every few tokens of an answer.
    const { pages } = this.#cache.table(0);
    const isThere = ({ layer, page, side }: Kept): boolean =>
      page < pages && this.#cache.keptRows(layer, page, side) > 0;
    this.#hold(this.#list.filter(isThere));
  }

  #hold(list: Kept[]): void {
    this.#list = list;
    this.#bytes = list.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  has(layer: number, page: number, side: Side): boolean {
    return this.#list.some((it) => it.layer === layer && it.page === page && it.side === side);
  }

  /** Gives the rows of one page back. → whether there were any */
  dropPage(layer: number, page: number): boolean {
    const gone = this.#list.filter((it) => it.layer === layer && it.page === page);
    for (const kept of gone) this.#drop(kept);
    return gone.length > 0;
  }

  /** Gives the rows of pages from `first` on back. */
  dropAll(first: number): void {
    for (const kept of [...this.#list]) if (kept.page >= first) this.#drop(kept);
  }

  #drop(kept: Kept): void {
    this.#cache.dropRows(kept.layer, kept.page, kept.side);
    this.#hold(this.#list.filter((it) => it !== kept));
  }
}
