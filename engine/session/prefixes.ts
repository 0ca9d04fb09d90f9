/**
 * Pages that several sessions of an engine begin with: a system prompt, a document, a conversation that goes on. They
 * are found by a chain of digests (memory/prefix.ts) over the model, its adapters, the salt of the session and all
 * tokens up to each page, and the tokens are compared. A session that is empty begins with those of another one. In an
 * engine with a budget that may be one that was closed: its pages are kept as long as nobody needs their memory.
 */
import { PageChain } from '../../memory/index.ts';
import { firstToken, KvError, type PagePool, pageOf, sealedPages } from '../../native/index.ts';
import type { FormChange, PolicyContext } from '../../policy/index.ts';
import type { Governed } from '../cache/governed.ts';
import { Kin } from '../cache/kin.ts';
import { type Lender, type Loan, loanOf } from '../cache/lender.ts';
import { copyBytes } from '../cache/own-pages.ts';
import type { Droppable } from '../cache/tenant.ts';
import type { Meter } from '../metrics/meter.ts';
import type { HeldAgain } from './need.ts';
import { PrefixIndex } from './prefix-index.ts';
import { Readings, type Text } from './readings.ts';
import type { Session } from './session.ts';
import type { ParkedPages } from './sharing.ts';

/** Most closed sessions whose pages are kept, also where there is room for more. */
const KEPT_MOST = 256;
/** Most moves in one entry of the log, which holds 1 MiB. */
const TOLD_MOST = 2048;

export interface PrefixOptions {
  /** Of the digests. */
  readonly key: Uint8Array;
  /** Whether the pages of closed sessions stay: somebody has said how much memory there is. */
  readonly keepsClosed: boolean;
}

/** What a token of a prompt is thought to take where none was read yet. */
const TOKEN_MS = 2;

interface Parts extends PrefixOptions {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** What a token of a prompt took of late; null: none was read. */
  readonly tokenMs: () => number | null;
}

/** What is kept of a session that was closed. */
interface Kept extends Lender {
  readonly context: PolicyContext;
  readonly tokens: readonly number[];
  /** When it was kept, or lent last. */
  usedMs: number;
}

/** A lender, and the tokens of its pages. */
export interface Holder {
  readonly lender: Lender;
  readonly tokens: readonly number[];
  /** Whether it lends them now. */
  readonly lends: () => boolean;
}

interface Found {
  readonly holder: Holder;
  readonly loan: Loan;
}

export class Prefixes {
  /** Who reads the beginning of which text. */
  readonly readings: Readings;
  readonly #parts: Parts;
  /** The chains of open sessions, as far as they were followed. */
  readonly #chains = new WeakMap<Session, PageChain>();
  /** Whose pages are found: those of open sessions, and of what is kept. */
  readonly #index = new PrefixIndex<Holder>();
  readonly #holders = new WeakMap<Session, Holder>();
  /** What is kept of closed sessions, that which was used last at the end. */
  readonly #kept = new Map<Kept, Holder>();
  /** With whose pages a session is just beginning. */
  #lending: Lender | null = null;
  /** null: not counted yet. */
  #keptBytes: number | null = null;

  constructor(parts: Parts) {
    this.#parts = parts;
    this.readings = new Readings({
      begin: (text) => this.#begin(text),
      foundPages: ({ session, ids, digests }) => this.#find(session, digests, ids, isMore)?.loan.pages ?? 0,
    });
  }

  /**
   * A session that is empty begins with pages that others hold of these tokens, of which it reads the rest until
   * `hasRead`. It waits for those that another one reads just now. → tokens
   */
  begin(session: Session, ids: readonly number[], signal: AbortSignal | undefined): Promise<number> | number {
    const { governed } = session;
    if (!lends(governed) || governed.originals !== null) return 0;
    const chain = this.#chainOf(session);
    chain.cut(0);
    chain.extend(ids);
    this.#parts.meter.prefixQueries.add({}, ids.length);
    return this.readings.begin({ session, ids, digests: [...chain.digests] }, signal);
  }

  #begin({ session, ids, digests }: Text): number {
    const { meter } = this.#parts;
    const { governed } = session;
    const found = this.#find(session, digests, ids, isMore);
    if (found === null) return 0;
    const { holder, loan } = found;
    const pages = this.#borrow(governed, holder.lender, loan);
    const tokens = firstToken(pages);
    if (pages === 0) return 0;
    meter.prefixHits.add({}, tokens);
    const prefix = digests[pages - 1]!;
    const heldTokens = firstToken(Math.min(pages, loan.heldPages));
    const { id: from, movedSince = [] } = holder.lender;
    const since = movedSince.filter(({ page }) => page < pages);
    const isTold = since.length <= TOLD_MOST;
    if (!isTold) governed.descent.leaves('pages-of-others');
    const moved = since.length > 0 && isTold ? { movedSince: since } : {};
    governed.mover.write('note', { adopted: tokens, from, prefix, heldTokens, ...moved, tokens });
    return tokens;
  }

  #borrow(governed: Governed, lender: Lender, loan: Loan): number {
    this.#lending = lender;
    this.#keptBytes = null;
    const kept = this.#kept.get(lender as Kept);
    if (kept !== undefined) {
      this.#kept.delete(lender as Kept);
      this.#kept.set(lender as Kept, kept);
      (lender as Kept).usedMs = performance.now();
    }
    try {
      return governed.beginWith(lender, loan);
    } catch (error) {
      // Where pages cannot be had, their tokens are read.
      if (!(error instanceof KvError) || governed.kv.length() > 0) throw error;
      return 0;
    } finally {
      this.#lending = null;
    }
  }

  /** See Sharing. */
  holdAgain<Result>(session: Session, { tokenIds, pages }: ParkedPages, work: (held: number) => Result): Result {
    const { governed } = session;
    const found = this.#findAgain(session, tokenIds, pages);
    if (found === null) return work(0);
    const { lender } = found;
    this.#lending = lender;
    this.#keptBytes = null;
    try {
      const held = this.#adoptAgain(governed, found);
      const result = work(held);
      if (governed.kv.length() > 0 && held > 0) lender.kin.share(governed.kin, held);
      return result;
    } finally {
      this.#keptBytes = null;
      this.#lending = null;
    }
  }

  /** With whom a session that is parked would hold pages together when it is back, and how many; null: with nobody. */
  heldAgain(session: Session): HeldAgain | null {
    const { away } = session.governed;
    return away === null ? null : this.#findAgain(session, session.tokens, away.heldPages);
  }

  #findAgain(session: Session, tokenIds: readonly number[], heldPages: number): HeldAgain | null {
    // A last page that is full is parked as rows.
    const pages = Math.min(heldPages, sealedPages(tokenIds.length));
    if (pages === 0 || session.governed.sharedTerms === null) return null;
    const chain = this.#chainOf(session);
    chain.extend(tokenIds, pages);
    const { digests } = chain;
    const found = this.#find(session, digests.slice(0, pages), tokenIds, (a, b) => a.heldPages > b.heldPages);
    if (found === null || found.loan.heldPages === 0) return null;
    return { lender: found.holder.lender, pages: found.loan.heldPages };
  }

  #adoptAgain(governed: Governed, { lender, pages }: HeldAgain): number {
    try {
      governed.adopt(lender, pages);
      return pages;
    } catch (error) {
      // Where they cannot be had, they come back as they were parked.
      if (!(error instanceof KvError)) throw error;
      return 0;
    }
  }

  /** Whose loan of the pages that a text begins with is more than those of all others; null: nobody lends any. */
  #find(session: Session, digests: readonly string[], ids: readonly number[], isBetter: typeof isMore): Found | null {
    const { sharedTerms, formats } = session.governed;
    const asking = { sharedTerms, formats };
    const seen = new Set<Holder>();
    let best: Found | null = null;
    for (let page = digests.length - 1; page >= (best?.loan.heldPages ?? 0); page--) {
      for (const holder of this.#index.of(digests[page]!)) {
        // What it lends of fewer pages is no more.
        if (seen.has(holder)) continue;
        seen.add(holder);
        const { lender, tokens } = holder;
        if (lender === session.governed || !holder.lends()) continue;
        if (best !== null && !isBetter(mostOf(lender, page + 1), best.loan)) continue;
        if (!beginsAlike(tokens, ids, firstToken(page + 1))) continue;
        const loan = loanOf(lender, asking, page + 1);
        if (loan.pages > 0 && (best === null || isBetter(loan, best.loan))) best = { holder, loan };
      }
    }
    return best;
  }

  /** Pages of a session were sealed, or are there again. */
  holds(session: Session): void {
    const { governed, tokens, isClosed } = session;
    if (isClosed || !lends(governed)) return;
    const chain = this.#chainOf(session);
    const pages = Math.min(pageOf(tokens.length), governed.kv.table(governed.shape.layers - 1).pages);
    chain.extend(tokens, pages);
    this.#index.set(this.#holderOf(session), chain.digests, pages);
  }

  /** The pages of a session are not there any more. */
  left(session: Session): void {
    this.#index.delete(this.#holderOf(session));
    // What it held together with what is kept, nobody may hold any more.
    this.#keptBytes = null;
    this.readings.ended(session);
  }

  #holderOf(session: Session): Holder {
    const known = this.#holders.get(session);
    if (known !== undefined) return known;
    const { governed, tokens } = session;
    const holder = { lender: governed, tokens, lends: () => !session.isClosed && lends(governed) };
    this.#holders.set(session, holder);
    return holder;
  }

  /** Who holds the pages of which digests. */
  get index(): Iterable<readonly [digest: string, holders: ReadonlySet<Holder>]> {
    return this.#index;
  }

  /** What is kept of sessions that were closed. */
  get kept(): Iterable<Holder> {
    return this.#kept.values();
  }

  #chainOf(session: Session): PageChain {
    const known = this.#chains.get(session);
    if (known !== undefined) return known;
    // What else a page depends on is alike in all sessions of a model, or a lender is asked for it.
    const chain = new PageChain(
      this.#parts.key,
      JSON.stringify([session.weights, roundingOf(session), session.rotary.plan, saltOf(session)]),
      (page) => session.activation.keyOf(page),
    );
    this.#chains.set(session, chain);
    return chain;
  }

  /** So many tokens of a session are as they were. */
  cut(session: Session, tokens: number): void {
    this.#chains.get(session)?.cut(pageOf(tokens));
    // A page that the tokens fill to its end may be open again.
    const { kv, shape } = session.governed;
    const pages = Math.min(pageOf(tokens), kv.table(shape.layers - 1).pages);
    this.#index.cut(this.#holderOf(session), pages);
    this.#keptBytes = null;
  }

  /** A session is about to be closed: its pages stay for those to come. */
  keep(session: Session): void {
    const { governed, tokens } = session;
    this.#keptBytes = null;
    if (!this.#parts.keepsClosed || !lends(governed) || governed.originals !== null) return;
    const pages = Math.min(governed.kv.table(0).pages, governed.kv.table(governed.shape.layers - 1).pages);
    if (pages === 0) return;
    const chain = this.#chainOf(session);
    chain.extend(tokens, pages);
    const kv = governed.emptied();
    try {
      kv.adopt(governed.kv, pages);
    } catch (error) {
      kv.close();
      if (error instanceof KvError) return;
      throw error;
    }
    const movedSince: FormChange[] = [];
    const kin = new Kin({ bytes: 0 }, { moved: (move) => void movedSince.push(move), mended: () => {}, isKept: true });
    governed.kin.share(kin, pages);
    const { id, sharedTerms, formats, settledPages, lineage } = governed;
    const trials = governed.trialsLeft();
    const { context } = governed.terms;
    const own = { context, tokens: tokens.slice(0, firstToken(pages)), usedMs: performance.now() };
    const kept: Kept = {
      id,
      kv,
      kin,
      sharedTerms,
      formats,
      settledPages,
      lineage,
      movedSince,
      trialsLeft: () => trials,
      ...own,
    };
    const holder = { lender: kept, tokens: kept.tokens, lends: () => true };
    this.#kept.set(kept, holder);
    this.#index.set(holder, chain.digests, pages);
    this.#forget(this.#kept.size - KEPT_MOST);
  }

  #forget(most: number): void {
    for (const kept of this.#kept.keys()) {
      if (most-- <= 0) return;
      this.#drop(kept);
    }
  }

  #drop(kept: Kept): void {
    this.#keptBytes = null;
    this.#index.delete(this.#kept.get(kept)!);
    this.#kept.delete(kept);
    kept.kin.leave();
    kept.kv.close();
  }

  /** With whose pages a session is just beginning: until it has, they stay where they are. */
  get lending(): Lender | null {
    return this.#lending;
  }

  /** Of pages that no open session holds, those that were used longest ago. */
  get droppable(): readonly Droppable[] {
    for (const kept of this.#kept.keys()) if (kept !== this.#lending) return [this.#droppable(kept)];
    return [];
  }

  #droppable(kept: Kept): Droppable {
    return {
      id: kept.id,
      idleMs: performance.now() - kept.usedMs,
      bytes: copyBytes(kept.kv, kept.context, 0),
      restoreMs: kept.tokens.length * (this.#parts.tokenMs() ?? TOKEN_MS),
      drop: () => this.#drop(kept),
    };
  }

  /** Bytes of pages that no open session holds, as they were when somebody last began, was closed or went back. */
  get keptBytes(): number {
    this.#keptBytes ??= this.#countKept();
    return this.#keptBytes;
  }

  #countKept(): number {
    let bytes = 0;
    const counted = new Set<Kin>();
    for (const { governed } of this.#parts.sessions()) counted.add(governed.kin);
    for (const kept of this.#kept.keys()) {
      bytes += copyBytes(kept.kv, kept.context, kept.kin.sharedWithin(counted)?.pages ?? 0);
      counted.add(kept.kin);
    }
    return bytes;
  }

  /** Nothing is kept any more. */
  close(): void {
    for (const kept of this.#kept.keys()) this.#drop(kept);
  }
}

/** True for a cache that others may begin with: its pages are there, and they are codes. */
const lends = ({ away, hasFailed, latents, terms }: Governed): boolean =>
  away === null && !hasFailed && latents === null && terms.policy.evicts !== true;

/** The most that it lends of so many pages, as far as that is known without a look at them. */
const mostOf = ({ settledPages }: Lender, pages: number): Loan => ({
  pages,
  heldPages: Math.min(pages, settledPages),
});

/** Of loans of as many pages that is more of which more are held together. */
const isMore = (a: Loan, b: Loan): boolean => a.pages > b.pages || (a.pages === b.pages && a.heldPages > b.heldPages);

/** The same model may be loaded twice, and rounded otherwise. */
const roundingOf = ({ runtime: { dense, activations } }: Session): unknown => [
  dense.name,
  dense.weightTypes,
  activations?.eightBit ?? null,
];

/** Sessions of different salts find nothing of each other. */
const saltOf = ({ setup }: Session): string => setup.cacheSalt ?? '';

/** True if the first `count` tokens are the same. */
function beginsAlike(a: readonly number[], b: readonly number[], count: number): boolean {
  if (a.length < count || b.length < count) return false;
  for (let i = 0; i < count; i++) if (a[i] !== b[i]) return false;
  return true;
}
