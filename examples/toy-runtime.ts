/**
 * A runtime of one's own over `openCache`: a model of two layers with random weights, in plain loops. It computes, and
 * the cache keeps and attends.
 */
import type { PolicyCache } from 'palimpsest';

export const TOY_SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 } as const;
export const TOY_VOCABULARY = 24;
const WIDTH = 64;
const QUERY = TOY_SHAPE.queryHeads * TOY_SHAPE.headDim;
const KEY = TOY_SHAPE.kvHeads * TOY_SHAPE.headDim;

/** Normal numbers, the same for the same seed: by Box and Muller, of a counter that is hashed (mulberry32). */
function normals(seed: number): (count: number) => Float32Array {
  let state = seed >>> 0;
  const uniform = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let hash = Math.imul(state ^ (state >>> 15), state | 1);
    hash ^= hash + Math.imul(hash ^ (hash >>> 7), hash | 61);
    return (((hash ^ (hash >>> 14)) >>> 0) + 0.5) / 2 ** 32;
  };
  return (count) =>
    Float32Array.from({ length: count }, () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()));
}

/** x [rows, width] · w [outputs, width]ᵀ → [rows, outputs] */
function product(x: Float32Array, w: Float32Array, width: number): Float32Array {
  const [rows, outputs] = [x.length / width, w.length / width];
  const y = new Float32Array(rows * outputs);
  for (let row = 0; row < rows; row++)
    for (let output = 0; output < outputs; output++) {
      let sum = 0;
      for (let c = 0; c < width; c++) sum += x[row * width + c]! * w[output * width + c]!;
      y[row * outputs + output] = sum;
    }
  return y;
}

/** Weights, the same for the same seed. */
export class ToyModel {
  readonly #embedding: Float32Array;
  /** Not the embedding: a model whose output is its input says the same token for ever. */
  readonly #output: Float32Array;
  readonly #layers: readonly Readonly<Record<'q' | 'k' | 'v' | 'o', Float32Array>>[];

  constructor(seed: number) {
    const random = normals(seed);
    const matrix = (outputs: number, width: number): Float32Array =>
      random(outputs * width).map((value) => value / Math.sqrt(width));
    this.#embedding = random(TOY_VOCABULARY * WIDTH);
    this.#output = matrix(TOY_VOCABULARY, WIDTH);
    this.#layers = Array.from({ length: TOY_SHAPE.layers }, () => ({
      q: matrix(QUERY, WIDTH),
      k: matrix(KEY, WIDTH),
      v: matrix(KEY, WIDTH),
      o: matrix(WIDTH, QUERY),
    }));
  }

  /** Reads tokens behind what the cache holds. → logits behind each of them, [tokens][vocabulary] */
  read(cache: PolicyCache, tokens: readonly number[]): Float32Array[] {
    const start = cache.length;
    let x = new Float32Array(tokens.length * WIDTH);
    for (const [row, token] of tokens.entries())
      for (let c = 0; c < WIDTH; c++)
        x[row * WIDTH + c] = this.#embedding[token * WIDTH + c]! + Math.sin((start + row) / 2 ** (c / 8));
    for (const [layer, { q, k, v, o }] of this.#layers.entries()) {
      cache.append(layer, product(x, k, WIDTH), product(x, v, WIDTH));
      const attended = product(cache.attention(layer, product(x, q, WIDTH)), o, QUERY);
      x = x.map((value, i) => value + attended[i]!);
    }
    const logits = product(x, this.#output, WIDTH);
    return tokens.map((_, row) => logits.subarray(row * TOY_VOCABULARY, (row + 1) * TOY_VOCABULARY));
  }
}

export const likeliest = (logits: Float32Array): number => logits.indexOf(Math.max(...logits));

/** Logarithms of probabilities. */
export function logSoftmax(logits: Float32Array): number[] {
  const most = Math.max(...logits);
  const total = logits.reduce((sum, value) => sum + Math.exp(value - most), 0);
  return [...logits].map((value) => value - most - Math.log(total));
}
