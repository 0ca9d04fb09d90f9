/** Calls that read prompts into a session, answer them, and compare what was answered. */
import type { Caller } from '../../../native/index.ts';
import { TierSummaries } from '../../cache/tier-summary.ts';
import { compareWithExact } from '../../evaluate/compare.ts';
import type { ContinuationOptions, GenerateOptions, Progress, Prompt } from '../../options/types.ts';
import { Answer } from '../../session/answer.ts';
import { checkContinuations, tokenizeFor } from '../../session/prompt.ts';
import type { Session } from '../../session/session.ts';
import type { Divergence, Generated, Written } from '../../session/types.ts';
import type { GeneratedToken } from '../../transformer/sampling/logprobs.ts';
import type { Host } from '../host.ts';

/** How far reading has come. */
type Reading = Caller<{ readonly progress: Progress }>;
/** The same, and text as it is written. */
type Writing = Caller<Written>;

/** Continuations that are written in the same passes; each holds an open page of its own. */
const FORKS_AT_ONCE = 16;

/** What tells of an answer while it is written. */
interface Telling {
  readonly tell: (event: Written) => void;
  readonly onToken: (token: GeneratedToken) => void;
}

/**
 * Tells with each text where the bytes of the session's cache are, and how likely its tokens were, if that was asked
 * for.
 */
export function telling(
  { governed }: Session,
  { tierSummary = false, logprobs }: GenerateOptions,
  tell: (event: Written) => void,
): Telling {
  const summaries = tierSummary ? new TierSummaries(governed) : null;
  let tokens: GeneratedToken[] = [];
  const told = (event: Written): void => {
    const tiers = summaries === null ? {} : { tiers: summaries.now() };
    const likely = logprobs === undefined ? {} : { logprobs: tokens };
    tell(event.text === undefined ? event : { ...event, ...tiers, ...likely });
    if (event.text !== undefined) tokens = [];
  };
  return { tell: told, onToken: (token) => void tokens.push(token) };
}

export interface Continuing {
  readonly session: string;
  readonly prompt: Prompt;
  readonly options: ContinuationOptions;
}

export const answerCalls = (host: Host) => ({
  read: async (
    { session: id, prompt }: { readonly session: string; readonly prompt: Prompt },
    { tell, signal }: Reading,
  ): Promise<void> => {
    const session = host.session(id);
    const ids = await tokenizeFor(session, host.runtime.model, prompt, signal);
    await session.read(ids, { signal, onProgress: (progress) => tell({ progress }) });
  },

  generate: (
    {
      session,
      prompt,
      options,
    }: { readonly session: string; readonly prompt: Prompt | null; readonly options: GenerateOptions },
    caller: Writing,
  ): Promise<Generated> => generate(host.session(session), prompt, options, caller),

  continuations: (params: Continuing, caller: Reading): Promise<Generated[]> => continuations(host, params, caller),

  compare: async ({ session: id }: { readonly session: string }, { tell, signal }: Reading): Promise<Divergence> => {
    const session = host.session(id);
    const divergence = await compareWithExact(session, signal, (progress) => tell({ progress }));
    session.governed.learnt.adapt(divergence);
    return divergence;
  },
});

async function generate(
  session: Session,
  prompt: Prompt | null,
  options: GenerateOptions,
  { tell, signal }: Writing,
): Promise<Generated> {
  const told = telling(session, options, tell);
  const onProgress = (progress: Progress): void => tell({ progress });
  const stream = session.generate(prompt, { ...options, signal, onProgress, onToken: told.onToken });
  for (;;) {
    const next = await stream.next();
    if (next.done === true) return next.value;
    told.tell({ text: next.value });
  }
}

/**
 * Each over a fork of its own, in the same passes; one after the other where they share a budget of their own, so that
 * no more than one holds pages beside the prompt's.
 */
async function continuations(host: Host, asked: Continuing, { tell, signal }: Reading): Promise<Generated[]> {
  const { n, ...options } = asked.options;
  checkContinuations(n, options);
  const maxTokens = await Answer.check(host.runtime, { ...options, signal });
  const session = host.session(asked.session);
  const ids = await tokenizeFor(session, host.runtime.model, asked.prompt, signal);
  const onProgress = (progress: Progress): void => tell({ progress });
  const start = performance.now();
  const cachedTokens = await session.read(ids, { reserve: maxTokens, tokensFollow: true, signal, onProgress });
  const prefillTokensPerSecond = ((ids.length - cachedTokens) * 1000) / (performance.now() - start);
  const failed = new AbortController();
  const either = AbortSignal.any([signal, failed.signal]);
  const most = session.setup.kvBudget === undefined ? FORKS_AT_ONCE : 1;
  const all: Generated[] = [];
  while (all.length < n) {
    const writing: Promise<Generated>[] = [];
    for (let at = all.length; at < Math.min(n, all.length + most); at++) {
      // While forks write, another session may have had the pages of this one parked.
      const fork = await session.awake(() => session.fork());
      host.keep(fork);
      writing.push(continued(host, fork, { ...options, seed: (options.seed ?? 0) + at }, either));
      writing.at(-1)!.catch(() => failed.abort());
    }
    await Promise.allSettled(writing);
    for (const generated of await Promise.all(writing))
      all.push({ ...generated, promptTokens: ids.length, cachedTokens, prefillTokensPerSecond });
  }
  return all;
}

/** What a fork writes, which is closed then. */
async function continued(host: Host, fork: Session, options: GenerateOptions, signal: AbortSignal): Promise<Generated> {
  try {
    const generated = await generate(fork, null, options, { tell: () => {}, signal });
    await host.closeSession(fork.id, signal.aborted ? 'aborted' : 'done');
    return generated;
  } catch (error) {
    await host.closeSession(fork.id, 'error');
    throw error;
  }
}
