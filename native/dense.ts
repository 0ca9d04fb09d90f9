/**
 * The matrices around attention: weights in 8 or 4 bits, norms, and the four pieces of a step, cut where attention happens.
 * Legend: m hidden size, f intermediate size, H query heads, n KV heads, d head size, T tokens. Arrays are row-major.
 */
import { closed, fail, floats, integer, overlaps, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import { DENSE_NORMS, DENSE_SLOTS } from './layout.ts';
import { check, type DenseHandle, loadBinary } from './load.ts';

export { DENSE_NORMS, DENSE_SLOTS } from './layout.ts';
export type DenseSlot = (typeof DENSE_SLOTS)[number];

export type DenseNorm = (typeof DENSE_NORMS)[number];

/** Inputs of an output that share a scale. */
export const DENSE_BLOCK = 32;

export interface DenseShape {
  readonly layers: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly vocabSize: number;
  readonly normEpsilon: number;
}

/** A matrix of 4-bit codes: w[o, i] = scales[o, ⌊i/32⌋]·codes[o, i] + minima[o, ⌊i/32⌋]. */
export interface NarrowMatrix {
  /** [outputs, inputs], below 16. */
  readonly codes: Uint8Array;
  readonly scales: Float32Array;
  readonly minima: Float32Array;
}

/** What a layer's norm and projections give: q [T, H·d], k and v [T, n·d]. */
export interface Projected {
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
}

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
 * Weights are given matrix by matrix and packed; `layer` equal to `layers` means what follows the last layer: its 'q' is the output
 * matrix [vocab, m], its 'attnNorm' the final norm. A piece can run once every matrix and norm was given.
 * Methods throw 'bad-argument', 'bad-shape', 'bad-value' (weights that are not finite), 'closed', 'budget-exceeded' (no memory).
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
    integer(threads, 'threads', 1, MAX_THREADS);
    const { Dense } = loadBinary();
    this.#handle = new Dense();
    this.shape = shape;
    check(this.#handle.open(Int32Array.of(...numbers, threads), normEpsilon), 'open the dense half');
  }

  get #open(): DenseHandle {
    return this.#handle ?? closed('dense half');
  }

  /** Bytes of all weights outside the JavaScript heap. */
  get bytes(): number {
    const out = new Float64Array(1);
    check(this.#open.bytes(out), 'read the weights');
    return out[0]!;
  }

  close(): void {
    this.#handle?.close();
    this.#handle = undefined;
  }

  /** [outputs, inputs] of a matrix. */
  sizes(layer: number, slot: DenseSlot): readonly [outputs: number, inputs: number] {
    const { layers, hiddenSize: m, intermediateSize: f, queryHeads, kvHeads, headDim, vocabSize } = this.shape;
    integer(layer, 'layer', 0, layers);
    if (layer === layers && slot === 'q') return [vocabSize, m];
    if (layer === layers) fail("behind the last layer there is only 'q', the output matrix", { slot: show(slot) });
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
        return fail(`a matrix is one of ${DENSE_SLOTS.join(', ')}`, { slot: show(slot) });
    }
  }

  /** Rounds a matrix to 8 bits, symmetric, one scale per 32 inputs of an output. w: [outputs, inputs]. Once per matrix. */
  setWide(layer: number, slot: DenseSlot, w: Float32Array): void {
    const [outputs, inputs] = this.sizes(layer, slot);
    rows(w, 'w', outputs, inputs);
    check(this.#open.setWide(layer, DENSE_SLOTS.indexOf(slot), w), `pack matrix ${layer}.${slot}`, { outputs, inputs });
  }

  /**
   * Takes 4-bit codes as they are. → false, and nothing was done, when the inputs are no multiple of 32 or a scale or minimum lies
   * outside what a half holds to 2^-11.
   */
  setNarrow(layer: number, slot: DenseSlot, { codes, scales, minima }: NarrowMatrix): boolean {
    const [outputs, inputs] = this.sizes(layer, slot);
    if (inputs % DENSE_BLOCK !== 0) return false;
    if (!(codes instanceof Uint8Array)) fail('codes must be a Uint8Array', { codes: show(codes) });
    if (codes.length !== outputs * inputs)
      shapeError('codes must be [outputs, inputs]', { codes: codes.length, outputs, inputs });
    rows(scales, 'scales', outputs, inputs / DENSE_BLOCK);
    rows(minima, 'minima', outputs, inputs / DENSE_BLOCK);
    const status = this.#open.setNarrow(layer, DENSE_SLOTS.indexOf(slot), codes, scales, minima);
    if (status === STATUS_UNSUPPORTED) return false;
    check(status, `pack matrix ${layer}.${slot}`, { outputs, inputs });
    return true;
  }

  setBias(layer: number, slot: DenseSlot, bias: Float32Array): void {
    const [outputs] = this.sizes(layer, slot);
    rows(bias, 'bias', 1, outputs);
    check(this.#open.setBias(layer, DENSE_SLOTS.indexOf(slot), bias), `set the bias of ${layer}.${slot}`);
  }

  /** gain: [m], of a head norm [d]. */
  setNorm(layer: number, norm: DenseNorm, gain: Float32Array): void {
    const { layers, hiddenSize, headDim } = this.shape;
    integer(layer, 'layer', 0, layers);
    const id = DENSE_NORMS.indexOf(norm);
    if (id < 0 || (layer === layers && id > 0)) fail('there is no such norm', { layer, norm: show(norm) });
    rows(gain, 'gain', 1, id < 2 ? hiddenSize : headDim);
    check(this.#open.setNorm(layer, id, gain), `set the norm ${layer}.${norm}`);
  }

  /** Norm and projections of layer 0. x: [T, m]. Results are written into `out`, which shares no memory with x. */
  first(x: Float32Array, tokens: number, out: Projected): void {
    this.#checkRows(x, tokens);
    this.#checkProjected(out, tokens, [x]);
    check(this.#open.first(x, tokens, out.q, out.k, out.v), 'run the first projections');
  }

  /** attention [T, H·d] of `layer` and x [T, m] that entered it → the residual stream xNext [T, m], and projections of layer + 1. */
  next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    xNext: Float32Array,
    out: Projected,
  ): void {
    integer(layer, 'layer', 0, this.shape.layers - 2);
    this.#checkAfter(attention, x, tokens, xNext);
    this.#checkProjected(out, tokens, [attention, x, xNext]);
    check(
      this.#open.next(layer, attention, x, tokens, xNext, out.q, out.k, out.v),
      `run the dense half of layer ${layer}`,
    );
  }

  /** The same after the last layer, without the projections that would follow. */
  last(attention: Float32Array, x: Float32Array, tokens: number, xNext: Float32Array): void {
    this.#checkAfter(attention, x, tokens, xNext);
    check(this.#open.last(attention, x, tokens, xNext), 'run the dense half of the last layer');
  }

  /** Final norm and output matrix. x: [count, m] → out [count, vocab]. */
  logits(x: Float32Array, count: number, out: Float32Array): void {
    this.#checkRows(x, count);
    rows(out, 'out', count, this.shape.vocabSize);
    if (overlaps(x, out)) fail('x must not share memory with out', {});
    check(this.#open.logits(x, count, out), 'compute logits');
  }

  #checkRows(x: Float32Array, tokens: number): void {
    integer(tokens, 'tokens', 1, MAX_TOKENS);
    rows(x, 'x', tokens, this.shape.hiddenSize);
  }

  #checkAfter(attention: Float32Array, x: Float32Array, tokens: number, xNext: Float32Array): void {
    this.#checkRows(x, tokens);
    rows(attention, 'attention', tokens, this.shape.queryHeads * this.shape.headDim);
    rows(xNext, 'xNext', tokens, this.shape.hiddenSize);
    if (overlaps(xNext, x) || overlaps(xNext, attention)) fail('xNext must not share memory with what is read', {});
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

/** Number of native/cache/status.h. */
const STATUS_UNSUPPORTED = 4;

function rows(x: unknown, name: string, count: number, width: number): void {
  const { length } = floats(x, name);
  if (length !== count * width) {
    throw new KvError('bad-shape', `${name} must be [${count}, ${width}]`, {
      values: { given: length, expected: count * width },
    });
  }
}
