/** Where an answer is in its grammar: which tokens may come next, and whether it may end. */
import type { GrammarMatcher } from '@mlc-ai/web-xgrammar';
import { KvError } from '../../../native/index.ts';

/** Tokens that may come next: bit `id % 32` of word `id / 32`. */
export type TokenMask = Int32Array;

export const allows = (mask: TokenMask, id: number): boolean => ((mask[id >>> 5]! >>> (id & 31)) & 1) === 1;

/** A mask, or any token of a vocabulary, but for one. */
export function without(mask: TokenMask | null, id: number, vocabSize: number): TokenMask {
  const left = mask?.slice() ?? new Int32Array(Math.ceil(vocabSize / 32)).fill(-1);
  left[id >>> 5]! &= ~(1 << (id & 31));
  return left;
}

/** What an answer follows: nothing, until it begins what has to be followed, or a grammar from its first token on. */
export interface Following {
  /** The mask of the next token; null: any may come. */
  readonly mask: TokenMask | null;
  /** True if the text may end here; null: nothing has to be followed yet. */
  readonly isComplete: boolean | null;
  /** True if it can only end here. */
  readonly isOver: boolean;
  /** True if this token may not come next although the mask allows it. */
  refuses(id: number): boolean;
  /** The token was written. */
  accept(id: number): Promise<void>;
  /** Whether a text that is complete is right in what no mask says. */
  fulfils(text: string): boolean;
  close(): void;
}

/** What a constraint is of, beside its grammar. */
interface Constraining {
  readonly vocabSize: number;
  readonly endIds: readonly number[];
  /** null: the grammar says all. */
  readonly fulfils?: ((text: string) => boolean) | null;
}

/**
 * The library counts one token more than the model has, which stands for the end of the text. So it is known whether
 * the grammar is complete, also where a model has no token to end with; where it is, those that the model has are
 * allowed.
 */
export class Constraint implements Following {
  /** The mask of the next token. */
  mask: TokenMask = new Int32Array(0);
  /** True if the text may end here. */
  isComplete = false;
  /** True if it can only end here. */
  isOver = false;
  readonly #matcher: GrammarMatcher;
  readonly #vocabSize: number;
  readonly #endIds: readonly number[];
  readonly #fulfils: ((text: string) => boolean) | null;

  private constructor(matcher: GrammarMatcher, { vocabSize, endIds, fulfils = null }: Constraining) {
    this.#matcher = matcher;
    this.#vocabSize = vocabSize;
    this.#endIds = endIds;
    this.#fulfils = fulfils;
  }

  /** Owns the matcher from here on. Throws 'bad-argument' for a grammar that no text fulfils. */
  static async open(matcher: GrammarMatcher, constraining: Constraining): Promise<Constraint> {
    const constraint = new Constraint(matcher, constraining);
    try {
      await constraint.#look();
    } catch (error) {
      constraint.close();
      throw error;
    }
    return constraint;
  }

  /** The token was written. Throws 'bad-argument' where no token of the model goes on from it. */
  async accept(id: number): Promise<void> {
    if (!this.#matcher.acceptToken(id))
      throw new Error(`palimpsest internal error: the grammar refuses token ${id}, which its mask allows`);
    await this.#look();
  }

  fulfils(text: string): boolean {
    return this.#fulfils?.(text) !== false;
  }

  /** The mask says everything. */
  refuses(): boolean {
    return false;
  }

  /** True if its text can begin so; before anything was written. */
  admits(beginning: string): boolean {
    // What the library refuses in the middle it may have taken in part.
    const isTaken = this.#matcher._acceptString(beginning);
    this.#matcher.reset();
    return isTaken;
  }

  /** Its text begins so, in whichever tokens that was written; before any other. Throws as accept. */
  async begin(beginning: string): Promise<void> {
    if (!this.#matcher._acceptString(beginning))
      throw new Error('palimpsest internal error: the grammar refuses a beginning that it admits');
    await this.#look();
  }

  close(): void {
    this.#matcher.dispose();
  }

  async #look(): Promise<void> {
    const mask = await this.#matcher.getNextTokenBitmask();
    this.isComplete = allows(mask, this.#vocabSize);
    mask[this.#vocabSize >>> 5]! &= ~(1 << (this.#vocabSize & 31));
    this.isOver = mask.every((word) => word === 0);
    if (this.isOver && !this.isComplete)
      throw new KvError('bad-argument', 'the grammar asks for what no token of the model can write', {
        hint: 'a rule that never ends, or a character that the vocabulary lacks',
      });
    if (this.isComplete) for (const id of this.#endIds) mask[id >>> 5]! |= 1 << (id & 31);
    this.mask = mask;
  }
}
