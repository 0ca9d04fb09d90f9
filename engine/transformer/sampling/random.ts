/**
 * Random numbers from a seed, the same on every machine: the generator is exact arithmetic of 32-bit words. It is
 * xoshiro128** 1.1 (Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2018), its state filled by
 * splitmix32 from both words of the seed.
 */
import { KvError, show } from '../../../native/index.ts';

const GOLDEN = 0x9e3779b9;

export class RandomNumbers {
  private readonly state = new Uint32Array(4);

  /**
   * seed: 0 … 2^53 − 1. Streams of one seed (0 … 2^32 − 1) are sequences that have nothing to do with each other.
   * Throws 'bad-argument'.
   */
  constructor(seed: number, stream = 0) {
    if (!Number.isSafeInteger(seed) || seed < 0) {
      throw new KvError('bad-argument', 'a seed is a whole number from 0 to 2^53 − 1', {
        values: { seed: typeof seed === 'number' ? seed : show(seed) },
        hint: 'the same seed gives the same tokens',
      });
    }
    // The high word enters after two draws, so that seeds differing only there also give different states.
    let mix = seed >>> 0;
    for (let i = 0; i < 4; i++) {
      if (i === 2) mix = (mix ^ Math.floor(seed / 2 ** 32)) >>> 0;
      mix = (mix + GOLDEN) >>> 0;
      this.state[i] = scrambled(mix);
    }
    // Scrambled before it meets the scrambled seed: otherwise stream 5 of one seed could begin as stream 6 of another.
    if (stream !== 0) {
      mix = ~stream >>> 0;
      for (let i = 0; i < 4; i++) {
        mix = (mix + GOLDEN) >>> 0;
        this.state[i]! ^= scrambled(mix);
      }
    }
    if (this.state.every((word) => word === 0)) this.state[0] = 1;
  }

  /** 32 random bits. */
  next(): number {
    const s = this.state;
    const word = Math.imul(rotateLeft(Math.imul(s[1]!, 5), 7), 9) >>> 0;
    const shifted = s[1]! << 9;
    s[2]! ^= s[0]!;
    s[3]! ^= s[1]!;
    s[1]! ^= s[2]!;
    s[0]! ^= s[3]!;
    s[2]! ^= shifted;
    s[3] = rotateLeft(s[3]!, 11);
    return word;
  }

  /** Uniform in [0, 1) with 53 bits. */
  uniform(): number {
    const high = this.next() >>> 5;
    return (high * 2 ** 26 + (this.next() >>> 6)) / 2 ** 53;
  }
}

/** The last step of splitmix32. */
function scrambled(mix: number): number {
  let word = mix ^ (mix >>> 16);
  word = Math.imul(word, 0x21f0aaad);
  word = Math.imul(word ^ (word >>> 15), 0x735a2d97);
  return word ^ (word >>> 15);
}

const rotateLeft = (word: number, bits: number): number => (word << bits) | (word >>> (32 - bits));
