/**
 * Latents: pages of layer inputs, from which keys and values are recomputed, and the int8 matrix product that does it.
 * Legend: P = 128 tokens a page, m latent width, o outputs, n rows. Arrays are row-major. reference/latent.ts says what the bytes mean.
 */
import { closed, fail, floats, integer, overlaps, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import { PAGE_TOKENS, SINK_TOKENS } from './format.ts';
import { LATENT_NAMES, type LatentName } from './layout.ts';
import { check, loadBinary, type WeightsHandle } from './load.ts';

export { LATENT_NAMES, type LatentName } from './layout.ts';
/** Of the bytes of every latent: a change of them is a new number. */
export const LATENT_LAYOUT_VERSION = 1;

const MAX_WIDTH = 16_384;
const MAX_CONTRACTION = 65_536;
const MAX_OUTPUTS = 2 ** 20;

/** Whether latents of this width exist: a multiple of 16 from 64 to 16384. */
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

const align = (bytes: number): number => Math.ceil(bytes / 64) * 64;

/**
 * Bytes of one page, keys and values together: codes 128·m (xq4 half), 128 row scales of 2 (xq4: 1) bytes, m int16 means and their
 * scale, each part a multiple of 64.
 */
export function latentBytes(format: LatentName, width: number): number {
  const isWide = latentId(format) === 0;
  checkedWidth(width);
  const codes = (PAGE_TOKENS * width) / (isWide ? 1 : 2);
  return align(codes) + align(isWide ? PAGE_TOKENS * 2 : PAGE_TOKENS) + align(width * 2) + 64;
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

/** Throws 'bad-value' for the first number that cannot be coded, where there is one. */
function sayWhere(x: Float32Array, name: string, row: number, most: number): void {
  const at = x.findIndex((value) => !(Math.abs(value) <= most));
  if (at < 0) return;
  throw new KvError('bad-value', `${name} holds ${x[at]} at row ${Math.floor(at / row)}, column ${at % row}`, {
    values: { row: Math.floor(at / row), column: at % row, value: String(x[at]) },
    hint: most < Number.MAX_VALUE ? `numbers must be finite and at most ${most} in size` : 'numbers must be finite',
  });
}

/**
 * Codes one page. x: [128, m], the rows that the weights of the layer are multiplied with: finite, |x| ≤ 65504. Rows before firstRow (the
 * sinks of page 0, at most 4) are left out. → latentBytes(format, m) bytes, a new array.
 * Throws 'bad-shape', 'bad-value', 'unsupported' (width), 'bad-argument'.
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

/** x̂: [128, m]. Rows that were left out come back as the mean of the page. */
export function decodeLatent(format: LatentName, page: Uint8Array, width: number): Float32Array {
  checkedPage(page, format, width);
  const out = new Float32Array(PAGE_TOKENS * width);
  check(loadBinary().decodeLatent(latentId(format), width, page, out), 'decode a page of latents');
  return out;
}

/**
 * Gathers values without recomputing them: mixed[i] += Σ_t p[i, t]·x̂_t, in the rotated basis. p: [n, 128] probabilities (0 for rows that
 * were left out); mixed: [n, m], zeros before the first page. After the last page LatentWeights.finishMix makes values of it:
 * o = Σ p·(x̂·W_v) = (Σ p·x̂)·W_v, exact but for rounding.
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
   * 1: weights rounded to int8 (relative error of a Gaussian column about 0.7%), one pass. 2: int16 in two planes (3e-5), twice the time.
   * Default 1.
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

  /** Bytes held outside the JavaScript heap: two planes and two scales an output. */
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
 * Weights packed once for products with int8 rows: y = base + rowScale·(levels·wᵀ). Sums are exact in int32, so every instruction set gives
 * equal bits. Serves the prediction of one layer from another as well as anything else that is a matrix product of quantized rows.
 * w: [outputs, contraction] as a linear layer keeps it, finite; contraction ≤ 65536.
 */
export class GemmWeights extends Packed {
  get contraction(): number {
    return this.inputs;
  }

  constructor(w: Float32Array, outputs: number, contraction: number) {
    super(w, outputs, contraction, false);
  }

  /**
   * levels: Int8Array [n, contraction]; rowScale: [n]; base: [outputs] or nothing. → out [n, outputs] (a new array when none is given).
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
 * The weights that make keys or values (or both, stacked) of latents: w [outputs, m], turned by the rotation of latents when packed.
 * With an attention that has biases, they are added here; QK-norm and RoPE follow outside.
 */
export class LatentWeights extends Packed {
  get width(): number {
    return this.inputs;
  }

  constructor(w: Float32Array, outputs: number, width: number) {
    super(w, outputs, checkedWidth(width), true);
  }

  /** x̂·wᵀ + bias for the 128 rows of a page: [128, outputs]. The mean of the page always meets both planes of the weights. */
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
   * What mixLatent gathered, as values: mixed [n, m] → [n, outputs]. With a bias, mass [n] is the sum of the probabilities of each row.
   * mixed is rounded to int16 (1.5e-5 of its largest element), the weights are those of two planes.
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
