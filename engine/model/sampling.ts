/**
 * From logits to the next token: greedy, or temperature and nucleus (top-p, arXiv 1904.09751) with a seeded generator.
 * The same logits, options and seed give the same tokens on every machine: sums run in float64 in id order, ties go to
 * the lowest id, and the generator is exact integer arithmetic.
 */
import { KvError } from '../../native/index.ts';

export interface SamplingOptions {
  /** 0 = greedy. */
  readonly temperature: number;
  /** Draws from the smallest set of most likely tokens that has at least this probability; 1 = all tokens. */
  readonly topP: number;
  /** 0 … 2^53 − 1. */
  readonly seed: number;
}

/**
 * xoshiro128** 1.1 (Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2018), its state filled by
 * splitmix32 from both words of the seed.
 */
export class RandomNumbers {
  private readonly state = new Uint32Array(4);

  constructor(seed: number) {
    if (!Number.isSafeInteger(seed) || seed < 0) {
      throw new KvError('bad-argument', 'a seed is a whole number from 0 to 2^53 − 1', { values: { seed } });
    }
    // The high word enters after two draws, so that seeds differing only there also give different states.
    let mix = seed >>> 0;
    for (let i = 0; i < 4; i++) {
      if (i === 2) mix = (mix ^ Math.floor(seed / 2 ** 32)) >>> 0;
      mix = (mix + 0x9e3779b9) >>> 0;
      let word = mix ^ (mix >>> 16);
      word = Math.imul(word, 0x21f0aaad);
      word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
      this.state[i] = word ^ (word >>> 15);
    }
    if (this.state.every((word) => word === 0)) this.state[0] = 1;
  }

  /** 32 random bits. */
  next(): number {
    const s = this.state;
    const scrambled = Math.imul(rotateLeft(Math.imul(s[1]!, 5), 7), 9) >>> 0;
    const shifted = s[1]! << 9;
    s[2]! ^= s[0]!;
    s[3]! ^= s[1]!;
    s[1]! ^= s[2]!;
    s[0]! ^= s[3]!;
    s[2]! ^= shifted;
    s[3] = rotateLeft(s[3]!, 11);
    return scrambled;
  }

  /** Uniform in [0, 1) with 53 bits. */
  uniform(): number {
    const high = this.next() >>> 5;
    return (high * 2 ** 26 + (this.next() >>> 6)) / 2 ** 53;
  }
}

const rotateLeft = (word: number, bits: number): number => (word << bits) | (word >>> (32 - bits));

/** The most likely token, the lowest id among equals. Throws KvError 'bad-value' for NaN, +inf or if no token is possible. */
export function greedy(logits: Float32Array): number {
  let best = -1;
  let largest = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (logit > largest) {
      largest = logit;
      best = id;
    }
    // NaN fails every comparison, so it needs a test of its own.
    if (Number.isNaN(logit)) throw badLogits(id, logit);
  }
  if (best < 0 || largest === Infinity) throw badLogits(best, largest);
  return best;
}

function badLogits(id: number, logit: number): KvError {
  return new KvError('bad-value', 'the logits of a step are not numbers to choose from', {
    values: { id, logit },
    hint: 'the weights or the cache hold NaN or infinity; load the model again and verify its checksum',
  });
}

export interface Sampler {
  /** logits [vocab] of one position → token id. Throws as `greedy` does. */
  next(logits: Float32Array): number;
}

/** A sampler with a generator of its own. Throws KvError 'bad-argument' for options out of range. */
export function createSampler(options: SamplingOptions): Sampler {
  return new SeededSampler(options);
}

class SeededSampler implements Sampler {
  private readonly options: SamplingOptions;
  private readonly random: RandomNumbers;
  private probabilities = new Float64Array(0);

  constructor(options: SamplingOptions) {
    const { temperature, topP } = options;
    if (!(temperature >= 0 && temperature < Infinity)) {
      throw new KvError('bad-argument', 'temperature must be 0 (greedy) or more', { values: { temperature } });
    }
    if (!(topP > 0 && topP <= 1)) {
      throw new KvError('bad-argument', 'top-p must be above 0 and at most 1', { values: { topP } });
    }
    this.options = options;
    this.random = new RandomNumbers(options.seed);
  }

  next(logits: Float32Array): number {
    const best = greedy(logits);
    const { temperature, topP } = this.options;
    if (temperature === 0) return best;
    const total = this.fillProbabilities(logits, logits[best]!, temperature);
    const target = this.random.uniform();
    return topP < 1 ? this.drawNucleus(total, topP, target) : this.drawAll(total, target, best);
  }

  /** exp((logit − largest)/temperature) of every token; returns the sum. */
  private fillProbabilities(logits: Float32Array, largest: number, temperature: number): number {
    if (this.probabilities.length !== logits.length) this.probabilities = new Float64Array(logits.length);
    let total = 0;
    for (let id = 0; id < logits.length; id++) {
      total += this.probabilities[id] = Math.exp((logits[id]! - largest) / temperature);
    }
    return total;
  }

  private drawAll(total: number, target: number, best: number): number {
    let rest = target * total;
    for (let id = 0; id < this.probabilities.length; id++) {
      rest -= this.probabilities[id]!;
      if (rest < 0) return id;
    }
    return best;
  }

  private drawNucleus(total: number, topP: number, target: number): number {
    const p = this.probabilities;
    // All tokens below this bound together weigh at most 1 − topP, so topP is reached without them: sort only the rest.
    const bound = (total * (1 - topP)) / p.length;
    const candidates: number[] = [];
    for (let id = 0; id < p.length; id++) if (p[id]! >= bound) candidates.push(id);
    candidates.sort((a, b) => p[b]! - p[a]! || a - b);
    let kept = 0;
    let mass = 0;
    while (kept < candidates.length && mass < topP * total) mass += p[candidates[kept++]!]!;
    let rest = target * mass;
    for (let i = 0; i < kept; i++) {
      rest -= p[candidates[i]!]!;
      if (rest < 0) return candidates[i]!;
    }
    return candidates[0]!;
  }
}
