/**
 * The tokens that may still be drawn, and what narrows them down. Each sampler is a function that makes the set
 * smaller; the scores stay. Nothing is sorted that need not be, and nothing is allocated: a vocabulary has tens of
 * thousands of tokens, and this runs for each token that is generated. Equal scores are ordered by id, so the same
 * scores give the same set on every machine.
 */
import { allows, type TokenMask } from '../grammar/constraint.ts';

/** Room for a vocabulary of V tokens. */
export interface Candidates {
  /** [V] of every token: its logit with biases and penalties. */
  readonly scores: Float64Array;
  /** [V] token ids, of which the first `count` may be drawn, in any order. */
  readonly ids: Int32Array;
  count: number;
  /** [V] scratch of one sampler: how much each token weighs, and what it is chosen by. */
  readonly masses: Float64Array;
  readonly keys: Float64Array;
}

export function candidates(vocabSize: number): Candidates {
  return {
    scores: new Float64Array(vocabSize),
    ids: new Int32Array(vocabSize),
    count: 0,
    masses: new Float64Array(vocabSize),
    keys: new Float64Array(vocabSize),
  };
}

/** Every token with a finite score may be drawn. */
export function admitAll(all: Candidates): void {
  const { scores, ids } = all;
  let count = 0;
  for (let id = 0; id < scores.length; id++) if (scores[id]! > -Infinity) ids[count++] = id;
  all.count = count;
}

/** Takes out what a mask does not allow. */
export function forbid({ scores }: Candidates, mask: TokenMask): void {
  for (let id = 0; id < scores.length; id++) if (!allows(mask, id)) scores[id] = -Infinity;
}

/** Keeps the k highest scores (Fan et al., arXiv 1805.04833); 0 keeps all. */
export function topK(all: Candidates, k: number): void {
  if (k === 0 || k >= all.count) return;
  moveHighest(all.ids, all.scores, k, all.count);
  all.count = k;
}

/**
 * Keeps the tokens whose surprise −ln p is nearest to the entropy of all, as few as have the probability p together
 * (locally typical sampling, Meister et al., arXiv 2202.00666); 1 keeps all. The most likely token may be among those
 * that go.
 */
export function typicalP(all: Candidates, p: number): void {
  if (p >= 1) return;
  const { scores, ids, count, masses, keys } = all;
  const highest = scores[likeliest(all)]!;
  const total = weigh(all, highest, 1);
  // Surprise is ln total − (score − highest), and entropy its mean.
  let entropy = Math.log(total);
  for (let i = 0; i < count; i++) {
    const id = ids[i]!;
    if (masses[id]! > 0) entropy -= (masses[id]! / total) * (scores[id]! - highest);
  }
  for (let i = 0; i < count; i++) {
    const id = ids[i]!;
    keys[id] = -Math.abs(Math.log(total) - (scores[id]! - highest) - entropy);
  }
  all.count = fewestHighest(ids, keys, count, masses, p * total);
}

/**
 * Keeps the most likely tokens, as few as have the probability p together (nucleus sampling, Holtzman et al., arXiv
 * 1904.09751); 1 keeps all.
 */
export function topP(all: Candidates, p: number): void {
  if (p >= 1) return;
  const { scores, ids, count, masses } = all;
  const total = weigh(all, scores[likeliest(all)]!, 1);
  all.count = fewestHighest(ids, scores, count, masses, p * total);
}

/**
 * Keeps the tokens that are at least p times as likely as the most likely one (Nguyen et al., arXiv 2407.01082); 0
 * keeps all.
 */
export function minP(all: Candidates, p: number): void {
  if (p <= 0) return;
  const { scores, ids } = all;
  const least = scores[likeliest(all)]! + Math.log(p);
  let kept = 0;
  for (let i = 0; i < all.count; i++) if (scores[ids[i]!]! >= least) ids[kept++] = ids[i]!;
  all.count = kept;
}

/**
 * One of the candidates with probability e^(score / temperature), as `uniform` in [0, 1) falls; at 0 the one with the
 * highest score.
 */
export function draw(all: Candidates, temperature: number, uniform: number): number {
  const { scores, ids, count, masses } = all;
  const best = likeliest(all);
  if (temperature === 0) return best;
  let rest = uniform * weigh(all, scores[best]!, temperature);
  for (let i = 0; i < count; i++) {
    rest -= masses[ids[i]!]!;
    if (rest < 0) return ids[i]!;
  }
  // What rounding left over.
  return best;
}

/** The candidate with the highest score. There is one. */
function likeliest({ scores, ids, count }: Candidates): number {
  let best = ids[0]!;
  for (let i = 1; i < count; i++) if (isHigher(scores, ids[i]!, best)) best = ids[i]!;
  return best;
}

/** masses = e^((score − highest) / temperature) of the candidates. → their sum */
function weigh({ scores, ids, count, masses }: Candidates, highest: number, temperature: number): number {
  let total = 0;
  for (let i = 0; i < count; i++) {
    const id = ids[i]!;
    total += masses[id] = Math.exp((scores[id]! - highest) / temperature);
  }
  return total;
}

type Keys = Float64Array | Float32Array;

const isHigher = (keys: Keys, a: number, b: number): boolean => keys[a]! > keys[b]! || (keys[a]! === keys[b]! && a < b);

/**
 * Puts those of the first `end` ids with the highest keys (by id) in front, as few as have `enough` mass together. →
 * how many. Quickselect (Hoare 1961) that looks for a mass in place of a rank: linear time on average, which sorting a
 * flat nucleus of thousands of tokens is not.
 */
function fewestHighest(ids: Int32Array, keys: Keys, end: number, masses: Float64Array, enough: number): number {
  let missing = enough;
  let from = 0;
  for (let to = end; from < to && missing > 0; ) {
    const pivot = middleOf(ids, keys, from, to);
    const id = ids[pivot]!;
    swap(ids, pivot, to - 1);
    let split = from;
    let above = 0;
    for (let i = from; i < to - 1; i++) {
      if (!isHigher(keys, ids[i]!, id)) continue;
      above += masses[ids[i]!]!;
      swap(ids, i, split++);
    }
    swap(ids, split, to - 1);
    if (above >= missing) to = split;
    else {
      missing -= above + masses[id]!;
      from = split + 1;
    }
  }
  return from;
}

/** Where in ids[from, to) the median of the first, the middle and the last is. */
function middleOf(ids: Int32Array, keys: Keys, from: number, to: number): number {
  let low = from;
  let middle = (from + to) >> 1;
  const high = to - 1;
  if (isHigher(keys, ids[low]!, ids[middle]!)) [low, middle] = [middle, low];
  if (isHigher(keys, ids[high]!, ids[middle]!)) return middle;
  return isHigher(keys, ids[high]!, ids[low]!) ? high : low;
}

/**
 * Puts those of the first `end` ids with the highest keys (by id) into the first `count`, highest first. A heap of what
 * was found so far has the lowest of them at its root, so that most of the others cost one comparison; made for few out
 * of many.
 */
export function moveHighest(ids: Int32Array, keys: Keys, count: number, end: number): void {
  for (let root = (count >> 1) - 1; root >= 0; root--) sink(ids, keys, root, count);
  for (let i = count; i < end; i++) {
    if (!isHigher(keys, ids[i]!, ids[0]!)) continue;
    swap(ids, i, 0);
    sink(ids, keys, 0, count);
  }
  for (let left = count - 1; left > 0; left--) {
    swap(ids, 0, left);
    sink(ids, keys, 0, left);
  }
}

/** Lets the root of a heap in the first `size` ids sink to where both below it are higher. */
function sink(ids: Int32Array, keys: Keys, root: number, size: number): void {
  for (let above = root; ; ) {
    let below = 2 * above + 1;
    if (below >= size) return;
    if (below + 1 < size && isHigher(keys, ids[below]!, ids[below + 1]!)) below++;
    if (isHigher(keys, ids[below]!, ids[above]!)) return;
    swap(ids, above, below);
    above = below;
  }
}

function swap(ids: Int32Array, a: number, b: number): void {
  const id = ids[a]!;
  ids[a] = ids[b]!;
  ids[b] = id;
}
