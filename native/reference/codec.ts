/** What every format supplies for one head of one page side, and the tile order that the kernels store codes in. */
import { PAGE_TOKENS, type Side } from '../layout.ts';
import type { Steering } from './steering.ts';

/** One head of a sealed page in canonical order: row-major, no padding, no planes. */
export interface Head {
  readonly format: string;
  readonly headDim: number;
  /** Rows before this are sinks, which are kept elsewhere and exact. Here their codes and scales stand for zero. */
  readonly firstRow: number;
}

/** A head whose rows are codes with a scale each. */
export interface EncodedHead extends Head {
  /** [128, d]. q8: the int8 value + 128. rot: the code 0..2^b − 1. */
  readonly codes: Uint8Array;
  /** [128]. q8: f16 bits of the scale. rot: the exponent k as 16-bit two's complement. */
  readonly rowScales: Uint16Array;
  /** rot: [d] int8 means; q8: empty. */
  readonly means: Int8Array;
  /** rot: f16 bits of the scale of the means; q8: 0. */
  readonly meanScale: number;
  /** rot: e; row scales and means are in units of 2^e. q8: 0. */
  readonly reference: number;
}

export interface ReferenceCodec<H extends Head = Head> {
  readonly format: string;
  /**
   * rows: [128, d] float32 of one head, finite, |x| ≤ 65504. `side` matters only to formats that treat keys and values
   * differently, `steering` only to keys in formats that are steered.
   */
  encode(rows: Float32Array, headDim: number, firstRow?: number, side?: Side, steering?: Steering | null): H;
  /** x̂: [128, d]. Rows before firstRow are zeros. */
  decode(head: H): Float32Array;
  /** q·k̂ for each row, computed from codes without decoding. [128] */
  scores(query: Float32Array, head: H): Float64Array;
  /** Σ weights[t]·v̂_t, computed from codes without decoding. [d] */
  mix(weights: Float32Array, head: H): Float64Array;
  /** The bytes in memory of every field of the format, by name. */
  stored(head: H, side: Side): Readonly<Record<string, Uint8Array>>;
  /** For nested formats: the head in a lower format of the family, from codes alone. */
  demote?(head: H, to: string): H;
  /**
   * Limits that the shared suite checks the kernels against. `relative`: RMS error of Gaussian rows over their own rms,
   * for an rms from `smallest` to `largest`.
   */
  readonly tolerance: { readonly relative: number; readonly smallest: number; readonly largest: number };
}

/**
 * Index of (token, channel) in the i8 tile of one head: [contraction/4][outputs/16][16][4]. For keys, channels are
 * contracted and tokens are the outputs; for values, tokens are contracted and channels are the outputs.
 */
export function tileOffset(side: Side, headDim: number, token: number, channel: number): number {
  const [contraction, output, outputs] = side === 'k' ? [channel, token, PAGE_TOKENS] : [token, channel, headDim];
  return Math.floor(contraction / 4) * outputs * 4 + output * 4 + (contraction % 4);
}

/** Codes [128, d] rearranged in tile order. */
export function toTile(side: Side, headDim: number, codes: Uint8Array): Uint8Array {
  const tile = new Uint8Array(codes.length);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    for (let c = 0; c < headDim; c++) tile[tileOffset(side, headDim, t, c)] = codes[t * headDim + c]!;
  }
  return tile;
}

/** The bytes of an array of numbers. */
export const bytesOf = (x: Int8Array | Uint16Array | Int16Array): Uint8Array =>
  new Uint8Array(x.buffer, x.byteOffset, x.byteLength);
