/** Codebooks of vectors: k-means with words that are drawn as k-means++ draws them, and the nearest word of a vector. */

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

/** The word nearest to the vector that begins at `at`, and its squared distance. */
function nearestWord(x: Float32Array, at: number, words: Float32Array, width: number): readonly [number, number] {
  let [best, least] = [0, Number.POSITIVE_INFINITY];
  for (let word = 0, from = 0; from < words.length; word++, from += width) {
    let square = 0;
    for (let i = 0; i < width; i++) {
      const apart = x[at + i]! - words[from + i]!;
      square += apart * apart;
    }
    if (square < least) {
      least = square;
      best = word;
    }
  }
  return [best, least];
}

/** Every vector of x [vectors, width] becomes its nearest word [words, width], in place. → the squared error in all */
export function quantizeWords(x: Float32Array, words: Float32Array, width: number): number {
  let sum = 0;
  for (let at = 0; at < x.length; at += width) {
    const [word, square] = nearestWord(x, at, words, width);
    sum += square;
    for (let i = 0; i < width; i++) x[at + i] = words[word * width + i]!;
  }
  return sum;
}

/** So many words [count, width] for vectors x [vectors, width]. A word that serves no vector takes the place of the vector that is served worst. */
export function fitWords(
  x: Float32Array,
  width: number,
  { count, rounds, seed }: { readonly count: number; readonly rounds: number; readonly seed: number },
): Float32Array {
  const vectors = x.length / width;
  const words = firstWords(x, width, count, seed);
  for (let round = 0; round < rounds; round++) {
    const sums = new Float64Array(words.length);
    const served = new Uint32Array(count);
    const squares = new Float64Array(vectors);
    for (let vector = 0; vector < vectors; vector++) {
      const [word, square] = nearestWord(x, vector * width, words, width);
      squares[vector] = square;
      served[word]!++;
      for (let i = 0; i < width; i++) sums[word * width + i]! += x[vector * width + i]!;
    }
    for (let word = 0; word < count; word++) {
      if (served[word]! > 0) {
        for (let i = 0; i < width; i++) words[word * width + i] = sums[word * width + i]! / served[word]!;
        continue;
      }
      const worst = squares.indexOf(Math.max(...squares));
      squares[worst] = 0;
      words.set(x.subarray(worst * width, (worst + 1) * width), word * width);
    }
  }
  return words;
}

/** Vectors drawn with chances that are as their squared distance from the words drawn before (k-means++, Arthur and Vassilvitskii 2007). */
function firstWords(x: Float32Array, width: number, count: number, seed: number): Float32Array {
  const uniform = uniforms(seed);
  const vectors = x.length / width;
  const words = new Float32Array(count * width);
  const squares = new Float64Array(vectors).fill(1);
  for (let word = 0; word < count; word++) {
    let left = uniform() * squares.reduce((sum, one) => sum + one, 0);
    let drawn = 0;
    while (drawn + 1 < vectors && left >= squares[drawn]!) left -= squares[drawn++]!;
    const found = x.subarray(drawn * width, (drawn + 1) * width);
    words.set(found, word * width);
    for (let vector = 0; vector < vectors; vector++) {
      let square = 0;
      for (let i = 0; i < width; i++) square += (x[vector * width + i]! - found[i]!) ** 2;
      squares[vector] = word === 0 ? square : Math.min(squares[vector]!, square);
    }
  }
  return words;
}
