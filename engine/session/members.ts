/**
 * The sessions that could give up bytes while one asks for some, as the policy of the pool sees them. Between two turns
 * only whoever gave has changed, and those that hold pages together with it.
 */
import { movablePages, PAGE_TOKENS, SIDES, sealedPages } from '../../native/index.ts';
import { type PoolMember, type RungId, WAITING_BITS } from '../../policy/index.ts';
import { f16CacheBytes } from '../cache/budget.ts';
import { Governed } from '../cache/governed.ts';
import type { Asker } from './reclaim.ts';

/** The rungs of the ladder on which pages go lower. */
export type MarketRung = Extract<RungId, `demote${string}`>;

/** A session, and for how long it has waited, in milliseconds; 0: a call uses it now. */
export interface Candidate {
  readonly cache: Governed;
  readonly idleMs: number;
}

/** What is behind the window of a cache. */
type Behind = Pick<PoolMember, 'behindTokens' | 'behindBytes'>;

/** One that can give up bytes, and how many. */
interface Able {
  readonly member: PoolMember;
  readonly givableBytes: number;
}

/** A candidate as it is now. */
interface Standing extends Candidate {
  /** null: it can give up nothing. */
  able: Able | null;
  /** It was asked and gave nothing. */
  isSpent: boolean;
}

export class Members {
  readonly #asking: Asker;
  readonly #rung: MarketRung;
  /** By their names, in the order in which they came. */
  readonly #standings = new Map<string, Standing>();
  #own: PoolMember;

  constructor(asking: Asker, rung: MarketRung, candidates: Iterable<Candidate>) {
    this.#asking = asking;
    this.#rung = rung;
    this.#own = askerOf(asking);
    for (const candidate of candidates)
      this.#standings.set(candidate.cache.id, { ...candidate, able: this.#ableOf(candidate), isSpent: false });
  }

  /** Those that can give up bytes. */
  get able(): readonly PoolMember[] {
    return [...this.#standings.values()].flatMap(({ able }) => (able === null ? [] : [able.member]));
  }

  /** Whoever asks. */
  get own(): PoolMember {
    return this.#own;
  }

  /** A session among those that can, and how many bytes it may give up. */
  find(id: string): { readonly cache: Governed; readonly givableBytes: number } {
    const { cache, able } = this.#standings.get(id)!;
    return { cache, givableBytes: able!.givableBytes };
  }

  /** One was asked, and gave so many bytes: none means that it has no more to give. */
  gave(giver: Governed, freedBytes: number): void {
    for (const one of this.#standings.values()) {
      one.isSpent ||= one.cache === giver && freedBytes <= 0;
      if (isTouched(one.cache, giver)) one.able = one.isSpent ? null : this.#ableOf(one);
    }
    const asking = this.#asking;
    // One that is about to have its pages back holds some with others already, as whose kin it is not counted yet.
    if (asking instanceof Governed && (asking.away !== null || isTouched(asking, giver))) this.#own = askerOf(asking);
  }

  /** What one may give up now; null: nothing. */
  #ableOf({ cache, idleMs }: Candidate): Able | null {
    if (!isMovable(cache)) return null;
    const behind = behindOf(cache);
    const givableBytes = Math.min(cache.givableBytes, this.#spareBytes(cache, behind));
    return givableBytes > 0 ? { member: memberOf(cache, idleMs, behind), givableBytes } : null;
  }

  /** One that waits is left so many bits of a number. */
  #spareBytes({ shape }: Governed, { behindTokens, behindBytes }: Behind): number {
    if (this.#rung !== 'demote-waiting') return Number.POSITIVE_INFINITY;
    return Math.ceil(behindBytes - (WAITING_BITS / 16) * f16CacheBytes(shape, behindTokens));
  }
}

/** True if moves of `giver` change what a cache takes: forks have one account, and pages may be held together. */
const isTouched = (cache: Governed, giver: Governed): boolean =>
  cache.kin.has(giver.kin) || cache.kin.sharedWith(giver.kin) > 0;

function behindOf({ length: tokens, kv, shape, terms }: Governed): Behind {
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
    ? memberOf(asking, 0, behindOf(asking))
    : { id: asking.id, tokens: 0, bytes: 0, behindTokens: 0, behindBytes: 0, price: null, idleMs: 0 };

function memberOf(cache: Governed, idleMs: number, behind: Behind): PoolMember {
  const { id, length: tokens, kv, policy, shape, stake } = cache;
  return {
    id,
    tokens,
    bytes: kv.usedBytes,
    ...behind,
    price: priceOf(policy.cheapest?.()),
    idleMs,
    tokenBytes: f16CacheBytes(shape, 1),
    ...(stake.weight === 1 ? {} : { weight: stake.weight }),
  };
}

/** A policy of one's own may answer anything. */
const priceOf = (price: unknown): PoolMember['price'] =>
  price === null || (typeof price === 'number' && Number.isFinite(price)) ? price : undefined;

/** True if need of others may bring its pages lower: it is between two steps, and was promised no divergence. */
function isMovable({ terms, kv, length, shape, away, hasFailed }: Governed): boolean {
  return (
    terms.budgetBytes !== null &&
    terms.kldBudget === null &&
    away === null &&
    !hasFailed &&
    kv.length(0) === length &&
    kv.length(shape.layers - 1) === length
  );
}
