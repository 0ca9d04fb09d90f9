/**
 * Conversations that go on from one request to the next. A client sends all of its messages each time; the chat that
 * has said the longest beginning of them answers the rest, and reads nothing twice. One that nobody goes on with is
 * closed when others come, and its pages then serve whoever begins alike (`engine/session/prefixes.ts`).
 */
import { existsSync } from 'node:fs';
import { given, KvError } from '../../native/index.ts';
import { isProposedFor, proposedOf } from '../options/table.ts';
import type { SessionOptions } from '../options/types.ts';
import { removeParked } from '../session/park/folder.ts';
import type { Store } from '../store/store.ts';
import type { Chat } from '../thread/chat.ts';
import type { Engine } from '../thread/engine.ts';
import type { ChatMessage } from '../transformer/types.ts';
import {
  askedOf,
  type ConversationTerms,
  digestOfTerms,
  digestsOf,
  type Held,
  type HeldSession,
  type Known,
  knownOf,
  type Looking,
  sees,
  type ToldOf,
  toldOf,
} from './conversation.ts';
import { Refusal } from './failure.ts';
import { KeptConversations } from './kept-conversations.ts';

/** One in a file, whose messages are kept here. */
interface Parked extends Known {
  readonly messages: readonly ChatMessage[];
  readonly path: string;
  readonly told: ToldOf;
}

/** A chat that answers a request, and how many of the request's messages it holds already. */
export interface Taken {
  readonly chat: Chat;
  readonly held: number;
  readonly known: Known;
  /** False: it is not to be kept in a store with what is said now. */
  readonly keeps: boolean;
}

/** How a conversation is gone on with. */
export interface Going {
  /** Of the messages, so many at most. */
  readonly most: number;
  /** The session that is to go on; null: whichever holds most. */
  readonly session: string | null;
  /** As in what is taken. */
  readonly keeps: boolean;
}

export class Conversations {
  readonly #engine: Engine;
  readonly #most: number;
  /** null: there is no store. */
  readonly #kept: KeptConversations | null;
  /** By the digest of all that was said in it, the one that waits longest first. */
  readonly #waiting = new Map<string, Held>();
  /** By id. */
  readonly #named = new Map<string, Held>();
  readonly #running = new Map<string, Held>();
  readonly #parked = new Map<string, Parked>();
  /** Those that are coming back. */
  readonly #returning = new Map<string, Parked>();
  /** Of each copy that is being made, the sessions that were erased meanwhile. */
  readonly #erasedBeside = new Set<Set<string>>();
  #isClosed = false;

  /** `most`: so many wait, and more are closed. */
  constructor(engine: Engine, most: number, store: Store | null = null) {
    this.#engine = engine;
    this.#most = most;
    this.#kept = store === null ? null : new KeptConversations(engine, store);
  }

  /** How many wait for their next question. */
  get waiting(): number {
    return this.#waiting.size + this.#named.size;
  }

  /**
   * The chat that holds most of these messages and no other, or a new one; where a session is asked for, that one.
   * Throws what Engine.chat throws, and a Refusal where the session cannot go on with these messages.
   */
  async take(terms: ConversationTerms, messages: readonly ChatMessage[], going: Going): Promise<Taken> {
    const { most, session, keeps } = going;
    const digest = digestOfTerms(terms);
    const said = digestsOf(digest, messages);
    if (session !== null) return this.#takeNamed(session, { terms, digest, said, going });
    const own = said.slice(0, most + 1);
    const here = own.findLastIndex((one, held) => held > 0 && this.#waiting.has(one));
    const kept = await this.#copied(async () => (await this.#kept?.find(terms, own, Math.max(here, 0))) ?? null);
    if (kept !== null) return this.#begin(kept, kept.held, keeps);
    for (let held = most; held > 0; held--) {
      const waiting = this.#waiting.get(said[held]!);
      if (waiting === undefined) continue;
      this.#waiting.delete(said[held]!);
      return this.#begin(waiting, held, keeps);
    }
    const chat = await this.#engine.chat({
      ...(await this.#optionsOf(terms, messages)),
      ...terms.own,
      ...askedOf(terms),
    });
    return this.#begin({ chat, known: knownOf(chat, terms, digest) }, 0, keeps);
  }

  /** The options of its session, where adapters are to be proposed with what was said. */
  async #optionsOf(terms: ConversationTerms, messages: readonly ChatMessage[]): Promise<SessionOptions> {
    if (!isProposedFor(terms.session.adapters)) return terms.session;
    return proposedOf(terms.session, await this.#engine.renderTokens(messages, askedOf(terms)));
  }

  /** Takes a chat back that has answered, or has not. Closes those that have waited longest. */
  async giveBack({ chat, known, keeps }: Taken): Promise<void> {
    this.#running.delete(known.id);
    // An answer that was cut off by the end of the server comes back after it.
    if (this.#isClosed || known.isErased || chat.messages.length === 0) return chat.close();
    known.usedMs = Date.now();
    if (known.isNamed) this.#named.set(known.id, { chat, known });
    else await this.#wait({ chat, known }, keeps);
    await this.#closeOldest();
  }

  /** A chat that nobody goes on with. */
  async drop({ chat, known }: Taken, reason: 'done' | 'error'): Promise<void> {
    this.#running.delete(known.id);
    await chat.session.close(reason);
  }

  /** Those that are held, the latest used first. */
  async list(looking: Looking): Promise<readonly HeldSession[]> {
    const told = (await this.#open((known) => sees(looking, known))).map(({ known, state, report }) => ({
      ...{ id: known.id, state, ...toldOf(report), last_used_ms: known.usedMs },
    }));
    const parked = [...this.#parked.values()]
      .filter((known) => sees(looking, known))
      .map(({ id, told: before, usedMs }) => ({ id, state: 'parked' as const, ...before, last_used_ms: usedMs }));
    return [...told, ...parked].sort((a, b) => b.last_used_ms - a.last_used_ms);
  }

  /** Bytes of keys and values by whose they are; what several hold together counts in each. */
  async kvBytes(): Promise<ReadonlyMap<string, number>> {
    const bytes = new Map<string, number>();
    for (const { known, report } of await this.#open(({ terms }) => terms.owner !== undefined)) {
      const owner = known.terms.owner!;
      bytes.set(owner, (bytes.get(owner) ?? 0) + report.kvBytesNow);
    }
    return bytes;
  }

  /** Writes one that is idle to a file of the state folder. Throws 'not-found', a Refusal, and what park throws. */
  async park(id: string, looking: Looking): Promise<HeldSession> {
    const { chat, known } = this.#takeIdle(id, looking);
    try {
      const told = toldOf(await chat.session.report());
      const { messages } = chat;
      const { path } = await chat.session.park();
      if (known.isErased) {
        removeParked(path);
        throw notHeld(id);
      }
      this.#parked.set(id, { ...known, messages, path, told });
      this.#removeOldestParked();
      return { id, state: 'parked', ...told, last_used_ms: known.usedMs };
    } catch (error) {
      // It is still open.
      if (!known.isErased) this.#named.set(id, { chat, known: { ...known, isNamed: true } });
      else await chat.close();
      throw error;
    } finally {
      this.#running.delete(id);
    }
  }

  /** Brings a parked one back, under an id of its own. Throws 'not-found', and what resume throws. */
  async resume(id: string, looking: Looking): Promise<HeldSession> {
    const parked = this.#parked.get(id);
    if (parked === undefined || !sees(looking, parked)) throw this.#notIdle(id, looking);
    this.#parked.delete(id);
    this.#returning.set(id, parked);
    try {
      const { messages, terms } = parked;
      const back = await this.#copied(async () => {
        const session = await this.#engine.resume(id, terms.own);
        return named(await this.#engine.chat({ session, messages, ...askedOf(terms) }), parked);
      });
      removeParked(parked.path);
      if (back === null) throw notHeld(id);
      return await this.#keepNamed(back);
    } catch (error) {
      if (existsSync(parked.path)) this.#parked.set(id, parked);
      throw error;
    } finally {
      this.#returning.delete(id);
    }
  }

  /** Another one that goes on from an idle one, under an id of its own. Throws 'not-found', a Refusal, as fork does. */
  async fork(id: string, looking: Looking): Promise<HeldSession> {
    const { chat, known } = this.#takeIdle(id, looking);
    try {
      const fork = await this.#copied(async () => named(await chat.fork(), known));
      if (fork === null) throw notHeld(id);
      return await this.#keepNamed(fork);
    } finally {
      await this.giveBack({ chat, known, held: 0, keeps: false });
    }
  }

  /**
   * Ends an idle or a parked one; nothing of it stays in a store. `elsewhere` erases what else there is of it. Where a
   * store fails it is held as before, so that whoever asks again has all of it erased. Throws 'not-found', a Refusal,
   * as a store does.
   */
  async remove(id: string, looking: Looking, elsewhere: () => Promise<void>): Promise<void> {
    const parked = this.#parked.get(id);
    if (parked !== undefined && sees(looking, parked)) {
      this.#parked.delete(id);
      try {
        await this.#kept?.erase(id, parked.keptAs);
        await elsewhere();
      } catch (error) {
        this.#parked.set(id, parked);
        throw error;
      }
      removeParked(parked.path);
      return;
    }
    const { chat, known } = this.#takeIdle(id, looking);
    known.isErased = true;
    try {
      await this.#kept?.erase(id, known.keptAs);
      await elsewhere();
    } catch (error) {
      this.#named.set(id, { chat, known });
      throw error;
    } finally {
      this.#running.delete(id);
    }
    await chat.close();
  }

  /**
   * What was said in a session is to be known no longer: those with something of it that are held and idle are closed,
   * those that answer are not kept, and nothing of them stays in a store. Throws as a store does.
   */
  async erase(session: string): Promise<void> {
    for (const erased of this.#erasedBeside) erased.add(session);
    const closing: Held[] = [];
    for (const held of [this.#waiting, this.#named, this.#running])
      for (const [key, one] of held) {
        if (!one.known.sessions.includes(session)) continue;
        one.known.isErased = true;
        if (held === this.#running) continue;
        held.delete(key);
        closing.push(one);
      }
    for (const [id, { sessions: own, path }] of this.#parked) {
      if (!own.includes(session)) continue;
      this.#parked.delete(id);
      removeParked(path);
    }
    for (const { chat } of closing) await chat.close();
    await this.#kept?.erase(session);
  }

  /** Waits until those that wait are kept, where there is a store, and closes them, and later those that come back. */
  async close(): Promise<void> {
    await this.#kept?.settled();
    this.#isClosed = true;
    const all = [...this.#waiting.values(), ...this.#named.values()];
    this.#waiting.clear();
    this.#named.clear();
    for (const { chat } of all) await chat.close();
  }

  async #takeNamed(
    id: string,
    asked: {
      readonly terms: ConversationTerms;
      readonly digest: string;
      readonly said: readonly string[];
      readonly going: Going;
    },
  ): Promise<Taken> {
    const looking = given<Looking>({ salt: asked.terms.owner });
    const back = this.#parked.has(id) ? await this.resume(id, looking) : { id };
    const { chat, known } = this.#takeIdle(back.id, looking);
    const held = chat.messages.length;
    const isBeginning = held <= asked.going.most && digestsOf(asked.digest, chat.messages).at(-1) === asked.said[held];
    if (isBeginning && known.digest === asked.digest) return { chat, known, held, keeps: asked.going.keeps };
    await this.giveBack({ chat, known, held, keeps: false });
    const sameTerms = known.digest === asked.digest;
    throw new KvError('bad-argument', 'the session has read something else than this conversation begins with', {
      values: { param: 'session', session: id.slice(0, 80), messages: held, sameTerms },
      hint: 'send all its messages and what follows, with the same tools and fields of the cache, or leave out session',
    });
  }

  /** One that waits, which nobody else has from now on. Throws what #notIdle gives. */
  #takeIdle(id: string, looking: Looking): Held {
    for (const held of [this.#named, this.#waiting])
      for (const [key, one] of held) {
        if (one.known.id !== id || !sees(looking, one.known)) continue;
        held.delete(key);
        this.#running.set(id, one);
        return one;
      }
    throw this.#notIdle(id, looking);
  }

  /** Why one does not wait: a Refusal for one that answers or is coming back, else it is not held. */
  #notIdle(id: string, looking: Looking): unknown {
    const known = this.#running.get(id)?.known ?? this.#returning.get(id);
    if (known === undefined || !sees(looking, known)) return notHeld(id);
    const error = new KvError('busy', 'the session is answering, or coming back', {
      values: { param: 'session', session: id },
      hint: 'fork it, or wait',
    });
    return new Refusal(409, error);
  }

  /** A copy, of which nothing else knows until then; null: there is none, or something of it was erased meanwhile. */
  async #copied<Copy extends Held>(make: () => Promise<Copy | null>): Promise<Copy | null> {
    const erased = new Set<string>();
    this.#erasedBeside.add(erased);
    try {
      const copy = await make();
      if (copy === null || !copy.known.sessions.some((session) => erased.has(session))) return copy;
      await copy.chat.close();
      return null;
    } finally {
      this.#erasedBeside.delete(erased);
    }
  }

  /** Those in memory that are looked for, with their reports. */
  async #open(isAsked: (known: Known) => boolean) {
    const open = [
      ...[...this.#running.values()].map((one) => ({ ...one, state: 'running' as const })),
      ...[...this.#waiting.values(), ...this.#named.values()].map((one) => ({ ...one, state: 'idle' as const })),
    ].filter(({ known }) => isAsked(known));
    const told = await Promise.all(
      open.map(async ({ chat, known, state }) => {
        // One that was closed meanwhile is left out.
        const report = await chat.session.report().catch(() => null);
        return report === null ? [] : [{ known, state, report }];
      }),
    );
    return told.flat();
  }

  #begin({ chat, known }: Held, held: number, keeps: boolean): Taken {
    known.usedMs = Date.now();
    this.#running.set(known.id, { chat, known });
    return { chat, known, held, keeps };
  }

  async #keepNamed({ chat, known }: Held): Promise<HeldSession> {
    this.#named.set(known.id, { chat, known });
    const told = toldOf(await chat.session.report());
    return { id: known.id, state: 'idle', ...told, last_used_ms: known.usedMs };
  }

  async #wait(one: Held, keeps: boolean): Promise<void> {
    const said = digestsOf(one.known.digest, one.chat.messages).at(-1)!;
    const twin = this.#waiting.get(said);
    this.#waiting.delete(said);
    this.#waiting.set(said, one);
    if (keeps && one.known.keptAs !== said) this.#kept?.keepLater(said, () => this.#waiting.get(said) ?? null);
    await twin?.chat.close();
  }

  /** Those that nobody named leave first. */
  async #closeOldest(): Promise<void> {
    const leaving: Held[] = [];
    for (const held of [this.#waiting, this.#named])
      for (const [key, oldest] of held) {
        if (this.waiting <= this.#most) break;
        held.delete(key);
        leaving.push(oldest);
      }
    for (const { chat } of leaving) await chat.close();
  }

  /** As many lie in files as wait in memory. Those that lie there longest leave, and their files. */
  #removeOldestParked(): void {
    for (const [id, { path }] of this.#parked) {
      if (this.#parked.size <= this.#most) return;
      this.#parked.delete(id);
      try {
        removeParked(path);
      } catch {
        // What was parked now is parked all the same.
      }
    }
  }
}

/** What goes on from another one, and is found by its id alone. */
const named = (chat: Chat, { terms, digest, sessions }: Known): Held => ({
  chat,
  known: { ...knownOf(chat, terms, digest, sessions), isNamed: true, usedMs: Date.now() },
});

const notHeld = (id: string): KvError =>
  new KvError('not-found', `no session ${id.slice(0, 80)} is held here, or no longer`, {
    values: { param: 'session', session: id.slice(0, 80) },
    hint: 'GET /v1/sessions/held lists those that are; without session a conversation goes on by its messages',
  });
