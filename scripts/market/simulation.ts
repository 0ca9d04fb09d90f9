/**
 * Thousands of sessions on one budget, without a model: conversations of a trace come, read and write a page at a time,
 * think, and come back. Who gives up bytes is decided by the policies of the pool as the engine has them; what an
 * engine does around that (who begins, who is parked, how much is asked for at a time) is told after
 * engine/session/admission.ts, park/idle.ts and market.ts. After every step all bytes are counted again.
 */
import { assert, PAGE_TOKENS } from '../../native/index.ts';
import {
  giverOf,
  LONGEST,
  type ParkingPolicy,
  Pauses,
  type PoolMember,
  type PoolPolicy,
  type RungId,
  rungsOf,
  WAITING_BITS,
  type Waiter,
} from '../../policy/index.ts';
import { type Ladder, Pages } from './pages.ts';
import type { Conversation } from './traces.ts';

/** Parts in which what is needed is asked for (engine/session/market.ts). */
const PARTS = 8;
/** A file of a session is written and read back in so long: 5 ms, and 1.5 ms a megabyte. */
const FILE_MS = 5;
const FILE_MS_PER_BYTE = 1.5e-6;

export interface Simulated {
  readonly ladder: Ladder;
  readonly budgetBytes: number;
  readonly policy: PoolPolicy;
  /** What becomes of sessions that wait when memory is short: in files, read again, or their pages go lower alone. */
  readonly idle: 'disk' | 'reread' | 'keep';
  /** Who is parked first. */
  readonly parking: Parking;
  /** Tokens that the engine reads and writes in a second, all sessions together. */
  readonly readsPerSecond: number;
  readonly writesPerSecond: number;
  /** Sessions that nobody comes back to are closed after so long. */
  readonly lifeMs: number;
  /** Ends after so many steps, or with the trace. */
  readonly stepsMax: number;
}

/** A policy of the engine, or one to compare with. */
export type Parking = ParkingPolicy | { readonly id: 'clairvoyant' | 'size' };

/** What no engine has: who knows when each comes back, and who goes by idle time, bytes and what they cost. */
export const CLAIRVOYANT: Parking = { id: 'clairvoyant' };
export const COMPARED: readonly Parking[] = [{ id: 'size' }, CLAIRVOYANT];

export interface SimulatedRow {
  readonly policy: string;
  readonly idle: string;
  readonly budgetBytes: number;
  /** Conversations that came, and the most that were open at once. */
  readonly sessions: number;
  readonly openMost: number;
  readonly steps: number;
  readonly simulatedSeconds: number;
  /** Most bytes after any step; steps after which they were above the budget. */
  readonly peakBytes: number;
  readonly overBudget: number;
  /** Over written tokens: mean bits of the cache that they saw, and its divergence beside four bits in a mean text. */
  readonly meanBits: number;
  readonly meanDivergence: number;
  /** Of single sessions that wrote 64 tokens or more. */
  readonly worstBits: number;
  readonly worstDivergence: number;
  readonly askings: number;
  readonly turns: number;
  readonly givenBytes: number;
  /** Times that a session was parked, and came back; tokens that were read again. */
  readonly parked: number;
  readonly parking: string;
  /** Bytes of those that were parked, and of those of them that came back; choices that were not those of `lru`. */
  readonly parkedBytes: number;
  readonly refaultedBytes: number;
  readonly otherChoices: number;
  readonly cameBack: number;
  readonly rereadTokens: number;
  /** Calls that waited for room, and that were refused. */
  readonly waited: number;
  readonly refused: number;
  /** By writing and reading files, and by reading again. */
  readonly secondsLost: number;
}

type State = 'idle' | 'working' | 'parked' | 'closed';

class Talk implements PoolMember {
  readonly id: string;
  readonly conversation: Conversation;
  readonly pages: Pages;
  state: State = 'idle';
  turn = 0;
  /** Tokens that are still to be read and written. */
  toRead = 0;
  toWrite = 0;
  /** On the lowest step: at the end of its call, and now, while it waits. */
  needBytes = 0;
  leastBytes = 0;
  idleSinceMs = 0;
  idleMs = 0;
  /** When it comes back; Infinity: never. */
  nextMs = Number.POSITIVE_INFINITY;
  /** Bytes that parking it freed. */
  parkedBytes = 0;
  /** True while its pages are in a file. */
  isAway = false;
  /** Tokens whose pages went, to be read again when it comes back. */
  goneTokens = 0;
  written = 0;
  bitsSum = 0;
  divergenceSum = 0;

  constructor(id: string, conversation: Conversation, ladder: Ladder) {
    this.id = id;
    this.conversation = conversation;
    this.pages = new Pages(ladder);
  }

  get tokens(): number {
    return this.pages.tokens;
  }

  get bytes(): number {
    return this.pages.bytes;
  }

  get behindTokens(): number {
    return this.pages.behindTokens;
  }

  get behindBytes(): number {
    return this.pages.behindBytes;
  }

  get price(): number | null {
    const { price } = this.pages;
    return price === null ? null : this.conversation.weight * price;
  }
}

interface Event {
  readonly atMs: number;
  readonly talk: Talk;
  readonly what: 'asks' | 'ends';
}

/** Events by time, those of one time in the order in which they were put. */
class Agenda {
  readonly #events: { readonly event: Event; readonly order: number }[] = [];
  #order = 0;

  get firstMs(): number {
    return this.#events[0]?.event.atMs ?? Number.POSITIVE_INFINITY;
  }

  put(event: Event): void {
    const heap = this.#events;
    heap.push({ event, order: this.#order++ });
    for (let at = heap.length - 1; at > 0; ) {
      const parent = (at - 1) >> 1;
      if (!this.#before(at, parent)) break;
      this.#swap(at, parent);
      at = parent;
    }
  }

  take(): Event {
    const heap = this.#events;
    const first = heap[0]!;
    const last = heap.pop()!;
    if (heap.length > 0) heap[0] = last;
    for (let at = 0; ; ) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2])
        if (child < heap.length && this.#before(child, least)) least = child;
      if (least === at) return first.event;
      this.#swap(at, least);
      at = least;
    }
  }

  #before(a: number, b: number): boolean {
    const [one, two] = [this.#events[a]!, this.#events[b]!];
    return (one.event.atMs - two.event.atMs || one.order - two.order) < 0;
  }

  #swap(a: number, b: number): void {
    const heap = this.#events;
    [heap[a], heap[b]] = [heap[b]!, heap[a]!];
  }
}

export class Simulation {
  readonly #told: Simulated;
  readonly #trace: Iterator<Conversation>;
  #next: Conversation | null;
  readonly #agenda = new Agenda();
  readonly #open = new Set<Talk>();
  /** Those at work, in the order in which they get their next page, and those that wait to begin. */
  readonly #working: Talk[] = [];
  /** Those at work that found no room after all, until another one ends its work. */
  readonly #stuck: Talk[] = [];
  readonly #waiting: Talk[] = [];
  #nowMs = 0;
  #usedBytes = 0;
  readonly #pauses = new Pauses();
  readonly #count = {
    ...{ parkedBytes: 0, refaultedBytes: 0, otherChoices: 0 },
    ...{ sessions: 0, openMost: 0, steps: 0, peakBytes: 0, overBudget: 0, askings: 0, turns: 0, givenBytes: 0 },
    ...{ parked: 0, cameBack: 0, rereadTokens: 0, waited: 0, refused: 0, lostMs: 0 },
    ...{ written: 0, bitsSum: 0, divergenceSum: 0, worstBits: Number.POSITIVE_INFINITY, worstDivergence: 0 },
  };

  constructor(told: Simulated, trace: Iterable<Conversation>) {
    this.#told = told;
    this.#trace = trace[Symbol.iterator]();
    this.#next = this.#arrival();
  }

  run(): SimulatedRow {
    while (this.#count.steps < this.#told.stepsMax && this.#goOn()) this.#countBytes();
    for (const talk of this.#open) this.#measure(talk);
    const { lostMs, written, bitsSum, divergenceSum, worstBits, ...count } = this.#count;
    const { policy, parking, idle, budgetBytes } = this.#told;
    return {
      ...{ policy: policy.id, parking: parking.id, idle, budgetBytes, ...count, simulatedSeconds: this.#nowMs / 1000 },
      ...{ meanBits: bitsSum / written, meanDivergence: divergenceSum / written },
      ...{ worstBits: Number.isFinite(worstBits) ? worstBits : 0, secondsLost: lostMs / 1000 },
    };
  }

  #arrival(): Conversation | null {
    const next = this.#trace.next();
    return next.done === true ? null : next.value;
  }

  /** Takes the next step: whatever comes first. → false: nothing is left to do */
  #goOn(): boolean {
    const comesMs = this.#next?.arriveMs ?? Number.POSITIVE_INFINITY;
    const eventMs = Math.min(comesMs, this.#agenda.firstMs);
    if (this.#working.length === 0 && eventMs === Number.POSITIVE_INFINITY) return false;
    this.#count.steps++;
    if (this.#working.length > 0 && this.#nowMs < eventMs) this.#work(this.#working.shift()!);
    else if (comesMs <= this.#agenda.firstMs) this.#comes();
    else this.#happens(this.#agenda.take());
    return true;
  }

  /** Every byte of every session again, and not what was kept beside. */
  #countBytes(): void {
    const { budgetBytes } = this.#told;
    const count = this.#count;
    let bytes = 0;
    for (const talk of this.#open) bytes += talk.isAway ? 0 : talk.pages.bytes;
    assert(bytes === this.#usedBytes, `sessions take ${bytes} bytes, and ${this.#usedBytes} are counted`);
    if (bytes > budgetBytes) count.overBudget++;
    count.peakBytes = Math.max(count.peakBytes, bytes);
    count.openMost = Math.max(count.openMost, this.#open.size);
  }

  #comes(): void {
    const conversation = this.#next!;
    this.#next = this.#arrival();
    this.#nowMs = Math.max(this.#nowMs, conversation.arriveMs);
    const talk = new Talk(`s${this.#count.sessions++}`, conversation, this.#told.ladder);
    this.#open.add(talk);
    this.#asks(talk);
  }

  #happens({ atMs, talk, what }: Event): void {
    this.#nowMs = Math.max(this.#nowMs, atMs);
    if (what === 'asks') this.#asks(talk);
    else {
      this.#close(talk);
      this.#admit();
    }
  }

  /** A call begins, or waits until there is room for its end. */
  #asks(talk: Talk): void {
    if (talk.turn > 0) this.#pauses.returned(talk.id, this.#nowMs - talk.idleSinceMs);
    talk.nextMs = this.#nowMs;
    const { promptTokens, answerTokens } = talk.conversation.turns[talk.turn]!;
    talk.toRead += promptTokens;
    talk.toWrite = answerTokens;
    const tokens = talk.tokens + talk.toRead + talk.toWrite;
    talk.needBytes = this.#told.ladder.leastBytes(tokens);
    if (this.#waiting.length === 0 && this.#fits(talk)) this.#begins(talk);
    else {
      this.#count.waited++;
      this.#waiting.push(talk);
      this.#admit();
    }
  }

  /** As admission has it: ends of those at work, and what those that wait cannot give up. */
  #fits(talk: Talk): boolean {
    const { budgetBytes, idle, ladder } = this.#told;
    let takenBytes = 0;
    for (const other of this.#open) {
      if (other === talk || other.state === 'parked') continue;
      if (other.state === 'working') takenBytes += other.needBytes;
      else if (idle === 'keep') takenBytes += other.leastBytes;
    }
    return takenBytes + talk.needBytes + ladder.bytes[0]! <= budgetBytes;
  }

  #admit(): void {
    for (let first = this.#waiting[0]; first !== undefined; first = this.#waiting[0]) {
      const isAlone = this.#working.length + this.#stuck.length === 0;
      if (!this.#fits(first)) {
        if (!isAlone) return;
        this.#count.refused++;
        this.#waiting.shift();
        this.#close(first);
        continue;
      }
      this.#waiting.shift();
      this.#begins(first);
    }
  }

  #begins(talk: Talk): void {
    const { goneTokens } = talk;
    if (talk.state === 'parked') {
      this.#count.cameBack++;
      this.#count.refaultedBytes += talk.parkedBytes;
    }
    // They are read in their turn, as any prompt is.
    this.#count.rereadTokens += goneTokens;
    this.#count.lostMs += (1000 * goneTokens) / this.#told.readsPerSecond;
    talk.goneTokens = 0;
    talk.idleMs = 0;
    talk.state = 'working';
    this.#working.push(talk);
  }

  /** Its pages come back as they were, or lower where there is no other way. → false: there is no room for them */
  #comesBack(talk: Talk): boolean {
    const { pages } = talk;
    if (!this.#hasRoom(talk, pages.bytes)) {
      if (this.#working.length > 0) return false;
      pages.giveUp(Number.POSITIVE_INFINITY);
      if (!this.#hasRoom(talk, pages.bytes)) return false;
    }
    talk.isAway = false;
    this.#usedBytes += pages.bytes;
    this.#lose(FILE_MS + FILE_MS_PER_BYTE * pages.bytes);
    return true;
  }

  #lose(ms: number): void {
    this.#count.lostMs += ms;
    this.#nowMs += ms;
  }

  /** A page of what is to be read, or written, or what is left of it. */
  #work(talk: Talk): void {
    const { readsPerSecond, writesPerSecond } = this.#told;
    const { pages } = talk;
    const reads = talk.toRead > 0;
    const rest = PAGE_TOKENS - (talk.tokens % PAGE_TOKENS);
    const tokens = Math.min(rest, reads ? talk.toRead : talk.toWrite);
    const dueBytes = pages.appendBytes(tokens);
    if ((talk.isAway && !this.#comesBack(talk)) || !this.#hasRoom(talk, dueBytes)) {
      if (this.#working.length > 0) this.#stuck.push(talk);
      else {
        // All others at work wait for it.
        this.#count.refused++;
        this.#close(talk);
        this.#admit();
      }
      return;
    }
    pages.append(tokens);
    this.#usedBytes += dueBytes;
    this.#nowMs += (1000 * tokens) / (reads ? readsPerSecond : writesPerSecond);
    if (reads) talk.toRead -= tokens;
    else this.#wrote(talk, tokens);
    if (talk.toRead + talk.toWrite > 0) this.#working.push(talk);
    else this.#rests(talk);
  }

  #wrote(talk: Talk, tokens: number): void {
    const [bits, divergence] = [talk.pages.bits, talk.conversation.weight * talk.pages.divergence];
    talk.toWrite -= tokens;
    for (const one of [talk, this.#count]) {
      one.written += tokens;
      one.bitsSum += tokens * bits;
      one.divergenceSum += tokens * divergence;
    }
  }

  /** Its answer is there. */
  #rests(talk: Talk): void {
    const { turns, closes } = talk.conversation;
    talk.turn++;
    talk.state = 'idle';
    talk.idleSinceMs = this.#nowMs;
    talk.leastBytes = this.#told.ladder.leastBytes(talk.tokens);
    this.#working.push(...this.#stuck.splice(0));
    const next = turns[talk.turn];
    talk.nextMs = this.#nowMs + (next?.thinkMs ?? Number.POSITIVE_INFINITY);
    if (next !== undefined) this.#agenda.put({ atMs: talk.nextMs, talk, what: 'asks' });
    else if (closes) this.#close(talk);
    else this.#agenda.put({ atMs: this.#nowMs + this.#told.lifeMs, talk, what: 'ends' });
    this.#admit();
  }

  #close(talk: Talk): void {
    this.#measure(talk);
    if (!talk.isAway) this.#usedBytes -= talk.pages.bytes;
    talk.pages.clear();
    talk.isAway = false;
    if (talk.state !== 'working') this.#pauses.gone(talk.id);
    talk.state = 'closed';
    this.#open.delete(talk);
    this.#working.push(...this.#stuck.splice(0));
  }

  #measure({ written, bitsSum, divergenceSum }: Talk): void {
    if (written < 64) return;
    const count = this.#count;
    count.worstBits = Math.min(count.worstBits, bitsSum / written);
    count.worstDivergence = Math.max(count.worstDivergence, divergenceSum / written);
  }

  /** Makes room for so many bytes, with a move beside them, in the order of an engine. */
  #hasRoom(talk: Talk, dueBytes: number): boolean {
    const { idle, ladder } = this.#told;
    const neededBytes = dueBytes + ladder.bytes[0]!;
    for (const rung of rungsOf(idle)) {
      if (this.#isRoom(neededBytes)) return true;
      this.#find(rung, talk, neededBytes);
    }
    return this.#isRoom(neededBytes);
  }

  /** As far as sessions have it here: they keep no originals, and nothing stays of those that are closed. */
  #find(rung: RungId, talk: Talk, neededBytes: number): void {
    if (rung === 'park' || rung === 'let-go') this.#park(talk, neededBytes);
    else if (rung === 'demote-waiting' || rung === 'demote' || rung === 'demote-all')
      this.#press(talk, neededBytes, rung);
  }

  #isRoom(bytes: number): boolean {
    return this.#told.budgetBytes - this.#usedBytes >= bytes;
  }

  /** Parks whom the policy names, until there is room. */
  #park(asking: Talk, neededBytes: number): void {
    const isLeft = (one: Talk): boolean => one.state === 'idle' && one !== asking && one.bytes > 0;
    let left = [...this.#open].filter(isLeft);
    while (!this.#isRoom(neededBytes)) {
      const next = this.#nextParked(left);
      if (next === null) return;
      left = left.filter((one) => one !== next);
      this.#parkOne(next);
    }
  }

  #nextParked(left: readonly Talk[]): Talk | null {
    const { parking } = this.#told;
    const waiting = new Set(this.#waiting);
    const waiters = left.map((talk): Waiter & { readonly talk: Talk } => ({
      ...{ talk, id: talk.id, idleMs: Math.max(1, Math.ceil(this.#nowMs - talk.idleSinceMs)) },
      ...{ freedBytes: talk.bytes, restoreMs: this.#restoreMs(talk) },
      ...{ ...this.#pauses.of(talk.id), isInLine: waiting.has(talk) },
    }));
    const { seen } = this.#pauses;
    const lru = LONGEST.next(waiters, seen) as (typeof waiters)[number] | null;
    const next = 'next' in parking ? (parking.next(waiters, seen) as typeof lru) : this.#compared(parking.id, waiters);
    if (next !== lru) this.#count.otherChoices++;
    return next?.talk ?? null;
  }

  #restoreMs({ bytes, tokens }: Talk): number {
    const { idle, readsPerSecond } = this.#told;
    return idle === 'disk' ? FILE_MS + FILE_MS_PER_BYTE * bytes : (1000 * tokens) / readsPerSecond;
  }

  #compared<One extends Waiter & { readonly talk: Talk }>(
    id: 'clairvoyant' | 'size',
    waiters: readonly One[],
  ): One | null {
    const measure = ({ talk, idleMs, freedBytes }: One): number =>
      id === 'clairvoyant' ? talk.nextMs : (idleMs * freedBytes) / (FILE_MS + FILE_MS_PER_BYTE * freedBytes);
    let found: One | null = null;
    for (const one of waiters) if (found === null || measure(one) > measure(found)) found = one;
    return found;
  }

  #parkOne(talk: Talk): void {
    const { bytes, tokens } = talk;
    this.#count.parked++;
    this.#count.parkedBytes += bytes;
    talk.parkedBytes = bytes;
    // Its call may wait already.
    talk.state = 'parked';
    this.#usedBytes -= bytes;
    if (this.#told.idle === 'disk') {
      talk.isAway = true;
      this.#lose(FILE_MS + FILE_MS_PER_BYTE * bytes);
      return;
    }
    talk.toRead += tokens;
    talk.goneTokens += tokens;
    talk.pages.clear();
  }

  /** What those that wait keep of so many tokens behind their window. */
  #boundBytes(behindTokens: number): number {
    const { layers, kvHeads, headDim } = this.#told.ladder.shape;
    return (WAITING_BITS / 8) * 2 * layers * kvHeads * headDim * behindTokens;
  }

  /** As the market of an engine: a part of what is needed of one after the other, as the policy says. */
  #press(asking: Talk, neededBytes: number, rung: 'demote-waiting' | 'demote' | 'demote-all'): void {
    const { policy, budgetBytes } = this.#told;
    const partBytes = Math.ceil((neededBytes - (budgetBytes - this.#usedBytes)) / PARTS);
    // Whoever comes back has no bytes in it yet. Those that have nothing to give would be asked once, for nothing.
    const isEverybody = rung === 'demote-all';
    const givableBytes = (one: Talk): number =>
      rung === 'demote-waiting' ? one.behindBytes - this.#boundBytes(one.behindTokens) : Number.POSITIVE_INFINITY;
    const canGive = (one: Talk): boolean => one.pages.canGive && givableBytes(one) > 0;
    const isAsked = (one: Talk): boolean =>
      rung === 'demote' || (one !== asking && (isEverybody || one.state === 'idle'));
    let members = [...this.#open].filter(
      (one) => one.state !== 'parked' && !one.isAway && isAsked(one) && canGive(one),
    );
    for (const one of members)
      one.idleMs = one.state === 'idle' ? Math.max(1, Math.ceil(this.#nowMs - one.idleSinceMs)) : 0;
    this.#count.askings++;
    while (!this.#isRoom(neededBytes)) {
      const next = giverOf(policy, members, asking, isEverybody) as Talk | null;
      if (next === null) return;
      this.#count.turns++;
      const lackingBytes = neededBytes - (budgetBytes - this.#usedBytes);
      const freedBytes = next.pages.giveUp(Math.min(lackingBytes, partBytes, givableBytes(next)));
      this.#usedBytes -= freedBytes;
      if (next !== asking) this.#count.givenBytes += freedBytes;
      if (!canGive(next)) members = members.filter((one) => one !== next);
    }
  }
}
