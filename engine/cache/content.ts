/**
 * What kind of text a session reads, in four coarse numbers that its fingerprint may hold. Nothing of the text itself
 * can be made out of them.
 */
import type { Measurements } from '../../memory/index.ts';
import type { Tokenizer } from '../transformer/types.ts';

export type Content = Pick<Measurements, 'bytesPerToken' | 'letterShare' | 'foreignShare' | 'distinctShare'>;

/** From so many tokens on something can be said, and more than so many change little. */
const TOKENS_MIN = 128;
export const TOKENS_MAX = 1024;

/** What is looked at: the text of the first tokens, in UTF-8. */
export const beginningOf = (tokenizer: Tokenizer, tokens: readonly number[]): Uint8Array =>
  Buffer.from(tokenizer.decode(tokens.slice(0, TOKENS_MAX)), 'utf8');

/** The content of the first tokens of a session; nothing of fewer than a page. */
export function contentOf(tokenizer: Tokenizer, tokens: readonly number[]): Content {
  if (tokens.length < TOKENS_MIN) return {};
  const read = tokens.slice(0, TOKENS_MAX);
  const bytes = beginningOf(tokenizer, read);
  let letters = 0;
  let foreign = 0;
  for (const byte of bytes) {
    if ((byte | 32) >= 97 && (byte | 32) <= 122) letters++;
    if (byte >= 128) foreign++;
  }
  const share = (count: number): number => count / Math.max(1, bytes.length);
  return {
    bytesPerToken: bytes.length / read.length,
    letterShare: share(letters),
    foreignShare: share(foreign),
    distinctShare: new Set(read).size / read.length,
  };
}
