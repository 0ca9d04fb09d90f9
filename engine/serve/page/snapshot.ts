/** What `/v1/live` tells, as the server makes it and the page shows it. */

/** A session that is open. */
export interface TopRow {
  readonly session: string;
  readonly model: string;
  /**
   * `working`: tokens came to it lately; `waiting`: none did, and it keeps its pages; `parked`: it gave them up until
   * it is used again.
   */
  readonly state: 'working' | 'waiting' | 'parked';
  readonly tokens: number;
  /** By its last two situations; 0 while it waits. */
  readonly tokensPerSecond: number;
  readonly bytes: number;
  /** Its own budget, or what was left to it of a shared one; null: none. */
  readonly budgetBytes: number | null;
  /** Mean bits of a number in its cache; null: it has no tokens. */
  readonly bits: number | null;
  /** What its pages gave up for other sessions, in all. */
  readonly gaveUpBytes: number;
  /** What a byte of its last move was predicted to cost, in nats; null: none, or its policy knows no prices. */
  readonly price: number | null;
  /** Bytes that it keeps whoever needs some (kvFloor); 0: none. */
  readonly floorBytes: number;
  /** How many bytes it keeps beside the 1 of others (kvWeight). */
  readonly weight: number;
}

/** The memory that the sessions of one engine share, since they were first asked for bytes. */
export interface TopPool {
  readonly pool: string;
  /** Bytes of its open sessions that are not parked, and what was left to them all when one last asked. */
  readonly bytes: number;
  readonly budgetBytes: number;
  /** Times that a session asked for bytes, and what all gave up. */
  readonly askings: number;
  readonly givenBytes: number;
  /** What a byte cost whoever was asked last, in nats; null: nobody was, or prices are not known. */
  readonly price: number | null;
}

/** What only a running engine knows. */
export interface TopMetrics {
  /** Calls that read or write now, and calls that wait for room. */
  readonly running: number;
  readonly waiting: number;
  /** Open sessions that are parked. */
  readonly parked: number;
  readonly bytes: number;
  /** The same by tier, those that have any. */
  readonly tiers: Readonly<Record<string, number>>;
  readonly budgetBytes: number | null;
  /** Since the engine began: tokens of prompts, tokens that were written, passes over the weights and their tokens. */
  readonly promptTokens: number;
  readonly generatedTokens: number;
  readonly passes: number;
  readonly passTokens: number;
}

/** The same with what it did since it was looked at before. */
export type EngineLoad = TopMetrics & { readonly tokensPerSecond: number; readonly tokensPerPass: number };

/** What a server does at one moment. */
export interface Snapshot {
  /** Milliseconds since the epoch. */
  readonly timeMs: number;
  /** The name that clients ask for; null: nothing is answered here. */
  readonly model: string | null;
  /** Whether a log is read here, and whether whoever asks sees what is others'. */
  readonly hasLog: boolean;
  readonly seesAll: boolean;
  /** null: no engine runs here, or whoever asks is told of its own answers alone. */
  readonly engine: EngineLoad | null;
  readonly pools: readonly TopPool[];
  /** Open ones, those that take most bytes first. */
  readonly sessions: readonly TopRow[];
}

/** A session as the page lists it: those that have ended stand behind the open ones. */
export type SessionNow = Omit<TopRow, 'state' | 'floorBytes' | 'weight'> & {
  readonly state: TopRow['state'] | 'ended';
};
