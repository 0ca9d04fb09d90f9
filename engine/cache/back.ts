/**
 * The way back to where a cache was before a prompt, or to a length that it has passed. Sealed rows cannot be opened
 * again, so the rows of the open page are kept beside the cache while a prompt is read that seals it. To go back, the
 * cache is opened anew and takes over its older pages as they are stored. A cache that shares those pages with others
 * keeps a fork of its own to go back to, where there is room for one; where there is none, and no forks share its
 * budget, the rows are kept, and the cache that is opened anew holds the same pages. Where nobody kept rows, those of a
 * page that has been sealed come back as they are stored, as long as the page is in the window. Whole pages always go.
 */
import {
  type CacheShape,
  type FormatName,
  firstToken,
  isFreed,
  type KvCache,
  KvError,
  openRows,
  PAGE_KINDS,
  pageStart,
  SIDES,
  sealedPages,
  sealsBetween,
} from '../../native/index.ts';
import type { Latents } from './latents.ts';

/** A cache that can go back. */
export interface Reversible {
  readonly kv: KvCache;
  readonly shape: CacheShape;
  readonly latents: Latents | null;
  readonly hasForks: boolean;
  /** Whether others hold pages of it as well. */
  readonly isShared: boolean;
  /** Whether a fork of it would leave what was promised to others. */
  readonly hasRoom: () => boolean;
  readonly windowFormat: FormatName;
}

const RESIDENT = PAGE_KINDS.indexOf('resident');

export class WayBack {
  /** Tokens that the cache held. */
  readonly tokens: number;
  readonly #kv: KvCache;
  readonly #latents: Latents | null;
  /** Rows of the open page by layer, keys and values; null where they stay in the cache. */
  readonly #rows: readonly (readonly Float32Array[])[] | null = null;
  readonly #inputs: readonly Float32Array[] | null = null;
  #twin: KvCache | null = null;
  readonly #onClosed: (() => void) | undefined;
  readonly #isLost: boolean = false;
  #isRebuilt = false;

  /**
   * `tokensNew` will be read behind `tokens`. `onClosed` hears when nobody goes back any more. Throws 'unsupported' for
   * a length that the cache has passed and cannot go back to.
   */
  constructor(cache: Reversible, tokens: number, tokensNew: number, onClosed?: () => void) {
    this.#onClosed = onClosed;
    const { kv, shape, latents, isShared, hasForks, hasRoom } = cache;
    this.tokens = tokens;
    this.#kv = kv;
    this.#latents = latents;
    const pages = sealedPages(tokens);
    // Latents know the inputs of the newest rows only, so that a page that ends there could not be sealed once more.
    const isWhole = tokens === pageStart(tokens) && (latents === null || tokens === 0);
    const isReopened = tokens < kv.length(0) && kv.table(0).pages > pages && !isWhole;
    if (isReopened && !isOpenAgain(cache, pages)) throw sealedAway(kv, tokens);
    // What is cut behind a full page that is sealed goes in its place, and of one that was let go there are no rows.
    const isCut = isWhole && pages < kv.table(0).pages && isGone(kv, shape, pages);
    if (isCut || (!isReopened && sealsBetween(tokens, tokensNew) === 0)) return;
    this.#inputs = latents?.waiting(tokens) ?? null;
    if (isShared && !isReopened) this.#twin = hasRoom() ? forkOf(kv) : null;
    this.#isLost = hasForks && !isReopened && this.#twin === null;
    if (this.#twin === null && !this.#isLost) {
      const numbers = openRows(tokens) * shape.kvHeads * shape.headDim;
      const rowsOf = (layer: number): Float32Array[] =>
        tokens === 0 ? [] : SIDES.map((side) => kv.decode(layer, pages, side).subarray(0, numbers));
      this.#rows = Array.from({ length: shape.layers }, (_, layer) => rowsOf(layer));
    }
  }

  /** False where the budget had no room for what going back takes. */
  get isOpen(): boolean {
    return !this.#isLost;
  }

  /** True if going back changes the native cache instead of putting another one in its place. */
  get isInPlace(): boolean {
    return this.#twin === null && this.#rows === null;
  }

  /** True if it was taken and has put another cache in its place, of pages that nobody else holds. */
  get isRebuilt(): boolean {
    return this.#isRebuilt;
  }

  /**
   * Brings the cache back; it may hold more tokens in some layers than in others. `reopen` opens an empty one like it,
   * `holds`: others hold some of its pages as well, and no forks of it. → whether the native cache is the same one
   * still, with all that attention has seen
   */
  take(reopen: () => KvCache, holds = false): boolean {
    const kv = this.#kv;
    // Where no page was sealed behind it, its rows are there.
    const isSame = this.isInPlace || (holds && this.#twin === null && !this.#isSealed);
    if (this.#twin !== null) {
      const twin = this.#twin;
      this.#twin = null;
      kv.become(() => twin);
    } else if (isSame || this.#rows === null) {
      kv.truncate(this.tokens);
    } else {
      this.#rebuild(this.#rows, reopen, holds);
    }
    this.#latents?.takeBack(this.tokens, this.#inputs);
    return isSame;
  }

  /** Nobody goes back here any more. */
  close(): void {
    this.#twin?.close();
    this.#twin = null;
    this.#onClosed?.();
  }

  /** True if the page that was open is sealed in any layer. */
  get #isSealed(): boolean {
    const pages = sealedPages(this.tokens);
    const { layers } = this.#kv.shape;
    return Array.from({ length: layers }, (_, layer) => this.#kv.table(layer)).some((table) => table.pages > pages);
  }

  #rebuild(rows: readonly (readonly Float32Array[])[], reopen: () => KvCache, holds: boolean): void {
    const kv = this.#kv;
    const pages = sealedPages(this.tokens);
    const twin = holds && pages > 0 ? holderOf(kv, pages, reopen) : null;
    this.#isRebuilt = twin === null;
    if (twin === null) {
      const stored = rows.map((_, layer) => Array.from({ length: pages }, (_page, page) => kv.exportPage(layer, page)));
      kv.become(reopen);
      this.#latents?.attach();
      for (const [layer, those] of stored.entries()) for (const page of those) kv.importPage(layer, page);
    } else kv.become(() => twin);
    for (const [layer, [k, v]] of rows.entries()) if (k !== undefined && v !== undefined) kv.append(layer, k, v);
  }
}

/**
 * True if a sealed page can be open again: nobody shares it, nothing was kept of its inputs, and it is in the format of
 * the window, in which it takes what it takes while it is open.
 */
const isOpenAgain = ({ kv, shape, latents, hasForks, windowFormat }: Reversible, page: number): boolean =>
  !hasForks &&
  latents === null &&
  !isGone(kv, shape, page) &&
  Array.from({ length: shape.layers }, (_, layer) => layer).every((layer) =>
    SIDES.every((side) => kv.format(layer, page, side) === windowFormat),
  );

/** True if nothing is left of a page in some of the layers. */
const isGone = (kv: KvCache, { layers }: CacheShape, page: number): boolean =>
  Array.from({ length: layers }, (_, layer) => layer).some((layer) => isFreed(kv.table(layer), page));

const sealedAway = (kv: KvCache, tokens: number): KvError =>
  new KvError('unsupported', `tokens behind ${tokens} cannot be taken back: their page has been sealed`, {
    values: { tokens, length: kv.length(0), pages: kv.table(0).pages },
    hint: 'call fork() before you append tokens that you may want to take back',
  });

/**
 * Another cache that holds the first pages of one, which has nothing behind them then; null where they cannot be held
 * together: some are freed.
 */
function holderOf(kv: KvCache, pages: number, reopen: () => KvCache): KvCache | null {
  const { layers } = kv.shape;
  const isWhole = Array.from({ length: layers }, (_, layer) => kv.table(layer)).every(({ kind }) =>
    kind.subarray(0, pages).every((one) => one === RESIDENT),
  );
  if (!isWhole) return null;
  // What it takes to hold them is free then, whatever others have taken.
  kv.truncate(firstToken(pages));
  const holder = reopen();
  try {
    holder.adopt(kv, pages);
  } catch (error) {
    holder.close();
    throw error;
  }
  return holder;
}

/** A fork, or null where the budget has no room for its open pages. */
function forkOf(kv: KvCache): KvCache | null {
  try {
    return kv.fork();
  } catch (error) {
    if (error instanceof KvError && error.code === 'budget-exceeded') return null;
    throw error;
  }
}
