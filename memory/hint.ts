/**
 * What helpers said of a text: its kind, and where it lies among texts. A hint makes the distance between two sessions
 * longer where both have one, and never shorter, so that sessions without hints are found as before.
 */
import { z } from 'zod';

/** A hint as a log has it, in numbers coarse enough that no text can be made of them. */
export interface TextHint {
  /** 'prose', 'code' …; kinds that one version knows another may not. */
  readonly kind: string;
  /** How sure that is, 0 to 1. */
  readonly share: number;
  /** Where the text lies, by numbers from −1 to 1. */
  readonly place: readonly number[];
  /** Digest of the embedder that said the place; left out: the one that comes with the package did. */
  readonly by?: string;
}

/** Most numbers of a place. */
const PLACE_DIM_MAX = 64;
/** How far apart texts of different kinds are, and opposite places; chosen: as far as budgets of 50% and 100%. */
const KIND_WEIGHT = 0.5;
const PLACE_WEIGHT = 0.125;

export const textHint = z.object({
  kind: z.string().max(40),
  share: z.number().min(0).max(1),
  place: z.array(z.number().min(-1).max(1)).max(PLACE_DIM_MAX),
  by: z.string().max(64).exactOptional(),
});

/**
 * What two hints add to the squared distance of their sessions; 0 where one is missing. Places that different embedders
 * said are not compared.
 */
export function hintDistance(a: TextHint | undefined, b: TextHint | undefined): number {
  if (a === undefined || b === undefined) return 0;
  const kinds = a.kind === b.kind ? 0 : KIND_WEIGHT ** 2 * Math.min(a.share, b.share);
  if (a.by !== b.by || a.place.length !== b.place.length) return kinds;
  return kinds + PLACE_WEIGHT ** 2 * a.place.reduce((sum, x, i) => sum + (x - b.place[i]!) ** 2, 0);
}
