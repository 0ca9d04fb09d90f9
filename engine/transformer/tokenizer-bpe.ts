/**
 * Pre-tokenizer and merges on @huggingface/tokenizers, without its handling of added tokens and decoding, which are
 * ours.
 */
import { Tokenizer as HfTokenizer } from '@huggingface/tokenizers';
import { KvError, show } from '../../native/index.ts';
import { within } from './bounded.ts';
import { mergeBest } from './merge.ts';
import type { Slices } from './slices.ts';
import { checkSteps, hasForeignPattern, patternMs, type Step } from './tokenizer-steps.ts';

/** Letters of pieces that are merged between two rests. */
const LETTERS_A_SLICE = 4096;
/** The package merges a piece without a rest, so a longer one is merged here. */
const PIECE_LETTERS_MAX = 1024;

export interface BpeDescription {
  readonly normalizers: readonly Step[];
  readonly preTokenizers: readonly Step[];
  /** The `model` of tokenizer.json: type, vocab, merges, byte_fallback … */
  readonly model: Readonly<Record<string, unknown>>;
}

export interface Bpe {
  /** Does what TokenizerParts.encodeText says. */
  encodeText(text: string, section: number, tokensMax: number): Slices<number[]>;
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
  const merges = tokenizer.model as unknown as PackageBpe | null;
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
  return {
    *encodeText(text, section, tokensMax) {
      const pieces = isForeign ? cutWithin(patternMs(text), text, () => cut(text, section)) : cut(text, section);
      const ids: number[] = [];
      let afterUnknown = false;
      let letters = 0;
      for (let at = 0; at < pieces.length && ids.length <= tokensMax; at++) {
        for (const word of yield* mergedPiece(merges, pieces[at]!)) {
          const id = idOf(word);
          const isUnknown = id === merges.unk_token_id;
          if (guarded.has(id) && !isUnknown) for (const letter of word) ids.push(idOf(letter));
          // Neighbouring unknown words become one token, also across pieces.
          else if (!(isUnknown && afterUnknown && merges.fuse_unk)) ids.push(id);
          afterUnknown = isUnknown;
        }
        letters += pieces[at]!.length;
        if (letters < LETTERS_A_SLICE) continue;
        letters = 0;
        yield;
      }
      return ids;
    },
  };
}

/** What is used of the package's model. */
interface PackageBpe {
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  readonly unk_token_id?: number;
  readonly fuse_unk: boolean;
  readonly end_of_word_suffix?: string;
  encode(pieces: string[]): string[];
  readonly bpe_ranks: ReadonlyMap<string, number>;
  readonly continuing_subword_suffix: string | null;
  readonly ignore_merges: boolean;
}

/** The words that a piece becomes. */
function* mergedPiece(merges: PackageBpe, piece: string): Slices<string[]> {
  const {
    bpe_ranks: ranks,
    tokens_to_ids: words,
    ignore_merges,
    end_of_word_suffix,
    continuing_subword_suffix,
  } = merges;
  const isWhole = ignore_merges && words.has(piece);
  if (piece.length <= PIECE_LETTERS_MAX || isWhole || end_of_word_suffix || continuing_subword_suffix)
    return merges.encode([piece]);
  const symbols = yield* mergeBest([...piece], (left, right) => {
    const rank = ranks.get(JSON.stringify([left, right]));
    return rank === undefined ? undefined : -rank;
  });
  return symbols.flatMap((symbol) => (words.has(symbol) ? symbol : merges.encode([symbol])));
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
