/**
 * Latents are pages of layer inputs from which keys and values are recomputed. This module encodes and decodes them and
 * has the int8 matrix product for that; reference/latent.ts describes their bytes. Arrays are row-major, and in their
 * shapes m is the width of the latents and n a number of rows.
 */
import { closed, fail, floats, integer, overlaps, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import { PAGE_TOKENS, SINK_TOKENS, type Tier } from './format.ts';
import { LATENT_NAMES, type LatentName, PAGE_PART_ALIGN, padded } from './layout.ts';
import { check, loadBinary, type WeightsHandle } from './load.ts';

export { LATENT_NAMES, type LatentName } from './layout.ts';
/** The version of the bytes of latents, raised whenever they change. */
export const LATENT_LAYOUT_VERSION = 2;

const MAX_WIDTH = 16_384;
const MAX_CONTRACTION = 65_536;
const MAX_OUTPUTS = 2 ** 20;

/** True if latents of this width exist: a multiple of 16 from 64 to 16384. */
export function isLatentWidth(width: number): boolean {
  return Number.isInteger(width) && width >= 64 && width <= MAX_WIDTH && width % 16 === 0;
}

export function checkedWidth(width: unknown): number {
  integer(width, 'width', 1, MAX_CONTRACTION);
  if (!isLatentWidth(width as number)) {
    throw new KvError('unsupported', `there are no latents of width ${width}`, {
      values: { width },
      hint: `the width must be a multiple of 16 from 64 to ${MAX_WIDTH}; pad the rows and the weights with zeros`,
    });
  }
  return width as number;
}

export function latentId(format: LatentName): number {
  const id = LATENT_NAMES.indexOf(format);
  if (id < 0) {
    throw new KvError('unsupported', `unknown latent format '${show(format)}'`, {
      values: { given: show(format), known: LATENT_NAMES.join(', ') },
    });
  }
  return id;
}

/** Bits of a code, bytes of a row's scale, and the tier of the formats that err about as much (measured). */
const DESCRIBED: Readonly<Record<LatentName, { codeBits: number; scaleBytes: number; tier: Tier }>> = {
  xq8: { codeBits: 8, scaleBytes: 2, tier: 'warm' },
  xq4: { codeBits: 4, scaleBytes: 1, tier: 'warm' },
  xq3: { codeBits: 3, scaleBytes: 1, tier: 'archive' },
};

/** The tier of a latent. */
export const latentTier = (format: LatentName): Tier => DESCRIBED[format].tier;

/**
 * The bytes of the latent of one page: 128·m codes of 8, 4 or 3 bits, 128 row scales of one byte (in xq8 two), m int16
 * means and their scale. Each of them is padded as the parts of a page are.
 */
export function latentBytes(format: LatentName, width: number): number {
  latentId(format);
  const { codeBits, scaleBytes } = DESCRIBED[format];
  const codes = (PAGE_TOKENS * checkedWidth(width) * codeBits) / 8;
  return codes + PAGE_TOKENS * scaleBytes + padded(width * 2, PAGE_PART_ALIGN) + PAGE_PART_ALIGN;
}

function checkedPage(page: unknown, format: LatentName, width: number): Uint8Array {
  if (!(page instanceof Uint8Array)) fail('page must be a Uint8Array', { page: show(page) });
  const wanted = latentBytes(format, width);
  if (page.length !== wanted) {
    shapeError(`a page of ${format} with ${width} channels has ${wanted} bytes`, { page: page.length, wanted });
  }
  if (page.byteOffset % 4 !== 0) fail('page must start at a multiple of four bytes', { byteOffset: page.byteOffset });
  return page;
}

function checkedRows(x: unknown, name: string, length: number, shape: string): Float32Array {
  if (floats(x, name).length !== length) {
    shapeError(`${name} must be ${shape}`, { [name]: (x as Float32Array).length, wanted: length });
  }
  return x as Float32Array;
}

/** Throws 'bad-value' if a number cannot be coded. */
function sayWhere(x: Float32Array, name: string, row: number, most: number): void {
  const at = x.findIndex((value) => !(Math.abs(value) <= most));
  if (at < 0) return;
  throw new KvError('bad-value', `${name} holds ${x[at]} at row ${Math.floor(at / row)}, column ${at % row}`, {
    values: { row: Math.floor(at / row), column: at % row, value: String(x[at]) },
    hint: most < Number.MAX_VALUE ? `numbers must be finite and at most ${most} in size` : 'numbers must be finite',
  });
}

/**
 * Encodes one page and returns its latentBytes(format, m) bytes. x [128, m] are the rows that the weights of the layer
 * are multiplied by, finite and at most 65504 in size. Rows before firstRow (the sinks of page 0, at most 4) are left
 * out. Throws 'bad-shape', 'bad-value', 'unsupported' for the width, and 'bad-argument'.
 */
export function encodeLatent(format: LatentName, x: Float32Array, width: number, firstRow = 0): Uint8Array {
  const page = new Uint8Array(latentBytes(format, width));
  checkedRows(x, 'x', PAGE_TOKENS * width, '[128, width]');
  integer(firstRow, 'firstRow', 0, SINK_TOKENS);
  const status = loadBinary().encodeLatent(latentId(format), width, page, x, firstRow);
  if (status !== 0) sayWhere(x, 'x', width, 65_504);
  check(status, 'encode a page of latents');
  return page;
}

/** Decodes a page to rows [128, m]. Rows that were left out become the mean of the page. */
export function decodeLatent(format: LatentName, page: Uint8Array, width: number): Float32Array {
  checkedPage(page, format, width);
  const out = new Float32Array(PAGE_TOKENS * width);
  check(loadBinary().decodeLatent(latentId(format), width, page, out), 'decode a page of latents');
  return out;
}

/**
 * Attends to a page without recomputing its values: adds Σ_t p[i, t]·x̂_t to each row i of `mixed` [n, m], in the
 * rotated basis. p [n, 128] are probabilities, 0 for rows that were left out. `mixed` is zero before the first page;
 * after the last one, LatentWeights.finishMix multiplies it by the weights of the values. Apart from rounding that is
 * the same, because Σ p·(x̂·W_v) = (Σ p·x̂)·W_v.
 */
export function mixLatent(
  format: LatentName,
  page: Uint8Array,
  width: number,
  p: Float32Array,
  mixed: Float32Array,
): void {
  checkedPage(page, format, width);
  const n = floats(p, 'p').length / PAGE_TOKENS;
  if (!Number.isInteger(n)) shapeError('p must be [n, 128]', { p: p.length });
  checkedRows(mixed, 'mixed', n * width, '[n, width]');
  if (overlaps(p, mixed)) fail('p must not share memory with mixed', {});
  check(loadBinary().mixLatent(latentId(format), width, page, p, mixed), 'mix a page of latents');
}

function openHandle(w: Float32Array, outputs: number, contraction: number, isTurned: boolean): WeightsHandle {
  integer(outputs, 'outputs', 1, MAX_OUTPUTS);
  integer(contraction, 'contraction', 1, MAX_CONTRACTION);
  checkedRows(w, 'w', outputs * contraction, '[outputs, contraction]');
  const { Weights } = loadBinary();
  const handle = new Weights();
  const status = handle.open(w, outputs, contraction, isTurned);
  if (status !== 0) sayWhere(w, 'w', contraction, Number.MAX_VALUE);
  check(status, 'pack weights', { outputs, contraction });
  return handle;
}

export interface PlaneOptions {
  /**
   * With 1, the default, weights are rounded to int8, with a relative error of about 0.7% for a Gaussian column. With 2
   * they are int16 in two planes, with an error of 3e-5, and a product takes twice the time.
   */
  readonly planes?: 1 | 2;
}

function planesOf(options: PlaneOptions): 1 | 2 {
  const planes = options.planes ?? 1;
  if (planes !== 1 && planes !== 2) fail('planes must be 1 or 2', { planes: show(planes) });
  return planes;
}

abstract class Packed {
  readonly outputs: number;
  protected readonly inputs: number;
  #handle: WeightsHandle | undefined;

  constructor(w: Float32Array, outputs: number, inputs: number, isTurned: boolean) {
    this.#handle = openHandle(w, outputs, inputs, isTurned);
    this.outputs = outputs;
    this.inputs = inputs;
  }

  protected get handle(): WeightsHandle {
    return this.#handle ?? closed('weights');
  }

  /** The bytes that the weights take outside the JavaScript heap. */
  get bytes(): number {
    const out = new Float64Array(1);
    check(this.handle.bytes(out), 'read the weights');
    return out[0]!;
  }

  close(): void {
    const handle = this.handle;
    this.#handle = undefined;
    handle.close();
  }
}

/**
 * Weights that are packed once for products with int8 rows: y = base + rowScale·(levels·wᵀ). Sums are exact in int32,
 * so every instruction set gives equal bits. w is [outputs, contraction], as a linear layer stores it. It must be
 * finite, and contraction at most 65536.
 */
export class GemmWeights extends Packed {
  get contraction(): number {
    return this.inputs;
  }

  constructor(w: Float32Array, outputs: number, contraction: number) {
    super(w, outputs, contraction, false);
  }

  /**
   * Multiplies levels [n, contraction] with rowScale [n], and adds base [outputs] if given. Returns [n, outputs] in
   * `out` or a new array.
   */
  multiply(
    levels: Int8Array,
    rowScale: Float32Array,
    options: PlaneOptions & { readonly base?: Float32Array; readonly out?: Float32Array } = {},
  ): Float32Array {
    const handle = this.handle;
    record(options, 'options');
    if (!(levels instanceof Int8Array)) fail('levels must be an Int8Array', { levels: show(levels) });
    const rows = levels.length / this.inputs;
    if (!Number.isInteger(rows)) shapeError('levels must be [n, contraction]', { levels: levels.length });
    checkedRows(rowScale, 'rowScale', rows, 'one scale per row');
    const { base } = options;
    if (base !== undefined) checkedRows(base, 'base', this.outputs, '[outputs]');
    const out = options.out ?? new Float32Array(rows * this.outputs);
    checkedRows(out, 'out', rows * this.outputs, '[n, outputs]');
    if (overlaps(out, rowScale) || (base !== undefined && overlaps(out, base)) || out.buffer === levels.buffer) {
      fail('out must not share memory with what is read', {});
    }
    check(handle.multiply(levels, rows, rowScale, planesOf(options), base, out), 'multiply', { rows });
    return out;
  }
}

/**
 * The weights w [outputs, m] that make keys or values of latents, or both if they are stacked. They are rotated as
 * latents are when they are packed. The biases of the attention are added here; QK-norm and RoPE are left to the
 * caller.
 */
export class LatentWeights extends Packed {
  get width(): number {
    return this.inputs;
  }

  constructor(w: Float32Array, outputs: number, width: number) {
    super(w, outputs, checkedWidth(width), true);
  }

  /**
   * Computes x̂·wᵀ + bias for the rows of a page, [128, outputs]. The mean of the page is always multiplied by both
   * planes of the weights.
   */
  materialize(
    format: LatentName,
    page: Uint8Array,
    options: PlaneOptions & { readonly bias?: Float32Array; readonly out?: Float32Array } = {},
  ): Float32Array {
    const handle = this.handle;
    record(options, 'options');
    checkedPage(page, format, this.inputs);
    const { bias } = options;
    if (bias !== undefined) checkedRows(bias, 'bias', this.outputs, '[outputs]');
    const out = options.out ?? new Float32Array(PAGE_TOKENS * this.outputs);
    checkedRows(out, 'out', PAGE_TOKENS * this.outputs, '[128, outputs]');
    if (out.buffer === page.buffer || (bias !== undefined && overlaps(out, bias))) {
      fail('out must not share memory with what is read', {});
    }
    check(handle.materialize(latentId(format), page, planesOf(options), bias, out), 'recompute a page');
    return out;
  }

  /**
   * Computes [n, outputs] from what mixLatent has added up, mixed [n, m]. If there is a bias, mass [n] is the sum of
   * the probabilities of each row. `mixed` is rounded to int16, by at most 1.5e-5 of its largest element, and
   * multiplied by both planes of the weights.
   */
  finishMix(mixed: Float32Array, bias?: Float32Array, mass?: Float32Array): Float32Array {
    const handle = this.handle;
    const rows = floats(mixed, 'mixed').length / this.inputs;
    if (!Number.isInteger(rows) || rows === 0) shapeError('mixed must be [n, width]', { mixed: mixed.length });
    if ((bias === undefined) !== (mass === undefined)) fail('bias and mass go together', {});
    if (bias !== undefined) checkedRows(bias, 'bias', this.outputs, '[outputs]');
    if (mass !== undefined) checkedRows(mass, 'mass', rows, 'one number per row');
    const out = new Float32Array(rows * this.outputs);
    check(handle.finishMix(mixed, bias, mass, out), 'finish a mix of latents', { rows });
    return out;
  }
}
