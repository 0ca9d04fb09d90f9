/**
 * Where the memory that sessions share is short, one after the other gives up a part of what is needed, as a policy of
 * the pool says (policy/pool.ts): by default whoever keeps its old pages in most bits. Each decides by itself which of
 * its pages move.
 */
import { movablePages, PAGE_TOKENS, type PagePool, SIDES, sealedPages } from '../../native/index.ts';
import { EVEN, LARGEST, type PoolMember, type PoolPolicy } from '../../policy/index.ts';
import type { Pressed } from '../cache/away.ts';
import type { Governed } from '../cache/governed.ts';
import { giveUp } from '../cache/step.ts';
import type { Meter } from '../metrics/meter.ts';
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
}

export class Market {
  readonly #parts: MarketParts;

  constructor(parts: MarketParts) {
    this.#parts = parts;
  }

  /**
   * Has pages of sessions go lower until the pool has room for so many bytes: of those that the policy of the pool
   * names, whoever asks among them, as long as it names somebody; or of all others.
   */
  press(asking: Governed, neededBytes: number, whom: Pressed): void {
    const { policy = EVEN, pool, meter } = this.#parts;
    for (const [cache, freedBytes] of this.#ask(asking, neededBytes, { whom, policy })) {
      const { budgetBytes } = pool;
      meter.tell('engine-budget-pressed', { session: cache.id, asking: asking.id, freedBytes, budgetBytes });
      // Its decisions alone do not say for whom they were made.
      const note = { gaveUpBytes: freedBytes, gaveUpFor: asking.id, gaveUpBy: policy.id, tokens: cache.length };
      cache.mover.write('note', note);
    }
  }

  /** → what others gave up */
  #ask(
    asking: Governed,
    neededBytes: number,
    { whom, policy }: { readonly whom: Pressed; readonly policy: PoolPolicy },
  ): ReadonlyMap<Governed, number> {
    const given = new Map<Governed, number>();
    const roomBytes = (): number => asking.room.poolRoomBytes ?? Number.POSITIVE_INFINITY;
    const partBytes = Math.ceil(Math.max(neededBytes - roomBytes(), 0) / PARTS);
    const spent = new Set<string>();
    while (roomBytes() < neededBytes) {
      const caches = this.#caches(asking, whom, spent);
      const members = [...caches.values()].map(({ cache, idleMs }) => memberOf(cache, idleMs));
      const own = memberOf(asking, 0);
      // Where all are asked, those that the policy spares give as well.
      const next = policy.next(members, own) ?? (whom === 'all' ? LARGEST.next(members, { ...own, bytes: -1 }) : null);
      if (next === null) break;
      const { cache } = caches.get(next.id)!;
      const before = cache.kv.usedBytes;
      giveUp(cache, Math.min(neededBytes, roomBytes() + partBytes) - cache.room.spareBytes, cache === asking);
      const freedBytes = before - cache.kv.usedBytes;
      if (freedBytes <= 0) spent.add(next.id);
      else if (cache !== asking) given.set(cache, freedBytes + (given.get(cache) ?? 0));
    }
    return given;
  }

  /** Those that can give up bytes, by their names, and how long each has waited. */
  #caches(asking: Governed, whom: Pressed, spent: ReadonlySet<string>) {
    const caches = new Map<string, { readonly cache: Governed; readonly idleMs: number }>();
    for (const { governed, isClosed, isIdle, idleSinceMs } of this.#parts.sessions()) {
      if (isClosed || spent.has(governed.id) || !canGiveUp(governed)) continue;
      if (governed === asking && whom === 'all') continue;
      const idleMs = isIdle ? performance.now() - idleSinceMs : 0;
      caches.set(governed.id, { cache: governed, idleMs });
    }
    return caches;
  }
}

function memberOf({ id, length: tokens, kv, shape, terms, policy }: Governed, idleMs: number): PoolMember {
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
    price: policy.cheapest?.(),
    idleMs,
  };
}

/** True if need of others may bring its pages lower: it is between two steps, and was promised no divergence. */
const canGiveUp = ({ terms, kv, length, shape, away, hasFailed }: Governed): boolean =>
  terms.budgetBytes !== null &&
  terms.kldBudget === null &&
  away === null &&
  !hasFailed &&
  kv.length(0) === length &&
  kv.length(shape.layers - 1) === length;
