/**
 * How long sessions wait between two calls, and whether they come back at all: what is known of all, and of each. Pure:
 * it counts what it is told.
 */

/** What became of pauses: how many ended with a call, and how many with the end of the session. */
export interface PausesEnded {
  readonly returned: number;
  readonly gone: number;
}

/** Pauses that a session has come back from, and the mean of the logarithms of their milliseconds; 0: none. */
export interface PausesOf {
  readonly pauses: number;
  readonly meanLog: number;
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

/** Before anybody came back: half a minute, within a factor of five in two of three cases. Chosen. */
const ASSUMED_LOG = Math.log(30_000);
const ASSUMED_WITHIN = 1.25;
const ASSUMED_BETWEEN = 1.25;
const ASSUMED_PAUSES = 4;
/** Pauses never are more alike than this. Chosen. */
const VARIANCE_LEAST = 0.1;

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

  /**
   * A session is closed while it waits. Most that nobody comes back to never are, so that those that are closed at once
   * stand for them: without these, it takes so long to learn that some never come back that parking by age is better.
   */
  gone(id: string): void {
    this.#kind(id).gone++;
    this.#own.delete(id);
  }

  /** What a session has come back from. */
  of(id: string): PausesOf {
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
