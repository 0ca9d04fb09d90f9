/**
 * Which of the sessions that wait is parked first where others need its memory: whoever is expected to cost least for
 * a byte, by how likely it is used again soon and by how long it takes until it is back. How likely that is follows
 * from how long it has waited, from the pauses that it has come back from, and from those of all sessions. Pure, as all
 * policies are.
 */
import type { PausesOf, PausesSeen } from './pauses.ts';

/** A session that waits and could be parked. */
export interface Waiter extends PausesOf {
  readonly id: string;
  /** Milliseconds since a call used it. */
  readonly idleMs: number;
  /** What parking it would free. */
  readonly freedBytes: number;
  /** Milliseconds that it takes until it is back, or what is in proportion to them. */
  readonly restoreMs: number;
  /** True: a call of it waits to begin. */
  readonly isInLine: boolean;
}

export interface ParkingPolicy {
  readonly id: string;
  /** Another one where it decides otherwise: both go into the log of the pool. */
  readonly version: number;
  /** Who is parked next; null: nobody waits. */
  next(waiters: readonly Waiter[], seen: PausesSeen): Waiter | null;
}

/** Of those that no call waits for, or else of all, the one of the least measure; of equal ones the first. */
function least(waiters: readonly Waiter[], measure: (waiter: Waiter) => number): Waiter | null {
  const free = waiters.filter(({ isInLine }) => !isInLine);
  let found: Waiter | null = null;
  let of = Number.POSITIVE_INFINITY;
  for (const waiter of free.length > 0 ? free : waiters) {
    const now = measure(waiter);
    if (found !== null && !(now < of)) continue;
    found = waiter;
    of = now;
  }
  return found;
}

/** Whoever has waited longest. */
export const LONGEST: ParkingPolicy = {
  id: 'lru',
  version: 1,
  next: (waiters) => least(waiters, ({ idleMs }) => -idleMs),
};

/**
 * How likely a session is used again within so long as half of all pauses take. Pauses are taken to be log-logistic,
 * which has what log-normal ones have here and a survival that is a quotient; and some never end.
 */
export function returnsSoon({ idleMs, pauses, meanLog }: Waiter, seen: PausesSeen): number {
  const { withinLog, betweenLog } = seen;
  // Sessions whose pauses are as different as those of all say nothing of themselves.
  const own = (pauses * betweenLog) / (pauses * betweenLog + withinLog);
  const median = Math.exp(own * meanLog + (1 - own) * seen.meanLog);
  const varianceLog = withinLog + betweenLog;
  const shape = Math.PI / Math.sqrt(3 * varianceLog);
  const stays = (ms: number): number => 1 / (1 + Math.exp(shape * Math.log(ms / median)));
  const { returned, gone } = pauses === 0 ? seen.first : seen.later;
  const returns = (returned + 1) / (returned + gone + 2);
  const now = stays(idleMs);
  const isThere = (returns * now) / (returns * now + 1 - returns);
  return isThere * (1 - stays(idleMs + Math.exp(seen.meanLog)) / now);
}

/** Whoever is expected to cost least time for a byte that parking it frees. */
export const RETURNING: ParkingPolicy = {
  id: 'returning',
  version: 1,
  next: (waiters, seen) =>
    least(waiters, (waiter) => (returnsSoon(waiter, seen) * waiter.restoreMs) / waiter.freedBytes),
};

export const PARKING_POLICIES: readonly ParkingPolicy[] = [RETURNING, LONGEST];

/** The policy of parking that chose so; null: there is none of this id and version. */
export const parkingPolicy = (id: string, version: number): ParkingPolicy | null =>
  PARKING_POLICIES.find((one) => one.id === id && one.version === version) ?? null;

/** Who is parked one after the other, as long as somebody takes them; each is chosen among those that are left. */
export function* parkedInTurn<One extends Waiter>(
  policy: ParkingPolicy,
  waiters: readonly One[],
  seen: PausesSeen,
): Generator<One> {
  let left = waiters;
  for (;;) {
    const next = policy.next(left, seen) as One | null;
    if (next === null) return;
    left = left.filter((one) => one !== next);
    yield next;
  }
}
