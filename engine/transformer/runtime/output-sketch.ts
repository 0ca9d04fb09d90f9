/**
 * S·W_o per layer: a seeded random ±1/√32 sketch keeps the norm of W_o(o′−o) within a few percent at a fraction of its
 * cost.
 */
import { SKETCH_ROWS } from '../../../native/index.ts';
import type { Runtime } from './runtime.ts';

const cache = new WeakMap<Runtime, Float32Array[]>();

/** [layers] of [32, H·d]; computed once per loaded model. */
export function outputSketches(runtime: Runtime): readonly Float32Array[] {
  const known = cache.get(runtime);
  if (known !== undefined) return known;
  const { layers, hiddenSize } = runtime.model.config;
  const made = Array.from({ length: layers }, (_, layer) =>
    runtime.dense.outputSketch(layer, signs(SKETCH_ROWS * hiddenSize, layer + 1)),
  );
  cache.set(runtime, made);
  return made;
}

/** ±1/√32 from splitmix64; the same on every machine. */
export function signs(count: number, seed: number): Float32Array {
  const out = new Float32Array(count);
  const mask = (1n << 64n) - 1n;
  let state = BigInt(seed);
  const one = 1 / Math.sqrt(SKETCH_ROWS);
  for (let first = 0; first < count; first += 64) {
    state = (state + 0x9e3779b97f4a7c15n) & mask;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & mask;
    const bits = z ^ (z >> 31n);
    const halves = [Number(bits & 0xffffffffn), Number(bits >> 32n)];
    for (let i = first; i < Math.min(count, first + 64); i++)
      out[i] = ((halves[(i - first) >> 5]! >>> ((i - first) & 31)) & 1) === 1 ? one : -one;
  }
  return out;
}
