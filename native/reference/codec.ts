/** What every coded format supplies for one head of one page side, and the tile order that the kernels store codes in. */
import { type FormatName, PAGE_TOKENS, type Side } from '../format.ts';

/** One head of a sealed page in a coded format, in canonical order: row-major, no padding, no planes. */
export interface EncodedHead {
  readonly format: FormatName;
  readonly headDim: number;
  /** Rows before this are sinks: kept elsewhere, exact. Their codes are 0 and their scale stands for zero. */
  readonly firstRow: number;
  /** [128, d]. q8: the int8 value + 128. rot: the code 0..2^b − 1. */
  readonly codes: Uint8Array;
  /** [128]. q8: f16 bits of the scale. rot: the exponent k as 16-bit two's complement. */
  readonly rowScales: Uint16Array;
  /** rot: [d] int8 means; q8: empty. */
  readonly means: Int8Array;
  /** rot: f16 bits of the scale of the means; q8: 0. */
  readonly meanScale: number;
}

export interface ReferenceCodec {
  readonly format: FormatName;
  /** rows: [128, d] float32 of one head, finite, |x| ≤ 65504. */
  encode(rows: Float32Array, headDim: number, firstRow?: number): EncodedHead;
  /** x̂: [128, d]. Rows before firstRow are zeros. */
  decode(head: EncodedHead): Float32Array;
  /** q·k̂ for each row, from codes: nothing is decoded. [128] */
  scores(query: Float32Array, head: EncodedHead): Float64Array;
  /** Σ weights[t]·v̂_t, from codes: nothing is decoded. [d] */
  mix(weights: Float32Array, head: EncodedHead): Float64Array;
}

/**
 * Index of (token, channel) in the i8 tile of one head: [contraction/4][outputs/16][16][4]. Keys contract over channels and put
 * out tokens; values contract over tokens and put out channels.
 */
export function tileOffset(side: Side, headDim: number, token: number, channel: number): number {
  const [contraction, output, outputs] = side === 'k' ? [channel, token, PAGE_TOKENS] : [token, channel, headDim];
  return Math.floor(contraction / 4) * outputs * 4 + output * 4 + (contraction % 4);
}

/** Codes [128, d] in tile order. */
export function toTile(side: Side, headDim: number, codes: Uint8Array): Uint8Array {
  const tile = new Uint8Array(codes.length);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    for (let c = 0; c < headDim; c++) tile[tileOffset(side, headDim, t, c)] = codes[t * headDim + c]!;
  }
  return tile;
}
