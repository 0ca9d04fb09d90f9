/** What the system remembers about its work. (The KV cache is native/'s; this room never holds keys or values.) */
import type { ThresholdSet } from '../policy/index.ts';

/** Numbers that describe a workload, scaled to comparable ranges; never prompt text. See fingerprint.ts for the axes. */
export type Fingerprint = readonly number[];

/** What was decided under a fingerprint, and what it turned out to cost. */
export interface Experience {
  /** Log sequence number of the session's close entry: its identity, and where the evidence is. */
  readonly seq: number;
  readonly session: string;
  readonly modelDigest: string;
  readonly family: string;
  readonly fingerprint: Fingerprint;
  readonly priceThreshold: number;
  readonly gains: { readonly k: readonly number[]; readonly v: readonly number[] };
  readonly c: number;
  readonly effectiveBits: number;
  readonly meanKld: number | null;
  readonly predictedKld: number;
  readonly tokens: number;
}

export interface Neighbour<T = Readonly<Record<string, unknown>>> {
  readonly label: number;
  readonly distance: number;
  readonly payload: T;
}

/**
 * k nearest vectors with a payload. One interface for the embedded index and a server; one shared test suite.
 * Labels are non-negative integers below 2^32; adding a label again replaces it. Vectors must be finite and of `dim` numbers.
 */
export interface VectorIndex<T = Readonly<Record<string, unknown>>> {
  readonly kind: string;
  readonly dim: number;
  readonly count: number;
  add(label: number, vector: readonly number[], payload: T): Promise<void>;
  /** Nearest first, squared Euclidean distance; a filter that throws is reported as the caller's error and aborts nothing. */
  search(vector: readonly number[], k: number, filter?: (payload: T) => boolean): Promise<Neighbour<T>[]>;
  /** Everything that was added, with its label. */
  entries(): Iterable<readonly [label: number, payload: T]>;
  /** Saves safely: temporary file, fsync, manifest with SHA-256, rename. */
  save(): Promise<void>;
  clear(): Promise<void>;
  close(): Promise<void>;
}

/** Start values for a session, and what they rest on. */
export interface Lookup {
  readonly thresholds: ThresholdSet;
  readonly neighbours: readonly { readonly session: string; readonly distance: number; readonly seq: number }[];
}
