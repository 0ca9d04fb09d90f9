/** Where a text is in its grammar, in the thread that compiled it. */
import type { GrammarMatcher } from '@mlc-ai/web-xgrammar';
import { KvError } from '../../../native/index.ts';
import { allows, type Standing } from './constraint.ts';
import type { Vocabulary } from './vocabulary.ts';

/**
 * The library counts one token more than the model has, which stands for the end of the text. So it is known whether
 * the grammar is complete, also where a model has no token to end with; where it is, those that the model has are
 * allowed.
 */
export class Matching {
  readonly #matcher: GrammarMatcher;
  readonly #vocabulary: Pick<Vocabulary, 'size' | 'endIds'>;
  readonly #fulfils: ((text: string) => boolean) | null;

  /** Owns the matcher from here on. */
  constructor(
    matcher: GrammarMatcher,
    vocabulary: Pick<Vocabulary, 'size' | 'endIds'>,
    fulfils: ((text: string) => boolean) | null,
  ) {
    this.#matcher = matcher;
    this.#vocabulary = vocabulary;
    this.#fulfils = fulfils;
  }

  /** The token was written. Throws as standing. */
  async accept(id: number): Promise<Standing> {
    if (!this.#matcher.acceptToken(id))
      throw new Error(`palimpsest internal error: the grammar refuses token ${id}, which its mask allows`);
    return this.standing();
  }

  /** Whether a text that is complete is right in what no mask says. */
  fulfils(text: string): boolean {
    return this.#fulfils?.(text) !== false;
  }

  /** True if its text can begin so; before anything was written. */
  admits(beginning: string): boolean {
    // What the library refuses in the middle it may have taken in part.
    const isTaken = this.#matcher._acceptString(beginning);
    this.#matcher.reset();
    return isTaken;
  }

  /** Its text begins so, in whichever tokens that was written; before any other. Throws as standing. */
  async begin(beginning: string): Promise<Standing> {
    if (!this.#matcher._acceptString(beginning))
      throw new Error('palimpsest internal error: the grammar refuses a beginning that it admits');
    return this.standing();
  }

  close(): void {
    this.#matcher.dispose();
  }

  /** Throws 'bad-argument' where no token of the model goes on from here. */
  async standing(): Promise<Standing> {
    const { size, endIds } = this.#vocabulary;
    const mask = await this.#matcher.getNextTokenBitmask();
    const isComplete = allows(mask, size);
    mask[size >>> 5]! &= ~(1 << (size & 31));
    const isOver = mask.every((word) => word === 0);
    if (isOver && !isComplete)
      throw new KvError('bad-argument', 'the grammar asks for what no token of the model can write', {
        hint: 'a rule that never ends, or a character that the vocabulary lacks',
      });
    if (isComplete) for (const id of endIds) mask[id >>> 5]! |= 1 << (id & 31);
    return { mask, isComplete, isOver };
  }
}
