/**
 * Where the memory that sessions share is short, one after the other gives up a part of what is needed, as a policy of
 * the pool says (policy/pool.ts): by default whoever keeps its old pages in most bits. Each decides by itself which of
 * its pages move.
 */
import { movablePages, PAGE_TOKENS, type PagePool, SIDES, sealedPages } from '../../native/index.ts';
import { EVEN, type PoolMember, type PoolPolicy } from '../../policy/index.ts';
import { newPoolId, type PoolAsking, type WitnessLog } from '../../witness/index.ts';
import type { Pressed } from '../cache/away.ts';
import type { Governed } from '../cache/governed.ts';
import { giveUp } from '../cache/step.ts';
import type { Meter } from '../metrics/meter.ts';
import { AskingRecord } from './asking-record.ts';
import type { Session } from './session.ts';

/** Parts in which what is needed is asked for: after each it may be another one's turn. */
const PARTS = 8;

interface MarketParts {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** Left out: `even`. */
  readonly policy?: PoolPolicy | undefined;
  /** Where each asking is written, in a series of the pool's own; left out: nowhere. */
  readonly log?: WitnessLog | undefined;
}

export class Market {
  readonly #parts: MarketParts;
  /** Names the series of the pool in the log. */
  readonly #id = newPoolId();

  constructor(parts: MarketParts) {
    this.#parts = parts;
  }

  /**
   * Has pages of sessions go lower until the pool has room for so many bytes: of those that the policy of the pool
   * names, whoever asks among them, as long as it names somebody; or of all others.
   */
  press(asking: Governed, neededBytes: number, whom: Pressed): void {
    const { policy = EVEN, pool, meter } = this.#parts;
    const { budgetBytes } = pool;
    const record = new AskingRecord({
      policy,
      isEverybody: whom === 'all',
      neededBytes,
      budgetBytes,
      session: asking.id,
    });
    const given = this.#ask(asking, neededBytes, whom, record);
    const gaveUpIn = this.#write(record.body);
    for (const [cache, freedBytes] of given) {
      meter.tell('engine-budget-pressed', { session: cache.id, asking: asking.id, freedBytes, budgetBytes });
      // Its decisions alone do not say for whom they were made.
      const note = { gaveUpBytes: freedBytes, gaveUpFor: asking.id, gaveUpBy: policy.id, tokens: cache.length };
      cache.mover.write('note', gaveUpIn === null ? note : { ...note, gaveUpIn });
    }
  }

  /** → seq of the entry; null: there is none */
  #write(pool: PoolAsking | null): number | null {
    const { log, meter } = this.#parts;
    if (pool === null || log === undefined) return null;
    const seq = log.append(this.#id, 'note', { pool });
    if (seq === null) meter.dropped.add({});
    return seq;
  }

  /** → what others gave up */
  #ask(asking: Governed, neededBytes: number, whom: Pressed, record: AskingRecord): ReadonlyMap<Governed, number> {
    const given = new Map<Governed, number>();
    const roomBytes = (): number => asking.room.poolRoomBytes ?? Number.POSITIVE_INFINITY;
    const partBytes = Math.ceil(Math.max(neededBytes - roomBytes(), 0) / PARTS);
    const nowMs = performance.now();
    const spent = new Set<string>();
    while (roomBytes() < neededBytes) {
      const caches = this.#caches(asking, whom, spent, nowMs);
      const members = [...caches.values()].map(({ cache, idleMs }) => memberOf(cache, idleMs));
      const next = record.next(members, memberOf(asking, 0), roomBytes());
      if (next === null) break;
      const { cache } = caches.get(next.id)!;
      const [before, situation] = [cache.kv.usedBytes, cache.situations];
      const roomNow = roomBytes();
      const part = Math.min(neededBytes - roomNow, partBytes, cache.givableBytes);
      giveUp(cache, roomNow + part - cache.room.spareBytes, cache === asking);
      const freedBytes = before - cache.kv.usedBytes;
      const movesLeft = cache.policy.movesLeft?.();
      record.gave({ freedBytes, situation, situations: cache.situations - situation, movesLeft });
      if (freedBytes <= 0) spent.add(next.id);
      else if (cache !== asking) given.set(cache, freedBytes + (given.get(cache) ?? 0));
    }
    record.end(roomBytes());
    return given;
  }

  /** Those that can give up bytes, by their names, and how long each has waited. */
  #caches(asking: Governed, whom: Pressed, spent: ReadonlySet<string>, nowMs: number) {
    const caches = new Map<string, { readonly cache: Governed; readonly idleMs: number }>();
    for (const { governed, isClosed, isIdle, idleSinceMs } of this.#parts.sessions()) {
      if (isClosed || spent.has(governed.id) || !canGiveUp(governed)) continue;
      if (governed === asking && whom === 'all') continue;
      // Whole, as the log has it, so that nothing is decided on what it does not say.
      const idleMs = isIdle ? Math.max(1, Math.ceil(nowMs - idleSinceMs)) : 0;
      caches.set(governed.id, { cache: governed, idleMs });
    }
    return caches;
  }
}

function memberOf(cache: Governed, idleMs: number): PoolMember {
  const { id, length: tokens, kv, shape, terms, policy, stake } = cache;
  const { windowTokens, windowFormat, pageBytes } = terms.context;
  const behindPages = movablePages(tokens, windowTokens);
  const windowPages = sealedPages(tokens) - behindPages;
  const windowBytes = windowPages * shape.layers * SIDES.length * pageBytes[windowFormat];
  return {
    id,
    tokens,
    bytes: kv.usedBytes,
    behindTokens: behindPages * PAGE_TOKENS,
    behindBytes: Math.max(0, kv.memory().pageBytes - windowBytes),
    price: priceOf(policy.cheapest?.()),
    idleMs,
    ...(stake.weight === 1 ? {} : { weight: stake.weight }),
  };
}

/** A policy of one's own may answer anything. */
const priceOf = (price: unknown): PoolMember['price'] =>
  price === null || (typeof price === 'number' && Number.isFinite(price)) ? price : undefined;

/**
 * True if need of others may bring its pages lower: it is between two steps, was promised no divergence, and has more
 * than its floor.
 */
const canGiveUp = ({ terms, kv, length, shape, away, hasFailed, givableBytes }: Governed): boolean =>
  terms.budgetBytes !== null &&
  terms.kldBudget === null &&
  away === null &&
  !hasFailed &&
  givableBytes > 0 &&
  kv.length(0) === length &&
  kv.length(shape.layers - 1) === length;
