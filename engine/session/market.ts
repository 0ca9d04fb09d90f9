/**
 * Where the memory that sessions share is short, one after the other gives up a part of what is needed, as a policy of
 * the pool says (policy/pool.ts): by default whoever keeps its old pages in most bits of a number. Each decides by
 * itself which of its pages move.
 */
import { movablePages, PAGE_TOKENS, type PagePool, SIDES, sealedPages } from '../../native/index.ts';
import { EVEN, type PoolMember, type PoolPolicy, type RungId, WAITING_BITS } from '../../policy/index.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import { Governed } from '../cache/governed.ts';
import type { Group } from '../cache/group.ts';
import { giveUp } from '../cache/step.ts';
import type { Meter } from '../metrics/meter.ts';
import { AskingRecord } from './asking-record.ts';
import type { PoolSeries } from './pool-series.ts';
import type { Asker } from './reclaim.ts';
import type { Session } from './session.ts';

/** Parts in which what is needed is asked for: after each it may be another one's turn. */
const PARTS = 8;

/** The rungs of the ladder on which pages go lower. */
type MarketRung = Extract<RungId, `demote${string}`>;

/** Who needs bytes, and of whom. */
interface Pressed {
  readonly asking: Asker;
  readonly neededBytes: number;
  readonly rung: MarketRung;
  readonly group: Group | null;
}

interface MarketParts {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** Left out: `even`. */
  readonly policy?: PoolPolicy | undefined;
  /** Where each asking is written. */
  readonly series: PoolSeries;
}

export class Market {
  readonly #parts: MarketParts;

  constructor(parts: MarketParts) {
    this.#parts = parts;
  }

  /**
   * Has pages of sessions go lower until the pool has so many bytes more, as a rung of the ladder says: of those that
   * wait, down to a bound; of those that the policy of the pool names, whoever asks among them, as long as it names
   * somebody; or of all others. group: it and those in it alone, null: the pool and everybody.
   */
  press(asking: Asker, lackingBytes: number, rung: MarketRung, group: Group | null): void {
    const { policy = EVEN, pool, meter, series } = this.#parts;
    const { budgetBytes } = group ?? pool;
    const neededBytes = roomOf(asking, group) + lackingBytes;
    const record = new AskingRecord({
      policy,
      rung,
      isEverybody: rung === 'demote-all',
      neededBytes,
      budgetBytes,
      session: asking.id,
    });
    const given = this.#ask({ asking, neededBytes, rung, group }, record);
    const { body } = record;
    const gaveUpIn = body === null ? null : series.write({ pool: body });
    for (const [cache, freedBytes] of given) {
      meter.tell('engine-budget-pressed', { session: cache.id, asking: asking.id, freedBytes, budgetBytes });
      // Its decisions alone do not say for whom they were made.
      const note = { gaveUpBytes: freedBytes, gaveUpFor: asking.id, gaveUpBy: policy.id, rung, tokens: cache.length };
      cache.mover.write('note', gaveUpIn === null ? note : { ...note, gaveUpIn });
    }
  }

  /** → what others gave up */
  #ask({ asking, neededBytes, rung, group }: Pressed, record: AskingRecord): ReadonlyMap<Governed, number> {
    const given = new Map<Governed, number>();
    const roomBytes = (): number => roomOf(asking, group);
    const partBytes = Math.ceil(Math.max(neededBytes - roomBytes(), 0) / PARTS);
    const nowMs = performance.now();
    const spent = new Set<string>();
    while (roomBytes() < neededBytes) {
      const caches = this.#caches({ asking, rung, group }, spent, nowMs);
      const members = [...caches.values()].map(({ cache, idleMs }) => memberOf(cache, idleMs));
      const next = record.next(members, askerOf(asking), roomBytes());
      if (next === null) break;
      const { cache } = caches.get(next.id)!;
      const [before, situation] = [cache.kv.usedBytes, cache.situations];
      const roomNow = roomBytes();
      const part = Math.min(neededBytes - roomNow, partBytes, givableBytes(cache, rung));
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
  #caches({ asking, rung, group }: Omit<Pressed, 'neededBytes'>, spent: ReadonlySet<string>, nowMs: number) {
    const caches = new Map<string, { readonly cache: Governed; readonly idleMs: number }>();
    for (const { governed, isClosed, isIdle, idleSinceMs } of this.#parts.sessions()) {
      if (isClosed || spent.has(governed.id) || !canGiveUp(governed, rung)) continue;
      if (governed === asking && rung !== 'demote') continue;
      if (group !== null && governed.group !== group) continue;
      // One with a budget of its own was told what it may take, and is parked as it is.
      const isOwn = governed.terms.budgetBytes! < this.#parts.pool.budgetBytes;
      if (rung === 'demote-waiting' && (!isIdle || isOwn)) continue;
      // Whole, as the log has it, so that nothing is decided on what it does not say.
      const idleMs = isIdle ? Math.max(1, Math.ceil(nowMs - idleSinceMs)) : 0;
      caches.set(governed.id, { cache: governed, idleMs });
    }
    return caches;
  }
}

const roomOf = ({ room }: Asker, group: Group | null): number => room.leftBytes(group);

/** Bytes that a cache may give up on a rung. */
function givableBytes(cache: Governed, rung: MarketRung): number {
  if (rung !== 'demote-waiting') return cache.givableBytes;
  const { shape } = cache;
  const { behindTokens, behindBytes } = behindOf(cache);
  const boundBytes = (WAITING_BITS / 16) * f16CacheBytes(shape, behindTokens);
  return Math.min(cache.givableBytes, Math.ceil(behindBytes - boundBytes));
}

/** What is behind the window of a cache. */
function behindOf({ length: tokens, kv, shape, terms }: Governed): Pick<PoolMember, 'behindTokens' | 'behindBytes'> {
  const { windowTokens, windowFormat, pageBytes } = terms.context;
  const behindPages = movablePages(tokens, windowTokens);
  const windowPages = sealedPages(tokens) - behindPages;
  const windowBytes = windowPages * shape.layers * SIDES.length * pageBytes[windowFormat];
  return {
    behindTokens: behindPages * PAGE_TOKENS,
    behindBytes: Math.max(0, kv.memory().pageBytes - windowBytes),
  };
}

/** Whoever is no session has no pages to give. */
const askerOf = (asking: Asker): PoolMember =>
  asking instanceof Governed
    ? memberOf(asking, 0)
    : { id: asking.id, tokens: 0, bytes: 0, behindTokens: 0, behindBytes: 0, price: null, idleMs: 0 };

function memberOf(cache: Governed, idleMs: number): PoolMember {
  const { id, length: tokens, kv, policy, shape, stake } = cache;
  return {
    id,
    tokens,
    bytes: kv.usedBytes,
    ...behindOf(cache),
    price: priceOf(policy.cheapest?.()),
    idleMs,
    tokenBytes: f16CacheBytes(shape, 1),
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
function canGiveUp(cache: Governed, rung: MarketRung): boolean {
  const { terms, kv, length, shape, away, hasFailed } = cache;
  return (
    terms.budgetBytes !== null &&
    terms.kldBudget === null &&
    away === null &&
    !hasFailed &&
    kv.length(0) === length &&
    kv.length(shape.layers - 1) === length &&
    givableBytes(cache, rung) > 0
  );
}
