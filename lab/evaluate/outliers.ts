/**
 * A model with outlier channels in its keys that computes the same function. In each layer and KV head one rotary pair
 * of the keys is multiplied by a constant, and that pair of the queries that read them divided by it. Small models have
 * few such channels and large ones many, so without them every quantizer of keys looks good. The pair turns slowly with
 * the position, as those of large models do, and the constant is a power of two, so the exact cache gives the same bits
 * as before.
 */

import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { LayerInput, ModelConfig, Tensor } from '../../engine/transformer/types.ts';
import { KvError } from '../../native/index.ts';
import { rewired } from './rewired.ts';

/** What the keys of the pair are multiplied by. */
export const OUTLIER_FACTOR = 16;

/**
 * The two channels of a head that become outliers: a pair of the slowest quarter, another one in every layer and head.
 */
export function outlierChannels(
  { rotaryDim, ropeInterleaved }: Pick<ModelConfig, 'rotaryDim' | 'ropeInterleaved'>,
  layer: number,
  head: number,
): readonly [number, number] {
  const pairs = rotaryDim / 2;
  const slow = Math.max(1, Math.floor(pairs / 4));
  const pair = pairs - 1 - ((5 * layer + 3 * head) % slow);
  return ropeInterleaved ? [2 * pair, 2 * pair + 1] : [pair, pair + pairs];
}

/**
 * The model with outliers. Its latents are refused where keys are normalised, because no weight of a single head could
 * then be multiplied.
 */
export function withOutliers(runtime: Runtime): Runtime {
  const { config, name } = runtime.model;
  const { queryHeads, kvHeads, headDim, qkNorm } = config;
  const scale = (rows: Float32Array, tokens: number, heads: number, layer: number, factor: number): void => {
    for (let head = 0; head < heads; head++)
      for (const channel of outlierChannels(config, layer, Math.floor((head * kvHeads) / heads)))
        for (let token = 0; token < tokens; token++) rows[(token * heads + head) * headDim + channel]! *= factor;
  };
  return rewired(runtime, {
    name: `${name}${OUTLIERS}`,
    input: (input: LayerInput) => {
      const { layer, tokens } = input;
      scale(input.k, tokens, kvHeads, layer, OUTLIER_FACTOR);
      scale(input.q, tokens, queryHeads, layer, 1 / OUTLIER_FACTOR);
      return input;
    },
    tensor: (of: string, stored: Tensor) => {
      const layer = /^([0-9]+)\.k(\.bias)?$/.exec(of)?.[1];
      if (layer === undefined) return stored;
      if (qkNorm !== 'none')
        throw new KvError('unsupported', `${name} normalises its keys, so latents cannot have outliers`);
      const readFloat32 = (): Float32Array => {
        const rows = stored.readFloat32().slice();
        const width = rows.length / (kvHeads * headDim);
        for (let head = 0; head < kvHeads; head++)
          for (const channel of outlierChannels(config, Number(layer), head)) {
            const from = (head * headDim + channel) * width;
            for (let at = from; at < from + width; at++) rows[at]! *= OUTLIER_FACTOR;
          }
        return rows;
      };
      return Object.create(stored, { readFloat32: { value: readFloat32 } });
    },
  });
}

/** Behind the name of a model: the same with outliers. */
export const OUTLIERS = '+outliers';
