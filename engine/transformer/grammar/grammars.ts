/** The grammars that answers of one model follow. Threads of theirs compile them, and the newest stay compiled. */
import type { LoadedModel } from '../types.ts';
import type { Constraint } from './constraint.ts';
import { checkGrammar, type GrammarOption } from './options.ts';
import type { FollowedText } from './schema.ts';
import { MARKS_MAX, type Source } from './source.ts';
import { type WorkshopOptions, Workshops } from './workshops.ts';

export class Grammars {
  readonly #workshops: Workshops;
  readonly #marks: readonly number[];

  /** marks: tokens that a grammar can ask for by their markCharacter, instead of by what they say. */
  constructor(workshops: Workshops, marks: readonly number[] = []) {
    if (marks.length > MARKS_MAX) throw new Error('palimpsest internal error: a grammar has too many marks');
    this.#workshops = workshops;
    this.#marks = marks;
  }

  static of(model: Pick<LoadedModel, 'config' | 'tokenizer'>, options: WorkshopOptions = {}): Grammars {
    return new Grammars(new Workshops(model, options));
  }

  /** Grammars of the same model in which these tokens are marks. */
  withMarks(marks: readonly number[]): Grammars {
    return new Grammars(this.#workshops, marks);
  }

  /**
   * The beginning of a text that follows a grammar; null without one. Its owner closes it. Throws 'bad-argument' for a
   * grammar that is broken or that no text fulfils, 'unsupported' for what cannot be followed or takes too long,
   * 'missing-dependency', 'aborted'.
   */
  async open(grammar: GrammarOption | undefined, signal?: AbortSignal): Promise<Constraint | null> {
    checkGrammar(grammar);
    if (grammar === undefined) return null;
    return this.#open(grammar, null, signal);
  }

  /** The same of a grammar as the library reads it, which is called `what` in errors. */
  follow({ text, fulfils }: FollowedText, what: string, signal?: AbortSignal): Promise<Constraint> {
    return this.#open({ text, what }, fulfils ?? (() => true), signal);
  }

  /** Nothing is followed any more. */
  close(): Promise<void> {
    return this.#workshops.close();
  }

  #open(
    source: Source,
    fulfils: ((text: string) => boolean) | null,
    signal: AbortSignal | undefined,
  ): Promise<Constraint> {
    const marks = this.#marks;
    return this.#workshops.open({ source, marks, key: JSON.stringify([marks, source]) }, fulfils, signal);
  }
}
