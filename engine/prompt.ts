/** From what a caller may give as a prompt to token ids. */
import { KvError } from '../native/index.ts';
import type { ChatMessage, Tokenizer } from './model/types.ts';
import type { Prompt } from './types.ts';

/** Text gets BOS where the model wants it and the cache is empty (`first`); messages go through the chat template; numbers are ids already. */
export function tokenize(tokenizer: Tokenizer, prompt: Prompt, first: boolean): number[] {
  if (typeof prompt === 'string') {
    const ids = tokenizer.encode(prompt);
    return first && tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId, ...ids] : ids;
  }
  if (!Array.isArray(prompt)) {
    throw new KvError('bad-argument', 'a prompt is text, messages with a role and content, or token ids', {
      values: { given: typeof prompt },
    });
  }
  if (prompt.length > 0 && typeof prompt[0] === 'object') return tokenizer.chat(prompt as readonly ChatMessage[]);
  return [...(prompt as readonly number[])];
}
