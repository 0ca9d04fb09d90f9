/** Pre-tokenizer and merges on @huggingface/tokenizers, without its handling of added tokens and decoding, which are ours. */
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { KvError } from '../../native/index.ts';

export interface BpeDescription {
  readonly normalizer: unknown;
  readonly preTokenizer: unknown;
  /** As in tokenizer.json: type, vocab, merges, byte_fallback … */
  readonly model: Readonly<Record<string, unknown>>;
}

export interface Bpe {
  encodeText(text: string, section: number): number[];
}

/**
 * guarded: ids that text must never become, should merges lead to one; its letters are then encoded one by one.
 * Throws KvError 'bad-tokenizer' for what the package does not know.
 */
export function createBpe({ normalizer, preTokenizer, model }: BpeDescription, guarded: ReadonlySet<number>): Bpe {
  let tokenizer: HfTokenizer;
  try {
    const json = {
      normalizer,
      pre_tokenizer: preTokenizer,
      model,
      decoder: null,
      post_processor: null,
      added_tokens: [],
    };
    tokenizer = new HfTokenizer(json, {});
  } catch (cause) {
    throw new KvError(
      'bad-tokenizer',
      `the tokenizer cannot be used: ${String((cause as Error)?.message).slice(0, 300)}`,
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
  return {
    encodeText(text, section) {
      const normalized = tokenizer.normalizer === null ? text : tokenizer.normalizer.normalize(text);
      if (normalized === '') return [];
      const pieces =
        tokenizer.pre_tokenizer === null
          ? [normalized]
          : tokenizer.pre_tokenizer.pre_tokenize(normalized, { section_index: section });
      const ids: number[] = [];
      for (const word of merges._call(pieces)) {
        const id = idOf(word);
        if (guarded.has(id) && id !== merges.unk_token_id) for (const letter of word) ids.push(idOf(letter));
        else ids.push(id);
      }
      return ids;
    },
  };
}
