/** The record: what an entry is, and what the log promises. */
import type { Part } from '../native/index.ts';
import type { LaterForm, PageForm } from '../policy/index.ts';
import type { AnchorReport } from './against.ts';
import type { AnchorOptions } from './checkpoint.ts';
import type { ENTRIES, RetentionBody } from './entries/index.ts';
import type { DecisionRow, SessionRow } from './entries/rows.gen.ts';
import type { TypeOf } from './entries/type.ts';
import type { LogFiles } from './files.ts';

export type { LikeSession } from './entries/evidence.ts';
export type {
  ChangeBody,
  CloseBody,
  DecisionBody,
  DoneBody,
  EvidenceBody,
  OpenBody,
  PackBody,
  RecoveredBody,
  RetentionBody,
  SituationBody,
} from './entries/index.ts';
export type { MendedSide, PromotedSide } from './entries/log-notes.ts';
export type { LoggedMember, PoolAsking, PoolTurn } from './entries/pool-asking.ts';
export type { PoolParking } from './entries/pool-parking.ts';
export type { DecisionRow, SessionRow } from './entries/rows.gen.ts';

/** Kinds of entries, as the log spells them. */
export const ENTRY_KINDS = [
  'open',
  'evidence',
  'situation',
  'decision',
  'change',
  'close',
  'recovered',
  'retention',
  'erase',
  'hold',
  'release',
  'note',
  'pack',
] as const;
/** One of ENTRY_KINDS. */
export type EntryKind = (typeof ENTRY_KINDS)[number];

/** Session field of entries about the log itself. */
export const NO_SESSION = '';

/** What entries of each kind say: `entries/` has every field. */
export type EntryBodies = { readonly [K in EntryKind]: TypeOf<(typeof ENTRIES)[K]['type']> };

export interface Entry<K extends EntryKind = EntryKind> {
  /**
   * Names this entry in the whole log. Counts without gaps over what one writer's series holds: from 0 in the first,
   * from n · 2^32 in series n.
   */
  readonly seq: number;
  /** Milliseconds since the epoch, from the injected clock; never falls within a series. Never used by a decision. */
  readonly timeMs: number;
  readonly session: string;
  readonly kind: K;
  readonly body: EntryBodies[K];
}

/** What to do when the log cannot be written: wait and retry, stop the engine, or go on and count. */
export type FailureMode = 'block' | 'halt' | 'drop';

/** What must not be written to a log: entries, or fields of their bodies. */
export interface LogRule {
  /** Leave it out, or write something of the same type that says nothing: '***', 0, false, an empty list or object. */
  readonly action: 'drop' | 'mask';
  /**
   * Fields of the body, one inside the other: 'model.name', 'neighbours.*.session'. '*' is any field or item. Left out:
   * the whole entry, to be dropped.
   */
  readonly path?: string;
  /** Kinds of entries that it holds for. Default: all that have such a field. */
  readonly kinds?: readonly EntryKind[];
}

/** What happens to a log while it is written, where its own entries say nothing or later. */
export type LogNews =
  | { readonly what: 'taken-over' }
  | { readonly what: 'repaired'; readonly droppedBytes: number }
  /** The disk refuses, with this code. */
  | { readonly what: 'refused'; readonly code: string }
  /** It takes entries again; so many will never be in the log. */
  | { readonly what: 'written-again'; readonly lostEntries: number }
  /** A place for checkpoints refuses them, or takes them again. */
  | { readonly what: 'anchor'; readonly place: 'file' | 'stdout' | 'http' | 'postgres'; readonly isAway: boolean };

export interface WitnessOptions {
  /** Folder of the segments, created when missing. */
  readonly dir: string;
  readonly mode?: FailureMode;
  readonly clock?: () => number;
  /** A segment is closed at this size, default 16 MiB. */
  readonly segmentBytesMax?: number;
  /** A segment takes entries for so long, default 1 day. */
  readonly segmentMsMax?: number;
  /** Told whenever a segment is complete and the next one has begun, before its first entry is on disk. */
  readonly onSegment?: () => void;
  /** Told what happens to the log outside of it. It must not throw. */
  readonly onNews?: (news: LogNews) => void;
  /**
   * Id of the key that signs checkpoints of this log, 16 hex digits: stands in the header of every segment. Left out:
   * none.
   */
  readonly keyId?: string;
  /** Where signed checkpoints go while entries are written. Left out: nowhere. */
  readonly anchor?: AnchorOptions;
  /** The series to continue; left out: the first that nobody holds. */
  readonly series?: number;
  /** Entries wait at most this long for their fsync, default 50 ms. */
  readonly commitIntervalMs?: number;
  /**
   * Entries waiting for the disk may take this much memory, default 8 MiB; beyond it `append` writes by itself and
   * waits.
   */
  readonly bufferBytesMax?: number;
  /** Mode block: how long one batch is tried again before 'log-unwritable', default 30 s. */
  readonly blockMsMax?: number;
  /** First pause before a batch is tried again, default 20 ms; doubles up to 1 s. */
  readonly retryMs?: number;
  /** The part of node:fs that the log uses; tests put a failing disk here. */
  readonly files?: LogFiles;
  /** What must not be written. Default: nothing is left out. */
  readonly rules?: readonly LogRule[];
  /** Encrypts what is written of each session with a key of its own, so that it can be erased. Default false. */
  readonly encrypt?: boolean;
}

export interface WitnessLog {
  /** Identity of the log: random at creation, in every segment header of every writer. */
  readonly id: string;
  readonly dir: string;
  /**
   * Appends to the group commit. → seq. Throws 'log-unwritable' in modes block (after the last retry) and halt; in mode
   * drop it counts and returns `null`.
   */
  append<K extends EntryKind>(session: string, kind: K, body: EntryBodies[K]): number | null;
  /** Highest seq that is on disk (fsynced), −1 before the first. */
  readonly acknowledgedSeq: number;
  /** Entries that are not in the log and never will be (mode drop). */
  readonly droppedCount: number;
  /**
   * Entries of this writer's series that no checkpoint covers yet in a place outside of the log; null: none is
   * anchored.
   */
  readonly unanchoredEntries: number | null;
  /**
   * Entries of a session that are not in the log, or may never be: those dropped, and while the disk refuses those that
   * wait.
   */
  missingOf(session: string): number;
  /** How many of them a rule left out. */
  leftOutOf(session: string): number;
  readonly bytes: number;
  /** Number of the series that this writer appends to. */
  readonly series: number;
  /**
   * Removes the oldest segments of the series, all before `firstSegment`: first an entry says so and is synced, then
   * the files go, oldest first. Dying in between leaves a log that opens. Not more than the segments before the present
   * one, and only up to one of format 2. → what was removed, null where there was nothing. Throws 'bad-argument',
   * 'log-unwritable'.
   */
  removeSegments(firstSegment: number): Promise<RetentionBody | null>;
  /** Waits until everything appended so far is on disk. → acknowledgedSeq */
  flush(): Promise<number>;
  close(): Promise<void>;
}

/**
 * What one writer after the other wrote into one chain. With a problem: id, count and head of the entries before it.
 */
export interface SeriesReport {
  /** Number of the series, from 0. */
  readonly series: number;
  /** null: no entry of it is sound. */
  readonly logId: string | null;
  /** Files of the series. */
  readonly segments: number;
  /** Sound entries. */
  readonly entries: number;
  /** Entries before them that retention removed. */
  readonly removedEntries: number;
  /**
   * How many of them have bodies that could not be opened: their session was erased, or its key is not here. Their
   * chain is sound all the same.
   */
  readonly unopened: number;
  /** Stands for all of them, in hexadecimal: the hash of the chain. */
  readonly headHash: string;
  /**
   * The same: root of the Merkle tree over every entry that the series ever had, those that retention removed included.
   */
  readonly rootHash: string;
  /** First problem found in it. */
  readonly problem: VerifyReport['problem'];
  /** A torn tail: bytes. Not a problem. */
  readonly tornBytes: number;
}

/** Something in the folder that is not of the log: a file, or bytes behind the last whole entry. */
export interface ForeignPart {
  /** From the folder of the log. */
  readonly file: string;
  /** First byte of it. */
  readonly offset: number;
  /** null: it is no regular file. */
  readonly bytes: number | null;
  /** What it seems to be. */
  readonly what: string;
}

/** Sums over all series; each alone stands in `series`. */
export interface VerifyReport {
  /** No problem was found. */
  readonly ok: boolean;
  /** null: no entry is sound. */
  readonly logId: string | null;
  /** Files of the log. */
  readonly segments: number;
  /** Sound entries, and senseless ones: up to the first that is not what was written. */
  readonly entries: number;
  /** How many bodies could not be opened. */
  readonly unopened: number;
  /** Sessions whose key files are damaged, so that their bodies are among these. Left out: there is none. */
  readonly damagedKeys?: readonly string[];
  /**
   * Entries that are what was written and make no sense; the first is the problem where there is no worse one. Left
   * out: there is none.
   */
  readonly senseless?: readonly SenselessEntry[];
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
  /** One report for each writer. */
  readonly series: readonly SeriesReport[];
  /** Nothing of this counts for the log; a torn tail is named here too. */
  readonly foreign: readonly ForeignPart[];
  /** What it was compared with; left out: nothing outside of the log. */
  readonly anchor?: AnchorReport;
}

/** An entry that is whole and makes no sense. What reads a log passes it over. */
export interface SenselessEntry {
  /** Its number in the log. */
  readonly seq: number;
  /** When it was written, milliseconds since the epoch. */
  readonly timeMs: number;
  /** The session that it belongs to. */
  readonly session: string;
  /** What kind it says it is. */
  readonly kind: EntryKind;
  /** Which field makes no sense, and what would. */
  readonly what: string;
}

/** Inclusive bounds; one of them may be left out. */
export interface Range {
  /** At least. */
  readonly min?: number;
  /** At most. */
  readonly max?: number;
}

/** What `audit list` may ask. Every field narrows; an absent one does not. Bounds are inclusive. */
export interface DecisionFilter {
  /** Id of the session. */
  readonly session?: string;
  /** Name or digest of the model. */
  readonly model?: string;
  /** Number of the layer, from 0. */
  readonly layer?: number;
  /** Number of the page, from 0. */
  readonly page?: number;
  /** Keys, values, or both. */
  readonly side?: Part;
  /** Format or latent that the page had. */
  readonly from?: PageForm;
  /** The form that it was to get; 'freed' for pages that were let go. */
  readonly to?: LaterForm;
  /** Matches the rule or the threshold id of the decision's `because` or of its verdict's. */
  readonly reason?: string;
  /** Matches the threshold id alone. */
  readonly threshold?: string;
  /**
   * Predicted error in the format that the page had, as a share of the residual stream; rows without one are left out.
   */
  readonly epsilonFrom?: Range;
  /** The same in the format that it was to get. */
  readonly epsilonTo?: Range;
  /** The same, measured just before the move. */
  readonly epsilonNow?: Range;
  /** Bytes that the move was planned to free. */
  readonly bytesFreed?: Range;
  /** Milliseconds since the epoch. */
  readonly fromMs?: number;
  /** Milliseconds since the epoch. */
  readonly toMs?: number;
  /** Tokens in the cache when it was decided: the step. */
  readonly tokensMin?: number;
  /** Tokens in the cache when it was decided, at most. */
  readonly tokensMax?: number;
  /** Only moves that were made, or only refused ones. */
  readonly accepted?: boolean;
  /** Only entries older than this one: the next page of a long list. */
  readonly beforeSeq?: number;
  /** Most rows, default 100. */
  readonly limit?: number;
}

/** Which sessions: bounds of their beginning in milliseconds since the epoch, both inclusive. */
export interface SessionFilter {
  /** Not before. */
  readonly fromMs?: number;
  /** Not after. */
  readonly toMs?: number;
  /** Name or digest of the model. */
  readonly model?: string;
  /** Most rows, default 100. */
  readonly limit?: number;
}

/** What decisions can be counted by. */
export type CountKey = 'layer' | 'reason' | 'hour' | 'format' | 'session' | 'model';
/** Every CountKey. */
export const COUNT_KEYS: readonly CountKey[] = ['layer', 'reason', 'hour', 'format', 'session', 'model'];

/** Decisions that have something in common, summed up. */
export interface CountRow {
  /**
   * What they have in common: a layer, the rule that planned or refused them, the beginning of an hour in milliseconds
   * since the epoch, 'q8→rot4', a session, a model.
   */
  readonly key: string | number;
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Moves refused after their trial. */
  readonly refused: number;
  /** Bytes that were given back. */
  readonly bytesFreed: number;
  /** Mean error that they were decided by: measured just before the move, else predicted; null where none was tried. */
  readonly epsilonMean: number | null;
  /** The largest of these. */
  readonly epsilonMax: number | null;
  /** Time of the first. */
  readonly firstMs: number;
  /** Time of the last. */
  readonly lastMs: number;
}

/** Questions to a log, answered by reading it or by its index; newest first. */
export interface DecisionQuery {
  /**
   * Decisions that a filter lets through, refused ones included. Throws 'not-found', 'bad-log', 'bad-argument',
   * 'database'.
   */
  decisions(filter?: DecisionFilter): Promise<DecisionRow[]>;
  /** Sessions that began within a span. Throws 'not-found', 'bad-log', 'bad-argument', 'database'. */
  sessions(filter?: SessionFilter): Promise<SessionRow[]>;
  /**
   * All decisions that a filter lets through, summed up by what they have in common, in order of it; hours and layers
   * ascending, others by how many there are. `limit` and `beforeSeq` have no meaning here. Throws as `decisions` does.
   */
  counts(by: CountKey, filter?: DecisionFilter): Promise<CountRow[]>;
}
