/**
 * Log probabilities of generated tokens, in nats. They are of the distribution that the model gave, ln softmax(logits), before biases, penalties,
 * truncation and temperature: as vLLM has them (`raw_logprobs`) and the server of llama.cpp (without `post_sampling_probs`).
 */
import { KvError, show } from '../../../native/index.ts';
import type { Tokenizer } from '../types.ts';
import { moveHighest } from './candidates.ts';
import { greedy } from './sampler.ts';

/** One token and how likely the model found it. */
export interface TokenLogprob {
  /** Token id. */
  readonly id: number;
  /** Its text, special tokens as they are written. Part of a character is shown as U+FFFD. */
  readonly text: string;
  /** Natural logarithm of its probability. */
  readonly logprob: number;
}

/** A token that was generated. */
export interface GeneratedToken extends TokenLogprob {
  /** The most likely tokens at its place, most likely first. The generated one may be among them. */
  readonly top: readonly TokenLogprob[];
}

/** Other programs give so many at most. */
export const LOGPROBS_MAX = 20;

/** Throws 'bad-argument'. */
export function checkLogprobs(count: unknown): void {
  if (count === undefined || (Number.isInteger(count) && Number(count) >= 0 && Number(count) <= LOGPROBS_MAX)) return;
  throw new KvError('bad-argument', `logprobs must be a whole number from 0 to ${LOGPROBS_MAX}`, {
    values: { logprobs: show(count) },
    hint: '0 gives the log probability of each generated token alone; leave it out for none',
  });
}

/** The log-probabilities of a token and of the `count` most likely ones. ids: scratch, [V]. */
export function logprobsOf(
  logits: Float32Array,
  id: number,
  count: number,
  ids: Int32Array,
  tokenizer: Pick<Tokenizer, 'decode'>,
): GeneratedToken {
  const highest = logits[greedy(logits)]!;
  let total = 0;
  for (let i = 0; i < logits.length; i++) {
    total += Math.exp(logits[i]! - highest);
    ids[i] = i;
  }
  const normalizer = highest + Math.log(total);
  if (count > 0) moveHighest(ids, logits, Math.min(count, logits.length), logits.length);
  const of = (token: number): TokenLogprob => ({
    id: token,
    text: tokenizer.decode([token], { special: true, continues: true }),
    logprob: logits[token]! - normalizer,
  });
  return { ...of(id), top: Array.from(ids.subarray(0, count), of) };
}
