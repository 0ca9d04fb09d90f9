/** What the keys and values of a loaded model are made with, as a cache that keeps latents needs it. */
import type { LatentName } from '../native/index.ts';
import type { LatentOptions } from './latents.ts';
import type { RopeTable } from './model/rope.ts';
import type { LoadedModel } from './model/types.ts';

export function modelLatents({ config, weights }: LoadedModel, rope: RopeTable, format: LatentName): LatentOptions {
  const { layers, hiddenSize, normEpsilon: epsilon, qkNorm, rotaryDim, ropeInterleaved, contextLength } = config;
  const read = (name: string): Float32Array => weights.tensor(name).readFloat32();
  const biasOf = (side: 'k' | 'v', layer: number): object =>
    weights.has(`${layer}.${side}.bias`) ? { [`${side}Bias`]: read(`${layer}.${side}.bias`) } : {};
  return {
    format,
    width: hiddenSize,
    layers: Array.from({ length: layers }, (_, layer) => ({
      norm: { gains: read(`${layer}.attnNorm`), epsilon },
      // Read when they are packed, so that a second copy of them does not stay.
      get wk() {
        return read(`${layer}.k`);
      },
      get wv() {
        return read(`${layer}.v`);
      },
      ...biasOf('k', layer),
      ...biasOf('v', layer),
      ...(qkNorm ? { kNorm: { gains: read(`${layer}.kNorm`), epsilon } } : {}),
    })),
    rotary: { ...rope.rows(0, contextLength), rotaryDim, interleaved: ropeInterleaved },
  };
}
