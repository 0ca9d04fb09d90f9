/** Sampling as its definitions read, with full sorts, maps and strings: what the samplers are tested against. */
import type { SamplingOptions } from '../../../../../engine/transformer/sampling/options.ts';

/** A token that may be drawn, and its score. */
export interface Scored {
  readonly id: number;
  readonly score: number;
}

const byScore = (a: Scored, b: Scored): number => b.score - a.score || a.id - b.id;

/** Probability of each token, in the order of the list. */
export function softmax(tokens: readonly Scored[], temperature = 1): number[] {
  const highest = Math.max(...tokens.map(({ score }) => score));
  const weights = tokens.map(({ score }) => Math.exp((score - highest) / temperature));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

export const everyToken = (scores: ArrayLike<number>): Scored[] =>
  Array.from(scores, (score, id) => ({ id, score })).filter(({ score }) => score !== -Infinity);

export const topK = (tokens: readonly Scored[], k: number): Scored[] =>
  k === 0 ? [...tokens] : [...tokens].sort(byScore).slice(0, k);

/** As few of the list as have the probability p together. */
function fewest(tokens: readonly Scored[], probabilities: ReadonlyMap<number, number>, p: number): Scored[] {
  let mass = 0;
  let kept = 0;
  while (kept < tokens.length && mass < p) mass += probabilities.get(tokens[kept++]!.id)!;
  return tokens.slice(0, kept);
}

const probabilitiesOf = (tokens: readonly Scored[]): Map<number, number> => {
  const shares = softmax(tokens);
  return new Map(tokens.map(({ id }, i) => [id, shares[i]!]));
};

export const topP = (tokens: readonly Scored[], p: number): Scored[] =>
  p === 1 ? [...tokens] : fewest([...tokens].sort(byScore), probabilitiesOf(tokens), p);

export function typicalP(tokens: readonly Scored[], p: number): Scored[] {
  if (p === 1) return [...tokens];
  const probabilities = probabilitiesOf(tokens);
  const surprise = (id: number): number => -Math.log(probabilities.get(id)!);
  let entropy = 0;
  for (const [id, share] of probabilities) if (share > 0) entropy += share * surprise(id);
  const distance = ({ id }: Scored): number => Math.abs(surprise(id) - entropy);
  return fewest(
    [...tokens].sort((a, b) => distance(a) - distance(b) || a.id - b.id),
    probabilities,
    p,
  );
}

export function minP(tokens: readonly Scored[], p: number): Scored[] {
  const probabilities = probabilitiesOf(tokens);
  const largest = Math.max(...probabilities.values());
  return tokens.filter(({ id }) => probabilities.get(id)! >= p * largest);
}

const last = (history: readonly number[], n: number): readonly number[] =>
  n < 0 ? history : n === 0 ? [] : history.slice(-n);

/** Scores with the penalties for tokens that are in the window. */
export function penalize(
  scores: ArrayLike<number>,
  history: readonly number[],
  options: Required<SamplingOptions>,
): number[] {
  const window = last(history, options.repeatLastN);
  return Array.from(scores, (score, id) => {
    const count = window.filter((token) => token === id).length;
    if (count === 0) return score;
    const repeated = score > 0 ? score / options.repeatPenalty : score * options.repeatPenalty;
    return repeated - options.frequencyPenalty * count - options.presencePenalty;
  });
}

/** True if the text occurs so that it ends behind the first `before` characters. */
function endsBehind(all: string, text: string, before: number): boolean {
  const at = all.lastIndexOf(text);
  return at >= 0 && at + text.length > before;
}

/** Scores with DRY: every suffix of the window is looked for everywhere before. pieces: text of each token. */
export function dry(
  scores: ArrayLike<number>,
  history: readonly number[],
  options: Required<SamplingOptions>,
  pieces: readonly string[],
): number[] {
  const { dryMultiplier, dryBase, dryAllowedLength, drySequenceBreakers } = options;
  const window = last(history, options.dryPenaltyLastN);
  const isBreaker = (id: number): boolean => drySequenceBreakers.some((text) => pieces[id]!.includes(text));
  // The longest end of the window in which no break ends.
  let longest = window.length;
  for (let length = 1; length <= window.length; length++) {
    const before = history
      .slice(0, history.length - length)
      .map((id) => pieces[id]!)
      .join('');
    const first = pieces[history[history.length - length]!]!;
    if (drySequenceBreakers.some((text) => endsBehind(`${before}${first}`, text, before.length))) {
      longest = length - 1;
      break;
    }
  }
  return Array.from(scores, (score, id) => {
    let length = -1;
    for (let at = 0; at < window.length - 1; at++) {
      if (window[at + 1] !== id) continue;
      let same = 0;
      while (same <= at && window[at - same] === window[window.length - 1 - same]) same++;
      length = Math.max(length, Math.min(same, longest));
    }
    if (window.length <= dryAllowedLength || length < dryAllowedLength || longest < dryAllowedLength || isBreaker(id))
      return score;
    return score - dryMultiplier * dryBase ** (length - dryAllowedLength);
  });
}

/** Probability of every token that may be drawn, by all samplers in their order. */
export function distribution(
  logits: ArrayLike<number>,
  history: readonly number[],
  options: Required<SamplingOptions>,
  pieces: readonly string[],
): Map<number, number> {
  const biased = Array.from(logits, (logit, id) => logit + (options.logitBias[id] ?? 0));
  const scores = dry(penalize(biased, history, options), history, options, pieces);
  const typical = typicalP(topK(everyToken(scores), options.topK), options.typicalP);
  const left = minP(topP(typical, options.topP), options.minP);
  if (options.temperature === 0) return new Map([[[...left].sort(byScore)[0]!.id, 1]]);
  const shares = softmax(left, options.temperature);
  return new Map(left.map(({ id }, i) => [id, shares[i]!]));
}
