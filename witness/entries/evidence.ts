/** What memory/ was asked and answered: where the start values come from. */
import type { BodyOf, Fields } from './field.ts';
import { hint, reals, thresholds } from './parts.ts';
import { list, noun, optional, real, text, whole } from './type.ts';

/** An earlier session that start values rest on. */
export interface LikeSession {
  /** Its id. */
  readonly session: string;
  /** Between the fingerprints, and the hints of both where they have one; 0 is the same work. */
  readonly distance: number;
  /** Of the entry that ended it. */
  readonly seq: number;
  /** The log of another machine that the entry stands in; left out: this one. */
  readonly log?: string;
}

export const likeSession = noun<LikeSession>()({ session: text, distance: real, seq: whole, log: optional(text) });

export const EVIDENCE = {
  fingerprint: { type: reals },
  /** What helpers said of the text; left out where none did. */
  hint: { type: optional(hint), since: '0.1.0' },
  neighbours: { type: list(likeSession) },
  thresholds: { type: thresholds },
} as const satisfies Fields;

export type EvidenceBody = BodyOf<typeof EVIDENCE>;
