/** What the log says about itself, and what was done to a session from outside. */
import type { LayerChange } from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { count, list, noun, one, optional, real, text, whole } from './type.ts';

export const RECOVERED = {
  /** Bytes cut from a torn tail. */
  droppedBytes: { type: whole },
  segment: { type: text },
} as const satisfies Fields;

/** The oldest segments of a series were removed, or were about to be when the power failed. */
export const RETENTION = {
  /** Number of the first segment that stays. */
  firstSegment: { type: whole },
  /** seq of its first entry. */
  firstSeq: { type: whole },
  /** Segments that were removed, and their bytes. */
  segments: { type: whole },
  bytes: { type: whole },
} as const satisfies Fields;

/**
 * What somebody did to a session from outside: what the log says of it was erased, is held for a court, or is held no
 * more.
 */
export const DONE = {
  /** The command. */
  by: { type: text },
} as const satisfies Fields;

const layerChange = noun<LayerChange>()({
  layer: count,
  state: text,
  threshold: text,
  measured: real,
  bound: real,
  source: one(['error', 'topic', 'gain']),
});

/** A note may say anything. Where these fields stand in it, they are this. */
export const NOTE = {
  layerChanges: { type: optional(list(layerChange)) },
  tokens: { type: optional(whole) },
} as const satisfies Fields;

export type RecoveredBody = BodyOf<typeof RECOVERED>;
export type RetentionBody = BodyOf<typeof RETENTION>;
export type DoneBody = BodyOf<typeof DONE>;
