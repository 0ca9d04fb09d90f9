/** Checks a request and turns its prompt, in whatever form, into token ids. */
import { checkOption, checkOptions, KvError, plural } from '../../native/index.ts';
import { CONTINUATION_OPTIONS, GENERATE_OPTIONS } from '../options/table.ts';
import type { GenerateOptions, Progress, Prompt } from '../options/types.ts';
import { atOnce, inTurns, type Slices } from '../transformer/slices.ts';
import type { ChatMessage, LoadedModel, Tokenizer } from '../transformer/types.ts';

/** How a session reads tokens. */
export interface ReadOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: Progress) => void;
  /** Tokens that must fit the context behind these. */
  readonly reserve?: number;
  /**
   * More tokens will certainly follow, so make room now for a page that these tokens fill up, not at the next token.
   * Default false.
   */
  readonly tokensFollow?: boolean;
  /** They were read before, so that no adapter is activated by them. Default false. */
  readonly isAgain?: boolean;
}

/** A prompt of up to so many tokens is counted to its end, so that the error can say how much too long it is. */
export const countedTokens = ({ config }: Pick<LoadedModel, 'config'>): number => 2 * config.contextLength;

/**
 * Text gets BOS where the model wants it and the cache is empty (`first`); messages go through the chat template;
 * numbers are ids already. A prompt of more than `tokensMax` tokens is refused with 'context-too-long' as soon as that
 * is certain.
 */
export const tokenize = (tokenizer: Tokenizer, prompt: Prompt, first: boolean, tokensMax?: number): number[] =>
  atOnce(tokenizing(tokenizer, prompt, first, tokensMax));

/** The same in turns with other work of this thread. Throws 'aborted' between them where the signal says so. */
export const tokenizeInTurns = (
  tokenizer: Tokenizer,
  prompt: Prompt,
  first: boolean,
  { tokensMax, signal }: { readonly tokensMax?: number; readonly signal?: AbortSignal | undefined },
): Promise<number[]> => inTurns(tokenizing(tokenizer, prompt, first, tokensMax), heeding(signal));

/** Throws 'aborted' once the signal says so. */
export const heeding = (signal: AbortSignal | undefined) => (): void => {
  if (signal?.aborted === true) throw new KvError('aborted', 'aborted while the prompt was made tokens');
};

/** Ids for a session, which begins with BOS if it is empty when they are there: another call may have come first. */
export async function tokenizeFor(
  session: { readonly length: number },
  model: LoadedModel,
  prompt: Prompt,
  signal: AbortSignal | undefined,
): Promise<number[]> {
  for (;;) {
    const first = session.length === 0;
    const ids = await tokenizeInTurns(model.tokenizer, prompt, first, { tokensMax: countedTokens(model), signal });
    if ((session.length === 0) === first) return ids;
  }
}

function* tokenizing(tokenizer: Tokenizer, prompt: Prompt, first: boolean, tokensMax?: number): Slices<number[]> {
  const bound = tokensMax === undefined ? {} : { tokensMax };
  if (typeof prompt === 'string') {
    const ids = yield* tokenizer.encoding(prompt, bound);
    return first && tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId, ...ids] : ids;
  }
  if (!Array.isArray(prompt)) {
    throw new KvError('bad-argument', 'a prompt is text, messages with a role and content, or token ids', {
      values: { given: typeof prompt },
    });
  }
  if (prompt.length > 0 && typeof prompt[0] === 'object')
    return yield* tokenizer.chatting(prompt as readonly ChatMessage[], bound);
  return [...(prompt as readonly number[])];
}

/** Refuses what are no token ids, or none. Throws 'bad-argument', 'bad-value'. */
export function checkIds(tokenIds: readonly number[], vocabSize: number): void {
  if (tokenIds.length === 0)
    throw new KvError('bad-argument', 'an empty prompt has no next token', { hint: 'give at least one token' });
  for (const id of tokenIds) {
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize)
      throw new KvError('bad-value', `token id ${id} is outside the vocabulary of ${vocabSize}`, {
        values: { id, vocabSize },
      });
  }
}

/** Tokens that are in the cache, come with a prompt, and must fit behind both. */
interface Wanted {
  readonly held: number;
  readonly prompt: number;
  readonly reserve: number;
}

/** Throws 'context-too-long'. */
export function checkFits({ held, prompt, reserve }: Wanted, contextLength: number): void {
  const needed = held + prompt + reserve;
  if (needed <= contextLength) return;
  throw new KvError(
    'context-too-long',
    `${plural(held, 'token')} in the cache + ${prompt} of the prompt + ${reserve} to generate exceed the context of ${contextLength}`,
    {
      values: { cached: held, prompt, maxTokens: reserve, contextLength },
      hint: `shorten the prompt by ${plural(needed - contextLength, 'token')}, or ask for fewer`,
    },
  );
}

/**
 * maxTokens and stop strings of a request. Throws 'bad-argument'; what takes a vocabulary to check is for the sampler.
 */
export function checkGenerate(options: GenerateOptions): { maxTokens: number; stops: readonly string[] } {
  checkOptions(options, GENERATE_OPTIONS);
  const { maxTokens = GENERATE_OPTIONS.maxTokens.default, stop = [] } = options;
  return { maxTokens, stops: stop };
}

/** Throws 'bad-argument' for a number of continuations that cannot be, or that would all be the same. */
export function checkContinuations(n: unknown, options: GenerateOptions): void {
  checkOption('n', CONTINUATION_OPTIONS.n, n);
  checkOptions(options, GENERATE_OPTIONS);
  const { temperature = GENERATE_OPTIONS.temperature.default, seed = GENERATE_OPTIONS.seed.default } = options;
  if (temperature === 0 && Number(n) > 1)
    throw new KvError('bad-argument', `without a temperature all ${n} continuations would be the same`, {
      values: { n, temperature },
      hint: 'temperature: 0.8, or n: 1',
    });
  if (seed > Number.MAX_SAFE_INTEGER - (Number(n) - 1))
    throw new KvError('bad-argument', 'each continuation has the next seed, and the last one would be too large', {
      values: { n, seed },
      hint: 'a smaller seed',
    });
}
