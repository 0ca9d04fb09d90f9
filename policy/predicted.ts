/**
 * Whether a policy predicts what its moves cost. One that tries no page has nothing to predict from: the zero of its
 * summary is no prediction, least of all where whole pages are let go.
 */

/** Policies of this room that try pages. */
const PREDICTING: readonly string[] = ['price', 'price-1'];

/**
 * The divergence that a policy of this name predicts, by what its summary or the end of its session says; null: none. A
 * policy of one's own predicts where it says more than 0.
 */
export const predictedBy = (policy: string, predictedKld: number): number | null =>
  predictedKld > 0 || PREDICTING.includes(policy) ? predictedKld : null;
