/**
 * Whether what a cache holds follows from its tokens and the moves that its log has, so that whoever has both can make
 * it again. It does not once pages came from elsewhere, or tokens were taken back behind which something was sealed or
 * moved.
 */

/** Why a cache cannot be made again of its tokens and its log. */
export type Estranged = 'fork' | 'pages-of-others' | 'parked' | 'taken-back';

/** Each in words, behind 'the session '. */
export const ESTRANGED: Readonly<Record<Estranged, string>> = {
  fork: 'goes on from another one, whose tokens its log does not have',
  'pages-of-others': 'began with pages that were read in another one, or that were stored',
  parked: 'was parked, and its pages came back from where they were',
  'taken-back': 'took tokens back that were read in one step with others, or that pages were sealed or moved with',
};

export class Descent {
  #estranged: Estranged | null = null;

  /** The first reason why it cannot be made again; null: it can. */
  get estranged(): Estranged | null {
    return this.#estranged;
  }

  leaves(why: Estranged): void {
    this.#estranged ??= why;
  }
}
