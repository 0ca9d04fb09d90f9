/** Whether a model fits this machine, said before it is loaded: what its weights, its cache and its work would take, against memory that is free. */
import { type CacheShape, DENSE_BLOCK, TRIAL_QUERIES } from '../../native/index.ts';
import { type Forecast, f16CacheBytes, forecast, memoryBytes } from '../budget.ts';
import { expectedShapes } from './config.ts';
import type { DenseChoice } from './dense-choice.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { hasNibbles } from './nibbles.ts';
import type { DenseOptions, ModelConfig, WeightSource } from './types.ts';

/** Bytes for one weight of the dense halves: our own packs 16 outputs by 32 inputs into 576 bytes of 8-bit codes and float32 scales, or 320 of 4-bit codes, half scales and minima. */
const WIDE = 576 / 512;
const NARROW = 320 / 512;
const PANEL = 16;
/** Tokens of a prompt that go through the layers at once. */
const CHUNK_TOKENS = 128;

export interface Fit {
  /** Context length that is reckoned with. */
  readonly tokens: number;
  /** Estimate: all matrices as the dense half would hold them. */
  readonly weightsBytes: number;
  /** Which dense half that is. */
  readonly dense: string;
  /** Estimate: beside the weights while they are made ready, the largest of them in float32. */
  readonly loadingBytes: number;
  /** Estimate: rows of activations, logits, and the queries that trials keep. */
  readonly scratchBytes: number;
  /** Exact: bytes of the cache at this length by format, and of a plain f16 cache. */
  readonly cache: Forecast;
  /** Memory that programs can have now, and all of it: of the machine, or what its container allows. */
  readonly freeBytes: number;
  readonly memoryBytes: number;
  /** What would be left beside the f16 cache, and beside the smallest; negative: so much is missing. */
  readonly spareF16Bytes: number;
  readonly spareLeastBytes: number;
  /** Types of weights that are not read here, so that the model cannot run; empty: all are. */
  readonly unreadable: readonly string[];
  /** 'yes' with an f16 cache, 'with a smaller cache', or 'no'. */
  readonly fits: 'yes' | 'with a smaller cache' | 'no';
}

export interface FitGiven {
  readonly config: ModelConfig;
  readonly weights: WeightSource;
  readonly dense: Pick<DenseChoice, 'name'>;
  readonly precision: DenseOptions['precision'];
  /** Default: the context length of the model. */
  readonly tokens?: number | undefined;
  /** Default: as the system says. */
  readonly freeBytes?: number;
}

export function fitOf({
  config,
  weights,
  dense,
  precision,
  tokens = config.contextLength,
  freeBytes = freeMemory(),
}: FitGiven): Fit {
  const { layers, queryHeads, kvHeads, headDim } = config;
  const shape: CacheShape = { layers, queryHeads, kvHeads, headDim };
  const cache = forecast(shape, tokens);
  const { weightsBytes, loadingBytes, unreadable } = weightsOf(config, weights, dense.name, precision);
  const scratchBytes = scratchOf(config);
  const spare = (cacheBytes: number): number =>
    freeBytes - weightsBytes - Math.max(loadingBytes, scratchBytes + cacheBytes);
  const spareF16Bytes = spare(f16CacheBytes(shape, tokens));
  const spareLeastBytes = spare(Math.min(...cache.pairs.map(({ bytes }) => bytes)));
  const fits =
    unreadable.length > 0 ? 'no' : spareF16Bytes >= 0 ? 'yes' : spareLeastBytes >= 0 ? 'with a smaller cache' : 'no';
  return {
    ...{
      tokens,
      weightsBytes,
      loadingBytes,
      scratchBytes,
      cache,
      freeBytes,
      spareF16Bytes,
      spareLeastBytes,
      unreadable,
      fits,
    },
    dense: dense.name,
    memoryBytes: memoryBytes(),
  };
}

/** What the system would give to programs now, and no more than the container allows. */
const freeMemory = (): number => Math.min(process.availableMemory(), memoryBytes());

function weightsOf(
  config: ModelConfig,
  weights: WeightSource,
  dense: DenseChoice['name'],
  precision: DenseOptions['precision'],
): Pick<Fit, 'weightsBytes' | 'loadingBytes' | 'unreadable'> {
  let [weightsBytes, loadingBytes] = [0, 0];
  const unreadable = new Set<string>();
  for (const [name, shape] of expectedShapes(config)) {
    const { storedType } = weights.tensor(name);
    const type = ELEMENT_TYPES.get(storedType);
    if (type === undefined || type.decode === null) unreadable.add(storedType);
    const [outputs = 1, inputs = 1] = shape;
    loadingBytes = Math.max(loadingBytes, outputs * inputs * 4);
    // Rows of the embedding are read from the file; only as output matrix it is in memory.
    if (name === 'embed' && !config.tiedEmbeddings) continue;
    const isMatrix = shape.length === 2;
    if (
      !isMatrix ||
      dense === 'loops' ||
      precision === 'exact' ||
      (dense === 'onnxruntime' && inputs % DENSE_BLOCK !== 0)
    )
      weightsBytes += outputs * inputs * 4;
    else if (dense === 'onnxruntime') weightsBytes += outputs * inputs * WIDE;
    else {
      const packed = Math.ceil(outputs / PANEL) * PANEL * Math.ceil(inputs / DENSE_BLOCK) * DENSE_BLOCK;
      weightsBytes += packed * (type !== undefined && hasNibbles(type) && inputs % DENSE_BLOCK === 0 ? NARROW : WIDE);
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
}: ModelConfig): number {
  const row = 3 * hiddenSize + 2 * intermediateSize + (2 * queryHeads + 2 * kvHeads) * headDim;
  const queries = layers * 2 * TRIAL_QUERIES * queryHeads * headDim;
  return 4 * (CHUNK_TOKENS * row + queries + vocabSize);
}
