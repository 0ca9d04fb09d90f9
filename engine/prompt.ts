/** Checks a request and turns its prompt, in whatever form, into token ids. */
import { KvError } from '../native/index.ts';
import type { ChatMessage, LoadedModel, Tokenizer } from './model/types.ts';
import type { GenerateOptions, Progress, Prompt } from './types.ts';

/** How a session reads tokens. */
export interface ReadOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: Progress) => void;
  /** Tokens that must fit the context behind these. */
  readonly reserve?: number;
  /** More tokens will certainly follow, so make room now for a page that these tokens fill up, not at the next token. Default false. */
  readonly tokensFollow?: boolean;
}

/** A prompt of up to so many tokens is counted to its end, so that the error can say how much too long it is. */
export const countedTokens = ({ config }: Pick<LoadedModel, 'config'>): number => 2 * config.contextLength;

/**
 * Text gets BOS where the model wants it and the cache is empty (`first`); messages go through the chat template; numbers are ids
 * already. A prompt of more than `tokensMax` tokens is refused with 'context-too-long' as soon as that is certain.
 */
export function tokenize(tokenizer: Tokenizer, prompt: Prompt, first: boolean, tokensMax?: number): number[] {
  const bound = tokensMax === undefined ? {} : { tokensMax };
  if (typeof prompt === 'string') {
    const ids = tokenizer.encode(prompt, bound);
    return first && tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId, ...ids] : ids;
  }
  if (!Array.isArray(prompt)) {
    throw new KvError('bad-argument', 'a prompt is text, messages with a role and content, or token ids', {
      values: { given: typeof prompt },
    });
  }
  if (prompt.length > 0 && typeof prompt[0] === 'object')
    return tokenizer.chat(prompt as readonly ChatMessage[], bound);
  return [...(prompt as readonly number[])];
}

/** maxTokens and stop strings of a request. Throws 'bad-argument'; the sampler checks its own numbers. */
export function checkGenerate({ maxTokens = 128, stop = [] }: GenerateOptions): {
  maxTokens: number;
  stops: readonly string[];
} {
  if (!Number.isInteger(maxTokens) || maxTokens < 1)
    throw new KvError('bad-argument', `maxTokens must be a positive integer, not ${String(maxTokens)}`, {
      values: { maxTokens },
    });
  if (!Array.isArray(stop) || !stop.every((text) => typeof text === 'string'))
    throw new KvError('bad-argument', 'stop must be an array of strings', { values: { stop: String(stop) } });
  return { maxTokens, stops: stop };
}
