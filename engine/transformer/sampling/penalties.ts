/**
 * Penalties for what was said already: for tokens that are in a window of the last ones, and DRY for those that would
 * go on repeating it.
 */
import type { SamplingOptions } from './options.ts';

type Of<Names extends keyof SamplingOptions> = Required<Pick<SamplingOptions, Names>>;

/**
 * A penalty stays a number, so that the only token that is possible can be drawn however often it was repeated. Largest
 * float32.
 */
const PENALTY_MAX = 3.4e38;

/** So many tokens at the end of a history are in a window of `lastN`; −1: all. */
export const windowOf = (history: readonly number[], lastN: number): number =>
  lastN < 0 ? history.length : Math.min(lastN, history.length);

/**
 * Repetition (CTRL, arXiv 1909.05858; negative logits are multiplied, as everywhere since), frequency and presence
 * penalty (those of OpenAI's API). scores [V] are changed. marks [V]: zeros, and zeros again afterwards.
 */
export function penalize(
  scores: Float64Array,
  history: readonly number[],
  options: Of<'repeatPenalty' | 'frequencyPenalty' | 'presencePenalty' | 'repeatLastN'>,
  marks: Uint32Array,
): void {
  const { repeatPenalty, frequencyPenalty, presencePenalty } = options;
  const from = history.length - windowOf(history, options.repeatLastN);
  for (let i = from; i < history.length; i++) marks[history[i]!]!++;
  for (let i = from; i < history.length; i++) {
    const id = history[i]!;
    const count = marks[id]!;
    if (count === 0) continue;
    marks[id] = 0;
    const score = scores[id]!;
    scores[id] =
      (score > 0 ? score / repeatPenalty : score * repeatPenalty) - count * frequencyPenalty - presencePenalty;
  }
}

/** What ends repetitions. */
export interface Breaks {
  /**
   * Tokens at the end of the history, as many as fit the window at most, behind the last text that ends repetitions.
   */
  tokensSince(history: readonly number[], window: number): number;
  /** True if a token alone has such a text in it. */
  has(id: number): boolean;
}

/**
 * DRY, "don't repeat yourself" (p-e-w, text-generation-webui #5677): where the last tokens stand earlier in the window
 * too, the token that followed them there would make the repetition longer, and loses multiplier · base^(length −
 * allowed length), of the longest such repetition. Repetitions do not reach back over a break, and tokens that are
 * breaks are free. scores [V] are changed. marks [V]: zeros, and zeros again afterwards. lengths: as long as the window
 * at least.
 */
export function penalizeRepetition(
  scores: Float64Array,
  history: readonly number[],
  options: Of<'dryMultiplier' | 'dryBase' | 'dryAllowedLength' | 'dryPenaltyLastN'>,
  breaks: Breaks,
  marks: Uint32Array,
  lengths: Int32Array,
): void {
  const { dryMultiplier, dryBase, dryAllowedLength } = options;
  const window = windowOf(history, options.dryPenaltyLastN);
  const longest = breaks.tokensSince(history, window);
  if (window <= dryAllowedLength || longest < dryAllowedLength) return;
  repeatedLengths(history, window, lengths);
  const last = history.length - 1;
  for (let back = 1; back < window; back++) {
    const length = Math.min(lengths[back]!, longest);
    if (length < dryAllowedLength) continue;
    // Plus one, because a length of 0 counts where 0 is allowed.
    const next = history[last - back + 1]!;
    marks[next] = Math.max(marks[next]!, length + 1);
  }
  for (let back = 1; back < window; back++) {
    const next = history[last - back + 1]!;
    if (marks[next] === 0) continue;
    const exponent = marks[next]! - 1 - dryAllowedLength;
    marks[next] = 0;
    if (!breaks.has(next)) scores[next]! -= Math.min(dryMultiplier * wholePower(dryBase, exponent), PENALTY_MAX);
  }
}

/**
 * lengths[back] = how many of the last tokens are the same as those that end `back` tokens earlier, within the last
 * `window` tokens: the Z-function of the reversed history, in linear time (Gusfield 1997), since what is known of a
 * stretch that matched holds for its repetition.
 */
function repeatedLengths(history: readonly number[], window: number, lengths: Int32Array): void {
  const last = history.length - 1;
  let from = 0;
  let to = 0;
  for (let back = 1; back < window; back++) {
    let length = back < to ? Math.min(to - back, lengths[back - from]!) : 0;
    while (back + length < window && history[last - length] === history[last - back - length]) length++;
    lengths[back] = length;
    if (back + length > to) {
      from = back;
      to = back + length;
    }
  }
}

/** By multiplication alone, which every machine rounds alike. */
function wholePower(base: number, exponent: number): number {
  let power = 1;
  for (let i = 0; i < exponent && power < Infinity; i++) power *= base;
  return power;
}
