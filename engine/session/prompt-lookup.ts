/**
 * Prompt look-up decoding: speculation without a second model (Saxena 2023, "prompt lookup decoding"). Where the newest
 * tokens stand earlier in the text, what followed them there is proposed, read in one step, and compared with what is
 * drawn behind each of its tokens: as far as both agree the tokens are written, the others are taken back. A proposal
 * is certain of itself, so that drawing from the model and comparing is the rule of rejection: a token is accepted with
 * its probability, and otherwise drawn from the others. What is drawn at a position follows from seed and position, so
 * the tokens are those that would have been written without.
 */
import { movablePages, sealsBetween } from '../../native/index.ts';
import type { Governed } from '../cache/governed.ts';
import type { GenerateOptions } from '../options/types.ts';
import type { Reader } from './reader.ts';

/** Tokens that must stand earlier, longest first. */
const MATCHED = [4, 3, 2];
/**
 * How much of the running gain is that of the newest proposal, and how many tokens are written without proposals where
 * it does not pay: doubled each time.
 */
const NEWEST = 0.3;
const REST = { first: 32, most: 512 } as const;
/**
 * How many tokens the first proposal has. One that is right throughout is followed by one twice as long, another by one
 * a token longer than what was right of it.
 */
const FIRST_LENGTH = 2;

/**
 * The look-up for one answer; null: none is asked for, or it would not be exact. Only where a step of several tokens
 * gives the bits of as many steps, and all of them can be taken back.
 */
export function lookupOf(
  { runtime, governed }: Pick<Reader, 'runtime' | 'governed'>,
  { promptLookupTokens = 0 }: GenerateOptions,
): PromptLookup | null {
  const { latents, terms } = governed;
  const isSame = runtime.dense.isRowwise && (terms.context.openFormat ?? 'f16') === 'f16';
  return promptLookupTokens > 0 && isSame && latents === null ? new PromptLookup(promptLookupTokens) : null;
}

/** The proposals of one answer. */
export class PromptLookup {
  drafted = 0;
  accepted = 0;
  readonly #most: number;
  /** Tokens for the time of a step, in steps of one token; one proposal is tried before anything is known. */
  #gain = 1;
  #singleMs = 0;
  #rest = 0;
  #resting: number = REST.first;
  #length = FIRST_LENGTH;

  constructor(most: number) {
    this.#most = most;
  }

  /**
   * What may follow `newest` behind `text`; empty where nothing matches or it does not pay. tokensLeft: that the answer
   * may still have behind it.
   */
  propose(cache: Governed, text: readonly number[], newest: number, tokensLeft: number): readonly number[] {
    if (this.#rest > 0) {
      this.#rest--;
      return [];
    }
    if (this.#singleMs === 0) return [];
    const draft = followers(text, newest, Math.min(this.#most, this.#length, tokensLeft));
    return draft.slice(0, returnable(cache, text.length + 1, draft.length));
  }

  /** A step of so many proposed tokens, of which so many were accepted, took so long. */
  tell(drafted: number, accepted: number, ms: number): void {
    if (drafted === 0) {
      this.#singleMs = this.#singleMs === 0 ? ms : this.#singleMs + NEWEST * (ms - this.#singleMs);
      return;
    }
    this.drafted += drafted;
    this.accepted += accepted;
    this.#length = Math.max(FIRST_LENGTH, accepted === drafted ? 2 * drafted : accepted + 1);
    this.#gain += NEWEST * (((1 + accepted) * this.#singleMs) / ms - this.#gain);
    if (this.#gain >= 1) {
      this.#resting = Math.max(REST.first, this.#resting / 2);
      return;
    }
    this.#rest = this.#resting;
    this.#resting = Math.min(2 * this.#resting, REST.most);
    this.#gain = 1;
  }
}

/** At most `most` tokens that followed the newest ones where they stood last before. */
export function followers(text: readonly number[], newest: number, most: number): readonly number[] {
  if (most < 1) return [];
  const at = (index: number): number | undefined => (index === text.length ? newest : text[index]);
  for (const length of MATCHED) {
    for (let end = text.length - 1; end >= length - 1; end--) {
      let alike = 0;
      while (alike < length && at(end - alike) === at(text.length - alike)) alike++;
      if (alike === length)
        return Array.from({ length: Math.min(most, text.length - end) }, (_, i) => at(end + 1 + i)!);
    }
  }
  return [];
}

/**
 * How many of `tokens` behind `length` can be read and taken back without a page that is sealed or may move for them.
 */
function returnable({ terms }: Governed, length: number, tokens: number): number {
  const { windowTokens } = terms.context;
  for (let count = tokens; count > 0; count--)
    if (
      sealsBetween(length, count) === 0 &&
      movablePages(length + count, windowTokens) === movablePages(length, windowTokens)
    )
      return count;
  return 0;
}
