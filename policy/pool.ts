/**
 * Who gives up bytes where sessions share one budget. Each step asks one of them for a part of what is needed, who then
 * decides by itself which of its pages move; asked again, it may be another one's turn. Pure, as all policies are.
 */

/** A session that could give up bytes, or asks for them. */
export interface PoolMember {
  readonly id: string;
  /** Tokens in its cache. */
  readonly tokens: number;
  /** Bytes that it takes now. */
  readonly bytes: number;
  /** Tokens in pages that have left its window, and their bytes. */
  readonly behindTokens: number;
  readonly behindBytes: number;
  /**
   * What a byte costs that it would give up first, in nats of its mean divergence; null: it has none to give;
   * undefined: it does not know what bytes cost.
   */
  readonly price: number | null | undefined;
  /** Milliseconds since a call has used it; 0: one uses it now. */
  readonly idleMs: number;
  /** How many bytes it keeps beside the 1 of others; left out: 1. */
  readonly weight?: number;
  /** Bytes of a token in f16, which differ where sessions are of several models; left out: that of all is the same. */
  readonly tokenBytes?: number;
}

export interface PoolPolicy {
  readonly id: string;
  /** Another one where it decides otherwise: both go into the log of the pool. */
  readonly version: number;
  /**
   * Who gives up the next part of what `asking` needs, which may be `asking` itself; null: nobody. `asking` is among
   * `members` where it can give up bytes.
   */
  next(members: readonly PoolMember[], asking: PoolMember): PoolMember | null;
}

/** The member of the largest measure; of equal ones the first. */
function most(members: readonly PoolMember[], measure: (member: PoolMember) => number): PoolMember | null {
  let found: PoolMember | null = null;
  for (const member of members) if (found === null || measure(member) > measure(found)) found = member;
  return found;
}

/** Of two that are alike otherwise, one of weight 2 has twice the bytes when it is its turn. */
const counted = (bytes: number, { weight = 1 }: PoolMember): number => bytes / weight;

/** Those that take more than whoever asks, the largest first. */
export const LARGEST: PoolPolicy = {
  id: 'largest',
  version: 1,
  next: (members, asking) =>
    most(
      members.filter((one) => counted(one.bytes, one) > counted(asking.bytes, asking)),
      (one) => counted(one.bytes, one),
    ),
};

/** By how much more a session that waits counts as having: nobody reads by its pages now. Chosen, not measured. */
const WAITING_WEIGHT = 1.25;

const waitingWeight = ({ idleMs }: PoolMember): number => (idleMs > 0 ? WAITING_WEIGHT : 1);

/** Whoever has most bytes for a token behind its window, in parts of `unit`. Sessions that wait pay first. */
const even = (version: number, unit: (member: PoolMember) => number): PoolPolicy => ({
  id: 'even',
  version,
  next: (members) =>
    most(
      members.filter(({ behindTokens }) => behindTokens > 0),
      (one) => (waitingWeight(one) * counted(one.behindBytes, one)) / one.behindTokens / unit(one),
    ),
});

/**
 * Whoever has most bits of a number behind its window, so that old pages of all sessions are kept in as many bits in
 * the mean, and what matters most in each has most of them.
 */
export const EVEN: PoolPolicy = even(2, ({ tokenBytes = 1 }) => tokenBytes);

/** By bytes for a token, which are as many bits only where all sessions are of one model. */
export const EVEN_ONE: PoolPolicy = even(1, () => 1);

/**
 * Whoever says that its bytes are the cheapest, as every token of every session counts alike. What sessions say of
 * their prices is not comparable enough: texts whose errors cost more than is known of them pay for the others
 * (docs/lab/policy.md).
 */
export const CHEAPEST: PoolPolicy = {
  id: 'price',
  version: 1,
  next: (members, asking) => {
    const priced = members.filter(({ price }) => typeof price === 'number');
    const cheapest = most(priced, (one) => -(one.price! * (one.weight ?? 1)) / waitingWeight(one));
    const others = LARGEST.next(
      members.filter(({ price }) => price === undefined),
      asking,
    );
    return cheapest === null || cheapest.id === asking.id ? (others ?? cheapest) : cheapest;
  },
};

/** Whoever is furthest above an equal share, and whoever asks where nobody is. */
export const EQUAL: PoolPolicy = {
  id: 'equal',
  version: 1,
  next: (members) => most(members, (one) => counted(one.bytes, one)),
};

/** Whoever takes most for its length. */
export const PROPORTIONAL: PoolPolicy = {
  id: 'proportional',
  version: 1,
  next: (members) => most(members, (one) => counted(one.bytes, one) / Math.max(1, one.tokens)),
};

/** Whoever has waited longest, then the largest. */
export const LEAST_RECENT: PoolPolicy = {
  id: 'lru',
  version: 1,
  next: (members, asking) => {
    const waiting = members.filter(({ idleMs }) => idleMs > 0);
    return most(waiting, ({ idleMs }) => idleMs) ?? LARGEST.next(members, asking);
  },
};

export const POOL_POLICIES: readonly PoolPolicy[] = [EVEN, CHEAPEST, LARGEST, EQUAL, PROPORTIONAL, LEAST_RECENT];
