/** What an answer may be told to follow. */
import { asRecord, KvError, show } from '../../../native/index.ts';

/**
 * The grammar that an answer follows: a JSON schema (2020-12, as far as docs/library.md says), or a grammar as
 * llama.cpp writes them (GBNF, from the rule `root`).
 */
export type GrammarOption = { readonly jsonSchema: JsonSchema } | { readonly gbnf: string };

/** A JSON schema: `true` for any value, or an object of keywords. */
export type JsonSchema = boolean | Readonly<Record<string, unknown>>;

/** Bytes of a schema as JSON, or of a grammar. Those of published tools have a few thousand. */
const GRAMMAR_BYTES_MAX = 1 << 18;

/**
 * Throws 'bad-argument' for what is neither a schema nor a grammar. What they say is looked at when they are compiled.
 */
export function checkGrammar(grammar: unknown): asserts grammar is GrammarOption | undefined {
  if (grammar === undefined) return;
  const given = asRecord(grammar);
  const [name, ...others] = Object.keys(given ?? {});
  const value = name === undefined ? undefined : given?.[name];
  const isSchema = name === 'jsonSchema' && (typeof value === 'boolean' || asRecord(value) !== undefined);
  if (others.length > 0 || !(isSchema || (name === 'gbnf' && typeof value === 'string')))
    throw new KvError('bad-argument', 'grammar must be { jsonSchema } or { gbnf }', {
      values: { grammar: show(grammar).slice(0, 80) },
      hint: "grammar: { jsonSchema: { type: 'object', … } }, or grammar: { gbnf: 'root ::= …' }",
    });
  const bytes = Buffer.byteLength(typeof value === 'string' ? value : JSON.stringify(value));
  if (bytes > GRAMMAR_BYTES_MAX)
    throw new KvError('bad-argument', `a grammar of ${bytes} bytes is too long`, {
      values: { bytes, bytesMax: GRAMMAR_BYTES_MAX },
    });
}

/**
 * Most repetitions that the counts of one grammar may add up to: each takes the library some milliseconds to compile
 * for a vocabulary of 50,000 tokens.
 */
const REPETITIONS_MAX = 2000;
/** Lengths of texts and lists are looked at when the text is complete, where they are longer or add up to more. */
const LENGTH_MAX = 200;
const LENGTHS_MAX = 500;

/** Adds up the counts of a grammar, lengths apart from others. */
export class Repetitions {
  #sum = 0;
  #lengths = 0;

  /** Throws 'unsupported'. */
  add(count: number, where: string): void {
    this.#sum += count;
    if (this.#sum <= REPETITIONS_MAX) return;
    throw new KvError('unsupported', `the counts of the grammar add up to more than ${REPETITIONS_MAX} at ${where}`, {
      values: { count, where, repetitionsMax: REPETITIONS_MAX },
      hint: 'smaller counts, or none: maxTokens bounds the answer as well',
    });
  }

  /** The same of a length. → false: there is no room for it, so it is not counted */
  addLength(count: number): boolean {
    if (count > LENGTH_MAX || this.#lengths + count > LENGTHS_MAX) return false;
    this.#lengths += count;
    return true;
  }
}
