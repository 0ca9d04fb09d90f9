/**
 * How byte-level vocabularies of GGUF files cut text before merging: `tokenizer.ggml.pre` names one of these. Patterns
 * apply one after the other, each to the pieces left by the one before; text that a pattern does not match stays a
 * piece. The patterns are those of the models' own tokenizers, written as in their tokenizer.json.
 */
import { KvError } from '../../native/index.ts';

export interface PreTokenizer {
  readonly patterns: readonly string[];
  /** A piece that is a word of the vocabulary becomes that token without merging. */
  readonly ignoreMerges?: boolean;
  /** True if prompts begin with BOS if the file does not say. */
  readonly addBos?: boolean;
}

export const GPT2_PATTERN = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const AFTER_WORDS = ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const llama3 = (digits: string): string =>
  `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}${digits}|${AFTER_WORDS}`;
const UPPER = '\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}';
const LOWER = '\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}';
const TEKKEN_PATTERN =
  `[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]*[${LOWER}]+|[^\\r\\n\\p{L}\\p{N}]?[${UPPER}]+[${LOWER}]*|\\p{N}` +
  '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
/** As the reference model of this package cuts; files of others do not have it. */
const REFERENCE_PATTERN = "'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|\\d| ?[^\\sA-Za-z\\d]+|\\s+(?!\\S)|\\s+";
const PUNCTUATION = '[\\p{P}\\$\\+<=>\\^~\\|';

const gpt2: PreTokenizer = { patterns: [GPT2_PATTERN] };
const digitsThenGpt2: PreTokenizer = { patterns: ['\\p{N}', GPT2_PATTERN] };
const llamaBpe: PreTokenizer = { patterns: [llama3('{1,3}')], ignoreMerges: true, addBos: true };
const qwen2: PreTokenizer = { patterns: [llama3('')] };

const BY_NAME: ReadonlyMap<string, PreTokenizer> = new Map([
  ['default', { patterns: [`${PUNCTUATION}]+`, GPT2_PATTERN, '\\p{N}+', '[0-9][0-9][0-9]'] }],
  ['gpt-2', gpt2],
  ['olmo', gpt2],
  ['mpt', gpt2],
  ['smollm', digitsThenGpt2],
  ['starcoder', digitsThenGpt2],
  ['refact', digitsThenGpt2],
  ['codeshell', digitsThenGpt2],
  ['llama-bpe', llamaBpe],
  ['llama3', llamaBpe],
  ['llama-v3', llamaBpe],
  ['smaug-bpe', { patterns: llamaBpe.patterns }],
  ['qwen2', qwen2],
  ['deepseek-r1-qwen', qwen2],
  ['tekken', { patterns: [TEKKEN_PATTERN], ignoreMerges: true, addBos: true }],
  [
    'deepseek-coder',
    {
      patterns: [
        '[\\r\\n]',
        '\\s?\\p{L}+',
        '\\s?\\p{P}+',
        '[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+',
        '\\p{N}',
      ],
    },
  ],
  ['palimpsest-reference', { patterns: [REFERENCE_PATTERN] }],
  ['falcon', { patterns: [`${PUNCTUATION}\`]+`, GPT2_PATTERN, '[0-9][0-9][0-9]'] }],
]);

/**
 * Vocabularies whose files may not name theirs, as files from before the spring of 2024 do not: the number of merges
 * and the first of them. Two that were trained apart differ among these; those that go on from another have more.
 */
const FIRST_MERGES: readonly { readonly name: string; readonly count: number; readonly first: readonly string[] }[] = [
  { name: 'gpt-2', count: 50000, first: ['Ġ t', 'Ġ a', 'h e', 'i n', 'r e', 'o n', 'Ġt he', 'e r'] },
  { name: 'smollm', count: 48900, first: ['Ġ t', 'Ġ a', 'i n', 'h e', 'Ġ Ġ', 'r e', 'o n', 'e r'] },
  { name: 'llama-bpe', count: 280147, first: ['Ġ Ġ', 'Ġ ĠĠĠ', 'ĠĠ ĠĠ', 'ĠĠĠ Ġ', 'i n', 'Ġ t'] },
  { name: 'qwen2', count: 151387, first: ['Ġ Ġ', 'ĠĠ ĠĠ', 'i n', 'Ġ t', 'ĠĠĠĠ ĠĠĠĠ', 'e r', 'ĠĠ Ġ', 'o n'] },
  { name: 'deepseek-coder', count: 31757, first: ['Ġ Ġ', 'Ġ t', 'Ġ a', 'i n', 'h e', 'r e', 'o n', 'e r'] },
];

/** The name that a file with these merges should have; null: nobody knows. */
export const nameByMerges = (merges: readonly string[]): string | null =>
  FIRST_MERGES.find(({ count, first }) => merges.length === count && first.every((merge, at) => merges[at] === merge))
    ?.name ?? null;

/** What tokenizer.json has for CONTRACTIONS. */
const ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/** The name under which a file cuts by these patterns; null: there is none. */
export function nameByPatterns(given: readonly string[], ignoreMerges: boolean): string | null {
  const wanted = given.map((pattern) => pattern.replace(ANY_CASE, CONTRACTIONS)).join('\n');
  const found = [...BY_NAME].find(
    ([, own]) => own.patterns.join('\n') === wanted && (own.ignoreMerges === true) === ignoreMerges,
  );
  return found?.[0] ?? null;
}

const OWN: ReadonlySet<string> = new Set(['\\p{N}+', ...[...BY_NAME.values()].flatMap(({ patterns }) => patterns)]);

/** True if a pattern is one of these, whose running time is known to grow only with the text. */
export const isOwnPattern = (pattern: string): boolean => OWN.has(pattern);

/** Throws KvError 'unsupported' for a name that is not served. */
export function preTokenizer(name: string): PreTokenizer {
  const found = BY_NAME.get(name);
  if (found !== undefined) return found;
  throw new KvError('unsupported', `the pre-tokenizer '${name.slice(0, 80)}' is not served`, {
    values: { name, served: [...BY_NAME.keys()] },
  });
}
