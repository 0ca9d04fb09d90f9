/**
 * A model of two layers whose keys and values are made of their inputs by random matrices, with norm, bias and rotary
 * embedding.
 */
import type { LatentKeep, LatentOptions } from '../../engine/index.ts';
import { type LatentName, PAGE_TOKENS, rope } from '../../native/index.ts';
import { normals, uniform } from './dense.ts';

export const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
export const WIDTH = 96;
export const ROW = SHAPE.kvHeads * SHAPE.headDim;
export const QUERY = SHAPE.queryHeads * SHAPE.headDim;
export const POSITIONS = 1200;

export interface Model {
  readonly latents: LatentOptions;
  /** Rows as the weights meet them, and exact keys and values, of x at positions from `first` on. */
  project(layer: number, x: Float32Array, first: number): { rows: Float32Array; k: Float32Array; v: Float32Array };
}

export function model(format: LatentName, seed: number, keep: LatentKeep = 'always'): Model {
  const random = uniform(seed);
  const matrix = () => normals(random, ROW * WIDTH, 1 / Math.sqrt(WIDTH));
  const half = SHAPE.headDim / 2;
  const angles = Float64Array.from(
    { length: POSITIONS * half },
    (_, i) => Math.floor(i / half) * 1e4 ** (-(i % half) / half),
  );
  const rotary = {
    cos: Float32Array.from(angles, Math.cos),
    sin: Float32Array.from(angles, Math.sin),
    rotaryDim: SHAPE.headDim,
    interleaved: false,
  };
  const layers = Array.from({ length: SHAPE.layers }, () => ({
    wk: matrix(),
    wv: matrix(),
    kBias: normals(random, ROW),
    vBias: normals(random, ROW),
    norm: { gains: normals(random, WIDTH, 0.2).map((gain) => 1 + gain), epsilon: 1e-5 },
  }));
  return {
    latents: { format, keep, width: WIDTH, layers, rotary },
    project(layer, x, first) {
      const { wk, wv, kBias, vBias, norm } = layers[layer]!;
      const tokens = x.length / WIDTH;
      const rows = new Float32Array(x.length);
      const [k, v] = [new Float32Array(tokens * ROW), new Float32Array(tokens * ROW)];
      for (let t = 0; t < tokens; t++) {
        const row = x.subarray(t * WIDTH, (t + 1) * WIDTH);
        const factor = 1 / Math.sqrt(row.reduce((sum, value) => sum + value * value, 0) / WIDTH + norm.epsilon);
        for (let c = 0; c < WIDTH; c++) rows[t * WIDTH + c] = row[c]! * factor * norm.gains[c]!;
        for (let o = 0; o < ROW; o++) {
          let [key, value] = [kBias[o]!, vBias[o]!];
          for (let c = 0; c < WIDTH; c++) {
            key += rows[t * WIDTH + c]! * wk[o * WIDTH + c]!;
            value += rows[t * WIDTH + c]! * wv[o * WIDTH + c]!;
          }
          k[t * ROW + o] = key;
          v[t * ROW + o] = value;
        }
      }
      const from = first * half;
      const [cos, sin] = [rotary.cos, rotary.sin].map((all) => all.subarray(from, from + tokens * half));
      rope(k, tokens, SHAPE.kvHeads, SHAPE.headDim, SHAPE.headDim, cos!, sin!, false);
      return { rows, k, v };
    },
  };
}

/** Inputs of a step, [tokens, WIDTH]: one channel sticks out, as in trained models. */
export const inputs = (random: () => number, tokens: number): Float32Array =>
  normals(random, tokens * WIDTH, 3).map((value, i) => value + (i % WIDTH === 7 ? 20 : 0));

/** Where in the bytes of a latent its row scales and the scale of its means begin. */
export function scalesAt(format: LatentName, width: number): { rows: number; mean: number } {
  const high = PAGE_TOKENS * width * (format === 'xq8' ? 1 : 1 / 4);
  const low = PAGE_TOKENS * width * { xq8: 0, xq4: 1 / 4, xq3: 1 / 8 }[format];
  const mean = high + Math.ceil((2 * width) / 64) * 64;
  return { rows: mean + 64 + low, mean };
}
