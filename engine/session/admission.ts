/**
 * Who may be at work in the memory that sessions share. A call begins when what it needs at its end, in the lowest
 * formats that its session allows, fits beside what those at work need at theirs and what the others cannot give up; it
 * waits for those before it until then. So whoever has begun finds room to its end, whoever else writes meanwhile. A
 * session that would rather wait, or be refused, than have pages go lower begins when it fits as everything is. What
 * must fit into the memory must fit into the group of a session as well, and who waits for others of its group alone is
 * passed by those of other groups.
 */
import { KvError, type PagePool } from '../../native/index.ts';
import type { Group } from '../cache/group.ts';
import type { Kin } from '../cache/kin.ts';
import type { PressureReport, Stake } from '../cache/types.ts';
import type { Meter } from '../metrics/meter.ts';
import type { EngineOptions } from '../options/types.ts';
import type { Client } from '../scheduler/fairness.ts';
import { Line } from '../scheduler/line.ts';
import type { Floor } from './floors.ts';
import { growthOf, type HeldAgain, needOf } from './need.ts';
import type { Session } from './session.ts';
import type { Thrash } from './thrash.ts';

/** So long nobody at work takes a step before one more may begin than memory that thrashes allows. Chosen. */
const STALLED_MS = 1000;

interface Waiting {
  readonly session: Session;
  readonly client: Client;
  readonly tokens: number;
  readonly sinceMs: number;
  readonly begin: () => void;
  readonly refuse: (error: Error) => void;
}

/** What is to become of a call that is the first in line. */
type Verdict = 'begins' | 'waits' | 'refused';

/** What admission is told of the memory. */
export interface Shared {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** Bytes that a session which waits leaves when it is parked, at most about; null: it cannot be. */
  readonly parkedBytes: (session: Session) => number | null;
  /** Bytes of pages that no open session holds: they go when somebody needs their memory. */
  readonly keptBytes: () => number;
  /** The part of them that is not in the pool: its budget grows where they go. Left out: none. */
  readonly idleBytes?: () => number;
  /** With whom a session that is parked would hold pages together when it is back, and how many; null: with nobody. */
  readonly heldAgain: (session: Session) => HeldAgain | null;
  /** Has those that wait parked for a session, until so many bytes are free for it. */
  readonly makeRoom: (asking: Session, neededBytes: number) => void;
  /** Has the pages of a session back if they are parked, where there is room for them; left out: nobody's are. */
  readonly fetchAhead?: ((session: Session) => void) | undefined;
  /** Most calls at work at once. */
  readonly maxConcurrent: number | undefined;
  /** Says how many calls may be at work at once beside that. */
  readonly thrash: Pick<Thrash, 'callsMax' | 'steps'>;
  /** What a call does where room is short, if its session does not say. */
  readonly onPressure: NonNullable<EngineOptions['onPressure']>;
}

export class Admission {
  readonly #shared: Shared;
  /** Those at work, and the tokens that they hold at the end of their call. */
  readonly #working = new Map<Session, number>();
  readonly #waiting = new Line<Waiting>();
  /** Those at work that found no room after all, and what tells them that another one has ended. */
  readonly #stuck = new Map<Session, (isWorthIt: boolean) => void>();
  /** Those that did not begin at once. */
  readonly #hasWaited = new WeakSet<Waiting>();
  readonly #calls = new WeakMap<Session, Omit<PressureReport, keyof Stake>>();
  #watch: NodeJS.Timeout | null = null;

  constructor(shared: Shared) {
    this.#shared = shared;
  }

  /** How many are at work. */
  get working(): number {
    return this.#working.size;
  }

  /** How many wait for room, those at work that found none after all included. */
  get waiting(): number {
    return this.#waiting.size + this.#stuck.size;
  }

  /**
   * A call begins, at the end of which a session holds so many tokens. Throws 'budget-exceeded' where that does not fit
   * and nobody is at work who might make room, 'aborted', 'closed'.
   */
  async enter(session: Session, tokens: number, signal: AbortSignal | undefined): Promise<void> {
    await this.#wait(session, tokens, signal);
  }

  /** How calls of a session came to their room. */
  report(session: Session): PressureReport {
    const { stake } = session.governed;
    return { ...stake, ...(this.#calls.get(session) ?? { waitedCalls: 0, waitedMs: 0, shortCalls: 0, shortBytes: 0 }) };
  }

  /** As many are at work as may be. */
  get #isFull(): boolean {
    return this.#isBounded || this.#working.size >= this.#shared.thrash.callsMax;
  }

  /** As many are at work as a caller said. */
  get #isBounded(): boolean {
    return this.#working.size >= (this.#shared.maxConcurrent ?? Number.POSITIVE_INFINITY);
  }

  /** Where those at work do nothing, since nobody takes what they write, others do not wait for them for ever. */
  #watchSteps(): void {
    const { thrash } = this.#shared;
    if (this.#watch !== null || thrash.callsMax === Number.POSITIVE_INFINITY) return;
    const { steps } = thrash;
    this.#watch = setTimeout(() => {
      this.#watch = null;
      const first = this.#first(this.#waiting.inOrder());
      if (first === undefined) return;
      if (thrash.steps === steps && this.#isFull && !this.#isBounded) this.#settle(first);
      this.#watchSteps();
    }, STALLED_MS).unref();
  }

  /** Another number may be at work now. */
  retry(): void {
    this.#next();
  }

  /** The call has ended. */
  leave(session: Session): void {
    this.#working.delete(session);
    for (const tell of this.#stuck.values()) tell(true);
    this.#next();
  }

  /** A session is closed. */
  forget(session: Session): void {
    this.#drop(session, new KvError('closed', 'the session was closed', { values: { session: session.id } }));
    this.leave(session);
  }

  /**
   * One at work found no room: waits until another one has ended, or the signal says that it need not go on. → false
   * where all that are at work wait so, and nothing would come of it
   */
  async anotherEnds(session: Session, signal: AbortSignal | undefined): Promise<boolean> {
    const { group, room } = session.governed;
    const scope = room.isBoundByGroup ? group : null;
    const helps = (one: Session): boolean => one !== session && !this.#stuck.has(one) && isIn(scope, one);
    if (![...this.#working.keys()].some(helps)) return false;
    this.#waits(session, session.governed.length);
    const abort = (): void => this.goOn(session);
    signal?.addEventListener('abort', abort, { once: true });
    try {
      return await new Promise<boolean>((resolve) => {
        this.#stuck.set(session, resolve);
        if (signal?.aborted === true) resolve(true);
      });
    } finally {
      signal?.removeEventListener('abort', abort);
      this.#stuck.delete(session);
    }
  }

  /** Where a session waits until another one has ended, it tries again at once. */
  goOn(session: Session): void {
    this.#stuck.get(session)?.(true);
  }

  #waits({ id: session }: Session, tokens: number): void {
    const { meter, pool } = this.#shared;
    meter.roomWaits.add({});
    meter.tell('call-waits', { session, tokens, budgetBytes: pool.budgetBytes });
  }

  /** A call is refused, or ends, because the others leave it no room; it would have held so many tokens. */
  refused({ id: session }: Session, tokens: number): void {
    const { meter, pool } = this.#shared;
    meter.roomRefusals.add({});
    meter.tell('call-refused', { session, tokens, budgetBytes: pool.budgetBytes });
  }

  async #wait(session: Session, tokens: number, signal: AbortSignal | undefined): Promise<void> {
    const abort = (): void =>
      this.#drop(session, new KvError('aborted', 'aborted while it waited for room', { values: { tokens } }));
    signal?.addEventListener('abort', abort, { once: true });
    try {
      await new Promise<void>((resolve, reject) => {
        const { client } = session;
        const waiting = { session, client, tokens, sinceMs: performance.now(), begin: resolve, refuse: reject };
        this.#waiting.add(waiting);
        this.#next();
        if (!this.#waiting.has(waiting)) return;
        this.#hasWaited.add(waiting);
        this.#watchSteps();
        if (signal?.aborted === true) abort();
        else if (!this.#isFull) this.#waits(session, tokens);
      });
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  #drop(session: Session, error: Error): void {
    const waiting = this.#waiting.find((one) => one.session === session);
    if (waiting === undefined) return;
    this.#waiting.drop(waiting);
    waiting.refuse(error);
    this.#next();
  }

  #next(): void {
    this.#shared.meter.poolDeciding.during(() => {
      this.#letBegin();
      this.#fetchAhead();
    });
  }

  /** The next that will begin has its pages back by then, if there is room for them in any case. */
  #fetchAhead(): void {
    const { fetchAhead } = this.#shared;
    const first = this.#first(this.#waiting.inOrder());
    if (fetchAhead === undefined || first === undefined || first.session.governed.away === null) return;
    if (this.#isCertain(first)) this.#shared.meter.poolDeciding.outside(() => fetchAhead(first.session));
  }

  /** There is room for it as everything is, or it waits for nothing but that fewer are at work. */
  #isCertain({ session, tokens }: Waiting): boolean {
    if (this.#shortBytes(session, session.governed.length) <= 0) return true;
    return this.#isFull && this.#onPressure(session) === 'degrade' && this.#fits(session, tokens);
  }

  #letBegin(): void {
    for (;;) {
      const inOrder = this.#waiting.inOrder();
      const first = this.#first(inOrder);
      if (first === undefined || this.#isFull) return;
      if (this.#settle(first)) continue;
      // Nobody begins before whoever is first, so these would wait for room.
      for (const one of inOrder) if (this.#onPressure(one.session) === 'refuse') this.#refuse(one);
      return;
    }
  }

  /** The first of those that are in line for more than that others of their group end. */
  #first(inOrder: readonly Waiting[]): Waiting | undefined {
    const full = new Set<Group>();
    return inOrder.find((one) => {
      const { group } = one.session.governed;
      if (group === null || this.#onPressure(one.session) === 'refuse') return true;
      if (!full.has(group) && this.#isGroupFull(one, group)) full.add(group);
      return !full.has(group);
    });
  }

  /** There is no room for it beside those of its group that are at work. */
  #isGroupFull({ session, tokens }: Waiting, group: Group): boolean {
    return this.#isAtWork(group) && !this.#fitsIn(group, session, tokens);
  }

  #isAtWork(group: Group | null): boolean {
    if (group === null) return this.#working.size > 0;
    for (const session of this.#working.keys()) if (session.governed.group === group) return true;
    return false;
  }

  /** Lets the first in line begin, or refuses it. → false where it waits on */
  #settle(first: Waiting): boolean {
    const verdict = this.#verdict(first);
    if (verdict === 'begins') this.#begin(first);
    if (verdict === 'refused') this.#refuse(first);
    return verdict !== 'waits';
  }

  #onPressure({ setup }: Session): Shared['onPressure'] {
    return setup.onPressure ?? this.#shared.onPressure;
  }

  #verdict({ session, tokens }: Waiting): Verdict {
    const onPressure = this.#onPressure(session);
    const scopes = scopesOf(session);
    if (onPressure !== 'degrade' && this.#shortBytes(session, tokens) <= 0) return 'begins';
    if (onPressure === 'refuse') return 'refused';
    if (onPressure === 'queue' && this.#isAtWork(null)) return 'waits';
    for (const scope of scopes) {
      if (this.#fitsIn(scope, session, tokens)) continue;
      if (this.#isAtWork(scope)) return 'waits';
      if (!this.#fitsAfterAll(scope, session, tokens)) return 'refused';
    }
    return 'begins';
  }

  #begin(waiting: Waiting): void {
    const { session, tokens, sinceMs } = waiting;
    const { meter, pool } = this.#shared;
    const shortBytes = Math.max(0, this.#shortBytes(session, tokens));
    const hasWaited = this.#hasWaited.has(waiting);
    const before = this.report(session);
    this.#calls.set(session, {
      waitedCalls: before.waitedCalls + Number(hasWaited),
      waitedMs: before.waitedMs + (hasWaited ? performance.now() - sinceMs : 0),
      shortCalls: before.shortCalls + Number(shortBytes > 0),
      shortBytes,
    });
    if (shortBytes > 0) {
      meter.roomShortages.add({});
      meter.tell('call-short', { session: session.id, tokens, shortBytes, budgetBytes: pool.budgetBytes });
    }
    this.#waiting.take([waiting]);
    this.#working.set(session, tokens);
    waiting.begin();
  }

  #refuse(waiting: Waiting): void {
    this.#waiting.drop(waiting);
    waiting.refuse(this.#refusal(waiting));
  }

  /**
   * Bytes that are lacking for a call to come to its end, as those at work do to theirs, without that any page goes
   * lower or is parked; 0 or less: none.
   */
  #shortBytes(session: Session, tokens: number): number {
    return Math.max(...scopesOf(session).map((scope) => this.#shortIn(scope, session, tokens)));
  }

  #shortIn(scope: Group | null, session: Session, tokens: number): number {
    const { budgetBytes, usedBytes } = scope ?? this.#shared.pool;
    let grownBytes = growthOf(session, tokens, this.#shared.heldAgain(session)) + session.governed.room.spareBytes;
    const left = new FloorsLeft(session.floor);
    for (const [other, end] of this.#working) {
      if (other === session || !isIn(scope, other)) continue;
      const bytes = growthOf(other, end);
      left.takes(other, other.governed.kv.usedBytes + bytes);
      grownBytes += bytes;
    }
    for (const other of this.#shared.sessions())
      if (other !== session && !this.#working.has(other) && isIn(scope, other))
        left.takes(other, other.governed.kv.usedBytes);
    grownBytes += left.bytes;
    return grownBytes - (budgetBytes - usedBytes + (scope === null ? this.#shared.keptBytes() : 0));
  }

  #fits(session: Session, tokens: number): boolean {
    return scopesOf(session).every((scope) => this.#fitsIn(scope, session, tokens));
  }

  #fitsIn(scope: Group | null, session: Session, tokens: number): boolean {
    const { roomBytes, neededBytes } = this.#numbers(scope, session, tokens);
    return neededBytes <= roomBytes;
  }

  /** What those that wait would leave is not known before they are parked. */
  #fitsAfterAll(scope: Group | null, session: Session, tokens: number): boolean {
    this.#shared.makeRoom(session, this.#numbers(scope, session, tokens).neededBytes);
    return this.#fitsIn(scope, session, tokens);
  }

  /** What a call needs, and what the others leave of the memory, or of what its group may hold. */
  #numbers(scope: Group | null, session: Session, tokens: number): { neededBytes: number; roomBytes: number } {
    const { spareBytes } = session.governed.room;
    const { takenBytes, awayBytes, counted } = this.#taken(scope, session);
    // What it takes parked in memory makes way for its pages. The budget of the pool is without all that is parked.
    const heldBytes = session.governed.away?.heldBytes ?? 0;
    const budgetBytes = scope === null ? this.#poolBytes + heldBytes : scope.budgetBytes - awayBytes;
    return {
      neededBytes: needOf(session, tokens, counted, this.#shared.heldAgain(session)) + spareBytes,
      roomBytes: Math.max(0, budgetBytes - takenBytes),
    };
  }

  /** What all sessions leave, those at work at their ends and the others as low as they may be. */
  get leftBytes(): number {
    return Math.max(0, this.#poolBytes - this.#taken(null, null).takenBytes);
  }

  /** The budget of the pool, with what goes where it is needed. */
  get #poolBytes(): number {
    return this.#shared.pool.budgetBytes + (this.#shared.idleBytes?.() ?? 0);
  }

  /** What others than a session take, their floors included, and those that it may hold pages together with. */
  #taken(scope: Group | null, session: Session | null) {
    const { sessions } = this.#shared;
    const counted = new Set<Kin>();
    const left = new FloorsLeft(session?.floor ?? null);
    const others = new Set([...this.#working.keys(), ...sessions()]);
    if (session !== null) others.delete(session);
    let takenBytes = 0;
    let awayBytes = 0;
    for (const other of others) {
      if (!isIn(scope, other)) continue;
      awayBytes += other.governed.away?.heldBytes ?? 0;
      const atWork = this.#working.get(other);
      const parked = atWork === undefined ? this.#shared.parkedBytes(other) : null;
      const bytes = parked ?? needOf(other, atWork ?? other.governed.length, counted);
      left.takes(other, bytes);
      takenBytes += bytes;
      if (parked === null) counted.add(other.governed.kin);
    }
    return { takenBytes: takenBytes + left.bytes, awayBytes, counted };
  }

  #groupRefusal({ name, budgetBytes, usedBytes }: Group, session: Session, tokens: number): KvError {
    const { neededBytes, roomBytes } = this.#numbers(session.governed.group, session, tokens);
    const isNever = neededBytes > budgetBytes;
    return new KvError(
      isNever ? 'budget-too-small' : 'budget-exceeded',
      `${tokens} tokens need ${neededBytes} bytes in the lowest formats, and the group may hold ${budgetBytes}`,
      {
        values: {
          kvGroup: name,
          session: session.id,
          tokens,
          neededBytes,
          roomBytes,
          heldBytes: usedBytes,
          budgetBytes,
        },
        hint: isNever
          ? 'ask for fewer tokens, or raise the kvBudget of the group'
          : 'come back when others of the group have ended, close some, or let idle ones be parked (idleSessions)',
      },
    );
  }

  #refusal({ session, tokens }: Waiting): KvError {
    const { pool } = this.#shared;
    this.refused(session, tokens);
    const { group } = session.governed;
    if (group !== null && !this.#fitsIn(group, session, tokens)) return this.#groupRefusal(group, session, tokens);
    const { budgetBytes } = pool;
    const heldBytes = pool.usedBytes - this.#shared.keptBytes() + (this.#shared.idleBytes?.() ?? 0);
    if (this.#onPressure(session) === 'refuse') {
      const roomBytes = budgetBytes - heldBytes;
      const neededBytes = roomBytes + this.#shortBytes(session, tokens);
      return new KvError(
        'budget-exceeded',
        `${tokens} tokens need ${neededBytes} bytes more, with what calls at work will take, and ${roomBytes} are free`,
        {
          values: { session: session.id, tokens, neededBytes, roomBytes, heldBytes, budgetBytes },
          hint: "try again later, or have others give up bytes (onPressure: 'degrade'), or wait ('queue')",
        },
      );
    }
    const { roomBytes, neededBytes } = this.#numbers(null, session, tokens);
    return new KvError(
      'budget-exceeded',
      `${tokens} tokens need ${neededBytes} bytes in the lowest formats, and the other sessions leave ${roomBytes}`,
      {
        values: { session: session.id, tokens, neededBytes, roomBytes, heldBytes, budgetBytes },
        hint: 'raise the kvBudget of the engine, close a session, let idle ones be parked (idleSessions), or ask for fewer tokens',
      },
    );
  }
}

/** What a session must fit into: its group, and the memory of all (null). */
const scopesOf = ({ governed: { group } }: Session): readonly (Group | null)[] =>
  group === null ? [null] : [group, null];

const isIn = (scope: Group | null, { governed }: Session): boolean => scope === null || governed.group === scope;

/** What of the floors of others nobody takes: it is promised all the same. */
class FloorsLeft {
  readonly #own: Floor | null;
  readonly #left = new Map<Floor, number>();

  constructor(own: Floor | null) {
    this.#own = own;
  }

  /** One takes so many bytes, of those that it and its forks are promised first. */
  takes({ floor }: Session, bytes: number): void {
    if (floor === null || floor === this.#own) return;
    this.#left.set(floor, Math.max(0, (this.#left.get(floor) ?? floor.bytes) - bytes));
  }

  get bytes(): number {
    let bytes = 0;
    for (const left of this.#left.values()) bytes += left;
    return bytes;
  }
}
