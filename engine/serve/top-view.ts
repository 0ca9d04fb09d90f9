/**
 * What the log of a state folder says of the sessions that are open now, and of the pools that they share. Fed entry by
 * entry, so that only what is new is read at each look.
 */
import {
  askingIn,
  type Entry,
  givenIn,
  type LoggedMember,
  type OpenBody,
  type PoolAsking,
  seriesOf,
} from '../../witness/index.ts';
import type { TopPool, TopRow } from './page/snapshot.ts';

interface Seen {
  readonly model: string;
  readonly series: number;
  readonly f16BytesPerToken: number;
  readonly floorBytes: number;
  readonly weight: number;
  tokens: number;
  bytes: number;
  budgetBytes: number | null;
  gaveUpBytes: number;
  price: number | null;
  /** What the next byte that it gives others costs; absent: it does not know. */
  offer?: number | null | undefined;
  isParked: boolean;
  /** The last two times at which its tokens were told, and what they were. */
  before: { readonly timeMs: number; readonly tokens: number };
  last: { readonly timeMs: number; readonly tokens: number };
}

/** A session that was not heard of for so long waits, or longer where it was heard of more rarely before. */
const QUIET_MS = 5000;

export class TopView {
  readonly #sessions = new Map<string, Seen>();
  readonly #pools = new Map<number, Omit<TopPool, 'bytes'>>();

  add(entry: Entry): void {
    const { kind, session } = entry;
    if (kind === 'open') this.#sessions.set(session, opened(entry as Entry<'open'>));
    if (kind === 'close' || kind === 'erase') this.#sessions.delete(session);
    const asking = askingIn(entry);
    if (asking !== null) this.#asked(entry, asking);
    const seen = this.#sessions.get(session);
    if (seen === undefined) return;
    if (kind === 'situation') situate(seen, entry as Entry<'situation'>);
    if (kind === 'note') note(seen, entry as Entry<'note'>);
    if (kind === 'decision') {
      const { verdict, decision, bytesAfter } = (entry as Entry<'decision'>).body;
      seen.bytes = bytesAfter;
      if (verdict.accepted && decision.price !== null) seen.price = decision.price;
    }
  }

  /** Forgets a session whose entries cannot be opened. */
  forget(session: string): void {
    this.#sessions.delete(session);
  }

  /** Open sessions, those that take most bytes first. `isWritten`: whether somebody still writes a series. */
  rows(nowMs: number, isWritten: (series: number) => boolean): TopRow[] {
    return this.#open(isWritten)
      .map(([session, seen]) => rowOf(session, seen, nowMs))
      .sort((a, b) => b.bytes - a.bytes || (a.session < b.session ? -1 : 1));
  }

  pools(isWritten: (series: number) => boolean): TopPool[] {
    const open = this.#open(isWritten);
    const bytesIn = (series: number): number =>
      open.reduce((sum, [, seen]) => sum + (seen.series === series && !seen.isParked ? seen.bytes : 0), 0);
    return [...this.#pools].flatMap(([series, pool]) =>
      isWritten(series) ? [{ ...pool, bytes: bytesIn(series) }] : [],
    );
  }

  #open(isWritten: (series: number) => boolean): [string, Seen][] {
    return [...this.#sessions].filter(([, { series }]) => isWritten(series));
  }

  #asked({ seq, session: pool }: Entry, asking: PoolAsking): void {
    const series = seriesOf(seq);
    const { budgetBytes, turns, session } = asking;
    const known = this.#pools.get(series);
    const { askings, givenBytes } = known?.pool === pool ? known : { askings: 0, givenBytes: 0 };
    const given = [...givenIn(asking)].reduce((sum, [id, bytes]) => sum + (id === session ? 0 : bytes), 0);
    let price = known?.pool === pool ? known.price : null;
    for (const { changed = [], asked } of turns) {
      for (const member of changed) this.#member(member);
      price = this.#sessions.get(asked ?? '')?.offer ?? price;
    }
    this.#pools.set(series, { pool, budgetBytes, askings: askings + 1, givenBytes: givenBytes + given, price });
  }

  #member({ id, bytes, price }: LoggedMember): void {
    const seen = this.#sessions.get(id);
    if (seen !== undefined) Object.assign(seen, { bytes, offer: price });
  }
}

/** Bytes of a number in f16, and keys and values. */
const F16_BYTES = 2;
const SIDES = 2;

function opened({ seq, timeMs, body }: Entry<'open'>): Seen {
  const { model, shape, requested, effective } = body satisfies OpenBody;
  const start = { timeMs, tokens: 0 };
  return {
    ...{
      model: model.name,
      series: seriesOf(seq),
      tokens: 0,
      bytes: 0,
      budgetBytes: null,
      gaveUpBytes: 0,
      price: null,
    },
    f16BytesPerToken: F16_BYTES * SIDES * shape.layers * shape.kvHeads * shape.headDim,
    ...{ floorBytes: numberIn(effective, 'floorBytes', 0), weight: numberIn(requested, 'kvWeight', 1) },
    ...{ isParked: false, before: start, last: start },
  };
}

/** A note of what was asked for may say anything. */
function numberIn(told: Readonly<Record<string, unknown>>, name: string, otherwise: number): number {
  const value = told[name];
  return typeof value === 'number' ? value : otherwise;
}

function situate(seen: Seen, { timeMs, body }: Entry<'situation'>): void {
  const { tokens, bytes, budgetBytes, canaryBytes = 0 } = body.situation;
  // A policy is told of both without what is kept for measuring.
  Object.assign(seen, { bytes: bytes + canaryBytes, isParked: false });
  seen.budgetBytes = budgetBytes === null ? null : budgetBytes + canaryBytes;
  hear(seen, timeMs, tokens);
}

function hear(seen: Seen, timeMs: number, tokens: number): void {
  if (tokens !== seen.tokens) Object.assign(seen, { before: seen.last, last: { timeMs, tokens } });
  seen.tokens = tokens;
}

function note(seen: Seen, { timeMs, body }: Entry<'note'>): void {
  const { idle, tokens, bytesAfter, gaveUpBytes } = body;
  if (typeof tokens === 'number' && idle === undefined) hear(seen, timeMs, tokens);
  if (typeof gaveUpBytes === 'number') seen.gaveUpBytes += gaveUpBytes;
  if (idle === 'parked') seen.isParked = true;
  if (idle === 'woken') seen.isParked = false;
  if (idle !== undefined && typeof bytesAfter === 'number') seen.bytes = bytesAfter;
}

function rowOf(session: string, seen: Seen, nowMs: number): TopRow {
  const { model, tokens, bytes, budgetBytes, isParked, before, last, f16BytesPerToken } = seen;
  const { gaveUpBytes, price, floorBytes, weight } = seen;
  const tookMs = last.timeMs - before.timeMs;
  const isQuiet = nowMs - last.timeMs > Math.max(QUIET_MS, 2 * tookMs);
  const state = isParked ? 'parked' : isQuiet ? 'waiting' : 'working';
  const rate = tookMs > 0 ? (1000 * Math.max(0, last.tokens - before.tokens)) / tookMs : 0;
  const f16Bytes = tokens * f16BytesPerToken;
  return {
    ...{ session, model, state, tokens, tokensPerSecond: state === 'working' ? rate : 0, bytes, budgetBytes },
    bits: f16Bytes === 0 || isParked ? null : (8 * F16_BYTES * bytes) / f16Bytes,
    ...{ gaveUpBytes, price, floorBytes, weight },
  };
}
