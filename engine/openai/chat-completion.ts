/** Answers and pieces of answers as `/v1/chat/completions` tells them. */

import type { GeneratedToken, TokenLogprob } from '../transformer/sampling/logprobs.ts';
import type { ToolCall } from '../transformer/types.ts';
import { argumentsOf } from './conversation.ts';
import type { Told } from './service.ts';
import type { Answer } from './turn.ts';

/** The calls that are told: all, or the first where one at a time was asked for. */
export const callsOf = ({ toolCalls }: Answer, parallel: boolean): readonly ToolCall[] =>
  parallel ? toolCalls : toolCalls.slice(0, 1);

export const finishOf = ({ finish, toolCalls }: Pick<Answer, 'finish' | 'toolCalls'>): string =>
  finish === 'length' ? 'length' : toolCalls.length > 0 ? 'tool_calls' : 'stop';

/** Bytes of a token's text; null for a part of a character, which has no text of its own. */
const bytesOf = (text: string): number[] | null => (text.includes('\ufffd') ? null : [...Buffer.from(text)]);

const logprobOf = ({ text, logprob }: TokenLogprob) => ({ token: text, logprob, bytes: bytesOf(text) });

export const logprobsOf = (tokens: readonly GeneratedToken[]) => ({
  content: tokens.map((token) => ({ ...logprobOf(token), top_logprobs: token.top.map(logprobOf) })),
  refusal: null,
});

/** Tokens of a request with all of its answers, whose prompt is the same. */
export function usageOf(answers: readonly Pick<Answer, 'promptTokens' | 'cachedTokens' | 'tokens'>[]) {
  const [{ promptTokens, cachedTokens }] = answers as [Answer];
  const prompt = promptTokens + cachedTokens;
  const completion = answers.reduce((sum, { tokens }) => sum + tokens, 0);
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: cachedTokens },
    completion_tokens_details: { reasoning_tokens: 0 },
  };
}

/** Times as llama-server names them. */
export function timingsOf({ promptTokens, cachedTokens, tokens, firstMs, totalMs, ...speeds }: Answer) {
  const predictedMs = totalMs - firstMs;
  return {
    cache_n: cachedTokens,
    prompt_n: promptTokens,
    prompt_ms: firstMs,
    prompt_per_second: speeds.prefillTokensPerSecond,
    predicted_n: tokens,
    predicted_ms: predictedMs,
    predicted_per_second: speeds.tokensPerSecond,
  };
}

/** What the cache did: beside every answer, in the field `palimpsest`. */
export function cacheOf({ report, seed, receipt }: Answer) {
  return {
    session: report.session,
    seed,
    kv_bytes: report.kvBytesNow,
    kv_bytes_f16: report.kvBytesF16,
    effective_bits: report.effectiveBits,
    decisions: report.decisions,
    predicted_kld: report.summary.predictedKld,
    ...receipt,
  };
}

/** A whole answer. `parallel`: several calls may be told. */
export function chatCompletion(told: Told, answers: readonly Answer[], parallel: boolean) {
  return {
    ...head(told, 'chat.completion'),
    choices: answers.map((answer, index) => ({
      index,
      message: messageOf(answer, parallel),
      logprobs: answer.logprobs === null ? null : logprobsOf(answer.logprobs),
      finish_reason: finishOf(answer),
    })),
    usage: usageOf(answers),
    timings: timingsOf(answers[0]!),
    palimpsest: cacheOf(answers[0]!),
  };
}

function messageOf(answer: Answer, parallel: boolean) {
  const calls = callsOf(answer, parallel);
  const called = calls.map((call) => ({
    id: call.id,
    type: 'function',
    function: { name: call.name, arguments: argumentsOf(call) },
  }));
  return {
    role: 'assistant',
    content: answer.text === '' && calls.length > 0 ? null : answer.text,
    refusal: null,
    ...(calls.length === 0 ? {} : { tool_calls: called }),
  };
}

const head = ({ id, created, model, fingerprint }: Told, object: string) => ({
  id,
  object,
  created,
  model,
  system_fingerprint: fingerprint,
});

/** A piece of an answer. `more`: what only some pieces have. */
export const chatChunk = (
  told: Told,
  index: number,
  delta: object,
  more: {
    readonly finish?: string;
    readonly logprobs?: readonly GeneratedToken[] | null;
    /** What its cache did. */
    readonly palimpsest?: ReturnType<typeof cacheOf>;
  } = {},
) => ({
  ...head(told, 'chat.completion.chunk'),
  choices: [
    {
      index,
      delta,
      logprobs: more.logprobs == null ? null : logprobsOf(more.logprobs),
      finish_reason: more.finish ?? null,
    },
  ],
  ...(more.palimpsest === undefined ? {} : { palimpsest: more.palimpsest }),
});

/** The last piece, which says what all of it took. */
export const lastChunk = (told: Told, answers: readonly Answer[]) => ({
  ...head(told, 'chat.completion.chunk'),
  choices: [],
  usage: usageOf(answers),
  timings: timingsOf(answers[0]!),
  palimpsest: cacheOf(answers[0]!),
});

/** The pieces of a call: its name first, since some clients lose the beginning of arguments that come with it. */
export const callDeltas = (call: ToolCall, index: number): object[] => [
  { tool_calls: [{ index, id: call.id, type: 'function', function: { name: call.name, arguments: '' } }] },
  { tool_calls: [{ index, function: { arguments: argumentsOf(call) } }] },
];
