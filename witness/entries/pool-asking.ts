/**
 * What the series of a pool has of each time that a session asked for bytes: everything that the policy of the pool
 * decided on, turn by turn, and what it decided.
 */
import type { PoolMember } from '../../policy/index.ts';
import {
  type Certain,
  count,
  difference,
  flag,
  list,
  nullable,
  object,
  optional,
  real,
  type TypeOf,
  text,
  whole,
} from './type.ts';

const member = object({
  id: text,
  tokens: whole,
  bytes: whole,
  behindTokens: whole,
  behindBytes: whole,
  /** In nats a byte; null: it has none to give, absent: it does not know. */
  price: optional(nullable(real)),
  idleMs: whole,
  /** How many bytes it keeps beside the 1 of others; absent: 1. */
  weight: optional(real),
  /** Bytes of one of its tokens in f16; absent: earlier builds did not say it. */
  tokenBytes: optional(whole),
});

const turn = object({
  /** Bytes of room before it. */
  roomBytes: difference,
  /** Members that are new, or are not what they were a turn before, and those that can give no more. */
  changed: optional(list(member)),
  gone: optional(list(text)),
  /** Whoever asks, where it is not what it was. */
  asking: optional(member),
  /** Who was asked; null: nobody. */
  asked: nullable(text),
  freedBytes: difference,
  /** The first situation on which that session decided for it, and how many there were; absent: none. */
  situation: optional(count),
  situations: optional(count),
  /** Moves that this session could have made as well, none of them cheaper; absent: it does not know. */
  movesLeft: optional(count),
});

/** No turn of an asking is the last before so many: an eighth of what is needed is asked for at a time. */
const TURNS_MAX = 65_536;

export const poolAsking = object({
  /** The policy of the pool. */
  policy: text,
  version: count,
  /** The session that asks. */
  session: text,
  /** The rung of the ladder on which it asks; absent: logs of earlier builds do not say. */
  rung: optional(text),
  /** True: where the policy names nobody, the largest of the others gives nevertheless. */
  isEverybody: flag,
  neededBytes: whole,
  budgetBytes: whole,
  turns: list(turn, 0, TURNS_MAX),
  /** Turns that one entry has no room for, because sessions are too many: it has none of them then. */
  leftOut: optional(count),
});

export type PoolAsking = TypeOf<typeof poolAsking>;
export type PoolTurn = TypeOf<typeof turn>;
export type LoggedMember = TypeOf<typeof member>;

/** Every field that policies of the pool read is written. */
export type MemberAgrees = Certain<
  [Exclude<keyof PoolMember, keyof LoggedMember>, Exclude<keyof LoggedMember, keyof PoolMember>] extends [never, never]
    ? true
    : false
>;
