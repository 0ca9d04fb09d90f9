/** What a model takes in memory beside its cache, estimated from its configuration and the types of its tensors. */
import { DENSE_BLOCK, densePacking, TRIAL_QUERIES } from '../../native/index.ts';
import { expectedShapes } from './config.ts';
import { PACKED_AT_ONCE_BYTES } from './dense.ts';
import type { DenseChoice } from './dense-choice.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { packedType } from './rewrite.ts';
import type { DenseOptions, ModelConfig, WeightSource } from './types.ts';

/** Bytes for one weight of ONNX Runtime's: 32 inputs share a float32 scale. */
const WIDE = 36 / 32;
/** Tokens of a prompt that go through the layers at once. */
const CHUNK_TOKENS = 128;

export interface MemoryNeed {
  /** Which dense half it is reckoned for. */
  readonly dense: string;
  /** Estimate: all matrices as the dense half would hold them. */
  readonly weightsBytes: number;
  /**
   * Estimate: beside the weights while they are made ready, the largest of those that have to become float32 before.
   */
  readonly loadingBytes: number;
  /** Estimate: rows of activations, logits, and the queries that trials keep. */
  readonly scratchBytes: number;
  /** Types of weights that are not read here, so that the model cannot run; empty: all are. */
  readonly unreadable: readonly string[];
}

export function memoryNeed(
  config: ModelConfig,
  weights: WeightSource,
  { name }: Pick<DenseChoice, 'name'>,
  precision: DenseOptions['precision'],
): MemoryNeed {
  return { dense: name, ...weightsOf(config, weights, name, precision), scratchBytes: scratchOf(config) };
}

function weightsOf(
  config: ModelConfig,
  weights: WeightSource,
  dense: DenseChoice['name'],
  precision: DenseOptions['precision'],
): Pick<MemoryNeed, 'weightsBytes' | 'loadingBytes' | 'unreadable'> {
  let [weightsBytes, loadingBytes] = [0, 0];
  const unreadable = new Set<string>();
  for (const [name, shape] of expectedShapes(config)) {
    const { storedType } = weights.tensor(name);
    const type = ELEMENT_TYPES.get(storedType);
    if (type === undefined || type.decode === null) unreadable.add(storedType);
    const [outputs = 1, inputs = 1] = shape;
    // Routers stay float32.
    const isMatrix = shape.length === 2 && !name.endsWith('.router');
    const packing = dense === 'native' && isMatrix ? densePacking(packedType(storedType), outputs, inputs) : null;
    const readBytes =
      packing === null ? outputs * inputs * 4 : Math.min(PACKED_AT_ONCE_BYTES, outputs * packing.rowBytes);
    loadingBytes = Math.max(loadingBytes, readBytes);
    // Rows of the embedding are read from the file; only as output matrix it is in memory.
    if (name === 'embed' && !config.tiedEmbeddings) continue;
    if (
      !isMatrix ||
      dense === 'loops' ||
      precision === 'exact' ||
      (dense === 'onnxruntime' && inputs % DENSE_BLOCK !== 0)
    )
      weightsBytes += outputs * inputs * 4;
    else if (dense === 'onnxruntime') weightsBytes += outputs * inputs * WIDE;
    else {
      // What is not packed as it is stored comes as float32.
      weightsBytes += (packing ?? densePacking('F32', outputs, inputs)!).bytes;
    }
  }
  return { weightsBytes, loadingBytes, unreadable: [...unreadable] };
}

function scratchOf({
  layers,
  hiddenSize,
  intermediateSize,
  queryHeads,
  kvHeads,
  headDim,
  vocabSize,
  experts,
}: ModelConfig): number {
  // Every expert that answers needs room for its answer as well.
  const feedForward = experts === null ? 2 * intermediateSize : experts.used * (2 * intermediateSize + hiddenSize);
  const row = 3 * hiddenSize + feedForward + (2 * queryHeads + 2 * kvHeads) * headDim;
  const queries = layers * 2 * TRIAL_QUERIES * queryHeads * headDim;
  return 4 * (CHUNK_TOKENS * row + queries + vocabSize);
}
