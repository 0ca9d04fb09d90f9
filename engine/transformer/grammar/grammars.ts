/**
 * The grammars that answers of one model follow, compiled for its vocabulary by the library. The newest are kept, since
 * an answer of a chat has that of the one before it.
 */
import type { CompiledGrammar, GrammarCompiler } from '@mlc-ai/web-xgrammar';
import { KvError } from '../../../native/index.ts';
import { byteLetters } from '../pieces.ts';
import type { LoadedModel } from '../types.ts';
import { Constraint } from './constraint.ts';
import { checkEnds } from './endless.ts';
import { libraryGrammar } from './gbnf.ts';
import { type Library, type OpenedLibrary, openLibrary } from './library.ts';
import { checkGrammar, type GrammarOption, Repetitions } from './options.ts';
import { type FollowedText, schemaGrammar } from './schema.ts';

/** So many compiled grammars are kept: some MB each at most. */
const KEPT = 8;

/** A grammar as the library reads it. Throws 'bad-argument' and 'unsupported' for what can be seen without it. */
export const grammarText = (grammar: GrammarOption): FollowedText =>
  'jsonSchema' in grammar
    ? schemaGrammar(grammar.jsonSchema)
    : { text: libraryGrammar(grammar.gbnf, new Repetitions()), fulfils: null };

interface Compiling extends OpenedLibrary {
  readonly compiler: GrammarCompiler;
}

/**
 * The character that stands for a token among the marks of a grammar: a control character, which no JSON and no text of
 * a call has.
 */
export const markCharacter = (index: number): string => String.fromCharCode(1 + index);

/** There are so many control characters before the tabulator. */
const MARKS_MAX = 8;

export class Grammars {
  readonly #model: Pick<LoadedModel, 'config' | 'tokenizer'>;
  readonly #marks: readonly number[];
  readonly #library: () => OpenedLibrary;
  readonly #endIds: readonly number[];
  /** Grammars with other marks, by their marks. */
  readonly #marked = new Map<string, Grammars>();
  #compiling: Promise<Compiling> | null = null;
  /** By what they were compiled from, the least recently used first. */
  readonly #kept = new Map<string, CompiledGrammar>();

  /**
   * marks: tokens that a grammar can ask for by their markCharacter, instead of by what they say. library: opens the
   * library, for the first grammar.
   */
  constructor(
    model: Pick<LoadedModel, 'config' | 'tokenizer'>,
    marks: readonly number[] = [],
    library: () => OpenedLibrary = openLibrary,
  ) {
    if (marks.length > MARKS_MAX) throw new Error('palimpsest internal error: a grammar has too many marks');
    this.#model = model;
    this.#marks = marks;
    this.#library = library;
    this.#endIds = [...new Set([...model.config.eosIds, ...model.tokenizer.eosIds])];
  }

  /**
   * The beginning of a text that follows a grammar; null without one. Its owner closes it. Throws 'bad-argument' for a
   * grammar that is broken or that no text fulfils, 'unsupported' for what cannot be followed, 'missing-dependency'.
   */
  async open(grammar: GrammarOption | undefined): Promise<Constraint | null> {
    checkGrammar(grammar);
    if (grammar === undefined) return null;
    return this.follow(grammarText(grammar), 'jsonSchema' in grammar ? 'schema' : 'grammar');
  }

  /** Grammars of the same model in which these tokens are marks. */
  withMarks(marks: readonly number[]): Grammars {
    const key = marks.join();
    const marked = this.#marked.get(key) ?? (key === '' ? this : new Grammars(this.#model, marks, this.#library));
    this.#marked.set(key, marked);
    return marked;
  }

  /** The same of a grammar as the library reads it, which is called `what` in errors. */
  async follow({ text, fulfils }: FollowedText, what: string): Promise<Constraint> {
    if (!this.#kept.has(text)) checkEnds(text, what);
    this.#compiling ??= this.#open();
    const opening = this.#compiling;
    try {
      const opened = await opening;
      const compiled = await this.#compiled(opened, text);
      const matcher = await opened.library.GrammarMatcher.createGrammarMatcher(compiled);
      return await Constraint.open(matcher, { vocabSize: this.#model.config.vocabSize, endIds: this.#endIds, fulfils });
    } catch (error) {
      if (error instanceof KvError && error.code !== 'missing-dependency') throw error;
      const said = error instanceof KvError ? [] : (await opening).takeSaid();
      // What has aborted cannot be trusted any more; the texts that follow its grammars already are let be.
      if (this.#compiling === opening) this.#forget();
      throw error instanceof KvError ? error : refusal(error, what, said);
    }
  }

  async #compiled({ compiler }: Compiling, text: string): Promise<CompiledGrammar> {
    const compiled = this.#kept.get(text) ?? (await compiler.compileGrammar(text));
    this.#kept.delete(text);
    this.#kept.set(text, compiled);
    for (const [oldest, grammar] of this.#kept) {
      if (this.#kept.size <= KEPT) break;
      this.#kept.delete(oldest);
      grammar.dispose();
    }
    return compiled;
  }

  async #open(): Promise<Compiling> {
    const opened = this.#library();
    return { ...opened, compiler: await compilerOf(opened.library, this.#model, this.#marks) };
  }

  #forget(): void {
    this.#compiling = null;
    this.#kept.clear();
  }
}

/**
 * Told of every token as the bytes that it adds to a text, each byte as a letter, which is how byte-level vocabularies
 * are written and says the same of any other. Control tokens add none, and what adds nothing is never allowed; the last
 * token is the end of the text. A mark adds its character, and no other token does.
 */
async function compilerOf(
  { TokenizerInfo, GrammarCompiler: Compiler }: Library,
  { config, tokenizer }: Pick<LoadedModel, 'config' | 'tokenizer'>,
  marks: readonly number[],
): Promise<GrammarCompiler> {
  const { vocabSize } = config;
  const ends = new Set([...config.eosIds, ...tokenizer.eosIds]);
  const isMark = (byte: number): boolean => byte >= 1 && byte <= marks.length;
  const words = Array.from({ length: vocabSize + 1 }, (_, id) => {
    if (id === vocabSize || ends.has(id)) return '';
    const mark = marks.indexOf(id);
    if (mark >= 0) return byteLetters(Buffer.from(markCharacter(mark)));
    const bytes = tokenizer.bytes(id);
    return bytes.some(isMark) ? '' : byteLetters(bytes);
  });
  const info = await TokenizerInfo.createTokenizerInfo(words, 'byte_level', false, words.length, [vocabSize]);
  return Compiler.createGrammarCompiler(info, false);
}

/** The library prints `[FATAL] FILE:LINE: Check failed: (…) is false: WHAT`, and then aborts. */
function refusal(cause: unknown, what: string, said: readonly string[]): KvError {
  const fatal = said.find((line) => line.startsWith('[FATAL]'));
  if (fatal === undefined)
    return new KvError('unsupported', `the ${what} is too large or nests too deeply to be compiled`, {
      hint: `a smaller ${what}, or parts of it under names of their own`,
      cause,
    });
  const told = fatal.replace(/^\[FATAL\] \S+:\d+: /, '').replace(/^Check failed: .*? is (false|true): /s, '');
  return new KvError('bad-argument', `the ${what} cannot be used: ${told.slice(0, 300)}`, { cause });
}
