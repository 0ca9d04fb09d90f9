/**
 * Which of the sessions that wait is parked first where others need its memory: whoever is least likely to be used
 * again soon, by how long it has waited, by the pauses that it has come back from, and by those of all sessions. It is
 * simulated alone: engines park whoever has waited longest (docs/lab/policy.md says what the other would gain).
 */

/** A session that waits and could be parked. */
export interface Waiter {
  readonly id: string;
  /** Milliseconds since a call used it. */
  readonly idleMs: number;
  /** What parking it would free. */
  readonly freedBytes: number;
  /** Pauses that it has come back from, and the mean of the logarithms of their milliseconds; 0: there are none. */
  readonly pauses: number;
  readonly meanLog: number;
  /** True: a call of it waits to begin. */
  readonly isInLine: boolean;
}

/** What became of pauses: how many ended with a call, and how many with the end of the session. */
export interface PausesEnded {
  readonly returned: number;
  readonly gone: number;
}

/** What is known of the pauses of all sessions. */
export interface PausesSeen {
  /** Of the logarithms of their milliseconds, of those that ended with a call. */
  readonly meanLog: number;
  /** Their variance: among pauses of one session, and among the means of sessions. */
  readonly withinLog: number;
  readonly betweenLog: number;
  /** First pauses of sessions, and those that came later. */
  readonly first: PausesEnded;
  readonly later: PausesEnded;
}

export interface ParkingPolicy {
  readonly id: string;
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
  next: (waiters) => least(waiters, ({ idleMs }) => -idleMs),
};

/** Before anybody came back: half a minute, within a factor of five in two of three cases. Chosen. */
const ASSUMED_LOG = Math.log(30_000);
const ASSUMED_WITHIN = 1.25;
const ASSUMED_BETWEEN = 1.25;
const ASSUMED_PAUSES = 4;
/** Pauses never are more alike than this. Chosen. */
const VARIANCE_LEAST = 0.1;

export const NO_PAUSES: PausesSeen = {
  meanLog: ASSUMED_LOG,
  withinLog: ASSUMED_WITHIN,
  betweenLog: ASSUMED_BETWEEN,
  first: { returned: 0, gone: 0 },
  later: { returned: 0, gone: 0 },
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
  const stays = (ms: number): number => 1 / (1 + (ms / median) ** shape);
  const { returned, gone } = pauses === 0 ? seen.first : seen.later;
  const returns = (returned + 1) / (returned + gone + 2);
  const now = stays(idleMs);
  const isThere = (returns * now) / (returns * now + 1 - returns);
  return isThere * (1 - stays(idleMs + Math.exp(seen.meanLog)) / now);
}

/** Whoever is least likely to be used again soon. */
export const RETURNING: ParkingPolicy = {
  id: 'returning',
  next: (waiters, seen) => least(waiters, (waiter) => returnsSoon(waiter, seen)),
};

export const PARKING_POLICIES: readonly ParkingPolicy[] = [LONGEST, RETURNING];

/** The pauses of sessions, as they are noted one after the other. */
export class Pauses {
  readonly #own = new Map<string, { readonly count: number; readonly sum: number }>();
  readonly #ended = { first: { returned: 0, gone: 0 }, later: { returned: 0, gone: 0 } };
  #count = ASSUMED_PAUSES;
  #sum = ASSUMED_PAUSES * ASSUMED_LOG;
  #squares = ASSUMED_PAUSES * (ASSUMED_LOG ** 2 + ASSUMED_WITHIN + ASSUMED_BETWEEN);
  /** Squares of what pauses are from the mean of their session, and how many of them say so. */
  #withinSquares = ASSUMED_PAUSES * ASSUMED_WITHIN;
  #withinCount = ASSUMED_PAUSES;

  #kind(id: string): { returned: number; gone: number } {
    return this.#own.has(id) ? this.#ended.later : this.#ended.first;
  }

  /** A session that waited is used again. */
  returned(id: string, idleMs: number): void {
    const log = Math.log(Math.max(1, idleMs));
    this.#kind(id).returned++;
    const own = this.#own.get(id) ?? { count: 0, sum: 0 };
    if (own.count > 0) {
      // What one more pause adds to the squares around a mean that moves.
      this.#withinSquares += (own.count / (own.count + 1)) * (log - own.sum / own.count) ** 2;
      this.#withinCount++;
    }
    this.#own.set(id, { count: own.count + 1, sum: own.sum + log });
    this.#count++;
    this.#sum += log;
    this.#squares += log ** 2;
  }

  /** A session is closed while it waits. */
  gone(id: string): void {
    this.#kind(id).gone++;
    this.#own.delete(id);
  }

  /** What a session has come back from. */
  of(id: string): Pick<Waiter, 'pauses' | 'meanLog'> {
    const { count, sum } = this.#own.get(id) ?? { count: 0, sum: 0 };
    return { pauses: count, meanLog: count === 0 ? 0 : sum / count };
  }

  get seen(): PausesSeen {
    const meanLog = this.#sum / this.#count;
    const varianceLog = this.#squares / this.#count - meanLog ** 2;
    const withinLog = Math.max(VARIANCE_LEAST, this.#withinSquares / this.#withinCount);
    const betweenLog = Math.max(0, varianceLog - withinLog);
    return { meanLog, withinLog, betweenLog, first: { ...this.#ended.first }, later: { ...this.#ended.later } };
  }
}
