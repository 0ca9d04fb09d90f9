/**
 * One time that a session asks the pool for bytes: turn by turn who is asked, and everything that this followed from,
 * so that whoever reads it can decide it again. It is written down as changes: a turn changes few of many members.
 */
import { EVEN_ONE, LARGEST, POOL_POLICIES, type PoolMember, type PoolPolicy } from './pool.ts';

/** What one turn was decided on. */
export interface TurnSeen {
  /** Bytes of room before it. */
  readonly roomBytes: number;
  /** Members that are new or are not what they were a turn before. */
  readonly changed: readonly PoolMember[];
  /** Members that can give no more. */
  readonly gone: readonly string[];
  /** Whoever asks, where it is not what it was; null: it is. */
  readonly asking: PoolMember | null;
}

/** Everything that an asking follows from, at its beginning. */
export interface AskingSeen {
  readonly policy: PoolPolicy;
  /** True: where the policy names nobody, the largest of the others gives nevertheless. */
  readonly isEverybody: boolean;
  readonly neededBytes: number;
}

/** The members as they are, turn by turn. */
export class Asking {
  readonly #seen: AskingSeen;
  #members: readonly PoolMember[] = [];
  #asking: PoolMember | null = null;

  constructor(seen: AskingSeen) {
    this.#seen = seen;
  }

  /** Those that may be asked in this turn. */
  get members(): readonly PoolMember[] {
    return this.#members;
  }

  /** What of this is not as it was a turn before. */
  differences(members: readonly PoolMember[], asking: PoolMember, roomBytes: number): TurnSeen {
    const now = new Map(members.map((one) => [one.id, one]));
    const before = new Map(this.#members.map((one) => [one.id, one]));
    return {
      roomBytes,
      changed: members.filter((one) => !isSame(one, before.get(one.id) ?? null)),
      gone: this.#members.flatMap(({ id }) => (now.has(id) ? [] : [id])),
      asking: isSame(asking, this.#asking) ? null : asking,
    };
  }

  /** Who gives up the next part; null: nobody, because nobody can or there is room. */
  next({ roomBytes, changed, gone, asking }: TurnSeen): PoolMember | null {
    const { policy, isEverybody, neededBytes } = this.#seen;
    const now = new Map(changed.map((one) => [one.id, one]));
    const known = this.#members.filter(({ id }) => !gone.includes(id));
    const isKnown = new Set(known.map(({ id }) => id));
    this.#members = [...known.map((one) => now.get(one.id) ?? one), ...changed.filter(({ id }) => !isKnown.has(id))];
    this.#asking = asking ?? this.#asking;
    if (roomBytes >= neededBytes || this.#asking === null) return null;
    return giverOf(policy, this.#members, this.#asking, isEverybody);
  }
}

/**
 * Who gives up the next part; null: nobody. `isEverybody`: those that the policy spares give as well, where it names
 * nobody.
 */
export const giverOf = (
  policy: PoolPolicy,
  members: readonly PoolMember[],
  asking: PoolMember,
  isEverybody: boolean,
): PoolMember | null =>
  policy.next(members, asking) ?? (isEverybody ? LARGEST.next(members, { ...asking, bytes: -1 }) : null);

const FIELDS = [
  'id',
  'tokens',
  'bytes',
  'behindTokens',
  'behindBytes',
  'price',
  'idleMs',
  'weight',
  'tokenBytes',
] as const;

/** Does not compile where a field of a member is missing above. */
type Missing = Exclude<keyof PoolMember, (typeof FIELDS)[number]>;
const NOTHING_MISSING: [Missing] extends [never] ? true : Missing = true;

const isSame = (a: PoolMember, b: PoolMember | null): boolean =>
  NOTHING_MISSING && (a === b || (b !== null && FIELDS.every((name) => a[name] === b[name])));

/** The policy of the pool that decided so; null: there is none of this id and version. */
export const poolPolicy = (id: string, version: number): PoolPolicy | null =>
  [...POOL_POLICIES, EVEN_ONE].find((one) => one.id === id && one.version === version) ?? null;
