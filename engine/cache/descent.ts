/**
 * Whether what a cache holds follows from its tokens, the steps in which they were read, and the moves that the log
 * has, so that whoever has these can make it again. It does not once pages came from a file, or tokens were taken back
 * behind which something was sealed or moved. What another cache began with follows if it did there.
 */
import { type StepRun, Steps } from './steps.ts';

/** Why a cache cannot be made again of its tokens and its log. */
export type Estranged = 'fork' | 'pages-of-others' | 'parked' | 'taken-back';

/** Each in words, behind 'the session '. */
export const ESTRANGED: Readonly<Record<Estranged, string>> = {
  fork: 'goes on from another one, which cannot be made again',
  'pages-of-others':
    'began with pages of another one that cannot be made again, or of a file whose session this log has not',
  parked: 'was parked in memory, where its pages lost a little',
  'taken-back': 'took tokens back that were read in one step with others, or that pages were sealed or moved with',
};

export class Descent {
  /** In which its tokens were read, also where another one read them. */
  readonly steps = new Steps();
  #estranged: Estranged | null = null;
  /** So many of its first tokens can be made again all the same. */
  #reach = Number.POSITIVE_INFINITY;

  /** The first reason why it cannot be made again; null: it can. */
  get estranged(): Estranged | null {
    return this.#estranged;
  }

  /** Of what was read in such steps. */
  static of(steps: readonly StepRun[]): Descent {
    const descent = new Descent();
    for (const [tokens, times] of steps) descent.steps.add(tokens, times);
    return descent;
  }

  /** It can no longer be made again, but for its first `tokens`. */
  leaves(why: Estranged, tokens = 0): void {
    this.#estranged ??= why;
    this.#reach = Math.min(this.#reach, tokens);
  }

  /** It is empty, and nothing of what it held is there: what is read from now on can be made again. */
  anew(): void {
    this.steps.cut(0);
    this.#estranged = null;
    this.#reach = Number.POSITIVE_INFINITY;
  }

  /** Its first `tokens` are those of another one; null: of one that nobody can make again. */
  begins(other: Descent | null, tokens: number, why: Estranged): void {
    if (other === null || tokens > other.#reach || !this.steps.begin(other.steps, tokens)) this.leaves(why);
  }
}
