/**
 * The sessions of an engine that wait: when the memory that all share is short, those are parked that are expected to
 * cost least (policy/parking.ts), in memory with their pages predicted or in a file as they are, and their pages come
 * back the next time that they are used. Each stays the session that it was: its id, its policy and its log go on. What
 * a session takes in memory while it is parked counts against the budget of the engine.
 */
import { assert, firstToken, given, KvError, type PagePool } from '../../../native/index.ts';
import { type ParkingPolicy, Pauses, type RungId, type Waiter } from '../../../policy/index.ts';
import type { Away, IdlePlace } from '../../cache/away.ts';
import { f16CacheBytes } from '../../cache/budget.ts';
import { fingerprintOf } from '../../cache/fingerprint.ts';
import type { Governed } from '../../cache/governed.ts';
import type { Group } from '../../cache/group.ts';
import { copyBytes } from '../../cache/own-pages.ts';
import { setAside } from '../../cache/set-aside.ts';
import type { Meter } from '../../metrics/meter.ts';
import type { PoolSeries } from '../pool-series.ts';
import type { Asker } from '../reclaim.ts';
import type { Session } from '../session.ts';
import type { Sharing } from '../sharing.ts';
import type { Thrash } from '../thrash.ts';
import { fillCache } from './cache-bytes.ts';
import { parkedPath, readParked, removeParked, writeParked } from './folder.ts';
import { isParkable, pagePredictor, parkedBytes } from './park.ts';
import { parseParked } from './parked-file.ts';
import { ParkingRecord } from './parking-record.ts';
import type { Predictor } from './predictor.ts';

/** Predicted pages take 1.8 to 2.7 bits a number; what is thought to take no more than this is not worth the work. */
const PREDICTED_BITS = 3;

/**
 * How a session is parked: what it is predicted by and kept as in memory, the state folder whose file it becomes, or as
 * its tokens alone.
 */
export type IdleForm =
  | { readonly place: 'memory'; readonly predictorOf: (session: Session) => Predictor }
  | { readonly place: 'disk'; readonly stateDir: string }
  | { readonly place: 'reread' };

/**
 * Why sessions are parked, for the log: the pool has no room for so many bytes of a session, or its caller said that
 * memory is short, of the engine where no session is named.
 */
type Cause =
  | {
      readonly cause: 'pool';
      readonly rung: RungId;
      readonly asking: string;
      readonly lackingBytes: number;
      readonly parkedBy: string;
    }
  | { readonly cause: 'low-memory'; readonly asking?: string };

/** What is to be freed, for whom. */
interface Wanted {
  readonly asking: Asker;
  readonly lackingBytes: number;
  readonly rung: RungId;
  readonly group: Group | null;
}

/** So often a session comes back soon after it was parked before it is taken for one that is used all the time. */
const RETURNS_MAX = 2;
/** Soon is within so many calls for each open session: each of them used in turn, and some more often. */
const SOON_CALLS = 4;

/** How a session was used, by the number of calls that all sessions had had by then. */
interface Use {
  readonly lastAt: number;
  readonly parkedAt: number;
  /** Times in a row that it came back soon. */
  readonly returns: number;
}

/**
 * A file is written and read in so long, as the design of the pool has it. Where tokens are read again or pages are
 * predicted, it is so much for a token, which is all that a comparison needs.
 */
const FILE_MS = 5;
const FILE_MS_PER_BYTE = 1.5e-6;

interface Parts {
  readonly pool: PagePool;
  /** Those that are open; the ones that use another pool, or another of these, are passed over. */
  readonly sessions: () => Iterable<Session>;
  /** Told of what is parked for others, and of what comes back. */
  readonly thrash: Pick<Thrash, 'parked' | 'cameBack'>;
  readonly holdAgain: Sharing['holdAgain'];
  /** Told whose pages are not there any more. */
  readonly left: (session: Session) => void;
  /** Told how long choosing took. */
  readonly meter: Pick<Meter, 'poolDeciding'>;
  /** Who is parked first, and where it is written. */
  readonly policy: ParkingPolicy;
  readonly series: PoolSeries;
}

export class IdleSessions {
  readonly place: IdlePlace;
  readonly #form: IdleForm;
  readonly #pool: PagePool;
  /** Most bytes of pages and of what is parked in memory together. */
  readonly #budgetBytes: number;
  readonly #sessions: () => Iterable<Session>;
  readonly #holdAgain: Parts['holdAgain'];
  readonly #left: Parts['left'];
  readonly #thrash: Parts['thrash'];
  readonly #meter: Parts['meter'];
  readonly #policy: ParkingPolicy;
  readonly #series: PoolSeries;
  readonly #pauses = new Pauses();
  /** What is parked: its bytes, or the file that holds them; null: its tokens are read again. */
  readonly #parked = new Map<Session, Buffer | string | null>();
  /**
   * Sessions that could not be parked, and how many calls had used them by then: not tried again before they are used.
   */
  readonly #kept = new WeakMap<Session, number>();
  readonly #uses = new WeakMap<Session, Use>();
  /** Those whose pages came back before their call began. */
  readonly #ahead = new WeakSet<Session>();
  /** Calls of all sessions. */
  #calls = 0;

  constructor(form: IdleForm, { pool, sessions, thrash, holdAgain, left, meter, policy, series }: Parts) {
    this.place = form.place;
    this.#form = form;
    this.#pool = pool;
    this.#budgetBytes = pool.budgetBytes;
    this.#sessions = sessions;
    this.#holdAgain = holdAgain;
    this.#left = left;
    this.#thrash = thrash;
    this.#meter = meter;
    this.#policy = policy;
    this.#series = series;
  }

  /** Originals of sessions that wait go, until so many bytes more are free: parking would take them as well. */
  dropOriginals(asking: Asker, lackingBytes: number, group: Group | null): void {
    const goalBytes = this.#freeBytes(group) + lackingBytes;
    for (const { governed } of this.#waiting(asking, group)) {
      if (this.#freeBytes(group) >= goalBytes) return;
      if (governed.canaries.count === 0) continue;
      const before = governed.kv.usedBytes;
      governed.canaries.dropAll();
      const gaveUpBytes = before - governed.kv.usedBytes;
      const whose = { gaveUpBytes, gaveUpFor: asking.id, rung: 'originals', tokens: governed.length };
      governed.mover.write('note', whose);
    }
  }

  /**
   * Parks sessions that wait, in the order of the policy, until so many bytes more are free. Frees less where there are
   * no more. group: those in it, and free in it; null: everybody, and in the pool.
   */
  park(asking: Asker, lackingBytes: number, group: Group | null): void {
    this.#free(this.#waiting(asking, group).filter(this.#isLeft), { asking, lackingBytes, rung: 'park', group });
  }

  /**
   * The same where nothing else helps any more: for sessions that lose their pages by it, and for those that are used
   * all the time, whose pages would soon be back.
   */
  letGo(asking: Asker, lackingBytes: number, group: Group | null): void {
    this.#free(this.#waiting(asking, group), { asking, lackingBytes, rung: 'let-go', group });
  }

  #freeBytes(group: Group | null): number {
    const { budgetBytes, usedBytes } = group ?? this.#pool;
    return budgetBytes - usedBytes;
  }

  #free(sessions: readonly Session[], { asking, lackingBytes, rung, group }: Wanted): void {
    if (sessions.length === 0 || lackingBytes <= 0) return;
    const byId = new Map(sessions.map((session) => [session.id, session]));
    const nowMs = performance.now();
    const record = new ParkingRecord({
      policy: this.#policy,
      rung,
      session: asking.id,
      lackingBytes,
      seen: this.#pauses.seen,
      waiters: sessions.map((session) => this.#waiterOf(session, nowMs)),
    });
    record.choose((id) => {
      const before = this.#freeBytes(group);
      const parkedBy = this.#policy.id;
      const why: Cause = { cause: 'pool', rung, asking: asking.id, lackingBytes, parkedBy };
      this.#meter.poolDeciding.outside(() => this.#park(byId.get(id)!, why));
      return this.#freeBytes(group) - before;
    });
    this.#series.write({ parking: record.body });
  }

  /** In whole numbers, as the log has them, so that nothing is chosen by what it does not say. */
  #waiterOf(session: Session, nowMs: number): Waiter {
    const { id, idleSinceMs, isInLine, tokens } = session;
    const freedBytes = this.#gainBytes(session);
    return {
      id,
      idleMs: Math.max(1, Math.ceil(nowMs - idleSinceMs)),
      freedBytes,
      restoreMs: this.place === 'disk' ? Math.ceil(FILE_MS + FILE_MS_PER_BYTE * freedBytes) : tokens.length,
      ...this.#pauses.of(id),
      isInLine,
    };
  }

  /** Parks every session that waits, but for the one that asks; null: nobody asks for room of its own. */
  parkAll(asking: Governed | null): void {
    if (this.place === 'reread') return;
    const why: Cause = asking === null ? { cause: 'low-memory' } : { cause: 'low-memory', asking: asking.id };
    for (const session of this.#waiting(asking)) this.#park(session, why);
  }

  /** Bytes that park would free for this cache, about, of those in a group, or of all. */
  reclaimableBytes(asking: Governed, group: Group | null): number {
    if (this.place === 'reread') return 0;
    return this.#waiting(asking, group)
      .filter(this.#isLeft)
      .reduce((sum, session) => sum + this.#gainBytes(session), 0);
  }

  /** Bytes that a session which waits takes at least, beside what is counted as parked; null: it cannot be parked. */
  leftBytes(session: Session): number | null {
    const { governed } = session;
    if (governed.away !== null) return 0;
    if (!this.#isParkable(session)) return null;
    return this.place === 'memory' ? predictedBytes(governed) : 0;
  }

  /**
   * Puts the pages of a session back if they are parked, and makes room for them. Where they are of no use, which the
   * log says, the cache is empty then, and the tokens must be read again; so it is where there is no room for them as
   * they are, for a session that was let to work (`isAtWork`). Throws 'budget-exceeded' where there is no room for
   * another, and it stays parked; 'io' where its file cannot be removed, and it is back.
   */
  wake(session: Session, isAtWork: boolean): void {
    const from = this.#parked.get(session);
    const { governed } = session;
    const { away } = governed;
    this.#used(session, from !== undefined || this.#ahead.delete(session));
    if (session.pauseMs !== null) this.#pauses.returned(session.id, session.pauseMs);
    if (from === undefined || away === null) return;
    // What it takes now makes way for its pages.
    this.#parked.delete(session);
    this.#count();
    let why: string | null;
    try {
      why = this.#putBack(session, from, away, isAtWork);
    } catch (error) {
      this.#parked.set(session, from);
      this.#count();
      throw error;
    }
    this.#tellWoken(session, away, why);
    if (typeof from === 'string') removeParked(from);
  }

  /**
   * Puts the pages of a session back while its call waits to begin, in room that those give who wait. Where that is not
   * enough, or anything is wrong with them, it stays parked until the call begins.
   */
  fetchAhead(session: Session): void {
    const from = this.#parked.get(session) ?? null;
    const { governed } = session;
    const { away } = governed;
    if (from === null || away === null) return;
    this.#parked.delete(session);
    this.#count();
    try {
      if (this.#isBackAhead(session, from, away)) {
        this.#ahead.add(session);
        governed.meter.fetchedAhead.add({});
        this.#tellWoken(session, away, null, { ahead: true });
        return;
      }
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      governed.vacate();
    }
    this.#parked.set(session, from);
    this.#count();
  }

  #isBackAhead(session: Session, from: Buffer | string, away: Away): boolean {
    const { governed, tokens: tokenIds } = session;
    const isBack = this.#holdAgain(session, { tokenIds, pages: away.heldPages }, (held) => {
      const hasRoom = governed.room.find(this.#ownBytes(governed, away, held), 'waiting');
      if (hasRoom && this.#fill(session, from) === null) return true;
      if (held > 0) governed.vacate();
      return false;
    });
    if (isBack && typeof from === 'string') removeParked(from);
    return isBack;
  }

  /** What a session takes when it is back, but for pages that it holds together with others, which are there. */
  #ownBytes(governed: Governed, { kvBytes }: Away, held: number): number {
    return kvBytes - copyBytes(governed, governed.terms.context, 0, held);
  }

  #tellWoken(session: Session, away: Away, why: string | null, more: { readonly ahead?: true } = {}): void {
    const { governed } = session;
    governed.cameBack();
    this.#thrash.cameBack(session);
    const bytes = { bytesBefore: away.heldBytes, bytesAfter: governed.usedBytes };
    const held = given({ heldTokens: firstToken(governed.kin.heldPages) || undefined });
    const by = why === null ? { by: 'pages' } : { by: 'reading', why };
    const tokens = why === null ? governed.length : 0;
    governed.mover.write('note', { idle: 'woken', ...by, ...more, ...bytes, ...held, tokens });
    governed.meter.tell('session-woken', {
      session: session.id,
      by: why === null ? 'pages' : 'reading',
      tokens: governed.length,
      ...bytes,
    });
  }

  /** A session is closed: nothing of it is kept. Throws 'io' where its file cannot be removed. */
  forget(session: Session): void {
    this.#pauses.gone(session.id);
    const from = this.#parked.get(session);
    this.#parked.delete(session);
    this.#count();
    if (typeof from === 'string') removeParked(from);
  }

  /** A call uses a session. */
  #used(session: Session, isBack: boolean): void {
    const before = this.#uses.get(session);
    const lastAt = ++this.#calls;
    const { parkedAt = lastAt, returns = 0 } = before ?? {};
    const isSoon = lastAt - parkedAt <= this.#soonCalls;
    this.#uses.set(session, { lastAt, parkedAt, returns: isBack ? (isSoon ? returns + 1 : 0) : returns });
  }

  /** False for a session that came back soon each time and is still used: parking it would gain nothing for long. */
  readonly #isLeft = (session: Session): boolean => {
    const use = this.#uses.get(session);
    return use === undefined || use.returns < RETURNS_MAX || this.#calls - use.lastAt > this.#soonCalls;
  };

  get #soonCalls(): number {
    return SOON_CALLS * [...this.#sessions()].length;
  }

  /** Sessions that could be parked for another cache, by how long they have waited, those in line last. */
  #waiting(asking: Asker | null, group: Group | null = null): Session[] {
    const isWaiting = (session: Session): boolean =>
      session.governed !== asking && (group === null || session.governed.group === group) && this.#isParkable(session);
    return [...this.#sessions()]
      .filter(isWaiting)
      .sort((a, b) => Number(a.isInLine) - Number(b.isInLine) || a.idleSinceMs - b.idleSinceMs);
  }

  #isParkable(session: Session): boolean {
    const { isIdle, calls, governed } = session;
    if (governed.stake.floorBytes > 0 || (this.place === 'memory' && governed.packs !== null)) return false;
    return isIdle && calls !== this.#kept.get(session) && isParkable(session) && this.#gainBytes(session) > 0;
  }

  /**
   * What parking a session would free, about; 0 for one that is parked, and for one that may lose nothing where
   * something would be lost.
   */
  #gainBytes({ governed }: Session): number {
    const { terms } = governed;
    if (governed.away !== null) return 0;
    if (this.place !== 'memory') return governed.aloneBytes;
    if (terms.exact || terms.kldBudget !== null) return 0;
    return Math.max(0, governed.aloneBytes - predictedBytes(governed));
  }

  #park(session: Session, why: Cause): void {
    const { governed, id } = session;
    const { tokens } = session;
    const bytesBefore = governed.kv.usedBytes;
    let from: Buffer | string | null = null;
    let parkedLength = 0;
    try {
      if (this.#form.place !== 'reread') {
        const bytes = parkedBytes(session, this.#form.place === 'memory' ? this.#form.predictorOf(session) : null);
        parkedLength = bytes.length;
        from = this.#form.place === 'memory' ? bytes : parkedPath(this.#form.stateDir, id);
        if (typeof from === 'string') writeParked(from, bytes);
      }
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      this.#kept.set(session, session.calls);
      governed.mover.write('note', { idle: 'kept', ...why, why: error.message, tokens: tokens.length });
      const { cause } = why;
      governed.meter.tell('session-kept', { session: id, cause, code: error.code, tokens: tokens.length });
      return;
    }
    // A page that would take more predicted stays as it is, and only sessions of more than PREDICTED_BITS come here.
    assert(this.place !== 'memory' || parkedLength < bytesBefore, `${bytesBefore} bytes became ${parkedLength}`);
    const idleMs = Math.round(performance.now() - session.idleSinceMs);
    const away = awayOf(governed, this.place, parkedLength);
    governed.parked(away);
    this.#left(session);
    const { lastAt = this.#calls, returns = 0 } = this.#uses.get(session) ?? {};
    this.#uses.set(session, { lastAt, parkedAt: this.#calls, returns });
    this.#parked.set(session, from);
    this.#count();
    const bytes = { bytesBefore, bytesAfter: away.heldBytes };
    if (why.cause === 'pool') this.#thrash.parked(session, bytesBefore - away.heldBytes);
    governed.mover.write('note', {
      idle: 'parked',
      place: this.place,
      ...why,
      idleMs,
      ...bytes,
      parkedBytes: parkedLength,
      tokens: tokens.length,
    });
    governed.meter.tell('session-parked', {
      session: id,
      place: this.place,
      cause: why.cause,
      tokens: tokens.length,
      idleMs,
      ...bytes,
    });
  }

  /** → null, or why the tokens must be read again. Throws 'budget-exceeded'. */
  #putBack(session: Session, from: Buffer | string | null, away: Away, isAtWork: boolean): string | null {
    if (from === null) return 'its pages were let go';
    const { governed, tokens: tokenIds } = session;
    return this.#holdAgain(session, { tokenIds, pages: away.heldPages }, (held) => {
      const ownBytes = this.#ownBytes(governed, away, held);
      const neededBytes = ownBytes + governed.room.spareBytes;
      if (governed.room.leaves(neededBytes) || governed.room.find(ownBytes, 'all')) return this.#fill(session, from);
      if (held > 0) governed.vacate();
      return this.#findsNoRoom(governed, neededBytes, isAtWork);
    });
  }

  /** → why the tokens must be read again. Throws 'budget-exceeded'. */
  #findsNoRoom(governed: Governed, neededBytes: number, isAtWork: boolean): string {
    if (isAtWork) return 'there is no room for its pages as they were';
    throw new KvError('budget-exceeded', `there is no room for the pages of session ${governed.id}, which is parked`, {
      values: {
        session: governed.id,
        neededBytes,
        roomBytes: governed.room.poolRoomBytes!,
        budgetBytes: this.#budgetBytes,
        tokens: governed.length,
      },
      hint: 'close a session, or wait until one does no more work; this one stays parked and loses nothing',
    });
  }

  /** → null, or why the pages cannot be used: then the cache is empty. Throws 'budget-exceeded'. */
  #fill(session: Session, from: Buffer | string): string | null {
    const { governed, runtime, tokens } = session;
    try {
      const { head, cache, fault } = typeof from === 'string' ? readParked(from) : parseParked(from, session.id);
      if (fault !== null) return fault;
      if (head.session !== session.id || head.tokens !== tokens.length) return 'the file is that of another session';
      const predicted =
        this.#form.place === 'memory' ? pagePredictor(runtime, this.#form.predictorOf(session), tokens.length) : null;
      fillCache(governed.kv, tokens.length, cache, { predicted, packs: governed.packs });
      return null;
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      governed.vacate();
      if (error.code === 'budget-exceeded') throw error;
      return error.message;
    }
  }

  /** What is parked in memory leaves the pool that much less. */
  #count(): void {
    let heldBytes = 0;
    for (const from of this.#parked.values()) if (from instanceof Buffer) heldBytes += from.length;
    setAside(this.#pool, this, heldBytes);
  }
}

/** About what a session takes when its pages are predicted. */
const predictedBytes = ({ shape, length }: Governed): number => (PREDICTED_BITS / 16) * f16CacheBytes(shape, length);

/** What stands for a cache whose pages are still there. */
function awayOf(cache: Governed, place: IdlePlace, parkedBytes: number): Away {
  return {
    place,
    parkedBytes,
    heldBytes: place === 'memory' ? parkedBytes : 0,
    kvBytes: cache.usedBytes,
    heldPages: cache.kin.heldPages,
    memory: cache.kv.memory(),
    tables: Array.from({ length: cache.shape.layers }, (_, layer) => cache.kv.table(layer)),
    fingerprint: fingerprintOf(cache),
  };
}
