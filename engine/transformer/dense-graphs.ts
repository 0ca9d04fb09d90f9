/**
 * The dense half of a Llama-family transformer as ONNX graphs (dense-native.ts needs none), cut where attention
 * happens:
 *
 *     first     x → norm, q, k, v of layer 0
 *     next l    attention of layer l, x → output projection, residual, norm, MLP, residual → x; norm, q, k, v of layer
 *     l + 1
 *     last      the same without the projections that would follow
 *     logits    final norm, output matrix, cap of logits
 *
 * Inputs and outputs of every graph are float32 with a dynamic first axis T (tokens).
 *
 * With 'exact' a matrix stays float32 and is a Gemm with transB: rows are output features, as stored, so nothing is
 * transposed at load, and it is as fast as a transposed MatMul. With 'auto' it is a MatMulNBits of symmetric int8
 * codes, one float32 scale per 32 inputs of an output, and accuracy_level 4 (activations are rounded to int8 per 32
 * too).
 *
 * Measured on SmolLM2-135M (Zen 5, AVX-512 VNNI, one thread, shared machine, ± 10%), the dense half alone:
 *
 *                       bytes    T = 1     T = 128    KLD against float32 (384 tokens, mean without the first)
 *     float32          513 MiB   19.4 ms    165 ms    –
 *     8 bit, per 32    144 MiB    8.9 ms    130 ms    0.0022   ← 'auto'
 *     8 bit, per 64    136 MiB    8.7 ms    109 ms    0.0042
 *     8 bit, per 128   142 MiB    9.1 ms    122 ms    (576 inputs are padded)
 *
 * One product is off by 0.7% of its norm, mostly because of the activations: if these are float32 (no accuracy_level)
 * the KLD is 0.0007, but a single token takes 45 to 180 times as long. No single matrix is to blame (with float32 for
 * down only it is 0.0020, for q, k, v only 0.0015), and 8 bits are faster for one token and for many, so a matrix stays
 * in float32 only if its inputs are not a multiple of 32. As to 4 bits for Q4_1 (1536 × 576, one token): float zero
 * points are exact but take 1000 µs, since the fast kernel wants integers; rounded, they take 22 µs with 8.6% error; 8
 * bits take 25 µs.
 *
 * gate and up stay two products: as one product with a Split they are 8% slower in float32 for many tokens and no
 * faster in 8 bits. One product for q, k and v is 5% faster than three. QuickGelu(alpha 1) saves 7% of a layer over
 * Sigmoid, Mul.
 */
import { assert, joined, KvError } from '../../native/index.ts';
import type { OnnxAttribute, OnnxGraph, OnnxInitializer, OnnxNode, OnnxType, OnnxValue } from './onnx-writer.ts';
import type { DenseOptions, ModelConfig, WeightSource } from './types.ts';

/** What of a configuration decides whether these graphs can have a model. */
export type GraphFeatures = Pick<ModelConfig, 'experts' | 'layerNorms' | 'parallel' | 'gated' | 'activation'>;

/** What of a model these graphs do not have, in words; null: they have all of it. */
export function withoutGraphs({
  experts,
  layerNorms,
  parallel,
  gated,
  activation,
}: Partial<GraphFeatures>): string | null {
  if (experts != null) return 'experts';
  if (layerNorms === true) return 'norms that take the mean out';
  if (parallel === true) return 'halves of a layer beside each other';
  if (gated === false) return 'no gate';
  return activation === 'gelu' ? 'exact GELU' : null;
}

export type MatrixType = 'f32' | 'q8';

export interface DenseGraph extends OnnxGraph {
  /** Matrices of this graph by type, and the bytes they take in memory. */
  readonly matrices: Readonly<Record<MatrixType, number>>;
  readonly bytes: number;
}

/** Codes of one matrix: w ≈ (code − 128)·scale, one scale per Q8_BLOCK neighbouring inputs of one output. */
export interface Q8Matrix {
  readonly codes: Uint8Array;
  readonly scales: Float32Array;
}

/** Inputs that share a scale. A matrix stays float32 if its inputs are not a multiple of it. */
export const Q8_BLOCK = 32;

/** Rounds to nearest with scale = largest magnitude / 127, so code 128 means zero and code 0 is never used. */
export function quantizeQ8(weights: Float32Array): Q8Matrix {
  assert(weights.length % Q8_BLOCK === 0, `${weights.length} weights are not blocks of ${Q8_BLOCK}`);
  const codes = new Uint8Array(weights.length);
  const scales = new Float32Array(weights.length / Q8_BLOCK);
  for (let block = 0, start = 0; start < weights.length; block++, start += Q8_BLOCK) {
    const end = start + Q8_BLOCK;
    let largest = 0;
    for (let i = start; i < end; i++) {
      const magnitude = Math.abs(weights[i]!);
      if (magnitude > largest) largest = magnitude;
    }
    const inverse = largest > 0 ? 127 / largest : 0;
    for (let i = start; i < end; i++) codes[i] = weights[i]! * inverse + 128.5;
    scales[block] = largest / 127;
  }
  return { codes, scales };
}

export interface GraphInput {
  readonly config: ModelConfig;
  readonly weights: WeightSource;
  readonly precision: DenseOptions['precision'];
}

/** What a half of a layer answers, before it is added to the stream that it was computed from. */
interface Branch {
  readonly value: string;
  readonly residual: string;
  readonly bias: string | null;
  /** The norm it goes through first. */
  readonly post: string | null;
}

/** Collects nodes and weights of one graph; its methods append an operation and return the name of its result. */
class GraphDraft {
  readonly nodes: OnnxNode[] = [];
  readonly initializers: OnnxInitializer[] = [];
  readonly matrices: Record<MatrixType, number> = { f32: 0, q8: 0 };
  bytes = 0;
  private readonly given: GraphInput;

  constructor(given: GraphInput) {
    this.given = given;
  }

  constant(name: string, type: OnnxType, shape: readonly number[], data: ArrayBufferView): string {
    this.initializers.push({ name, type, shape, data });
    this.bytes += data.byteLength;
    return name;
  }

  vector(name: string): string {
    const data = finite(name, this.given.weights.tensor(name).readFloat32());
    return this.constant(name, 'float32', [data.length], data);
  }

  node(op: string, inputs: readonly string[], outputs: readonly string[], attributes = {}, microsoft = false): void {
    this.nodes.push({ op, inputs, outputs, attributes, domain: microsoft ? 'com.microsoft' : '' });
  }

  /** Root-mean-square norm along the last axis. */
  norm(input: string, scale: string, output: string): string {
    const attributes = { axis: { int: -1 }, epsilon: { float: this.given.config.normEpsilon } };
    this.node('SimplifiedLayerNormalization', [input, scale], [output], attributes);
    return output;
  }

  /** sum = branch + bias + residual and its norm, in one pass. */
  private addAndNorm(
    branch: string,
    residual: string,
    bias: string | null,
    scale: string,
    sum: string,
    output: string,
  ): string {
    const inputs = bias === null ? [branch, residual, scale] : [branch, residual, scale, bias];
    const attributes = { epsilon: { float: this.given.config.normEpsilon } };
    this.node('SkipSimplifiedLayerNormalization', inputs, [output, '', '', sum], attributes, true);
    return output;
  }

  /** input · Wᵀ (+ bias), where W stacks the rows of several tensors; output features come in that order. */
  project(input: string, tensors: readonly string[], inputSize: number, biased: boolean, output: string): string {
    const weights = concatenate(tensors.map((name) => finite(name, this.given.weights.tensor(name).readFloat32())));
    const outputSize = weights.length / inputSize;
    const name = tensors.join('+');
    const biases = tensors.map((tensor) => `${tensor}.bias`);
    const bias = biased
      ? this.constant(
          `${name}.bias`,
          'float32',
          [outputSize],
          concatenate(biases.map((tensor) => finite(tensor, this.given.weights.tensor(tensor).readFloat32()))),
        )
      : null;
    if (this.given.precision === 'exact' || inputSize % Q8_BLOCK !== 0) {
      this.constant(name, 'float32', [outputSize, inputSize], weights);
      this.node('Gemm', bias === null ? [input, name] : [input, name, bias], [output], { transB: { int: 1 } });
      this.matrices.f32 += tensors.length;
      return output;
    }
    const { codes, scales } = quantizeQ8(weights);
    const blocks = inputSize / Q8_BLOCK;
    this.constant(name, 'uint8', [outputSize, blocks, Q8_BLOCK], codes);
    this.constant(`${name}.scales`, 'float32', [outputSize, blocks], scales);
    const attributes: Record<string, OnnxAttribute> = {
      K: { int: inputSize },
      N: { int: outputSize },
      bits: { int: 8 },
      block_size: { int: Q8_BLOCK },
      // Without it the 8-bit kernel is 45 to 180 times slower.
      accuracy_level: { int: 4 },
    };
    const inputs = bias === null ? [input, name, `${name}.scales`] : [input, name, `${name}.scales`, '', '', bias];
    this.node('MatMulNBits', inputs, [output], attributes, true);
    this.matrices.q8 += tensors.length;
    return output;
  }

  split(input: string, sizes: readonly number[], outputs: readonly string[]): void {
    const data = BigInt64Array.from(sizes, BigInt);
    const lengths = this.constant(`${input}.sizes`, 'int64', [sizes.length], data);
    this.node('Split', [input, lengths], outputs, { axis: { int: -1 } });
  }

  /** What a half of `layer` reads of the stream `x`: its norm, or itself. */
  read(x: string, layer: number, norm: 'attnNorm' | 'mlpNorm', output: string): string {
    return this.given.config.preNorms ? this.norm(x, this.vector(`${layer}.${norm}`), output) : x;
  }

  /** The stream `sum` after a branch. */
  add({ value, residual, bias, post }: Branch, sum: string): void {
    let added = value;
    if (bias !== null) {
      added = `${value}.biased`;
      this.node('Add', [value, bias], [added]);
    }
    if (post !== null) added = this.norm(added, this.vector(post), `${value}.post`);
    this.node('Add', [added, residual], [sum]);
  }

  /** The same, and what the next half reads of it. */
  addAndRead(branch: Branch, layer: number, norm: 'attnNorm' | 'mlpNorm', sum: string, output: string): string {
    const { value, residual, bias, post } = branch;
    if (post === null && this.given.config.preNorms)
      return this.addAndNorm(value, residual, bias, this.vector(`${layer}.${norm}`), sum, output);
    this.add(branch, sum);
    return this.read(sum, layer, norm, output);
  }

  /** q, k and v of `layer` from its normed input. */
  projections(layer: number, input: string): void {
    const { queryHeads, kvHeads, headDim, hiddenSize, qkvBias, qkNorm } = this.given.config;
    const tensors = ['q', 'k', 'v'].map((side) => `${layer}.${side}`);
    const fused = this.project(input, tensors, hiddenSize, qkvBias, 'qkv');
    const [q, k] = qkNorm === 'none' ? ['q', 'k'] : ['q.plain', 'k.plain'];
    this.split(fused, [queryHeads * headDim, kvHeads * headDim, kvHeads * headDim], [q!, k!, 'v']);
    if (qkNorm === 'head') {
      this.headNorm(q!, queryHeads, `${layer}.qNorm`, 'q');
      this.headNorm(k!, kvHeads, `${layer}.kNorm`, 'k');
    } else if (qkNorm === 'width') {
      this.norm(q!, this.vector(`${layer}.qNorm`), 'q');
      this.norm(k!, this.vector(`${layer}.kNorm`), 'k');
    }
  }

  /** Normalises each head by itself. Viewing [T, heads·d] as [T, heads, d] moves nothing in memory. */
  private headNorm(input: string, heads: number, scale: string, output: string): void {
    const shape = BigInt64Array.from([0, heads, this.given.config.headDim], BigInt);
    const target = this.constant(`${input}.shape`, 'int64', [3], shape);
    this.node('Reshape', [input, target], [`${input}.heads`]);
    this.norm(`${input}.heads`, this.vector(scale), output);
  }

  /** Everything of `layer` between its attention and its last residual sum. */
  afterAttention(layer: number): Branch {
    const { config } = this.given;
    const post = (norm: string): string | null => (config.postNorms ? `${layer}.${norm}` : null);
    const { queryHeads, headDim, hiddenSize, intermediateSize } = config;
    const o = this.project('attention', [`${layer}.o`], queryHeads * headDim, false, 'o');
    const oBias = config.outputBias ? this.vector(`${layer}.o.bias`) : null;
    const attended = { value: o, residual: 'x', bias: oBias, post: post('attnPost') };
    const normed = this.addAndRead(attended, layer, 'mlpNorm', 'x.middle', 'mlp.normed');
    const gate = this.project(normed, [`${layer}.gate`], hiddenSize, config.mlpBias, 'gate');
    const up = this.project(normed, [`${layer}.up`], hiddenSize, config.mlpBias, 'up');
    // QuickGelu with alpha 1 is SiLU: x·sigmoid(x). FastGelu is the form with a hyperbolic tangent.
    if (config.activation === 'silu') this.node('QuickGelu', [gate], ['gate.active'], { alpha: { float: 1 } }, true);
    else this.node('FastGelu', [gate], ['gate.active'], {}, true);
    this.node('Mul', ['gate.active', up], ['mlp.hidden']);
    const down = this.project('mlp.hidden', [`${layer}.down`], intermediateSize, false, 'down');
    const downBias = config.mlpBias ? this.vector(`${layer}.down.bias`) : null;
    return { value: down, residual: 'x.middle', bias: downBias, post: post('mlpPost') };
  }

  /** cap · tanh(input / cap) */
  cap(input: string, cap: number, output: string): void {
    const by = this.constant(`${output}.cap`, 'float32', [1], Float32Array.of(cap));
    this.node('Div', [input, by], [`${output}.shares`]);
    this.node('Tanh', [`${output}.shares`], [`${output}.tanh`]);
    this.node('Mul', [`${output}.tanh`, by], [output]);
  }

  finish(name: string, inputs: readonly OnnxValue[], outputs: readonly OnnxValue[]): DenseGraph {
    const { nodes, initializers, matrices, bytes } = this;
    return { name, nodes, initializers, inputs, outputs, matrices, bytes };
  }
}

/**
 * A damaged file can decode to NaN or infinity. Here the tensor can still be named; later, every logit would be NaN.
 */
export function finite(name: string, values: Float32Array): Float32Array {
  let bad = 0;
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i]!)) bad++;
  if (bad === 0) return values;
  throw new KvError('bad-model', `tensor ${name} holds NaN or infinity`, {
    values: { tensor: name, bad, of: values.length },
    hint: 'the file is damaged: fetch the model again and verify its checksum',
  });
}

const concatenate = (parts: readonly Float32Array[]): Float32Array => (parts.length === 1 ? parts[0]! : joined(parts));

const rows = (name: string, ...sizes: number[]): OnnxValue => ({ name, type: 'float32', shape: ['T', ...sizes] });

function projectionValues({ queryHeads, kvHeads, headDim, qkNorm }: ModelConfig): OnnxValue[] {
  const heads = (name: string, count: number): OnnxValue =>
    qkNorm === 'head' && name !== 'v' ? rows(name, count, headDim) : rows(name, count * headDim);
  return [heads('q', queryHeads), heads('k', kvHeads), heads('v', kvHeads)];
}

/** x [T, m] → q [T, H·d], k and v [T, n·d] of layer 0. */
export function firstGraph(given: GraphInput): DenseGraph {
  const draft = new GraphDraft(given);
  draft.projections(0, draft.read('x', 0, 'attnNorm', 'attn.normed'));
  return draft.finish('first', [rows('x', given.config.hiddenSize)], projectionValues(given.config));
}

function attentionInputs({ queryHeads, headDim, hiddenSize }: ModelConfig): OnnxValue[] {
  return [rows('attention', queryHeads * headDim), rows('x', hiddenSize)];
}

/** attention [T, H·d] of `layer`, x [T, m] that entered it → x.next [T, m] and q, k, v of layer + 1. */
export function nextGraph(given: GraphInput, layer: number): DenseGraph {
  const { config } = given;
  assert(layer >= 0 && layer < config.layers - 1, `layer ${layer} of ${config.layers} has no next one`);
  const draft = new GraphDraft(given);
  const branch = draft.afterAttention(layer);
  draft.projections(layer + 1, draft.addAndRead(branch, layer + 1, 'attnNorm', 'x.next', 'attn.normed'));
  const outputs = [rows('x.next', config.hiddenSize), ...projectionValues(config)];
  return draft.finish(`next ${layer}`, attentionInputs(config), outputs);
}

/** attention [T, H·d] of the last layer, x [T, m] that entered it → x.next [T, m]. */
export function lastGraph(given: GraphInput): DenseGraph {
  const { config } = given;
  const draft = new GraphDraft(given);
  draft.add(draft.afterAttention(config.layers - 1), 'x.next');
  return draft.finish('last', attentionInputs(config), [rows('x.next', config.hiddenSize)]);
}

/** x [rows, m] → logits [rows, vocab]. Tied models use the embedding as output matrix. */
export function logitsGraph(given: GraphInput): DenseGraph {
  const { config } = given;
  const draft = new GraphDraft(given);
  const normed = draft.norm('x', draft.vector('norm'), 'normed');
  const { logitCap } = config;
  const product = logitCap === null ? 'logits' : 'logits.uncapped';
  draft.project(normed, [config.tiedEmbeddings ? 'embed' : 'head'], config.hiddenSize, false, product);
  if (logitCap !== null) draft.cap(product, logitCap, 'logits');
  return draft.finish('logits', [rows('x', config.hiddenSize)], [rows('logits', config.vocabSize)]);
}
