/** What grammars are compiled from. */
import { libraryGrammar } from './gbnf.ts';
import { type GrammarOption, Repetitions } from './options.ts';
import { type FollowedText, schemaGrammar } from './schema.ts';

/** What is compiled: what a caller gave, or a grammar as the library reads it, which is called `what` in errors. */
export type Source = GrammarOption | { readonly text: string; readonly what: string };

/** A grammar as the library reads it. Throws 'bad-argument' and 'unsupported' for what can be seen without it. */
export const grammarText = (grammar: GrammarOption): FollowedText =>
  'jsonSchema' in grammar
    ? schemaGrammar(grammar.jsonSchema)
    : { text: libraryGrammar(grammar.gbnf, new Repetitions()), fulfils: null };

/**
 * The character that stands for a token among the marks of a grammar: a control character, which no JSON and no text of
 * a call has.
 */
export const markCharacter = (index: number): string => String.fromCharCode(1 + index);

/** There are so many control characters before the tabulator. */
export const MARKS_MAX = 8;
