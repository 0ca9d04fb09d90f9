/** Grammars that are compiled for one vocabulary and its marks, in a thread of theirs. */
import type { CompiledGrammar, GrammarCompiler } from '@mlc-ai/web-xgrammar';
import { KvError } from '../../../native/index.ts';
import { checkEnds } from './endless.ts';
import type { OpenedLibrary } from './library.ts';
import { Matching } from './matching.ts';
import { grammarText, type Source } from './source.ts';
import { type Vocabulary, wordsOf } from './vocabulary.ts';

interface Compiling extends OpenedLibrary {
  readonly compiler: GrammarCompiler;
}

interface Compiled extends OpenedLibrary {
  readonly grammar: CompiledGrammar;
  readonly fulfils: ((text: string) => boolean) | null;
}

export class CompiledGrammars {
  readonly #vocabulary: Vocabulary;
  readonly #marks: readonly number[];
  readonly #library: () => OpenedLibrary;
  #compiling: Promise<Compiling> | null = null;
  readonly #kept = new Map<string, Compiled>();

  /** library: opens the library, for the first grammar. */
  constructor(vocabulary: Vocabulary, marks: readonly number[], library: () => OpenedLibrary) {
    this.#vocabulary = vocabulary;
    this.#marks = marks;
    this.#library = library;
  }

  /**
   * Compiles a grammar and keeps it under a key, and looks whether a text can begin. Throws 'bad-argument' for one that
   * is broken or that no text fulfils, 'unsupported' for what cannot be followed, 'missing-dependency'.
   */
  async compile(key: string, source: Source): Promise<void> {
    const isText = 'text' in source;
    const what = isText ? source.what : 'jsonSchema' in source ? 'schema' : 'grammar';
    const { text, fulfils } = isText ? { text: source.text, fulfils: null } : grammarText(source);
    checkEnds(text, what);
    this.#compiling ??= this.#open();
    const opening = this.#compiling;
    try {
      const { compiler, ...opened } = await opening;
      this.#kept.set(key, { ...opened, grammar: await compiler.compileGrammar(text), fulfils });
      const matching = await this.open(key);
      await matching.standing().finally(() => matching.close());
    } catch (error) {
      if (error instanceof KvError) {
        this.forget(key);
        if (error.code === 'missing-dependency') this.#compiling = null;
        throw error;
      }
      // What has aborted cannot be trusted any more; the texts that follow its grammars already are let be.
      this.#compiling = null;
      this.#kept.clear();
      throw refusal(error, what, (await opening).takeSaid());
    }
  }

  /** False once the library has aborted since: it takes all grammars along. */
  keeps(key: string): boolean {
    return this.#kept.has(key);
  }

  /** The beginning of a text that follows the grammar of this key. */
  async open(key: string): Promise<Matching> {
    const { library, grammar, fulfils } = this.#kept.get(key)!;
    return new Matching(await library.GrammarMatcher.createGrammarMatcher(grammar), this.#vocabulary, fulfils);
  }

  forget(key: string): void {
    this.#kept.get(key)?.grammar.dispose();
    this.#kept.delete(key);
  }

  async #open(): Promise<Compiling> {
    const opened = this.#library();
    const { TokenizerInfo, GrammarCompiler: Compiler } = opened.library;
    const { size } = this.#vocabulary;
    const words = wordsOf(this.#vocabulary, this.#marks);
    const info = await TokenizerInfo.createTokenizerInfo(words, 'byte_level', false, words.length, [size]);
    return { ...opened, compiler: await Compiler.createGrammarCompiler(info, false) };
  }
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
