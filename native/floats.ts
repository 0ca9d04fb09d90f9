/** Functions on arrays of floats for loading and running models. */
import { fail, floats, integer, overlaps, shapeError, show } from './arguments.ts';
import { check, loadBinary } from './load.ts';

/** One array behind the other. */
export function joined(parts: readonly Float32Array[]): Float32Array {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** The most heads that one call may have. The binary has the same limit. */
const MAX_HEADS = 1024;

/**
 * Applies the rotary embedding to the first rotaryDim channels of each head of x [tokens, heads, headDim], in place.
 * cos and sin are [tokens, rotaryDim / 2]. Channels 2i and 2i+1 are rotated together if `interleaved`, otherwise i and
 * i + rotaryDim/2.
 */
export function rope(
  x: Float32Array,
  tokens: number,
  heads: number,
  headDim: number,
  rotaryDim: number,
  cos: Float32Array,
  sin: Float32Array,
  interleaved: boolean,
): void {
  floats(x, 'x');
  floats(cos, 'cos');
  floats(sin, 'sin');
  integer(tokens, 'tokens', 0, 2 ** 30);
  integer(heads, 'heads', 1, MAX_HEADS);
  integer(headDim, 'headDim', 2, 1024);
  integer(rotaryDim, 'rotaryDim', 2, headDim);
  if (rotaryDim % 2 !== 0) fail('rotaryDim must be even', { rotaryDim });
  if (typeof interleaved !== 'boolean') fail('interleaved must be true or false', { interleaved: show(interleaved) });
  if (x.length !== tokens * heads * headDim)
    shapeError('x must be [tokens, heads, headDim]', { x: x.length, tokens, heads, headDim });
  if (cos.length !== (tokens * rotaryDim) / 2 || sin.length !== cos.length) {
    shapeError('cos and sin must be [tokens, rotaryDim / 2]', { cos: cos.length, sin: sin.length, tokens, rotaryDim });
  }
  if (overlaps(x, cos) || overlaps(x, sin)) fail('x must not share memory with cos or sin', {});
  check(loadBinary().rope(x, tokens, heads, headDim, rotaryDim, cos, sin, interleaved), 'rotate');
}

/** Converts float32 to the bits of IEEE halves, rounding half to even. Numbers beyond the range become infinite. */
export function toHalf(x: Float32Array, out: Uint16Array = new Uint16Array(floats(x, 'x').length)): Uint16Array {
  floats(x, 'x');
  if (!(out instanceof Uint16Array)) fail('out must be a Uint16Array', { out: show(out) });
  if (out.length !== x.length) shapeError('out must be as long as x', { out: out.length, x: x.length });
  check(loadBinary().toHalf(x, out), 'convert to half');
  return out;
}

/** Converts the bits of IEEE halves to float32, which is exact. */
export function fromHalf(bits: Uint16Array, out?: Float32Array): Float32Array {
  if (!(bits instanceof Uint16Array)) fail('bits must be a Uint16Array', { bits: show(bits) });
  const target = out ?? new Float32Array(bits.length);
  floats(target, 'out');
  if (target.length !== bits.length)
    shapeError('out must be as long as bits', { out: target.length, bits: bits.length });
  check(loadBinary().fromHalf(bits, target), 'convert from half');
  return target;
}

/** The most numbers of a product of matrices. */
const FLOATS_MAX = 2 ** 30;

/**
 * x [rows, inner] · m [inner, columns] → [rows, columns]. Each sum is taken in float64, in the order of the
 * contraction, and rounded once: the same bits on every machine.
 */
export function matmulF64(x: Float32Array, rows: number, m: Float32Array, columns: number): Float32Array {
  floats(x, 'x');
  floats(m, 'm');
  integer(rows, 'rows', 1, FLOATS_MAX);
  integer(columns, 'columns', 1, FLOATS_MAX);
  // Where x is empty, its length says nothing of the sizes.
  integer(rows * columns, 'rows · columns', 1, FLOATS_MAX);
  if (x.length % rows !== 0 || m.length !== (x.length / rows) * columns)
    shapeError('x must be [rows, inner] and m [inner, columns]', { x: x.length, m: m.length, rows, columns });
  const y = new Float32Array(rows * columns);
  check(loadBinary().matmulF64(x, rows, m, columns, y), 'multiply matrices');
  return y;
}
