/** What a session answers: public types. Units are last in every name. */

import type { Receipt, ReceiptRequest } from '../../witness/index.ts';
import type { TierSummary } from '../cache/tier-summary.ts';
import type { Progress } from '../options/types.ts';
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';

/** A receipt, and what running the answer again takes beside the log. */
export interface AnswerReceipt {
  /** At most 1 KiB of JSON. */
  readonly receipt: Receipt;
  /** What was asked, whose digest the receipt has. */
  readonly request: ReceiptRequest;
}

/** What a generation made, and how fast. */
export interface Generated {
  /** All text, without the stop string. */
  readonly text: string;
  /** Tokens generated. */
  readonly tokens: number;
  /** Tokens of the prompt. */
  readonly promptTokens: number;
  /** How many of them were not read, since the pages of another session, or of this one, held them already. */
  readonly cachedTokens: number;
  /** The end of the text or a stop string, maxTokens, or an abort. */
  readonly finish: 'stop' | 'length' | 'aborted';
  /** The stop string that came; null: none did. */
  readonly stoppedBy: string | null;
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
  /** What proves the answer, with what was asked in full; null where `receipt` was not asked for. */
  readonly receipt: AnswerReceipt | null;
  /** Speed of reading; 0 without a prompt. */
  readonly prefillTokensPerSecond: number;
  /** Speed of writing; 0 when nothing was written. */
  readonly tokensPerSecond: number;
}

/** A text of an answer as it comes. */
export interface StreamedText {
  /** Of one token, or of several that make a letter or were held back. */
  readonly text: string;
  /** Where the bytes of the cache are now that it is written; null where `tierSummary` was not asked for. */
  readonly tiers: TierSummary | null;
  /**
   * The tokens since the text before, this one's among them, which may be more than it shows; null where `logprobs` was
   * not asked for.
   */
  readonly logprobs: readonly GeneratedToken[] | null;
}

/** What is told of an answer while it is made: how far the reading of its prompt is, then its texts. */
export interface Written extends Partial<StreamedText> {
  readonly progress?: Progress;
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
