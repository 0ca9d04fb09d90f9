/**
 * Chooses again who was parked for others, from the series of a pool alone: the policy of parking gets what it chose
 * by, and must name whom the log names, one after the other, until so much is free as was lacking.
 */
import { plural } from '../native/index.ts';
import { parkedInTurn, parkingPolicy, type Waiter } from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import type { LoggedWaiter, PoolParking } from './entries/pool-parking.ts';
import type { Difference } from './replay-report.ts';

/** The first thing that does not follow from the rest of it; null: all does. */
export function parkingDifference(body: PoolParking): Omit<Difference, 'seq'> | null {
  const { policy: id, version, seen, waiters, chosen, lackingBytes, leftOut } = body;
  const policy = parkingPolicy(id, version);
  if (policy === null)
    return { what: 'policy', logged: `${id}@${version}`, replayed: 'a policy of parking that this version knows' };
  if (leftOut !== undefined && waiters.length === 0 && chosen.length === 0) return null;
  const inTurn = parkedInTurn(policy, waiters.map(waiterIn), seen);
  let freedBytes = 0;
  for (const [at, one] of chosen.entries()) {
    const next = freedBytes >= lackingBytes ? null : (inTurn.next().value?.id ?? null);
    if (next !== one.id) return { what: 'turn', logged: turnText(at, one.id), replayed: turnText(at, next) };
    freedBytes += one.freedBytes;
  }
  if (freedBytes >= lackingBytes || chosen.length === waiters.length) return null;
  return {
    what: 'end',
    logged: `${plural(chosen.length, 'session was', 'sessions were')} parked of ${waiters.length}`,
    replayed: 'sessions are parked until enough is free',
  };
}

const waiterIn = ({ pauses = 0, meanLog = 0, isInLine = false, ...waiter }: LoggedWaiter): Waiter => ({
  ...waiter,
  pauses,
  meanLog,
  isInLine,
});

const turnText = (at: number, id: string | null): string => `turn ${at}: ${id === null ? 'nobody' : canonicalJson(id)}`;
