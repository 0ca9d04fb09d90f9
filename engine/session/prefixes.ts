/**
 * Pages that several sessions of an engine begin with: a system prompt, a document, a conversation that goes on. They
 * are found by a chain of digests (memory/prefix.ts) over the model, the salt of the session and all tokens up to each
 * page, and the tokens are compared. A session that is empty begins with those of another one. In an engine with a
 * budget that may be one that was closed: its pages are kept as long as nobody needs their memory.
 */
import { PageChain } from '../../memory/index.ts';
import { firstToken, KvError, type PagePool, pageOf } from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import type { Governed } from '../cache/governed.ts';
import { Kin } from '../cache/kin.ts';
import { type Lender, type Loan, loanOf } from '../cache/lender.ts';
import { copyBytes } from '../cache/own-pages.ts';
import type { Meter } from '../metrics/meter.ts';
import type { HeldAgain } from './need.ts';
import type { Session } from './session.ts';
import type { ParkedPages } from './sharing.ts';

/** Most closed sessions whose pages are kept, also where there is room for more. */
const KEPT_MOST = 256;

export interface PrefixOptions {
  /** Of the digests. */
  readonly key: Uint8Array;
  /** Whether the pages of closed sessions stay: somebody has said how much memory there is. */
  readonly keepsClosed: boolean;
}

interface Parts extends PrefixOptions {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
}

/** What is kept of a session that was closed. */
interface Kept extends Lender {
  readonly context: PolicyContext;
  readonly tokens: readonly number[];
  readonly digests: readonly string[];
}

/** A lender, and the tokens of its pages. */
interface Holder {
  readonly lender: Lender;
  readonly tokens: readonly number[];
}

interface Found {
  readonly holder: Holder;
  readonly loan: Loan;
}

export class Prefixes {
  readonly #parts: Parts;
  /** The chains of open sessions, as far as they were followed. */
  readonly #chains = new WeakMap<Session, PageChain>();
  /** What is kept of closed sessions, that which was used last at the end. */
  readonly #kept = new Set<Kept>();
  /** With whose pages a session is just beginning. */
  #lending: Lender | null = null;
  /** null: not counted yet. */
  #keptBytes: number | null = null;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * A session that is empty begins with pages that others hold of these tokens, of which it reads the rest. → tokens
   */
  begin(session: Session, ids: readonly number[]): number {
    const { meter } = this.#parts;
    const { governed } = session;
    if (!lends(governed) || governed.originals !== null) return 0;
    const chain = this.#chainOf(session);
    chain.cut(0);
    chain.extend(ids);
    meter.prefixQueries.add({}, ids.length);
    const found = this.#find(session, chain.digests, ids, isMore);
    if (found === null) return 0;
    const { holder, loan } = found;
    const pages = this.#borrow(governed, holder.lender, loan);
    const tokens = firstToken(pages);
    if (pages === 0) return 0;
    meter.prefixHits.add({}, tokens);
    const prefix = chain.digests[pages - 1]!;
    const heldTokens = firstToken(Math.min(pages, loan.heldPages));
    governed.mover.write('note', { adopted: tokens, from: holder.lender.id, prefix, heldTokens, tokens });
    return tokens;
  }

  #borrow(governed: Governed, lender: Lender, loan: Loan): number {
    this.#lending = lender;
    this.#keptBytes = null;
    const isKept = this.#kept.delete(lender as Kept);
    if (isKept) this.#kept.add(lender as Kept);
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
      this.#lending = null;
    }
  }

  /** With whom a session that is parked would hold pages together when it is back, and how many; null: with nobody. */
  heldAgain(session: Session): HeldAgain | null {
    const { away } = session.governed;
    return away === null ? null : this.#findAgain(session, session.tokens, away.heldPages);
  }

  #findAgain(session: Session, tokenIds: readonly number[], pages: number): HeldAgain | null {
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
    const holders = this.#holders(session);
    const seen = new Set<Holder>();
    let best: Found | null = null;
    for (let page = digests.length - 1; page >= (best?.loan.heldPages ?? 0); page--) {
      for (const holder of holders.get(digests[page]!) ?? []) {
        // What it lends of fewer pages is no more.
        if (seen.has(holder) || !beginsAlike(holder.tokens, ids, firstToken(page + 1))) continue;
        seen.add(holder);
        const loan = loanOf(holder.lender, session.governed, page + 1);
        if (loan.pages > 0 && (best === null || isBetter(loan, best.loan))) best = { holder, loan };
      }
    }
    return best;
  }

  /** Who holds the pages of each digest, those that were used last first. */
  #holders(asking: Session): ReadonlyMap<string, readonly Holder[]> {
    const holders = new Map<string, Holder[]>();
    const add = (digests: readonly string[], holder: Holder): void => {
      for (const digest of digests) {
        const those = holders.get(digest);
        if (those === undefined) holders.set(digest, [holder]);
        else those.push(holder);
      }
    };
    for (const session of this.#parts.sessions()) {
      const { governed, tokens, isClosed } = session;
      if (session === asking || isClosed || !lends(governed)) continue;
      const chain = this.#chainOf(session);
      chain.extend(tokens, governed.kv.table(governed.shape.layers - 1).pages);
      add(chain.digests, { lender: governed, tokens });
    }
    for (const kept of [...this.#kept].reverse()) add(kept.digests, { lender: kept, tokens: kept.tokens });
    return holders;
  }

  #chainOf(session: Session): PageChain {
    const known = this.#chains.get(session);
    if (known !== undefined) return known;
    // What else a page depends on is alike in all sessions of an engine, or a lender is asked for it.
    const chain = new PageChain(this.#parts.key, JSON.stringify([session.runtime.model.digest, saltOf(session)]));
    this.#chains.set(session, chain);
    return chain;
  }

  /** So many tokens of a session are as they were. */
  cut(session: Session, tokens: number): void {
    this.#chains.get(session)?.cut(pageOf(tokens));
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
    const kin = new Kin({ bytes: 0 }, null);
    governed.kin.share(kin, pages);
    const { id, sharedTerms, formats, settledPages } = governed;
    const trials = governed.trialsLeft();
    const { context } = governed.terms;
    const own = { context, tokens: tokens.slice(0, firstToken(pages)), digests: chain.digests.slice(0, pages) };
    this.#kept.add({ id, kv, kin, sharedTerms, formats, settledPages, trialsLeft: () => trials, ...own });
    this.#forget(this.#kept.size - KEPT_MOST);
  }

  #forget(most: number): void {
    for (const kept of this.#kept) {
      if (most-- <= 0) return;
      this.#drop(kept);
    }
  }

  #drop(kept: Kept): void {
    this.#keptBytes = null;
    this.#kept.delete(kept);
    kept.kin.leave();
    kept.kv.close();
  }

  /** With whose pages a session is just beginning: until it has, they stay where they are. */
  get lending(): Lender | null {
    return this.#lending;
  }

  /**
   * Lets go of pages that no open session holds, those that were used longest ago first, until so many bytes are free.
   */
  makeRoom(lackingBytes: number): void {
    const { pool } = this.#parts;
    const goalBytes = pool.budgetBytes - pool.usedBytes + lackingBytes;
    for (const kept of this.#kept) {
      if (pool.budgetBytes - pool.usedBytes >= goalBytes) return;
      if (kept !== this.#lending) this.#drop(kept);
    }
  }

  /** Bytes of pages that no open session holds, as they were when somebody last began, was closed or went back. */
  get keptBytes(): number {
    this.#keptBytes ??= this.#countKept();
    return this.#keptBytes;
  }

  #countKept(): number {
    let bytes = 0;
    const before: Kept[] = [];
    for (const kept of this.#kept) {
      let shared = Math.max(0, ...before.map(({ kin }) => kept.kin.sharedWith(kin)));
      for (const { governed } of this.#parts.sessions()) shared = Math.max(shared, kept.kin.sharedWith(governed.kin));
      bytes += copyBytes(kept.kv, kept.context, shared);
      before.push(kept);
    }
    return bytes;
  }

  /** Nothing is kept any more. */
  close(): void {
    for (const kept of this.#kept) this.#drop(kept);
  }
}

/** True for a cache that others may begin with: its pages are there, and they are codes. */
const lends = ({ away, hasFailed, latents, terms }: Governed): boolean =>
  away === null && !hasFailed && latents === null && terms.policy.evicts !== true;

/** Of loans of as many pages that is more of which more are held together. */
const isMore = (a: Loan, b: Loan): boolean => a.pages > b.pages || (a.pages === b.pages && a.heldPages > b.heldPages);

/** Sessions of different salts find nothing of each other. */
const saltOf = ({ setup }: Session): string => setup.cacheSalt ?? '';

/** True if the first `count` tokens are the same. */
function beginsAlike(a: readonly number[], b: readonly number[], count: number): boolean {
  if (a.length < count || b.length < count) return false;
  for (let i = 0; i < count; i++) if (a[i] !== b[i]) return false;
  return true;
}
