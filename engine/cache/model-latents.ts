/** What the keys and values of a loaded model are made with, as a cache that keeps latents needs it. */
import { CODED_HEAD_DIMS, checkKeys, isLatentWidth, KvError, latentBytes, pageBytes } from '../../native/index.ts';
import { codesLike } from '../../policy/index.ts';
import { KEPT_LATENTS, type LatentOptions } from '../options/latent-options.ts';
import type { KeptLatents } from '../options/types.ts';
import { checkUniformRope, type Rotary } from '../transformer/rotary.ts';
import type { LoadedModel, ModelConfig } from '../transformer/types.ts';
import { FORESEEN_LATENT, type LatentModel } from './foreseen.ts';

/** Two for each weight that a token meets: one multiplied, one added. */
function denseOperations({
  layers,
  hiddenSize,
  intermediateSize,
  queryHeads,
  kvHeads,
  headDim,
  vocabSize,
  experts,
}: ModelConfig): number {
  const attention = 2 * (queryHeads + kvHeads) * headDim * hiddenSize;
  const answered = experts?.used ?? 1;
  const feedForward = (3 * answered * intermediateSize + (experts?.count ?? 0)) * hiddenSize;
  return 2 * (layers * (attention + feedForward) + vocabSize * hiddenSize);
}

export function modelLatents({ config, weights }: LoadedModel, rotary: Rotary, given: KeptLatents): LatentOptions {
  if (typeof given !== 'string') checkKeys(given, KEPT_LATENTS, 'latents');
  const { layers, hiddenSize, normEpsilon: epsilon, qkNorm, rotaryDim, ropeInterleaved, contextLength } = config;
  checkLatents(config);
  const read = (name: string): Float32Array => weights.tensor(name).readFloat32();
  const biasOf = (side: 'k' | 'v', layer: number): object =>
    weights.has(`${layer}.${side}.bias`) ? { [`${side}Bias`]: read(`${layer}.${side}.bias`) } : {};
  return {
    ...(typeof given === 'string' ? { format: given } : given),
    denseOperations: denseOperations(config),
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
      ...(qkNorm === 'head' ? { kNorm: { gains: read(`${layer}.kNorm`), epsilon } } : {}),
    })),
    rotary: { ...rotary.main.rows(0, contextLength), rotaryDim, interleaved: ropeInterleaved },
  };
}

/** What a model says of its latents beforehand; null: they do not serve it. */
export function latentModel(model: LoadedModel, rotary: Rotary): LatentModel | null {
  const { config } = model;
  if (!servesLatents(config)) return null;
  return {
    width: config.hiddenSize,
    denseOperations: denseOperations(config),
    options: (format) => modelLatents(model, rotary, format),
  };
}

/** True if keys and values of the model can be made of latents. */
export const servesLatents = (config: ModelConfig): boolean =>
  makesKeysOfLatents(config) && isLatentWidth(config.hiddenSize) && config.layerRope.every((kind) => kind === 'main');

/** True if a latent of the model takes fewer bytes than codes that err as much, so that more may speak for it. */
export const latentsMayPay = (config: ModelConfig): boolean =>
  servesLatents(config) &&
  CODED_HEAD_DIMS.includes(config.headDim) &&
  latentBytes(FORESEEN_LATENT, config.hiddenSize) <
    2 * pageBytes(codesLike(FORESEEN_LATENT), config.kvHeads, config.headDim);

const makesKeysOfLatents = ({ preNorms, qkNorm, layerNorms }: ModelConfig): boolean =>
  preNorms && qkNorm !== 'width' && !layerNorms;

/**
 * Latents are the residual stream, from which keys and values are made by a norm, a product, a norm of heads and one
 * rotary embedding.
 */
function checkLatents(config: ModelConfig): void {
  checkUniformRope(config, 'a cache that keeps latents');
  const { preNorms, qkNorm, architecture } = config;
  if (makesKeysOfLatents(config)) return;
  throw new KvError('unsupported', `keys of ${architecture} models are made in a way that latents do not serve`, {
    values: { architecture, preNorms, qkNorm },
    hint: 'leave latents out',
  });
}
