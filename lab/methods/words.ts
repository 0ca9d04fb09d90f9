/**
 * Codebooks of vectors: k-means with words that are drawn as k-means++ draws them, and the nearest word of a vector.
 */

/** Uniform numbers from 0 to 1, the same for the same seed (mulberry32). */
export function uniforms(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Independent standard normals. */
export function gaussians(count: number, seed: number): Float32Array {
  const uniform = uniforms(seed);
  return Float32Array.from(
    { length: count },
    () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
  );
}

/** Channels of a vector. */
export const VECTOR = 4;

/** Half the square of each word. */
const halfSquares = (words: Float32Array): Float64Array =>
  Float64Array.from({ length: words.length / VECTOR }, (_, word) =>
    words.subarray(word * VECTOR, (word + 1) * VECTOR).reduce((sum, one) => sum + (one * one) / 2, 0),
  );

/** The word nearest to the vector that begins at `at`: the one with the largest x·w − |w|²/2. */
function nearestWord(x: Float32Array, at: number, words: Float32Array, halves: Float64Array): number {
  const [a, b, c, d] = [x[at]!, x[at + 1]!, x[at + 2]!, x[at + 3]!];
  let [best, most] = [0, Number.NEGATIVE_INFINITY];
  for (let word = 0, from = 0; word < halves.length; word++, from += VECTOR) {
    const near = a * words[from]! + b * words[from + 1]! + c * words[from + 2]! + d * words[from + 3]! - halves[word]!;
    if (near > most) {
      most = near;
      best = word;
    }
  }
  return best;
}

const squareBetween = (x: Float32Array, at: number, words: Float32Array, word: number): number => {
  let sum = 0;
  for (let i = 0; i < VECTOR; i++) sum += (x[at + i]! - words[word * VECTOR + i]!) ** 2;
  return sum;
};

/** Every vector of x [vectors, 4] becomes its nearest word [words, 4], in place. → the squared error in all */
export function quantizeWords(x: Float32Array, words: Float32Array): number {
  const halves = halfSquares(words);
  let sum = 0;
  for (let at = 0; at < x.length; at += VECTOR) {
    const word = nearestWord(x, at, words, halves);
    sum += squareBetween(x, at, words, word);
    for (let i = 0; i < VECTOR; i++) x[at + i] = words[word * VECTOR + i]!;
  }
  return sum;
}

/**
 * So many words [count, 4] for vectors x [vectors, 4]. A word that serves no vector takes the place of the vector that
 * is served worst.
 */
export function fitWords(
  x: Float32Array,
  { count, rounds, seed }: { readonly count: number; readonly rounds: number; readonly seed: number },
): Float32Array {
  const vectors = x.length / VECTOR;
  const words = firstWords(x, count, seed);
  for (let round = 0; round < rounds; round++) {
    const halves = halfSquares(words);
    const sums = new Float64Array(words.length);
    const served = new Uint32Array(count);
    const squares = new Float64Array(vectors);
    for (let vector = 0; vector < vectors; vector++) {
      const word = nearestWord(x, vector * VECTOR, words, halves);
      squares[vector] = squareBetween(x, vector * VECTOR, words, word);
      served[word]!++;
      for (let i = 0; i < VECTOR; i++) sums[word * VECTOR + i]! += x[vector * VECTOR + i]!;
    }
    for (let word = 0; word < count; word++) {
      if (served[word]! > 0) {
        for (let i = 0; i < VECTOR; i++) words[word * VECTOR + i] = sums[word * VECTOR + i]! / served[word]!;
        continue;
      }
      const worst = squares.indexOf(squares.reduce((most, one) => Math.max(most, one), 0));
      squares[worst] = 0;
      words.set(x.subarray(worst * VECTOR, (worst + 1) * VECTOR), word * VECTOR);
    }
  }
  return words;
}

/**
 * Vectors drawn with chances that are as their squared distance from the words drawn before (k-means++, Arthur and
 * Vassilvitskii 2007).
 */
function firstWords(x: Float32Array, count: number, seed: number): Float32Array {
  const uniform = uniforms(seed);
  const vectors = x.length / VECTOR;
  const words = new Float32Array(count * VECTOR);
  const squares = new Float64Array(vectors).fill(1);
  let whole = vectors;
  for (let word = 0; word < count; word++) {
    let left = uniform() * whole;
    let drawn = 0;
    while (drawn + 1 < vectors && left >= squares[drawn]!) left -= squares[drawn++]!;
    words.set(x.subarray(drawn * VECTOR, (drawn + 1) * VECTOR), word * VECTOR);
    whole = 0;
    for (let vector = 0; vector < vectors; vector++) {
      const square = squareBetween(x, vector * VECTOR, words, word);
      squares[vector] = word === 0 ? square : Math.min(squares[vector]!, square);
      whole += squares[vector]!;
    }
  }
  return words;
}
