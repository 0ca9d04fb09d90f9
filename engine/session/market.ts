/**
 * Where the memory that sessions share is short, one after the other gives up a part of what is needed, as a policy of
 * the pool says (policy/pool.ts): by default whoever keeps its old pages in most bits of a number. Each decides by
 * itself which of its pages move.
 */
import type { PagePool } from '../../native/index.ts';
import { EVEN, type PoolPolicy } from '../../policy/index.ts';
import type { Governed } from '../cache/governed.ts';
import type { Group } from '../cache/group.ts';
import { giveUp } from '../cache/step.ts';
import type { Meter } from '../metrics/meter.ts';
import { AskingRecord } from './asking-record.ts';
import { type Candidate, type MarketRung, Members } from './members.ts';
import type { PoolSeries } from './pool-series.ts';
import type { Asker } from './reclaim.ts';
import type { Session } from './session.ts';

/** Parts in which what is needed is asked for: after each it may be another one's turn. */
const PARTS = 8;

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
    const { poolDeciding } = this.#parts.meter;
    const roomBytes = (): number => roomOf(asking, group);
    const partBytes = Math.ceil(Math.max(neededBytes - roomBytes(), 0) / PARTS);
    const members = new Members(asking, rung, this.#candidates({ asking, rung, group }));
    while (roomBytes() < neededBytes) {
      const next = record.next(members.able, members.own, roomBytes());
      if (next === null) break;
      const { cache, givableBytes } = members.find(next.id);
      const [before, situation] = [cache.kv.usedBytes, cache.situations];
      const roomNow = roomBytes();
      const part = Math.min(neededBytes - roomNow, partBytes, givableBytes);
      const goalBytes = roomNow + part - cache.room.spareBytes;
      poolDeciding.outside(() => giveUp(cache, goalBytes, cache === asking));
      const freedBytes = before - cache.kv.usedBytes;
      const movesLeft = cache.policy.movesLeft?.();
      record.gave({ freedBytes, situation, situations: cache.situations - situation, movesLeft });
      members.gave(cache, freedBytes);
      if (freedBytes > 0 && cache !== asking) given.set(cache, freedBytes + (given.get(cache) ?? 0));
    }
    record.end(roomBytes());
    return given;
  }

  /** Those that may be asked for bytes, and how long each has waited. */
  *#candidates({ asking, rung, group }: Omit<Pressed, 'neededBytes'>): Iterable<Candidate> {
    const nowMs = performance.now();
    for (const { governed, isClosed, isIdle, idleSinceMs } of this.#parts.sessions()) {
      if (isClosed || (governed === asking && rung !== 'demote')) continue;
      if (group !== null && governed.group !== group) continue;
      // One with a budget of its own was told what it may take, and is parked as it is.
      const isOwn = governed.terms.budgetBytes! < this.#parts.pool.budgetBytes;
      if (rung === 'demote-waiting' && (!isIdle || isOwn)) continue;
      // Whole, as the log has it, so that nothing is decided on what it does not say.
      yield { cache: governed, idleMs: isIdle ? Math.max(1, Math.ceil(nowMs - idleSinceMs)) : 0 };
    }
  }
}

const roomOf = ({ room }: Asker, group: Group | null): number => room.leftBytes(group);
