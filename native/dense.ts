/**
 * The computation of a layer around attention: matrices with the weights of a file, norms, and the four pieces into
 * which attention divides a step. In array shapes, m is the hidden size, f the intermediate size, H the number of query
 * heads, n of KV heads, d the head size and T the number of tokens. Arrays are row-major.
 */
import { closed, fail, floats, integer, overlaps, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import {
  DENSE_FEATURES,
  DENSE_FORMS,
  DENSE_NORMS,
  DENSE_SLOTS,
  DENSE_TYPES,
  type DenseType,
  EXPERTS_ALL_MAX,
  EXPERTS_MAX,
  EXPERTS_USED_MAX,
  padded,
} from './layout.ts';
import { check, type DenseHandle, loadBinary } from './load.ts';
import { isCap } from './shape.ts';

export {
  DENSE_NORMS,
  DENSE_SLOTS,
  DENSE_TYPES,
  type DenseType,
  EXPERTS_ALL_MAX,
  EXPERTS_MAX,
  EXPERTS_USED_MAX,
} from './layout.ts';
export type DenseSlot = (typeof DENSE_SLOTS)[number];

export type DenseNorm = (typeof DENSE_NORMS)[number];

/** Inputs are padded to a multiple of this, outputs to one of 16. */
export const DENSE_BLOCK = 32;
/** Bytes of a packed panel are padded to a multiple of this. */
const PANEL_ALIGN = 64;
/** Outputs that are packed together: rows come in multiples of it. */
export const DENSE_PANEL = 16;

/**
 * What takes the place of the one feed-forward half of a layer: several, of which a router chooses some for each row.
 */
export interface Experts {
  /** Experts of each layer. */
  readonly count: number;
  /** How many answer a row: those with the largest products with the router. */
  readonly used: number;
  /**
   * True if the shares of those that answer are made to add up to 1: the softmax is over them alone, not over all
   * experts.
   */
  readonly shareAmongChosen: boolean;
}

export interface DenseShape {
  readonly layers: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabSize: number;
  readonly normEpsilon: number;
  /** True if both halves of a layer read the stream through a norm. Default: true. */
  readonly preNorms?: boolean;
  /** True if what each half answers goes through a norm before it is added. Default: false. */
  readonly postNorms?: boolean;
  /** True if the norms of the stream take the mean out first and have biases. Default: false. */
  readonly layerNorms?: boolean;
  /** True if the feed-forward half reads the stream that entered the layer. Default: false. */
  readonly parallel?: boolean;
  /** False: nothing is gated, and the activation is applied to `up`. Default: true. */
  readonly gated?: boolean;
  /** What is applied to the gate. Default: 'silu'. */
  readonly activation?: 'silu' | 'gelu-tanh' | 'gelu';
  /**
   * How queries and keys are normalised, if they have norms: each head by itself, or all heads together. Default:
   * 'head'.
   */
  readonly qkNorm?: 'none' | 'head' | 'width';
  /** Experts of every layer, each with a gate, an up and a down of intermediateSize. Default: null, there are none. */
  readonly experts?: Experts | null;
  /** Logits l become logitCap · tanh(l / logitCap): from 1e-20 to 1e20. Default: null, they stay as they are. */
  readonly logitCap?: number | null;
}

/** How a matrix is kept. */
export interface DensePacking {
  /** Bits of a code. */
  readonly bits: number;
  /** Bytes of the whole matrix, with scales and padding. */
  readonly bytes: number;
  /** The type, and the bytes that one row takes in the file. */
  readonly type: DenseType;
  readonly rowBytes: number;
}

/**
 * What becomes of a matrix whose weights a file stores as `type`; null for a type that is not packed as it is, or whose
 * blocks do not divide the inputs.
 */
export function densePacking(type: string, outputs: number, inputs: number): DensePacking | null {
  const source = DENSE_TYPES.find(({ name }) => name === type);
  if (source === undefined || inputs % source.values !== 0) return null;
  const { bits, blocks, head, scales } = DENSE_FORMS.find(({ name }) => name === source.form)!;
  const record = head + blocks * (scales + 64 * bits);
  const panel = padded(Math.ceil(inputs / (DENSE_BLOCK * blocks)) * record, PANEL_ALIGN);
  return {
    bits,
    bytes: Math.ceil(outputs / DENSE_PANEL) * panel,
    type: source.name,
    rowBytes: (inputs / source.values) * source.bytes,
  };
}

/** Ranks are padded to a multiple of this in b, outputs to one of DENSE_PANEL. */
const RANK_BLOCK = 4;

/** Bytes that the factors of an adapter take of one matrix (setAdapter). */
export function adapterBytes(outputs: number, inputs: number, rank: number, hasGains: boolean): number {
  const tile = padded(rank, RANK_BLOCK) * padded(outputs, DENSE_PANEL);
  const numbers = rank + (hasGains ? outputs : 0);
  return densePacking('F32', rank, inputs)!.bytes + padded(tile + 4 * numbers, PANEL_ALIGN);
}

/** The results of a layer's norm and projections: q [T, H·d], k and v [T, n·d]. */
export interface Projected {
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/**
 * Which rows of a call adapters answer as well. parts: [count][3], the first row, how many, and the adapter; where
 * several adapters add to the same rows, they do so in this order. scales: [count].
 */
export interface DenseMix {
  readonly parts: Int32Array;
  readonly scales: Float32Array;
}

/** The largest rank of an adapter. */
export const ADAPTER_RANK_MAX = 4096;
const MAX_ADAPTERS = 2 ** 16;

const LIMITS = [
  ['layers', 4096],
  ['hiddenSize', 2 ** 20],
  ['intermediateSize', 2 ** 20],
  ['queryHeads', 1024],
  ['kvHeads', 1024],
  ['headDim', 1024],
  ['vocabSize', 2 ** 24],
] as const;
const MAX_WIDTH = 2 ** 20;
const MAX_THREADS = 64;
const MAX_TOKENS = 2 ** 20;

/**
 * Weights are set one matrix at a time and are packed. A `layer` equal to `layers` stands for what follows the last
 * layer: its 'q' is the output matrix [vocab, m], and its 'attnNorm' is the final norm. Where a layer has experts,
 * 'gate', 'up' and 'down' are set for each, and a router. The pieces can run once every matrix and norm has been set.
 * Methods throw 'bad-argument', 'bad-shape', 'bad-value' for weights that are not finite, 'closed', and
 * 'budget-exceeded' when the system has no memory.
 */
export class DenseHalf {
  readonly shape: DenseShape;
  #handle: DenseHandle | undefined;

  constructor(shape: DenseShape, threads = 1) {
    record(shape, 'shape');
    const numbers = LIMITS.map(([name, most]) => integer(shape[name], name, 1, most));
    const { queryHeads, kvHeads, headDim, normEpsilon } = shape;
    if (queryHeads * headDim > MAX_WIDTH || kvHeads * headDim > MAX_WIDTH) {
      fail(`heads together may have ${MAX_WIDTH} channels`, { queryHeads, kvHeads, headDim });
    }
    if (!(normEpsilon >= 0 && normEpsilon <= 1)) fail('normEpsilon must be from 0 to 1', { normEpsilon });
    const logitCap = shape.logitCap ?? null;
    if (logitCap !== null && !isCap(logitCap))
      fail('logitCap must be null or a number from 1e-20 to 1e20', { logitCap: show(logitCap) });
    integer(threads, 'threads', 1, MAX_THREADS);
    const { count, used } = expertsOf(shape);
    const { layerNorms = false, preNorms = true, postNorms = false, parallel = false, gated = true } = shape;
    if (layerNorms && (!preNorms || postNorms)) fail('layerNorms are those before each half', { preNorms, postNorms });
    if (count > 0 && (layerNorms || parallel || !gated || shape.activation === 'gelu'))
      fail('layers with experts differ from those of Llama in nothing else', { layerNorms, parallel, gated });
    const { Dense } = loadBinary();
    this.#handle = new Dense();
    this.shape = shape;
    check(
      this.#handle.open(
        Int32Array.of(...numbers, threads, featuresOf(shape), count, used),
        normEpsilon,
        logitCap ?? undefined,
      ),
      'open the dense half',
    );
  }

  get #open(): DenseHandle {
    return this.#handle ?? closed('dense half');
  }

  /** The bytes of all weights. They are outside the JavaScript heap. */
  get bytes(): number {
    const out = new Float64Array(1);
    check(this.#open.bytes(out), 'read the weights');
    return out[0]!;
  }

  close(): void {
    this.#handle?.close();
    this.#handle = undefined;
  }

  /** The shape of a matrix, [outputs, inputs]. */
  sizes(layer: number, slot: DenseSlot): readonly [outputs: number, inputs: number] {
    const { layers, hiddenSize: m, intermediateSize: f, queryHeads, kvHeads, headDim, vocabSize } = this.shape;
    integer(layer, 'layer', 0, layers);
    if (layer === layers && slot === 'q') return [vocabSize, m];
    if (layer === layers) fail("after the last layer there is only 'q', the output matrix", { slot: show(slot) });
    switch (slot) {
      case 'q':
        return [queryHeads * headDim, m];
      case 'k':
      case 'v':
        return [kvHeads * headDim, m];
      case 'o':
        return [m, queryHeads * headDim];
      case 'gate':
      case 'up':
        return [f, m];
      case 'down':
        return [m, f];
      default:
        return fail(`the matrix must be one of ${DENSE_SLOTS.join(', ')}`, { slot: show(slot) });
    }
  }

  /**
   * Sets a matrix, w [outputs, inputs], rounded to 8 bits with one scale for every 32 inputs of an output. Once per
   * matrix. expert: whose it is, of 'gate', 'up' and 'down' where there are experts.
   */
  setWide(layer: number, slot: DenseSlot, w: Float32Array, expert = 0): void {
    const [outputs, inputs] = this.sizes(layer, slot);
    rows(w, 'w', outputs, inputs);
    this.setRows(layer, slot, 'F32', new Uint8Array(w.buffer, w.byteOffset, w.byteLength), 0, expert);
  }

  /**
   * Sets rows of a matrix from the bytes that a file stores them in: the outputs from `fromRow` on. They come in order,
   * all of one type, and in multiples of DENSE_PANEL but for the last. Quantized types keep their codes and scales;
   * floats are rounded as by setWide. Throws 'unsupported' when blocks of the type do not divide the inputs. After
   * 'bad-value' the same rows may be given again. expert: as for setWide.
   */
  setRows(layer: number, slot: DenseSlot, type: DenseType, bytes: Uint8Array, fromRow = 0, expert = 0): void {
    const [outputs, inputs] = this.sizes(layer, slot);
    if (this.shape.gated === false && slot === 'gate') fail('the layers of this shape have no gate', { layer });
    integer(expert, 'expert', 0, this.#isOfExperts(layer, slot) ? expertsOf(this.shape).count - 1 : 0);
    const id = DENSE_TYPES.findIndex(({ name }) => name === type);
    if (id < 0) fail(`the type must be one of ${DENSE_TYPES.map(({ name }) => name).join(', ')}`, { type: show(type) });
    if (!(bytes instanceof Uint8Array)) fail('bytes must be a Uint8Array', { bytes: show(bytes) });
    integer(fromRow, 'fromRow', 0, outputs - 1);
    const { values, bytes: blockBytes } = DENSE_TYPES[id]!;
    if (inputs % values !== 0)
      throw new KvError('unsupported', `rows of ${inputs} weights do not end where blocks of ${type} do`, {
        values: { type, inputs, blockValues: values },
      });
    const count = bytes.length / ((inputs / values) * blockBytes);
    if (!Number.isInteger(count) || count < 1 || count > outputs - fromRow)
      shapeError(`bytes must be whole rows of the matrix in ${type}`, {
        bytes: bytes.length,
        fromRow,
        outputs,
        inputs,
      });
    const status = this.#open.setRows(layer, DENSE_SLOTS.indexOf(slot), id, bytes, fromRow, count, expert);
    check(status, `pack rows from ${fromRow} of matrix ${layer}.${slot}`, { type, rows: count, outputs, inputs });
  }

  /** Sets the bias of a matrix: [outputs]. Matrices of experts have none. */
  setBias(layer: number, slot: DenseSlot, bias: Float32Array): void {
    const [outputs] = this.sizes(layer, slot);
    if (this.#isOfExperts(layer, slot)) fail('matrices of experts have no biases', { layer, slot });
    rows(bias, 'bias', 1, outputs);
    check(this.#open.setBias(layer, DENSE_SLOTS.indexOf(slot), bias), `set the bias of ${layer}.${slot}`);
  }

  /**
   * Sets what experts are chosen by: weights [experts, m]. They stay float32, and their products with a row are summed
   * in float64 in one order, so that every instruction set chooses the same for it.
   */
  setRouter(layer: number, weights: Float32Array): void {
    const { layers, hiddenSize } = this.shape;
    const { count } = expertsOf(this.shape);
    integer(layer, 'layer', 0, layers - 1);
    if (count === 0) fail('the layers of this shape have no experts', { layer });
    rows(weights, 'weights', count, hiddenSize);
    check(this.#open.setRouter(layer, weights), `set the router of layer ${layer}`);
  }

  /**
   * Sets the gains of a norm: [m], with layerNorms the biases behind them, or [d] for a norm of heads, or as many as
   * all heads have channels where they are normalised together.
   */
  setNorm(layer: number, norm: DenseNorm, gain: Float32Array): void {
    const { layers, hiddenSize, headDim, queryHeads, kvHeads, qkNorm, postNorms = false } = this.shape;
    const { layerNorms = false } = this.shape;
    integer(layer, 'layer', 0, layers);
    const id = DENSE_NORMS.indexOf(norm);
    if (id < 0 || (layer === layers && id > 0) || (norm.endsWith('Post') && !postNorms))
      fail('there is no such norm', { layer, norm: show(norm) });
    const heads = qkNorm !== 'width' ? 1 : norm === 'qNorm' ? queryHeads : kvHeads;
    const width = norm === 'qNorm' || norm === 'kNorm' ? heads * headDim : hiddenSize;
    rows(gain, 'gain', 1, layerNorms && /^(attn|mlp)Norm$/.test(norm) ? 2 * width : width);
    check(this.#open.setNorm(layer, id, gain), `set the norm ${layer}.${norm}`);
  }

  /**
   * What the rows that a matrix is multiplied with are rounded to: two planes of bytes, 16 bits, as long as nothing
   * else is said, or one, 8 bits, which takes half the products where bytes are multiplied. Each 32 numbers have a step
   * of their own. Of experts it holds for all matrices in the slot.
   */
  setPlanes(layer: number, slot: DenseSlot, planes: 1 | 2): void {
    this.sizes(layer, slot);
    integer(planes, 'planes', 1, 2);
    check(this.#open.setPlanes(layer, DENSE_SLOTS.indexOf(slot), planes), `set the planes of ${layer}.${slot}`);
  }

  /**
   * Sets what an adapter adds to what a matrix answers to a row x: b·(a·x), times the scale that the rows are given. a
   * [rank, inputs] is rounded as setWide does, b [outputs, rank] to 8 bits with a scale for each of its columns. With
   * gains [outputs] it adds gains ⊙ (W·x) as well, W being the matrix. Once per matrix and adapter, whose number is the
   * caller's choice. Throws 'unsupported' for matrices of experts.
   */
  setAdapter(
    adapter: number,
    layer: number,
    slot: DenseSlot,
    rank: number,
    a: Float32Array,
    b: Float32Array,
    gains?: Float32Array,
  ): void {
    integer(adapter, 'adapter', 0, MAX_ADAPTERS - 1);
    integer(layer, 'layer', 0, this.shape.layers - 1);
    const [outputs, inputs] = this.sizes(layer, slot);
    integer(rank, 'rank', 1, ADAPTER_RANK_MAX);
    if (this.#isOfExperts(layer, slot))
      throw new KvError('unsupported', 'adapters of experts are not served', { values: { layer, slot } });
    rows(a, 'a', rank, inputs);
    rows(b, 'b', outputs, rank);
    if (gains !== undefined) rows(gains, 'gains', 1, outputs);
    check(
      this.#open.setAdapter(adapter, layer, DENSE_SLOTS.indexOf(slot), rank, a, b, gains),
      `set adapter ${adapter} of ${layer}.${slot}`,
      { rank },
    );
  }

  /** Frees what an adapter has; its number may be used again. */
  dropAdapter(adapter: number): void {
    integer(adapter, 'adapter', 0, MAX_ADAPTERS - 1);
    check(this.#open.dropAdapter(adapter), `drop adapter ${adapter}`);
  }

  /** The norm and projections of layer 0, from x [T, m] to `out`, which must not share memory with x. */
  first(x: Float32Array, tokens: number, out: Projected, mix?: DenseMix): void {
    this.#checkRows(x, tokens);
    this.#checkProjected(out, tokens, [x]);
    check(this.#open.first(x, tokens, out.q, out.k, out.v, mix?.parts, mix?.scales), 'run the first projections');
  }

  /**
   * From the attention [T, H·d] of `layer` and the x [T, m] that entered it, computes the residual stream that leaves
   * it, xNext [T, m], and the projections of the next layer.
   */
  next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    xNext: Float32Array,
    out: Projected,
    mix?: DenseMix,
  ): void {
    integer(layer, 'layer', 0, this.shape.layers - 2);
    this.#checkAfter(attention, x, tokens, xNext);
    this.#checkProjected(out, tokens, [attention, x, xNext]);
    check(
      this.#open.next(layer, attention, x, tokens, xNext, out.q, out.k, out.v, mix?.parts, mix?.scales),
      `run the dense half of layer ${layer}`,
    );
  }

  /** The same for the last layer, which no projections follow. */
  last(attention: Float32Array, x: Float32Array, tokens: number, xNext: Float32Array, mix?: DenseMix): void {
    this.#checkAfter(attention, x, tokens, xNext);
    check(
      this.#open.last(attention, x, tokens, xNext, mix?.parts, mix?.scales),
      'run the dense half of the last layer',
    );
  }

  /** The final norm, the output matrix and the cap of logits, from x [count, m] to out [count, vocab]. */
  logits(x: Float32Array, count: number, out: Float32Array): void {
    this.#checkRows(x, count);
    rows(out, 'out', count, this.shape.vocabSize);
    if (overlaps(x, out)) fail('x must not share memory with out', {});
    check(this.#open.logits(x, count, out), 'compute logits');
  }

  #isOfExperts(layer: number, slot: DenseSlot): boolean {
    return layer < this.shape.layers && expertsOf(this.shape).count > 0 && /^(gate|up|down)$/.test(slot);
  }

  #checkRows(x: Float32Array, tokens: number): void {
    integer(tokens, 'tokens', 1, MAX_TOKENS);
    rows(x, 'x', tokens, this.shape.hiddenSize);
  }

  #checkAfter(attention: Float32Array, x: Float32Array, tokens: number, xNext: Float32Array): void {
    this.#checkRows(x, tokens);
    rows(attention, 'attention', tokens, this.shape.queryHeads * this.shape.headDim);
    rows(xNext, 'xNext', tokens, this.shape.hiddenSize);
    if (overlaps(xNext, x) || overlaps(xNext, attention)) fail('xNext must not share memory with x or attention', {});
  }

  #checkProjected({ q, k, v }: Projected, tokens: number, others: readonly Float32Array[]): void {
    const { queryHeads, kvHeads, headDim } = this.shape;
    rows(q, 'q', tokens, queryHeads * headDim);
    rows(k, 'k', tokens, kvHeads * headDim);
    rows(v, 'v', tokens, kvHeads * headDim);
    const all = [...others, q, k, v];
    for (let i = others.length; i < all.length; i++) {
      for (let j = 0; j < i; j++) if (overlaps(all[i]!, all[j]!)) fail('q, k and v must not share memory', {});
    }
  }
}

const NO_EXPERTS: Experts = { count: 0, used: 0, shareAmongChosen: false };

/** Checked; of count 0 where there are none. */
function expertsOf({ experts, layers }: DenseShape): Experts {
  if (experts == null) return NO_EXPERTS;
  record(experts, 'experts');
  const count = integer(experts.count, 'experts.count', 1, Math.min(EXPERTS_MAX, Math.floor(EXPERTS_ALL_MAX / layers)));
  integer(experts.used, 'experts.used', 1, Math.min(EXPERTS_USED_MAX, count));
  if (typeof experts.shareAmongChosen !== 'boolean')
    fail('experts.shareAmongChosen must be true or false', { shareAmongChosen: show(experts.shareAmongChosen) });
  return experts;
}

/** How the layers differ from Llama's, as the binary takes it. */
function featuresOf({
  preNorms = true,
  postNorms = false,
  layerNorms = false,
  parallel = false,
  gated = true,
  activation = 'silu',
  qkNorm = 'head',
  experts,
}: DenseShape): number {
  const has: Record<(typeof DENSE_FEATURES)[number], boolean> = {
    noPreNorms: !preNorms,
    postNorms,
    gelu: activation === 'gelu-tanh',
    widthNorms: qkNorm === 'width',
    shareAmongChosen: experts?.shareAmongChosen === true,
    layerNorms,
    parallel,
    ungated: !gated,
    geluErf: activation === 'gelu',
  };
  return DENSE_FEATURES.reduce((sum, name, bit) => sum + (has[name] ? 2 ** bit : 0), 0);
}

function rows(x: unknown, name: string, count: number, width: number): void {
  const { length } = floats(x, name);
  if (length !== count * width) {
    throw new KvError('bad-shape', `${name} must be [${count}, ${width}]`, {
      values: { given: length, expected: count * width },
    });
  }
}
