/**
 * Pre-tokenizer and merges on @huggingface/tokenizers, without its handling of added tokens and decoding, which are
 * ours.
 */
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { KvError, show } from '../../native/index.ts';
import { within } from './bounded.ts';
import { checkSteps, hasForeignPattern, patternMs, type Step } from './tokenizer-steps.ts';

/** Pieces that are merged at once; the number of tokens is checked after each such batch. */
const PIECES_AT_ONCE = 1024;

export interface BpeDescription {
  readonly normalizers: readonly Step[];
  readonly preTokenizers: readonly Step[];
  /** The `model` of tokenizer.json: type, vocab, merges, byte_fallback … */
  readonly model: Readonly<Record<string, unknown>>;
}

export interface Bpe {
  /** Does what TokenizerParts.encodeText says. */
  encodeText(text: string, section: number, tokensMax: number): number[];
}

/**
 * guarded: ids that text must never become. If merges lead to one, its letters are encoded one by one instead.
 * Throws KvError 'bad-tokenizer' for anything the package does not know.
 */
export function createBpe({ normalizers, preTokenizers, model }: BpeDescription, guarded: ReadonlySet<number>): Bpe {
  checkSteps(normalizers);
  checkSteps(preTokenizers);
  let tokenizer: HfTokenizer;
  try {
    const json = {
      normalizer: normalizers.length === 0 ? null : { type: 'Sequence', normalizers },
      pre_tokenizer: preTokenizers.length === 0 ? null : { type: 'Sequence', pretokenizers: preTokenizers },
      model,
      decoder: null,
      post_processor: null,
      added_tokens: [],
    };
    tokenizer = new HfTokenizer(json, {});
  } catch (cause) {
    throw new KvError(
      'bad-tokenizer',
      `the tokenizer cannot be used: ${show((cause as Error)?.message).slice(0, 300)}`,
      { cause },
    );
  }
  const merges = tokenizer.model;
  if (merges === null) throw new KvError('bad-tokenizer', 'the tokenizer has no model');
  const idOf = (word: string): number => {
    const id = merges.tokens_to_ids.get(word) ?? merges.unk_token_id;
    if (id === undefined)
      throw new KvError('bad-tokenizer', `the vocabulary has no token for ${JSON.stringify(word).slice(0, 80)}`, {
        values: { word },
      });
    return id;
  };
  const cut = (text: string, section: number): string[] => {
    const normalized = tokenizer.normalizer?.normalize(text) ?? text;
    if (normalized === '') return [];
    return tokenizer.pre_tokenizer?.pre_tokenize(normalized, { section_index: section }) ?? [normalized];
  };
  const isForeign = hasForeignPattern([...normalizers, ...preTokenizers]);
  // Neighbouring unknown words become one token across pieces, so all pieces must then be merged at once.
  const lot = merges.fuse_unk ? Number.POSITIVE_INFINITY : PIECES_AT_ONCE;
  return {
    encodeText(text, section, tokensMax) {
      const pieces = isForeign ? cutWithin(patternMs(text), text, () => cut(text, section)) : cut(text, section);
      const ids: number[] = [];
      for (let at = 0; at < pieces.length && ids.length <= tokensMax; at += lot) {
        for (const word of merges._call(pieces.slice(at, at + lot))) {
          const id = idOf(word);
          if (guarded.has(id) && id !== merges.unk_token_id) for (const letter of word) ids.push(idOf(letter));
          else ids.push(id);
        }
      }
      return ids;
    },
  };
}

/** Patterns that come with a file may run for ever, or produce more text than is allowed. */
function cutWithin(ms: number, text: string, cut: () => string[]): string[] {
  const values = { characters: text.length, ms };
  let ended: { readonly value: string[] } | null;
  try {
    ended = within(ms, cut);
  } catch (cause) {
    throw new KvError(
      'bad-tokenizer',
      `the tokenizer's patterns fail: ${show((cause as Error)?.message).slice(0, 300)}`,
      {
        values,
        cause,
      },
    );
  }
  if (ended !== null) return ended.value;
  throw new KvError(
    'bad-tokenizer',
    `the tokenizer's patterns did not end within ${ms} ms on a text of ${text.length} characters`,
    { values, hint: 'a pattern of its tokenizer.json takes more and more time the longer a text is' },
  );
}
