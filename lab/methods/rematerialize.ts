/**
 * A whole model whose pages are kept as coded layer inputs (xquant.ts). The window is counted as what waits in it to be
 * coded: the inputs of its tokens in f16, or their parts in the bases.
 */
import {
  firstToken,
  KvError,
  type LoadedModel,
  normalized,
  PAGE_TOKENS,
  pageOf,
  type Runtime,
  type WeightSource,
} from 'palimpsest/lab';
import type { PageMethod } from './paged.ts';
import { layerCodes, Projection, type XQuant } from './xquant.ts';

interface Layer {
  readonly gains: Float32Array;
  readonly projection: Projection;
  readonly kBias: Float32Array | null;
  readonly vBias: Float32Array | null;
}

/** The loop's method. Its beginning throws 'unsupported' for models that normalise their keys. */
export const xquantPages =
  (method: XQuant): PageMethod =>
  (runtime, rope) => {
    const { kvHeads, headDim, hiddenSize: m, normEpsilon } = runtime.model.config;
    const nd = kvHeads * headDim;
    const layers = layersOf(runtime, method);
    const codes = layerCodes(
      layers.map(({ projection }) => projection),
      method,
    );
    /** The normed inputs of pages in the window, by layer. */
    const inputs = layers.map(() => new Map<number, Float32Array>());
    return {
      see: ({ layer, tokens, x }, start) => {
        const normed = normalized(x.subarray(0, tokens * m), tokens, layers[layer]!.gains, normEpsilon);
        inputs[layer]!.set(pageOf(start), normed);
      },
      code: (page, kept, firstRow) => {
        const place = (firstToken(page) + firstRow) * nd;
        for (const [layer, { k, v }] of kept.entries()) {
          const remade = codes[layer]!.remake(inputs[layer]!.get(page)!, firstRow);
          inputs[layer]!.delete(page);
          addTo(remade.k, layers[layer]!.kBias);
          addTo(remade.v, layers[layer]!.vBias);
          rope.apply(remade.k, PAGE_TOKENS, kvHeads, firstToken(page));
          k.set(remade.k.subarray(firstRow * nd), place);
          v.set(remade.v.subarray(firstRow * nd), place);
        }
      },
      heldBytes: (coded, windowTokens) =>
        codes.reduce((sum, { width, pageBytes }) => sum + coded * pageBytes + 2 * width * windowTokens, 0),
    };
  };

/** Layers of a model, with gains as part of the weights or not, because bases take minutes. */
const known = new WeakMap<WeightSource, Map<boolean, readonly Layer[]>>();

function layersOf({ model }: Runtime, { variant }: XQuant): readonly Layer[] {
  const { name, config, weights } = model;
  if (config.qkNorm !== 'none')
    throw new KvError('unsupported', `${name} normalises its keys, so they are no product with inputs`);
  if (config.layerNorms)
    throw new KvError('unsupported', `${name} takes the mean out of inputs, which this method does not`);
  const isChain = variant === 'cl';
  const found = known.get(weights) ?? new Map<boolean, readonly Layer[]>();
  known.set(weights, found);
  const layers = found.get(isChain) ?? readLayers(model, isChain);
  found.set(isChain, layers);
  return layers;
}

function readLayers({ config, weights }: LoadedModel, isChain: boolean): Layer[] {
  const m = config.hiddenSize;
  const read = (of: string): Float32Array => weights.tensor(of).readFloat32();
  const bias = (of: string): Float32Array | null => (weights.has(of) ? read(of) : null);
  return Array.from({ length: config.layers }, (_, layer) => {
    const norm = read(`${layer}.attnNorm`);
    const folded = (w: Float32Array): Float32Array => (isChain ? w.map((one, i) => one * norm[i % m]!) : w);
    return {
      gains: isChain ? new Float32Array(m).fill(1) : norm,
      projection: new Projection(m, folded(read(`${layer}.k`)), folded(read(`${layer}.v`))),
      kBias: bias(`${layer}.k.bias`),
      vBias: bias(`${layer}.v.bias`),
    };
  });
}

function addTo(rows: Float32Array, bias: Float32Array | null): void {
  if (bias !== null) for (let i = 0; i < rows.length; i++) rows[i]! += bias[i % bias.length]!;
}
