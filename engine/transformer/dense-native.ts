/**
 * The dense half on the project's own kernels. Quantized weights are kept as they are in the file (DENSE_TYPES) or with
 * their codes in the form of another type (rewrite.ts), all others become 8 bits with a scale per 32 inputs;
 * activations are rounded to 16 bits per 32. Each layer and step is one native call, on the calling thread.
 */
import {
  adapterBytes,
  assert,
  DENSE_PANEL,
  DenseHalf,
  type DenseMix,
  type DensePacking,
  type DenseSlot,
  densePacking,
  joined,
  KvError,
  THREADS_MAX,
} from '../../native/index.ts';
import { normsOf, takesMeanOut } from './config.ts';
import { DenseBase, type DenseModel, opened, PACKED_AT_ONCE_BYTES } from './dense.ts';
import { finite } from './dense-graphs.ts';
import { rewritten } from './rewrite.ts';
import type {
  AdaptedRows,
  AdapterMatrix,
  DenseBackend,
  DenseOptions,
  LayerInput,
  ModelConfig,
  Tensor,
} from './types.ts';

/** The matrices that experts have one of each. */
const FEED_FORWARD = ['gate', 'up', 'down'] as const;
/** Bits of the codes that floats become. */
const WIDE_BITS = 8;

/**
 * Packs the weights of a model. `model.weights` stays in use afterwards (embedding rows, output sketches) and must stay
 * open until the backend is closed. Throws 'bad-model' for tensors that are missing, misshapen or not finite,
 * 'bad-argument' for options.
 */
export async function createNativeBackend(model: DenseModel, options: DenseOptions): Promise<DenseBackend> {
  return opened(new NativeBackend(model, options));
}

/**
 * Buffers for results, for one number of tokens. There are two residual streams, because one is read while the next is
 * written.
 */
class Rows {
  readonly tokens: number;
  readonly projected: { readonly q: Float32Array; readonly k: Float32Array; readonly v: Float32Array };
  readonly #streams: readonly [Float32Array, Float32Array];

  constructor({ hiddenSize, queryHeads, kvHeads, headDim }: ModelConfig, tokens: number) {
    this.tokens = tokens;
    this.projected = {
      q: new Float32Array(tokens * queryHeads * headDim),
      k: new Float32Array(tokens * kvHeads * headDim),
      v: new Float32Array(tokens * kvHeads * headDim),
    };
    this.#streams = [new Float32Array(tokens * hiddenSize), new Float32Array(tokens * hiddenSize)];
  }

  /** A residual stream that is not `x`. */
  other(x: Float32Array): Float32Array {
    return this.#streams[0].buffer === x.buffer ? this.#streams[1] : this.#streams[0];
  }
}

class NativeBackend extends DenseBase implements DenseBackend {
  readonly name = 'native';
  readonly isRowwise = true;
  readonly #half: DenseHalf;
  #rows: Rows;
  readonly #adapters = new Set<number>();
  /** What the newest call was given, as the kernels take it. */
  #mix: { readonly given: readonly AdaptedRows[]; readonly mix: DenseMix } | null = null;
  /** Bytes of the file, while matrices are packed. */
  #bytes = new Uint8Array(0);

  constructor(model: DenseModel, options: DenseOptions) {
    super(model, options);
    // The kernels take no more threads than this, and the products are short anyway.
    this.#half = new DenseHalf(model.config, Math.min(options.threads, THREADS_MAX));
    this.#rows = new Rows(model.config, 1);
  }

  async open(): Promise<void> {
    const { layers, qkvBias, outputBias, qkNorm, tiedEmbeddings, oneNorm } = this.model.config;
    const norms = [...normsOf(this.model.config), ...(qkNorm === 'none' ? [] : (['qNorm', 'kNorm'] as const))];
    for (let layer = 0; layer < layers; layer++) {
      await this.turn();
      for (const slot of ['q', 'k', 'v', 'o'] as const) {
        this.#matrix(layer, slot, `${layer}.${slot}`);
        if (slot === 'o' ? outputBias : qkvBias) this.#bias(layer, slot);
      }
      await this.#feedForward(layer);
      for (const norm of norms) this.#half.setNorm(layer, norm, this.#norm(`${layer}.${norm}`));
      if (oneNorm) this.#half.setNorm(layer, 'mlpNorm', this.#norm(`${layer}.attnNorm`));
      this.onLayer(layer + 1);
    }
    await this.turn();
    this.#matrix(layers, 'q', tiedEmbeddings ? 'embed' : 'head');
    this.#half.setNorm(layers, 'attnNorm', this.#norm('norm'));
    this.#bytes = new Uint8Array(0);
    this.bytes = this.#half.bytes;
  }

  async #feedForward(layer: number): Promise<void> {
    const { experts, mlpBias, gated } = this.model.config;
    if (experts === null) {
      for (const slot of gated ? FEED_FORWARD : (['up', 'down'] as const)) {
        this.#matrix(layer, slot, `${layer}.${slot}`);
        if (mlpBias) this.#bias(layer, slot);
      }
      return;
    }
    this.#half.setRouter(layer, this.#vector(`${layer}.router`));
    for (let expert = 0; expert < experts.count; expert++) {
      await this.turn();
      for (const slot of FEED_FORWARD) this.#matrix(layer, slot, `${layer}.${slot}.${expert}`, expert);
    }
  }

  #bias(layer: number, slot: DenseSlot): void {
    this.#half.setBias(layer, slot, this.#vector(`${layer}.${slot}.bias`));
  }

  /** Gains, and behind them the biases of norms that take the mean out. */
  #norm(name: string): Float32Array {
    const { config } = this.model;
    const gains = this.#vector(name);
    if (!takesMeanOut(config, name)) return gains;
    return joined([gains, config.normBias ? this.#vector(`${name}.bias`) : new Float32Array(gains.length)]);
  }

  #vector(name: string): Float32Array {
    return finite(name, this.model.weights.tensor(name).readFloat32());
  }

  #matrix(layer: number, slot: DenseSlot, name: string, expert = 0): void {
    const tensor = rewritten(this.model.weights.tensor(name));
    const [outputs, inputs] = this.#half.sizes(layer, slot);
    assert(tensor.shape[0] === outputs && tensor.shape[1] === inputs, `${name} is [${tensor.shape.join(', ')}]`);
    const packing = tensor.readStored === undefined ? null : densePacking(tensor.storedType, outputs, inputs);
    if (packing === null) this.#half.setWide(layer, slot, finite(name, tensor.readFloat32()), expert);
    else this.#pack(layer, slot, tensor, packing, expert);
    this.countMatrices(`q${packing?.bits ?? WIDE_BITS}`);
    // Rows of the embedding are read at every step.
    if (name !== 'embed') tensor.giveBack?.();
  }

  /** Packs the bytes of a file as they are, some rows at a time. */
  #pack(layer: number, slot: DenseSlot, tensor: Tensor, { type, rowBytes }: DensePacking, expert: number): void {
    const [outputs] = this.#half.sizes(layer, slot);
    const most = Math.max(1, Math.floor(PACKED_AT_ONCE_BYTES / (rowBytes * DENSE_PANEL))) * DENSE_PANEL;
    if (this.#bytes.length < Math.min(most, outputs) * rowBytes)
      this.#bytes = new Uint8Array(Math.min(most, outputs) * rowBytes);
    for (let from = 0; from < outputs; from += most) {
      const bytes = this.#bytes.subarray(0, Math.min(most, outputs - from) * rowBytes);
      tensor.readStored!(from, bytes);
      try {
        this.#half.setRows(layer, slot, type, bytes, from, expert);
      } catch (cause) {
        if (!(cause instanceof KvError) || cause.code !== 'bad-value') throw cause;
        throw new KvError('bad-model', `tensor ${tensor.name} holds NaN or infinity`, {
          values: { tensor: tensor.name, fromRow: from, rows: bytes.length / rowBytes },
          hint: 'the file is damaged: fetch the model again and verify its checksum',
          cause,
        });
      }
    }
  }

  async first(x: Float32Array, tokens: number, adapted?: readonly AdaptedRows[]): Promise<LayerInput> {
    this.checkOpen();
    // Once per step others get a turn: nobody who waits for a message should have to wait for the whole answer.
    await this.turn();
    this.checkOpen();
    const { projected } = this.#rowsOf(x, tokens);
    this.#half.first(x, tokens, projected, this.#mixOf(adapted));
    return { layer: 0, tokens, ...projected, x };
  }

  async next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted?: readonly AdaptedRows[],
  ): Promise<LayerInput> {
    const { layers } = this.model.config;
    assert(layer >= 0 && layer < layers - 1, `next(${layer}) of a model of ${layers} layers`);
    this.#start();
    const rows = this.#rowsOf(x, tokens);
    const xNext = rows.other(x);
    this.#half.next(layer, attention, x, tokens, xNext, rows.projected, this.#mixOf(adapted));
    return { layer: layer + 1, tokens, ...rows.projected, x: xNext };
  }

  async last(
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted?: readonly AdaptedRows[],
  ): Promise<Float32Array> {
    this.#start();
    const xNext = this.#rowsOf(x, tokens).other(x);
    this.#half.last(attention, x, tokens, xNext, this.#mixOf(adapted));
    return xNext;
  }

  async logits(
    x: Float32Array,
    rows: number,
    out = new Float32Array(rows * this.model.config.vocabSize),
  ): Promise<Float32Array> {
    this.#start();
    this.checkRows(x, rows, this.model.config.hiddenSize);
    this.#half.logits(x, rows, out);
    return out;
  }

  addAdapter(matrices: Iterable<AdapterMatrix>): number {
    this.checkOpen();
    let adapter = 0;
    while (this.#adapters.has(adapter)) adapter++;
    try {
      for (const { layer, slot, rank, a, b, gains } of matrices)
        this.#half.setAdapter(adapter, layer, slot, rank, a, b, gains);
    } catch (error) {
      this.#half.dropAdapter(adapter);
      throw error;
    }
    this.#adapters.add(adapter);
    this.bytes = this.#half.bytes;
    return adapter;
  }

  adapterBytes(matrices: readonly AdapterMatrix[]): number {
    return matrices.reduce(
      (sum, { rank, a, b, gains }) => sum + adapterBytes(b.length / rank, a.length / rank, rank, gains !== undefined),
      0,
    );
  }

  dropAdapter(adapter: number): void {
    this.checkOpen();
    this.#half.dropAdapter(adapter);
    this.#adapters.delete(adapter);
    this.bytes = this.#half.bytes;
  }

  setPlanes(layer: number, slot: DenseSlot, planes: 1 | 2): void {
    this.checkOpen();
    this.#half.setPlanes(layer, slot, planes);
  }

  async close(): Promise<void> {
    this.closed = true;
    this.#half.close();
  }

  #mixOf(given: readonly AdaptedRows[] | undefined): DenseMix | undefined {
    if (given === undefined || given.length === 0) return undefined;
    if (this.#mix?.given !== given) {
      const parts = Int32Array.from(given.flatMap(({ from, rows, adapter }) => [from, rows, adapter]));
      this.#mix = { given, mix: { parts, scales: Float32Array.from(given, ({ scale }) => scale) } };
    }
    return this.#mix.mix;
  }

  #start(): void {
    this.checkOpen();
    this.safePoint();
  }

  #rowsOf(x: Float32Array, tokens: number): Rows {
    this.checkRows(x, tokens, this.model.config.hiddenSize);
    if (this.#rows.tokens !== tokens) this.#rows = new Rows(this.model.config, tokens);
    return this.#rows;
  }
}
