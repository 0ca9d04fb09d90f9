/** What memory/ was asked and answered: where the start values come from. */
import type { BodyOf, Fields } from './field.ts';
import { reals, thresholds } from './parts.ts';
import { list, noun, optional, real, text, whole } from './type.ts';

/** An earlier session that start values rest on. */
export interface LikeSession {
  /** Its id. */
  readonly session: string;
  /** Between the fingerprints; 0 is the same work. */
  readonly distance: number;
  /** Of the entry that ended it. */
  readonly seq: number;
  /** The log of another machine that the entry stands in; left out: this one. */
  readonly log?: string;
}

export const likeSession = noun<LikeSession>()({ session: text, distance: real, seq: whole, log: optional(text) });

export const EVIDENCE = {
  fingerprint: { type: reals },
  neighbours: { type: list(likeSession) },
  thresholds: { type: thresholds },
} as const satisfies Fields;

export type EvidenceBody = BodyOf<typeof EVIDENCE>;
