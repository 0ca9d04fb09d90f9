/**
 * What the series of a pool has of each time that sessions were parked for another one: everything that the policy of
 * parking chose by, and whom it chose.
 */
import type { PausesEnded, PausesSeen, Waiter } from '../../policy/index.ts';
import {
  type Certain,
  count,
  difference,
  flag,
  list,
  object,
  optional,
  real,
  type TypeOf,
  text,
  whole,
} from './type.ts';

const waiter = object({
  id: text,
  idleMs: whole,
  freedBytes: whole,
  /** Or what is in proportion to them. */
  restoreMs: whole,
  /** Pauses that it has come back from, and the mean of the logarithms of their milliseconds; absent: none. */
  pauses: optional(count),
  meanLog: optional(real),
  /** Present: a call of it waits to begin. */
  isInLine: optional(flag),
});

const ended = object({ returned: count, gone: count });

const seen = object({ meanLog: real, withinLog: real, betweenLog: real, first: ended, later: ended });

const chosen = object({ id: text, freedBytes: difference });

export const poolParking = object({
  /** The policy of parking. */
  policy: text,
  version: count,
  /** The session that asks. */
  session: text,
  /** The rung of the ladder on which it asks. */
  rung: text,
  lackingBytes: whole,
  /** What is known of the pauses of all sessions. */
  seen,
  waiters: list(waiter),
  /** Whom it chose, one after the other, and what that freed: nothing where it could not be parked. */
  chosen: list(chosen),
  /** Choices that one entry has no room for, because sessions are too many: it has none of them then. */
  leftOut: optional(count),
});

export type PoolParking = TypeOf<typeof poolParking>;
export type LoggedWaiter = TypeOf<typeof waiter>;

type Same<A, B> = [Exclude<keyof A, keyof B>, Exclude<keyof B, keyof A>] extends [never, never] ? true : false;

/** Every field that policies of parking read is written. */
export type WaiterAgrees = Certain<
  [Same<Waiter, LoggedWaiter>, Same<PausesSeen, PoolParking['seen']>, Same<PausesEnded, TypeOf<typeof ended>>] extends [
    true,
    true,
    true,
  ]
    ? true
    : false
>;
