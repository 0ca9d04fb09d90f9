/** A vocabulary of a few texts for tests: token i is the i-th of them. */
import type { Vocabulary } from '../../../../../engine/transformer/sampling/sampler.ts';

export function vocabularyOf(pieces: readonly string[]): Vocabulary {
  const decode = (ids: readonly number[]): string => ids.map((id) => pieces[id]!).join('');
  return {
    size: pieces.length,
    tokenizer: { decode, stream: () => ({ push: (id) => pieces[id]!, end: () => '' }) },
  };
}

/** So many tokens without a text that means anything. */
export const plainVocabulary = (size: number): Vocabulary =>
  vocabularyOf(Array.from({ length: size }, (_, id) => `<${id}>`));
