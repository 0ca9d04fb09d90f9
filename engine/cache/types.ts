/** What a cache is given in a step, and what it says of itself: public types. Units are last in every name. */
import type { SharedStatus } from '../../memory/index.ts';
import type { CacheMemory, Part } from '../../native/index.ts';
import type { ActivationChoice, Growth, LaterForm, PageForm, PolicySummary, Priority } from '../../policy/index.ts';
import type { OriginalsReport } from '../originals/types.ts';

/**
 * What goes into one layer of a cache in one step, and what is asked of it. T tokens, H query and n KV heads of d
 * channels, m the residual stream.
 */
export interface LayerRows {
  readonly layer: number;
  /** The position of the first token. */
  readonly position: number;
  readonly tokens: number;
  /** [T, H, d], after RoPE. */
  readonly q: Float32Array;
  /** [T, n, d], after RoPE. */
  readonly k: Float32Array;
  /** [T, n, d] */
  readonly v: Float32Array;
  /** [T, m], what enters the layer. */
  readonly x: Float32Array;
}

/** One layer of a session in numbers. */
export interface LayerReport {
  /** Its number, from 0. */
  readonly layer: number;
  /** Sealed pages per format, K and V. */
  readonly kPages: Readonly<Record<string, number>>;
  /** Sealed pages per format of values. */
  readonly vPages: Readonly<Record<string, number>>;
  /** Bits per number: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  /** Moves planned. */
  readonly movesTried: number;
  /** Moves carried out. */
  readonly movesAccepted: number;
  /** Moves refused after their trial. */
  readonly movesRefused: number;
  /** Worst ε of an accepted move; null without trials. */
  readonly epsilonMax: number | null;
  /** State of the layer in the policy, e.g. 'archive/healthy/elevated/headroom'. */
  readonly state: string;
}

/** A stated divergence, and what the moves of a session are expected to cost beside it, by the plan made last. */
export interface StatedReport {
  /** What was stated. */
  readonly budgetNats: number;
  /** What the moves so far are expected to cost now, or were found to where 128 tokens and more were read twice. */
  readonly expectedNats: number;
  /** Tokens by which that was measured; 0: it is predicted alone. */
  readonly measuredTokens: number;
  /** The most that was ever expected of them. */
  readonly worstNats: number;
  /** True while more is expected than was stated. */
  readonly isBroken: boolean;
  /** Times that this began. */
  readonly timesBroken: number;
}

/** Page sides whose codes were damaged in memory. */
export interface DamageReport {
  /** Times that the codes of one were others than those that were made. */
  readonly sides: number;
  /** Of these, times that they were made again of an original. */
  readonly mendedSides: number;
}

/** What a cache has of memory that it shares with others, whoever needs some. */
export interface Stake {
  /** Bytes of its pages below which it gives none up for others (kvFloor); 0: none. */
  readonly floorBytes: number;
  /** How many bytes it keeps beside the 1 of others (kvWeight). */
  readonly weight: number;
}

/** How a session stands in memory that it shares with others, and how its calls came to their room. */
export interface PressureReport extends Stake {
  /** Calls that did not begin at once. */
  readonly waitedCalls: number;
  /** The time that they waited. */
  readonly waitedMs: number;
  /**
   * Calls that began though there was no room to their end as everything was: pages go lower for them, their own or
   * those of others, or sessions that wait are parked.
   */
  readonly shortCalls: number;
  /** Bytes that the newest call lacked when it began. */
  readonly shortBytes: number;
}

/** A session in numbers. */
export interface SessionReport {
  /** Its name in the log. */
  readonly session: string;
  /** The policy that runs. */
  readonly policy: string;
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Peak of window, sinks, pages and metadata in the pool. */
  readonly kvBytes: number;
  /** The same now; of a session that is parked, what that takes in memory. */
  readonly kvBytesNow: number;
  /**
   * Where it waits parked, in how many bytes, and the bytes that its pages take when they are back; null: they are
   * there. `layers` says of a parked session what comes back.
   */
  readonly parked: {
    readonly place: 'memory' | 'disk' | 'reread';
    readonly bytes: number;
    readonly kvBytes: number;
  } | null;
  /**
   * Memory that the pool holds of the system for kvBytesNow, and for kvBytes at most; pages of forks and of other
   * sessions of the engine included.
   */
  readonly reservedBytes: number;
  /** The most that it ever was. */
  readonly reservedPeakBytes: number;
  /** Bytes of a plain f16 cache of this length. */
  readonly kvBytesF16: number;
  /** Trial state and thread scratch, not counted in kvBytes. */
  readonly scratchBytes: number;
  /** The budget; null: none. */
  readonly budgetBytes: number | null;
  /** The budget that could not be kept beside the other one, which is ranked first; null while both are kept. */
  readonly gaveWay: Priority | null;
  /** Whether the divergence that was stated is kept; null: none was. */
  readonly stated: StatedReport | null;
  /** That its cache was found to grow without end, by what it was then; null: it was not. */
  readonly growth: Growth | null;
  /** 16 · kvBytes / kvBytesF16: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  /**
   * What is kept of pages outside of the budget; null: nothing, since it was not asked for or this is a fork. A resumed
   * session has originals of what moves from then on.
   */
  readonly originals: OriginalsReport | null;
  /** What was damaged of its pages, and made again. */
  readonly damage: DamageReport;
  /** How its calls came to their room in memory that it shares with others; null: it shares none. */
  readonly pressure: PressureReport | null;
  /** Where the bytes are. */
  readonly memory: CacheMemory;
  /**
   * Pages × KV heads whose values the threshold attention.skip allowed to leave unread, and those that were; 0 while it
   * is 0.
   */
  readonly valuesMet: number;
  /** How many of these values were left unread. */
  readonly valuesSkipped: number;
  /** One entry per layer. */
  readonly layers: readonly LayerReport[];
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Moves refused after their trial. */
  readonly refusedTrials: number;
  /** The accepted move with the largest ε: a good first question to `audit explain`. */
  readonly notable: {
    readonly seq: number;
    readonly layer: number;
    readonly page: number;
    readonly side: Part;
    readonly from: PageForm;
    readonly to: LaterForm;
  } | null;
  /** What the policy says. */
  readonly summary: PolicySummary;
  /** Time for situations, decisions and verdicts. */
  readonly decideMs: number;
  /** Time for trials and for reading twice, beside the steps or in them. */
  readonly trialMs: number;
  /** Time for moves. */
  readonly transcodeMs: number;
  /** Time for writing the log. */
  readonly witnessMs: number;
  /** The dense half that ran, and why: 'onnxruntime: float32'. */
  readonly dense: string;
  /** Which of its matrices took activations of 8 bits, and what that is expected to cost; null: none. */
  readonly activations: ActivationChoice | null;
  /** Time in everything but attention. */
  readonly denseMs: number;
  /** Time in attention. */
  readonly attentionMs: number;
  /** The server of shared experience as it was when the session asked it for start values; null: it asked none. */
  readonly shared: SharedStatus | null;
  /** Folder of the log; null: nothing is written. */
  readonly logPath: string | null;
  /** Entries of this session that the log does not hold: the disk refused them (mode drop), or a rule left them out. */
  readonly missingEntries: number;
  /** How many of them a rule left out (logRules). */
  readonly leftOutEntries: number;
  /** Entries of the log that are on disk; −1 without a log. */
  readonly acknowledgedSeq: number;
}

/** What a caller measured: the constant of the error law is moved towards it. */
export interface QualityFeedback {
  /** Mean KLD against an exact run over the same tokens, in nats. */
  readonly meanKld: number;
}

/** Where the bytes of a cache are, and what bounds them. */
export interface MemoryUsage extends CacheMemory {
  /** How many of pageBytes are latents. */
  readonly latentBytes: number;
  /**
   * Bytes of what stands for its pages while it waits parked in memory; they are not part of totalBytes, and count
   * against the kvBudget of the engine.
   */
  readonly parkedBytes: number;
  /** The budget; null: none. */
  readonly budgetBytes: number | null;
  /** Most bytes that it ever had. */
  readonly peakBytes: number;
  /** Memory that the pool holds of the system now, for this cache and its forks. */
  readonly reservedBytes: number;
  /** Bytes of a plain f16 cache of this length. */
  readonly f16Bytes: number;
}
