/** What a session answers: public types. Units are last in every name. */
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';

/** What a generation made, and how fast. */
export interface Generated {
  /** All text, without the stop string. */
  readonly text: string;
  /** Tokens generated. */
  readonly tokens: number;
  /** Tokens of the prompt as it was read. */
  readonly promptTokens: number;
  /** The end of the text or a stop string, maxTokens, or an abort. */
  readonly finish: 'stop' | 'length' | 'aborted';
  /**
   * True if the text fulfils its grammar as it stands: false where maxTokens, a stop string or an abort came first, and
   * where it breaks a rule of its schema that no grammar follows; null: none was asked for.
   */
  readonly grammarComplete: boolean | null;
  /** Tokens that prompt look-up proposed. */
  readonly drafted: number;
  /** How many of them were written. */
  readonly accepted: number;
  /** One for each generated token, those of a stop string included; null where `logprobs` was not asked for. */
  readonly logprobs: readonly GeneratedToken[] | null;
  /** Speed of reading; 0 without a prompt. */
  readonly prefillTokensPerSecond: number;
  /** Speed of writing; 0 when nothing was written. */
  readonly tokensPerSecond: number;
}

/** How far a session is from the exact cache on the same tokens. */
export interface Divergence {
  /** Tokens compared. */
  readonly tokens: number;
  /** Mean KL divergence from the exact cache, in nats. */
  readonly meanKld: number;
  /** Its 99th percentile. */
  readonly kld99: number;
  /** Share of tokens whose most likely successor is the same. */
  readonly sameTop: number;
  /** Perplexity with this cache. */
  readonly perplexity: number;
  /** Perplexity with the exact one. */
  readonly perplexityExact: number;
}
