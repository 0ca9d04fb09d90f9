/** Models of every feature by itself and together, and how far a dense half is from the same formulas in float64. */
import { expect } from 'vitest';
import { expectedShapes, plainFeatures } from '../../../../engine/transformer/config.ts';
import type { DenseBackend, ModelConfig, WeightSource } from '../../../../engine/transformer/types.ts';
import { PlainDense } from './plain-dense.ts';
import { Rng, weightsOf } from './rng.ts';

export const BASE: ModelConfig = {
  ...plainFeatures(3),
  ...{ architecture: 'llama', layers: 3, hiddenSize: 64, intermediateSize: 96, queryHeads: 4, kvHeads: 2, headDim: 16 },
  ...{
    vocabSize: 50,
    contextLength: 128,
    normEpsilon: 1e-5,
    ropeTheta: 1e4,
    ropeScaling: { kind: 'none' },
    rotaryDim: 16,
  },
  ...{ ropeInterleaved: false, tiedEmbeddings: true, bosId: null, eosIds: [] },
};

/** The same weights with one value of a tensor in the place of another. */
export const poisoned = (weights: WeightSource, name: string, poison: number): WeightSource => ({
  ...weights,
  tensor(asked) {
    const tensor = weights.tensor(asked);
    if (asked !== name) return tensor;
    return { ...tensor, readFloat32: (from, to) => tensor.readFloat32(from, to).fill(poison, 3, 4) };
  },
});

/**
 * Random weights of the shapes that the configuration asks for, and no others: a backend that wants more fails. `round`
 * may change a matrix to what some format holds exactly.
 */
export function randomWeights(
  config: ModelConfig,
  seed: number,
  round: (w: Float32Array, inputs: number) => void = () => {},
): WeightSource {
  const random = new Rng(seed);
  const tensors = new Map<string, { shape: number[]; data: Float32Array }>();
  for (const [name, shape] of expectedShapes(config)) {
    const [rows, columns = 1] = shape as [number, number?];
    const isGain = /[nN]orm$|Post$/.test(name);
    const isBias = shape.length === 1 && !isGain;
    const data = random.normal(rows * columns, isGain ? 0.2 : isBias ? 1 : 1 / Math.sqrt(columns));
    if (isGain) for (let i = 0; i < rows; i++) data[i]! += 1;
    if (shape.length === 2) round(data, columns);
    tensors.set(name, { shape: [...shape], data });
  }
  return weightsOf(tensors);
}

export const CASES: readonly { name: string; more: Partial<ModelConfig> }[] = [
  { name: 'plain, tied', more: {} },
  { name: 'head of its own', more: { tiedEmbeddings: false } },
  { name: 'q, k, v bias (Qwen2)', more: { qkvBias: true } },
  { name: 'norm per head (Qwen3)', more: { qkNorm: 'head' } },
  { name: 'output bias', more: { outputBias: true } },
  { name: 'MLP bias', more: { mlpBias: true } },
  {
    name: 'heads wider than the model, odd sizes',
    more: { headDim: 24, hiddenSize: 36, intermediateSize: 55, kvHeads: 4 },
  },
  {
    name: 'everything',
    more: { tiedEmbeddings: false, qkvBias: true, qkNorm: 'head', outputBias: true, mlpBias: true },
  },
  { name: 'norms before and after, GELU (Gemma)', more: { postNorms: true, qkNorm: 'head', activation: 'gelu-tanh' } },
  {
    name: 'norms after only, all heads normalised together (OLMo 2)',
    more: { preNorms: false, postNorms: true, qkNorm: 'width' },
  },
  {
    name: 'norms before and after, all biases',
    more: { postNorms: true, qkvBias: true, outputBias: true, mlpBias: true },
  },
  // Half of the logits are beyond the cap.
  { name: 'capped logits (Gemma 2)', more: { logitCap: 1 } },
  { name: 'one layer', more: { ...plainFeatures(1), layers: 1 } },
  { name: 'one layer, norms after only', more: { ...plainFeatures(1), layers: 1, preNorms: false, postNorms: true } },
];

const NEOX: Partial<ModelConfig> = {
  ...{ layerNorms: true, normBias: true, gated: false, activation: 'gelu', tiedEmbeddings: false },
  ...{ qkvBias: true, outputBias: true, mlpBias: true },
};

/** For our own dense halves: features that onnxruntime's graphs do not have. */
export const OWN_CASES: readonly { name: string; more: Partial<ModelConfig> }[] = [
  { name: 'layer norms, halves beside each other, no gate, all biases (GPT-NeoX)', more: { ...NEOX, parallel: true } },
  { name: 'the same, one half after the other, odd sizes', more: { ...NEOX, hiddenSize: 36, intermediateSize: 55 } },
  {
    name: 'one norm for both halves, one key head, no biases (Falcon)',
    more: {
      ...{ layerNorms: true, normBias: true, gated: false, activation: 'gelu' },
      ...{ parallel: true, oneNorm: true, kvHeads: 1 },
    },
  },
  { name: 'layer norms without biases, no gate (MPT)', more: { layerNorms: true, gated: false, activation: 'gelu' } },
  { name: 'a gate with exact GELU', more: { activation: 'gelu' } },
  { name: 'no gate, SiLU', more: { gated: false } },
  { name: 'layer norms before a gate', more: { layerNorms: true, normBias: true } },
];

/** For the dense halves that have experts. */
export const EXPERT_CASES: readonly { name: string; more: Partial<ModelConfig> }[] = [
  {
    name: 'experts that share among themselves (Mixtral)',
    more: { experts: { count: 4, used: 2, shareAmongChosen: true } },
  },
  {
    name: 'experts, shares of all of them, norm per head (Qwen3-MoE)',
    more: { experts: { count: 9, used: 3, shareAmongChosen: false }, qkNorm: 'head', tiedEmbeddings: false },
  },
  {
    name: 'one expert that answers, odd sizes, norms before and after, GELU',
    more: {
      experts: { count: 3, used: 1, shareAmongChosen: false },
      ...{ headDim: 24, hiddenSize: 36, intermediateSize: 55, kvHeads: 4, postNorms: true, activation: 'gelu-tanh' },
    },
  },
  {
    name: 'all experts answer, norms after only',
    more: { experts: { count: 3, used: 3, shareAmongChosen: true }, preNorms: false, postNorms: true },
  },
];

/** Large matrices of a model. */
export const matricesOf = ({ layers, experts, gated }: ModelConfig): number =>
  (4 + (gated ? 3 : 2) * (experts?.count ?? 1)) * layers + 1;

const rms = (values: ArrayLike<number>): number =>
  Math.sqrt(Array.from(values).reduce((sum, v) => sum + v * v, 0) / values.length);

/** ‖actual − expected‖ / ‖expected‖ */
function relativeError(actual: Float32Array, expected: readonly (readonly number[])[]): number {
  const flat = expected.flat();
  expect(actual.length).toBe(flat.length);
  return rms(flat.map((value, i) => actual[i]! - value)) / rms(flat);
}

/** Largest relative error of every output over all methods and some numbers of tokens. */
export async function worstErrors(
  config: ModelConfig,
  weights: WeightSource,
  backend: DenseBackend,
): Promise<Record<string, number>> {
  const plain = new PlainDense(config, weights);
  const random = new Rng(99);
  const worst: Record<string, number> = {};
  const note = (what: string, actual: Float32Array, expected: number[][]): void => {
    worst[what] = Math.max(worst[what] ?? 0, relativeError(actual, expected));
  };
  const { hiddenSize, layers, queryHeads, headDim } = config;
  for (const tokens of [1, 2, 17]) {
    const x = random.normal(tokens * hiddenSize, 2);
    const attention = random.normal(tokens * queryHeads * headDim);
    const rows = plain.rows(x, hiddenSize);
    const mixed = plain.rows(attention, queryHeads * headDim);
    const first = await backend.first(x, tokens);
    expect(first).toMatchObject({ layer: 0, tokens });
    expect(first.x).toEqual(x);
    const projected = plain.projections(0, rows);
    for (const side of ['q', 'k', 'v'] as const) note(`first ${side}`, first[side], projected[side]);
    for (let layer = 0; layer < layers - 1; layer++) {
      const next = await backend.next(layer, attention, x, tokens);
      expect(next).toMatchObject({ layer: layer + 1, tokens });
      const after = plain.afterAttention(layer, mixed, rows);
      note('next x', next.x, after);
      const following = plain.projections(layer + 1, after);
      for (const side of ['q', 'k', 'v'] as const) note(`next ${side}`, next[side], following[side]);
    }
    note('last', await backend.last(attention, x, tokens), plain.afterAttention(layers - 1, mixed, rows));
    note('logits', await backend.logits(x, tokens), plain.logits(rows));
  }
  return worst;
}

/** Σ p·ln(p/q) of softmaxed logits. */
function kld(exact: readonly number[], actual: ArrayLike<number>): number {
  const logOf = (values: readonly number[]): number[] => {
    const most = Math.max(...values);
    const total = Math.log(values.reduce((sum, value) => sum + Math.exp(value - most), 0));
    return values.map((value) => value - most - total);
  };
  const [p, q] = [logOf(exact), logOf(Array.from(actual))];
  return p.reduce((sum, logP, i) => sum + Math.exp(logP) * (logP - q[i]!), 0);
}

/** Heads of values as heads of queries see them: attention to one token is its value. */
function attended<T>({ queryHeads, kvHeads, headDim }: ModelConfig, v: readonly T[]): T[] {
  return Array.from({ length: queryHeads * headDim }, (_, i) => {
    const head = Math.floor((Math.floor(i / headDim) * kvHeads) / queryHeads);
    return v[head * headDim + (i % headDim)]!;
  });
}

/** What the whole model answers, in float64, to each token of the vocabulary as the first of a text. */
export function exactLogits(config: ModelConfig, weights: WeightSource): number[][] {
  const plain = new PlainDense(config, weights);
  let rows = plain.rows(weights.tensor('embed').readFloat32(), config.hiddenSize);
  for (let layer = 0; layer < config.layers; layer++) {
    const { v } = plain.projections(layer, rows);
    rows = plain.afterAttention(
      layer,
      v.map((row) => attended(config, row)),
      rows,
    );
  }
  return plain.logits(rows);
}

/** The mean KLD of what a backend answers to the same. */
export async function divergence(
  config: ModelConfig,
  exact: readonly (readonly number[])[],
  backend: DenseBackend,
): Promise<number> {
  const { layers, kvHeads, headDim, vocabSize } = config;
  const attention = (v: Float32Array): Float32Array => {
    const width = kvHeads * headDim;
    const rows = Array.from({ length: vocabSize }, (_, t) => [...v.subarray(t * width, (t + 1) * width)]);
    return Float32Array.from(rows.flatMap((row) => attended(config, row)));
  };
  let step = await backend.first(backend.embed(Int32Array.from({ length: vocabSize }, (_, id) => id)), vocabSize);
  for (let layer = 0; layer < layers - 1; layer++)
    step = await backend.next(layer, attention(step.v), step.x, vocabSize);
  const logits = await backend.logits(await backend.last(attention(step.v), step.x, vocabSize), vocabSize);
  const klds = exact.map((row, t) => kld(row, logits.subarray(t * vocabSize, (t + 1) * vocabSize)));
  return klds.reduce((sum, value) => sum + value, 0) / vocabSize;
}
