/** What deciding again has shown, of a session or of a pool, as data. */

/** What deciding again has shown. */
export interface ReplayReport {
  /** Id of the session, or of the pool. */
  readonly session: string;
  /** Policy and version; of a pool, of its latest asking. */
  readonly policy: string;
  /** Situations that were decided on; of a pool, the times that it was asked. */
  readonly situations: number;
  /** Decisions compared, refused ones included; of a pool, the turns. */
  readonly decisions: number;
  /** SHA-256 of the file of a policy of the caller's own, as it was when it decided; absent where there is none. */
  readonly policyModule?: string;
  /** Every decision and verdict in the log is what the policy says, and none is missing between two situations. */
  readonly equal: boolean;
  /**
   * The last plan is there to its end. False after a kill in the middle of one, and of a pool where an asking was of
   * more sessions than an entry has room for; that is no difference.
   */
  readonly complete: boolean;
  /** Where the log and the policy part; null: nowhere. */
  readonly firstDifference: Difference | null;
  /**
   * Entries of the session that a full disk or a rule kept out of the log, as notes in it say; absent where nobody
   * asked.
   */
  readonly missing?: number;
  /** How many of them a rule left out (logRules), as it was told to. */
  readonly leftOut?: number;
  /** Fields of the entry that ended the session which follow from nothing in the log; absent where it has not ended. */
  readonly notChecked?: readonly string[];
}

/** The first entry that is not what deciding again gives. */
export interface Difference {
  /** Entry where it shows. */
  readonly seq: number;
  /** What of it. */
  readonly what: 'policy' | 'situation' | 'decision' | 'verdict' | 'bytes' | 'time' | 'entry' | 'end' | 'turn';
  /** Canonical JSON, or a sentence when there is nothing to print. */
  readonly logged: string;
  /** What it should be. */
  readonly replayed: string;
}
