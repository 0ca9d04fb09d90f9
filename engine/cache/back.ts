/**
 * The way back to where a cache was before a prompt, or to a length that it has passed. Sealed rows cannot be opened
 * again, so the rows of the open page are kept beside the cache while a prompt is read that seals it. To go back, the
 * cache is opened anew and takes over its older pages as they are stored. A cache that shares those pages with others,
 * and with forks a budget, keeps a fork of its own to go back to, where there is room for one. Where nobody kept rows,
 * those of a page that has been sealed come back as they are stored, as long as the page is in the window. Whole pages
 * always go.
 */
import {
  type CacheShape,
  type FormatName,
  isFreed,
  type KvCache,
  KvError,
  openRows,
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

  /**
   * `tokensNew` will be read behind `tokens`. `onClosed` hears when nobody goes back any more. Throws 'unsupported' for
   * a length that the cache has passed and cannot go back to.
   */
  constructor(cache: Reversible, tokens: number, tokensNew: number, onClosed?: () => void) {
    this.#onClosed = onClosed;
    const { kv, shape, latents, isShared, hasRoom } = cache;
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
    if (isShared && !isReopened) {
      this.#twin = hasRoom() ? forkOf(kv) : null;
      this.#isLost = this.#twin === null;
    } else {
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

  /** True if going back puts another cache in its place that shares no page with anybody. */
  get isRebuilt(): boolean {
    return this.#twin === null && this.#rows !== null;
  }

  /**
   * Brings the cache back; it may hold more tokens in some layers than in others. `reopen` opens an empty one like it.
   * → whether the native cache is the same one still, with all that attention has seen
   */
  take(reopen: () => KvCache): boolean {
    const kv = this.#kv;
    const isSame = this.isInPlace;
    if (this.#twin !== null) {
      const twin = this.#twin;
      this.#twin = null;
      kv.become(() => twin);
    } else if (this.#rows === null) {
      kv.truncate(this.tokens);
    } else {
      this.#rebuild(this.#rows, reopen);
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

  #rebuild(rows: readonly (readonly Float32Array[])[], reopen: () => KvCache): void {
    const kv = this.#kv;
    const pages = sealedPages(this.tokens);
    const stored = rows.map((_, layer) => Array.from({ length: pages }, (_page, page) => kv.exportPage(layer, page)));
    kv.become(reopen);
    this.#latents?.attach();
    for (const [layer, [k, v]] of rows.entries()) {
      for (const page of stored[layer]!) kv.importPage(layer, page);
      if (k !== undefined && v !== undefined) kv.append(layer, k, v);
    }
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

/** A fork, or null where the budget has no room for its open pages. */
function forkOf(kv: KvCache): KvCache | null {
  try {
    return kv.fork();
  } catch (error) {
    if (error instanceof KvError && error.code === 'budget-exceeded') return null;
    throw error;
  }
}
