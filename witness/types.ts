/** The record: what an entry is, and what the log promises. */
import type { FormatName, Side } from '../native/index.ts';
import type { Decision, PolicyContext, Situation, ThresholdOrigin, ThresholdSet, Verdict } from '../policy/index.ts';
import type { LogFiles } from './files.ts';

export const ENTRY_KINDS = ['open', 'evidence', 'situation', 'decision', 'close', 'recovered', 'note'] as const;
export type EntryKind = (typeof ENTRY_KINDS)[number];

/** Session field of entries about the log itself. */
export const NO_SESSION = '';

/** A session began: everything that a replay needs, and what was requested against what is effective. */
export interface OpenBody {
  readonly model: { readonly name: string; readonly digest: string; readonly architecture: string };
  readonly shape: {
    readonly layers: number;
    readonly queryHeads: number;
    readonly kvHeads: number;
    readonly headDim: number;
  };
  readonly policy: {
    readonly id: string;
    readonly version: number;
    readonly options: Readonly<Record<string, unknown>>;
    readonly machine: string;
  };
  readonly context: PolicyContext;
  readonly requested: Readonly<Record<string, unknown>>;
  readonly effective: Readonly<Record<string, unknown>>;
}
/** What memory/ was asked and answered: where the start values come from. */
export interface EvidenceBody {
  readonly fingerprint: readonly number[];
  readonly neighbours: readonly { readonly session: string; readonly distance: number; readonly seq: number }[];
  readonly thresholds: ThresholdSet;
}
export interface SituationBody {
  readonly situation: Situation;
}
/** One planned move, its trial and its verdict. Refused ones are recorded too. */
export interface DecisionBody {
  /** `index` of the situation it answers, and its place in that plan. */
  readonly situation: number;
  readonly order: number;
  readonly decision: Decision;
  /** ε measured just before the commit; null when the first trial was fresh or the policy needs none. */
  readonly epsilonNow: number | null;
  readonly verdict: Verdict;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
  readonly tokens: number;
}
export interface CloseBody {
  readonly tokens: number;
  readonly kvBytes: number;
  readonly kvBytesF16: number;
  readonly effectiveBits: number;
  readonly decisions: number;
  readonly refused: number;
  readonly priceThreshold: number;
  readonly predictedKld: number;
  /** Measured divergence when a comparison was run, else null. */
  readonly meanKld: number | null;
  readonly fingerprint: readonly number[];
  readonly gains: { readonly k: readonly number[]; readonly v: readonly number[] };
  readonly c: number;
  readonly reason: 'done' | 'aborted' | 'error';
}
export interface RecoveredBody {
  /** Bytes cut from a torn tail. */
  readonly droppedBytes: number;
  readonly segment: string;
}

export interface EntryBodies {
  open: OpenBody;
  evidence: EvidenceBody;
  situation: SituationBody;
  decision: DecisionBody;
  close: CloseBody;
  recovered: RecoveredBody;
  note: Readonly<Record<string, unknown>>;
}

export interface Entry<K extends EntryKind = EntryKind> {
  /** Names this entry in the whole log. Counts without gaps over what one writer's series holds: from 0 in the first, from n · 2^32 in series n. */
  readonly seq: number;
  /** Milliseconds since the epoch, from the injected clock; never falls within a series. Never used by a decision. */
  readonly timeMs: number;
  readonly session: string;
  readonly kind: K;
  readonly body: EntryBodies[K];
}

/** What to do when the log cannot be written: wait and retry, stop the engine, or go on and count. */
export type FailureMode = 'block' | 'halt' | 'drop';

export interface WitnessOptions {
  /** Folder of the segments, created when missing. */
  readonly dir: string;
  readonly mode?: FailureMode;
  readonly clock?: () => number;
  /** A segment is closed at this size, default 16 MiB. */
  readonly segmentBytesMax?: number;
  /** Entries wait at most this long for their fsync, default 50 ms. */
  readonly commitIntervalMs?: number;
  /** Entries waiting for the disk may take this much memory, default 8 MiB; beyond it `append` writes by itself and waits. */
  readonly bufferBytesMax?: number;
  /** Mode block: how long one batch is tried again before 'log-unwritable', default 30 s. */
  readonly blockMsMax?: number;
  /** First pause before a batch is tried again, default 20 ms; doubles up to 1 s. */
  readonly retryMs?: number;
  /** The part of node:fs that the log uses; tests put a failing disk here. */
  readonly files?: LogFiles;
}

export interface WitnessLog {
  /** Identity of the log: random at creation, in every segment header of every writer. */
  readonly id: string;
  readonly dir: string;
  /** Appends to the group commit. → seq. Throws 'log-unwritable' in modes block (after the last retry) and halt; in mode drop it counts and returns `null`. */
  append<K extends EntryKind>(session: string, kind: K, body: EntryBodies[K]): number | null;
  /** Highest seq that is on disk (fsynced), −1 before the first. */
  readonly acknowledgedSeq: number;
  readonly droppedCount: number;
  readonly bytes: number;
  /** Waits until everything appended so far is on disk. → acknowledgedSeq */
  flush(): Promise<number>;
  close(): Promise<void>;
}

/** What one writer after the other wrote into one chain. With a problem: id, count and head of the entries before it. */
export interface SeriesReport {
  readonly series: number;
  readonly logId: string | null;
  readonly segments: number;
  readonly entries: number;
  readonly headHash: string;
  readonly problem: VerifyReport['problem'];
  readonly tornBytes: number;
}

/** Something in the folder that is not of the log: a file, or bytes behind the last whole entry. */
export interface ForeignPart {
  /** From the folder of the log. */
  readonly file: string;
  readonly offset: number;
  /** null: it is no regular file. */
  readonly bytes: number | null;
  readonly what: string;
}

/** Sums over all series; each alone stands in `series`. */
export interface VerifyReport {
  readonly ok: boolean;
  /** null: no entry is sound. */
  readonly logId: string | null;
  readonly segments: number;
  readonly entries: number;
  /** Stands for all entries: of the only series, or a SHA-256 over the heads of all, in hex and joined by commas. */
  readonly headHash: string;
  /** First problem found: where and what. */
  readonly problem: {
    readonly segment: string;
    readonly offset: number;
    readonly seq: number | null;
    readonly what: string;
  } | null;
  /** A torn tail (unacknowledged, recoverable by the next writer): bytes. Not a problem. */
  readonly tornBytes: number;
  readonly series: readonly SeriesReport[];
  /** Nothing of this counts for the log; a torn tail is named here too. */
  readonly foreign: readonly ForeignPart[];
}

/** What `audit list` may ask. Every field narrows; an absent one does not. Bounds are inclusive. */
export interface DecisionFilter {
  readonly session?: string;
  readonly layer?: number;
  readonly page?: number;
  readonly side?: Side;
  /** Matches the rule or the threshold id of the decision's `because` or of its verdict's. */
  readonly reason?: string;
  /** Milliseconds since the epoch. */
  readonly fromMs?: number;
  readonly toMs?: number;
  /** Tokens in the cache when it was decided: the step. */
  readonly tokensMin?: number;
  readonly tokensMax?: number;
  readonly accepted?: boolean;
  /** Only entries older than this one: the next page of a long list. */
  readonly beforeSeq?: number;
  /** Most rows, default 100. */
  readonly limit?: number;
}

/** One decision entry, flat: what a list shows and what the SQL index stores. `seq` is the id that a person types. */
export interface DecisionRow {
  readonly seq: number;
  readonly timeMs: number;
  readonly session: string;
  readonly situation: number;
  readonly order: number;
  readonly tokens: number;
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly from: FormatName;
  readonly to: FormatName;
  readonly accepted: boolean;
  /** Why it was planned (decision.because). */
  readonly rule: string;
  readonly threshold: string;
  readonly measured: number;
  readonly bound: number;
  readonly unit: string;
  readonly origin: ThresholdOrigin;
  /** Why it was accepted or refused (verdict.because). */
  readonly verdictRule: string;
  readonly verdictThreshold: string;
  readonly verdictMeasured: number;
  readonly verdictBound: number;
  readonly epsilonFrom: number | null;
  readonly epsilonTo: number | null;
  readonly epsilonNow: number | null;
  readonly price: number | null;
  /** Planned; what was really freed is bytesBefore − bytesAfter. */
  readonly bytesFreed: number;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
}

/** One session, from its 'open' entry and, when it ended, its 'close' entry. */
export interface SessionRow {
  readonly session: string;
  /** seq of the 'open' entry. */
  readonly seq: number;
  readonly openedMs: number;
  /** null: still running, or killed. */
  readonly closedMs: number | null;
  readonly model: string;
  readonly modelDigest: string;
  readonly policy: string;
  /** Of the 'close' entry; without one, of the last situation seen. */
  readonly tokens: number;
  readonly kvBytes: number;
  /** null without a 'close' entry. */
  readonly kvBytesF16: number | null;
  readonly meanKld: number | null;
  readonly decisions: number;
  readonly refused: number;
  readonly end: 'open' | CloseBody['reason'];
}

export interface SessionFilter {
  readonly fromMs?: number;
  readonly toMs?: number;
  readonly limit?: number;
}

/** Questions over the log. `LogQuery` answers them by reading it, the SQL index faster; both give the same rows, newest first. */
export interface DecisionQuery {
  decisions(filter?: DecisionFilter): Promise<DecisionRow[]>;
  sessions(filter?: SessionFilter): Promise<SessionRow[]>;
}
