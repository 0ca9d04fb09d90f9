/**
 * What all dense halves share: checks, rows of the embedding table, sketches of an output projection, and giving others
 * a turn.
 */
import { assert, checkOption, KvError, matmulF64, show } from '../../native/index.ts';
import { DENSE_THREADS } from './limits.ts';
import type { DenseOptions, LoadedModel } from './types.ts';

export type DenseModel = Pick<LoadedModel, 'config' | 'weights'>;

/** About this many bytes of the file are in memory while a matrix is packed as it is stored. */
export const PACKED_AT_ONCE_BYTES = 1 << 21;

export abstract class DenseBase {
  /** Matrices by the type they were given. */
  readonly weightTypes: Record<string, number> = {};
  bytes = 0;
  protected readonly model: DenseModel;
  protected readonly safePoint: () => void;
  protected readonly onLayer: (done: number) => void;
  protected closed = false;

  constructor(model: DenseModel, options: DenseOptions) {
    checkOptions(options);
    this.model = model;
    this.safePoint = options.safePoint ?? (() => {});
    this.onLayer = (done) => options.onLayer?.(done, model.config.layers);
  }

  embed(tokenIds: Int32Array): Float32Array {
    this.checkOpen();
    return readEmbedding(this.model, tokenIds);
  }

  outputSketch(layer: number, sketch: Float32Array): Float32Array {
    this.checkOpen();
    return outputSketch(this.model, layer, sketch);
  }

  protected countMatrices(type: string, count = 1): void {
    if (count > 0) this.weightTypes[type] = (this.weightTypes[type] ?? 0) + count;
  }

  /** Gives others a turn. Resumes at a point where this thread may be terminated. */
  protected async turn(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    this.safePoint();
  }

  protected checkOpen(): void {
    if (this.closed) throw new KvError('closed', 'the dense half of the model was closed');
  }

  protected checkRows(data: Float32Array, rows: number, width: number, name = 'x'): void {
    if (Number.isInteger(rows) && rows >= 1 && data.length === rows * width) return;
    throw new KvError('bad-shape', `${name} must be [tokens, ${width}]`, {
      values: { tokens: rows, expected: rows * width, given: data.length },
    });
  }
}

/** Opens a backend that was just made, and closes it when that fails. */
export async function opened<Backend extends { open(): Promise<void>; close(): Promise<void> }>(
  backend: Backend,
): Promise<Backend> {
  try {
    await backend.open();
    return backend;
  } catch (error) {
    await backend.close();
    throw error;
  }
}

function checkOptions({ precision, threads }: DenseOptions): void {
  if (precision !== 'auto' && precision !== 'exact') {
    throw new KvError('bad-argument', `unknown precision '${show(precision)}' of the dense half`, {
      values: { precision },
      hint: "use 'auto' or 'exact'",
    });
  }
  checkOption('threads', { rule: DENSE_THREADS, help: 'threads of the dense half' }, threads);
}

/** Rows of the embedding table, [T, m]. Throws 'bad-argument' for an id outside the vocabulary. */
function readEmbedding({ config, weights }: DenseModel, tokenIds: Int32Array): Float32Array {
  const { hiddenSize, vocabSize, embeddingScale } = config;
  const table = weights.tensor('embed');
  const rows = new Float32Array(tokenIds.length * hiddenSize);
  for (const id of tokenIds) {
    if (id >= 0 && id < vocabSize) continue;
    throw new KvError('bad-argument', `token id ${id} is outside the vocabulary`, { values: { id, vocabSize } });
  }
  // In their order in the file, each part of which is then read and checked once for all rows that lie in it.
  const order = Array.from(tokenIds, (_, token) => token).sort((a, b) => tokenIds[a]! - tokenIds[b]!);
  for (const [at, token] of order.entries()) {
    const id = tokenIds[token]!;
    const before = order[at - 1];
    if (before !== undefined && tokenIds[before] === id)
      rows.copyWithin(token * hiddenSize, before * hiddenSize, (before + 1) * hiddenSize);
    else rows.set(table.readFloat32(id, id + 1), token * hiddenSize);
  }
  if (embeddingScale !== 1) for (let i = 0; i < rows.length; i++) rows[i]! *= embeddingScale;
  return rows;
}

/** W_o of a layer times a sketch [rows, m] from the left: [rows, H·d]. */
function outputSketch({ config, weights }: DenseModel, layer: number, sketch: Float32Array): Float32Array {
  const { hiddenSize, queryHeads, headDim, layers } = config;
  assert(layer >= 0 && layer < layers, `sketch of layer ${layer} of ${layers}`);
  const rows = sketch.length / hiddenSize;
  if (!Number.isInteger(rows) || rows === 0) {
    throw new KvError('bad-shape', 'a sketch is [rows, hidden size]', {
      values: { length: sketch.length, hiddenSize },
    });
  }
  return matmulF64(sketch, rows, weights.tensor(`${layer}.o`).readFloat32(), queryHeads * headDim);
}
