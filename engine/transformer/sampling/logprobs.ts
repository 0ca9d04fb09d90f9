/**
 * Log probabilities of generated tokens, in nats. They are of the distribution that the model gave, ln softmax(logits),
 * before biases, penalties, truncation and temperature: as vLLM has them (`raw_logprobs`) and the server of llama.cpp
 * (without `post_sampling_probs`).
 */
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
