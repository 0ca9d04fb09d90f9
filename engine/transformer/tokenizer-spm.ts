/**
 * SentencePiece BPE over a vocabulary with scores: of all neighbours whose concatenation is a word, the pair with the
 * highest score is joined first, and the leftmost of equals. Letters that are not words become their bytes. Spaces are
 * U+2581, and a text gets one in front. Source of the method: SentencePiece (arXiv 1808.06226), its BPE model.
 */
import { mergeBest } from './merge.ts';
import type { Slices } from './slices.ts';

export interface ScoredWords {
  /** Words that text may become, without control, unknown and byte tokens. */
  readonly idOf: ReadonlyMap<string, number>;
  readonly scoreOf: (id: number) => number;
  /** Id of each byte, -1 where the vocabulary has none. */
  readonly byteIds: Int32Array;
  readonly unknownId: number;
  readonly spacePrefix: boolean;
}

const NONE = -1;

/** Ids of a text. */
export function* encodeScored(text: string, words: ScoredWords): Slices<number[]> {
  if (text === '') return [];
  const { idOf, scoreOf } = words;
  const letters = [...`${words.spacePrefix ? ' ' : ''}${text}`.replaceAll(' ', '\u2581')];
  const symbols = yield* mergeBest(letters, (left, right) => {
    const id = idOf.get(left + right);
    return id === undefined ? undefined : scoreOf(id);
  });
  const ids: number[] = [];
  for (const symbol of symbols) {
    const id = idOf.get(symbol);
    if (id !== undefined) ids.push(id);
    else pushBytes(symbol, words, ids);
  }
  return ids;
}

function pushBytes(symbol: string, { byteIds, unknownId }: ScoredWords, ids: number[]): void {
  const bytes = new TextEncoder().encode(symbol);
  if (bytes.some((byte) => byteIds[byte] === NONE)) ids.push(unknownId);
  else for (const byte of bytes) ids.push(byteIds[byte]!);
}
