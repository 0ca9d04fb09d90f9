/** What the system remembers about its work. (The KV cache is native/'s; this room never holds keys or values.) */
import type { Course, Estimate, LayerCost, ThresholdSet } from '../policy/index.ts';
import type { KnownPrefix, Prefix } from './prefix.ts';
import type { SharedStatus } from './shared-index.ts';

/**
 * Numbers that describe a workload, scaled to comparable ranges; never prompt text. See fingerprint.ts for the axes.
 */
export type Fingerprint = readonly number[];

/** What was decided under a fingerprint, and what it turned out to cost. */
export interface Experience {
  /** Log sequence number of the session's close entry: its identity, and where the evidence is. */
  readonly seq: number;
  /** Its id in the log. */
  readonly session: string;
  /** SHA-256 of the model's weights. */
  readonly modelDigest: string;
  /** Architecture of the model. */
  readonly family: string;
  /** The work that it did. */
  readonly fingerprint: Fingerprint;
  /** Price per byte, in nats, that it ended with. */
  readonly priceThreshold: number;
  /** Per layer. */
  readonly gains: { readonly k: readonly number[]; readonly v: readonly number[] };
  /** Constant of the error law. */
  readonly c: number;
  /** Bits per number of the cache. */
  readonly effectiveBits: number;
  /** Measured divergence in nats; null: it was not compared. */
  readonly meanKld: number | null;
  /** The divergence that was predicted. */
  readonly predictedKld: number;
  /** Tokens in the cache. */
  readonly tokens: number;
  /**
   * How much an error cost in its text beside others, by its own measurements alone; absent where nothing was measured.
   */
  readonly text?: Estimate | undefined;
  /** What it found of errors behind their first trials; absent where it tried no page again. */
  readonly course?: Course | undefined;
  /** What it found errors in single layers to cost; absent where it probed none. */
  readonly costs?: readonly LayerCost[] | undefined;
  /** What its beginning was, and what was asked of it; absent where nothing was. */
  readonly prefix?: Prefix | undefined;
}

/** Start values for a session, and what they rest on. */
export interface Lookup {
  readonly thresholds: ThresholdSet;
  readonly neighbours: readonly {
    readonly session: string;
    readonly distance: number;
    readonly seq: number;
    /** The log of another machine that the session stands in; left out: this one's. */
    readonly log?: string;
  }[];
  /** How the server was that was asked as well; null: none was named. */
  readonly shared: SharedStatus | null;
}

/** What sessions that began alike know, and which they are. */
export interface PrefixLookup extends Pick<Lookup, 'neighbours'> {
  /** null: none began alike. */
  readonly known: KnownPrefix | null;
}
