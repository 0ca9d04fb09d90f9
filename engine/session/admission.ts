/**
 * Who may be at work in the memory that sessions share. A call begins when what it needs at its end, in the lowest
 * formats that its session allows, fits beside what those at work need at theirs and what the others cannot give up; it
 * waits for those before it until then. So whoever has begun finds room to its end, whoever else writes meanwhile.
 */
import { KvError, PAGE_TOKENS, type PagePool, sealedPages } from '../../native/index.ts';
import { bytesAt, sideBytes, surelyFreed } from '../cache/budget.ts';
import type { Meter } from '../metrics/meter.ts';
import type { Client } from '../scheduler/fairness.ts';
import { Line } from '../scheduler/line.ts';
import type { Session } from './session.ts';

interface Waiting {
  readonly session: Session;
  readonly client: Client;
  readonly tokens: number;
  readonly begin: () => void;
  readonly refuse: (error: Error) => void;
}

/** What admission is told of the memory. */
export interface Shared {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** Bytes that a session which waits leaves when it is parked, at most about; null: it cannot be. */
  readonly parkedBytes: (session: Session) => number | null;
  /** Has those that wait parked for a session, until so many bytes more are free. */
  readonly makeRoom: (asking: Session, lackingBytes: number) => void;
  /** Most calls at work at once. */
  readonly maxConcurrent: number | undefined;
}

export class Admission {
  readonly #shared: Shared;
  /** Those at work, and the tokens that they hold at the end of their call. */
  readonly #working = new Map<Session, number>();
  readonly #waiting = new Line<Waiting>();
  /** Those at work that found no room after all, and what tells them that another one has ended. */
  readonly #stuck = new Map<Session, (isWorthIt: boolean) => void>();

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

  /** As many are at work as may be. */
  get #isFull(): boolean {
    return this.#working.size >= (this.#shared.maxConcurrent ?? Number.POSITIVE_INFINITY);
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
    if ([...this.#working.keys()].every((one) => one === session || this.#stuck.has(one))) return false;
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
        const waiting = { session, client: session.client, tokens, begin: resolve, refuse: reject };
        this.#waiting.add(waiting);
        this.#next();
        if (!this.#waiting.has(waiting)) return;
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
    for (;;) {
      const first = this.#waiting.inOrder()[0];
      if (first === undefined || this.#isFull) return;
      const { session, tokens } = first;
      const isAlone = this.#working.size === 0;
      const fits = this.#fits(session, tokens) || (isAlone && this.#fitsAfterAll(session, tokens));
      if (!fits && !isAlone) return;
      this.#waiting.take([first]);
      if (fits) {
        this.#working.set(session, tokens);
        first.begin();
      } else first.refuse(this.#refusal(session, tokens));
    }
  }

  #fits(session: Session, tokens: number): boolean {
    const { roomBytes, neededBytes } = this.#numbers(session, tokens);
    return neededBytes <= roomBytes;
  }

  /** What those that wait would leave is not known before they are parked. */
  #fitsAfterAll(session: Session, tokens: number): boolean {
    const { pool, makeRoom } = this.#shared;
    const { neededBytes } = this.#numbers(session, tokens);
    makeRoom(session, neededBytes - (pool.budgetBytes - pool.usedBytes));
    return this.#fits(session, tokens);
  }

  /** What a call needs, and what the others leave of the memory. */
  #numbers(session: Session, tokens: number): { neededBytes: number; roomBytes: number } {
    const { pool, sessions } = this.#shared;
    const { spareBytes } = session.governed.room;
    const counted: Session[] = [];
    const others = new Set([...this.#working.keys(), ...sessions()]);
    others.delete(session);
    let takenBytes = 0;
    for (const other of others) {
      const atWork = this.#working.get(other);
      const parked = atWork === undefined ? this.#shared.parkedBytes(other) : null;
      takenBytes += parked ?? needOf(other, atWork ?? other.governed.length, counted);
      if (parked === null) counted.push(other);
    }
    // What it takes parked in memory makes way for its pages.
    const heldBytes = session.governed.away?.heldBytes ?? 0;
    return {
      neededBytes: needOf(session, tokens, counted) + spareBytes,
      roomBytes: Math.max(0, pool.budgetBytes + heldBytes - takenBytes),
    };
  }

  #refusal(session: Session, tokens: number): KvError {
    const { roomBytes, neededBytes } = this.#numbers(session, tokens);
    const { pool } = this.#shared;
    this.refused(session, tokens);
    return new KvError(
      'budget-exceeded',
      `${tokens} tokens need ${neededBytes} bytes in the lowest formats, and the other sessions leave ${roomBytes}`,
      {
        values: { session: session.id, tokens, neededBytes, roomBytes, budgetBytes: pool.budgetBytes },
        hint: 'raise the kvBudget of the engine, close a session, let idle ones be parked (idleSessions), or ask for fewer tokens',
      },
    );
  }
}

/**
 * Bytes of a session at so many tokens, all pages as low as need for bytes brings them; without the pages that it
 * shares with one of those that are `counted`.
 */
function needOf({ governed }: Session, tokens: number, counted: readonly Session[]): number {
  const { terms, shape, room, latents, kin } = governed;
  const { openFormat = 'f16', windowFormat, windowTokens = PAGE_TOKENS, slidingWindow } = terms.context;
  const all = bytesAt(shape, tokens, terms.lowest, { openFormat, windowFormat, windowTokens, slidingWindow });
  const kept =
    latents === null ? 0 : latents.sealedBytes * shape.layers * (terms.budgetBytes === null ? sealedPages(tokens) : 1);
  const shared = Math.max(0, ...counted.map((other) => kin.sharedWith(other.governed.kin)));
  const sides = sideBytes(
    shape,
    terms.lowest.filter((pair) => pair !== null),
  );
  const sharedBytes = terms.lowest.reduce((sum, pair, layer) => {
    if (pair === null) return sum;
    const { k, v } = pair;
    const there = Math.max(0, shared - surelyFreed(tokens, slidingWindow?.[layer] ?? null));
    return sum + there * (sides[k] + sides[v]);
  }, 0);
  return Math.min(Math.max(all + kept - sharedBytes, 0), room.ownBytes ?? Number.POSITIVE_INFINITY);
}
