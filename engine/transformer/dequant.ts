/**
 * Element types of weight files and how their blocks become float32. A quantized tensor is rows of blocks; a block
 * holds 32 weights (legacy types, IQ4_NL, MXFP4) or 256 (K types, IQ4_XS):
 *
 *   Q8_0  f16 d, 32 × i8                                                  w = d·q
 *   Q4_0  f16 d, 16 bytes of nibbles                                      w = d·(q − 8)
 *   Q4_1  f16 d, f16 m, 16 bytes of nibbles                               w = d·q + m
 *   Q5_0  f16 d, 32 high bits, 16 bytes of nibbles                        w = d·(q − 16)
 *   Q5_1  f16 d, f16 m, 32 high bits, 16 bytes of nibbles                 w = d·q + m
 *   Q2_K  16 × (4-bit s, 4-bit t), 64 bytes of pairs, f16 d, f16 e        w = d·s·q − e·t      per 16 weights
 *   Q3_K  32 bytes of high bits, 64 of pairs, 16 × 6-bit s, f16 d         w = d·(s − 32)·(q − 4)   per 16 weights
 *   Q4_K  f16 d, f16 e, 12 bytes: 8 × (6-bit s, 6-bit t), 128 bytes       w = d·s·q − e·t      per 32 weights
 *   Q5_K  as Q4_K with 32 bytes of high bits before the nibbles
 *   Q6_K  128 bytes of low nibbles, 64 of high pairs, 16 × i8 s, f16 d    w = d·s·(q − 32)     per 16 weights
 *   IQ4_NL  f16 d, 16 bytes of nibbles                                    w = d·LEVELS[q]
 *   IQ4_XS  f16 d, 16 bits of high pairs and 4 bytes of low nibbles of 8 × 6-bit s, 128 bytes of nibbles
 *                                                                         w = d·(s − 32)·LEVELS[q]   per 32 weights
 *   MXFP4   8-bit exponent x, 16 bytes of nibbles                         w = 2^(x − 127)·E2M1(q)
 *
 * Where a run of 32 weights has 16 bytes of nibbles, the low nibble of byte j is weight j, the high one weight j + 16.
 * The K types are described at their functions. Formulas follow the GGML block definitions (ggml-quants). Products are
 * exact in float64, rounded once.
 */
import { assert, KvError, reference } from '../../native/index.ts';

export interface ElementType {
  readonly name: string;
  /** Weights per block. */
  readonly blockValues: number;
  readonly blockBytes: number;
  /** Decodes whole blocks; null if only the size of the type is known. */
  readonly decode: ((source: Uint8Array, target: Float32Array) => void) | null;
}

let halfTable: Float32Array | null = null;

/** The value of every binary16, 256 KiB, computed at first use. */
export function halves(): Float32Array {
  halfTable ??= Float32Array.from({ length: 65536 }, (_, bits) => reference.fromHalf(bits));
  return halfTable;
}

export const u16 = (source: Uint8Array, at: number): number => source[at]! | (source[at + 1]! << 8);

function decodeF32(source: Uint8Array, target: Float32Array): void {
  const view = new DataView(source.buffer, source.byteOffset, source.byteLength);
  for (let i = 0; i < target.length; i++) target[i] = view.getFloat32(4 * i, true);
}

function decodeF16(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let i = 0; i < target.length; i++) target[i] = half[u16(source, 2 * i)]!;
}

/** The upper half of a float32. */
function decodeBf16(source: Uint8Array, target: Float32Array): void {
  const bits = new Uint32Array(target.buffer, target.byteOffset, target.length);
  for (let i = 0; i < target.length; i++) bits[i] = u16(source, 2 * i) << 16;
}

function decodeQ8_0(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 32, at += 34) {
    const d = half[u16(source, at)]!;
    for (let j = 0; j < 32; j++) target[block + j] = d * ((source[at + 2 + j]! << 24) >> 24);
  }
}

/** The legacy types: f16 d, f16 m where there are minima, 32 high bits where there are five, then the nibbles. */
function decodeLegacy(bits: 4 | 5, hasMinimum: boolean): NonNullable<ElementType['decode']> {
  const highAt = hasMinimum ? 4 : 2;
  const codesAt = bits === 5 ? highAt + 4 : highAt;
  const middle = bits === 5 ? 16 : 8;
  return (source, target) => {
    const half = halves();
    for (let block = 0, at = 0; block < target.length; block += 32, at += codesAt + 16) {
      const d = half[u16(source, at)]!;
      const m = hasMinimum ? half[u16(source, at + 2)]! : -middle * d;
      const high = bits === 5 ? u16(source, at + highAt) | (u16(source, at + highAt + 2) << 16) : 0;
      for (let j = 0; j < 16; j++) {
        const byte = source[at + codesAt + j]!;
        target[block + j] = d * ((byte & 15) | (((high >>> j) & 1) << 4)) + m;
        target[block + j + 16] = d * ((byte >> 4) | (((high >>> (j + 16)) & 1) << 4)) + m;
      }
    }
  };
}

/**
 * Two halves of 128 weights; run r of 32 in a half takes bits 2r and up of the half's 32 bytes. Scale and minimum
 * change every 16 weights.
 */
function decodeQ2_K(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 84) {
    const d = half[u16(source, at + 80)]!;
    const e = half[u16(source, at + 82)]!;
    for (let g = 0; g < 16; g++) {
      const scale = d * (source[at + g]! & 15);
      const minimum = e * (source[at + g]! >> 4);
      const codes = at + 16 + 32 * (g >> 3) + 16 * (g & 1);
      const shift = 2 * ((g >> 1) & 3);
      for (let j = 0; j < 16; j++) target[block + 16 * g + j] = scale * ((source[codes + j]! >> shift) & 3) - minimum;
    }
  }
}

/**
 * s − 32 of the 16 weights of group g in the block at `at`: byte g % 8 of twelve has the low nibble (in its upper half
 * for g ≥ 8), byte 8 + g % 4 the two high bits.
 */
export function q3Scale(source: Uint8Array, at: number, g: number): number {
  const low = (source[at + 96 + (g & 7)]! >> (4 * (g >> 3))) & 15;
  const high = (source[at + 104 + (g & 3)]! >> (2 * (g >> 2))) & 3;
  return (low | (high << 4)) - 32;
}

/**
 * q − 4 of weight j of group g: pairs as in Q2_K; bit r of high byte j is the high bit of weight j of run r (0 … 7),
 * and a weight without it lies 4 lower.
 */
export function q3Code(source: Uint8Array, at: number, g: number, j: number): number {
  const [run, place] = [g >> 1, 16 * (g & 1) + j];
  const pair = (source[at + 32 + 32 * (g >> 3) + place]! >> (2 * (run & 3))) & 3;
  return (pair | (((source[at + place]! >> run) & 1) << 2)) - 4;
}

function decodeQ3_K(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 110) {
    const d = half[u16(source, at + 108)]!;
    for (let g = 0; g < 16; g++) {
      const scale = d * q3Scale(source, at, g);
      for (let j = 0; j < 16; j++) target[block + 16 * g + j] = scale * q3Code(source, at, g, j);
    }
  }
}

/** The sixteen levels of IQ4_NL and IQ4_XS, closer together near zero, where most weights are. */
export const LEVELS: readonly number[] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/** The values of a 4-bit float of one sign, two exponent and one mantissa bit. */
export const E2M1: readonly number[] = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

/** 32 weights from the 16 bytes of nibbles at `at`. */
function decodeLevels(
  source: Uint8Array,
  at: number,
  levels: readonly number[],
  scale: number,
  to: Float32Array,
): void {
  for (let j = 0; j < 16; j++) {
    to[j] = scale * levels[source[at + j]! & 15]!;
    to[j + 16] = scale * levels[source[at + j]! >> 4]!;
  }
}

function decodeIQ4_NL(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 32, at += 18)
    decodeLevels(source, at + 2, LEVELS, half[u16(source, at)]!, target.subarray(block, block + 32));
}

/**
 * s − 32 of run r in the block at `at`: the low nibble in byte 4 + r / 2 and the two high bits at bit 2r of the 16 bits
 * before.
 */
export function xsScale(source: Uint8Array, at: number, r: number): number {
  const low = (source[at + 4 + (r >> 1)]! >> (4 * (r & 1))) & 15;
  return (low | (((u16(source, at + 2) >> (2 * r)) & 3) << 4)) - 32;
}

function decodeIQ4_XS(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 136) {
    const d = half[u16(source, at)]!;
    for (let r = 0; r < 8; r++) {
      const scale = d * xsScale(source, at, r);
      decodeLevels(source, at + 8 + 16 * r, LEVELS, scale, target.subarray(block + 32 * r, block + 32 * r + 32));
    }
  }
}

/**
 * Exponent 255 is not a number in the OCP definition of MX types, so that a damaged block is refused and not read as
 * 10^38.
 */
function decodeMXFP4(source: Uint8Array, target: Float32Array): void {
  for (let block = 0, at = 0; block < target.length; block += 32, at += 17) {
    const exponent = source[at]!;
    const scale = exponent === 255 ? Number.NaN : 2 ** (exponent - 127);
    decodeLevels(source, at + 1, E2M1, scale, target.subarray(block, block + 32));
  }
}

/**
 * Scale of group g (0 … 7) in the 12 bytes at `at`: groups 0–3 in the low 6 bits of bytes 0–3, 4–7 split over bytes
 * 8–11 and the top of 0–3.
 */
export function scaleOf(source: Uint8Array, at: number, g: number): number {
  return g < 4 ? source[at + g]! & 63 : (source[at + g + 4]! & 15) | ((source[at + g - 4]! >> 6) << 4);
}

/** The same for the minimum: bytes 4–7, the upper nibbles of 8–11 and the top of 4–7. */
export function minimumOf(source: Uint8Array, at: number, g: number): number {
  return g < 4 ? source[at + g + 4]! & 63 : (source[at + g + 4]! >> 4) | ((source[at + g]! >> 6) << 4);
}

/** Two groups share 32 bytes: the even group has the low nibbles, the odd one the high nibbles. */
function decodeQ4_K(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 144) {
    const d = half[u16(source, at)]!;
    const e = half[u16(source, at + 2)]!;
    for (let g = 0; g < 8; g++) {
      const scale = d * scaleOf(source, at + 4, g);
      const minimum = e * minimumOf(source, at + 4, g);
      const codes = at + 16 + 32 * (g >> 1);
      const shift = 4 * (g & 1);
      for (let j = 0; j < 32; j++) target[block + 32 * g + j] = scale * ((source[codes + j]! >> shift) & 15) - minimum;
    }
  }
}

/** Like Q4_K; bit g of high byte j belongs to weight j of group g. */
function decodeQ5_K(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 176) {
    const d = half[u16(source, at)]!;
    const e = half[u16(source, at + 2)]!;
    for (let g = 0; g < 8; g++) {
      const scale = d * scaleOf(source, at + 4, g);
      const minimum = e * minimumOf(source, at + 4, g);
      const codes = at + 48 + 32 * (g >> 1);
      const shift = 4 * (g & 1);
      for (let j = 0; j < 32; j++) {
        const code = ((source[codes + j]! >> shift) & 15) | (((source[at + 16 + j]! >> g) & 1) << 4);
        target[block + 32 * g + j] = scale * code - minimum;
      }
    }
  }
}

/**
 * Two halves of 128 weights, each of four runs of 32. Run r takes its low bits from byte j (+32 for odd r) of 64, in
 * the low nibble for r < 2, and its two high bits from bits 2r and up of high byte j. Scales change every 16 weights.
 */
function decodeQ6_K(source: Uint8Array, target: Float32Array): void {
  const half = halves();
  for (let block = 0, at = 0; block < target.length; block += 256, at += 210) {
    const d = half[u16(source, at + 208)]!;
    for (let run = 0; run < 8; run++) {
      const [side, r] = [run >> 2, run & 3];
      const low = at + 64 * side + 32 * (r & 1);
      const high = at + 128 + 32 * side;
      for (let j = 0; j < 32; j++) {
        const code = ((source[low + j]! >> (4 * (r >> 1))) & 15) | (((source[high + j]! >> (2 * r)) & 3) << 4);
        const scale = (source[at + 192 + 2 * run + (j >> 4)]! << 24) >> 24;
        target[block + 32 * run + j] = d * scale * (code - 32);
      }
    }
  }
}

const type = (
  name: string,
  blockValues: number,
  blockBytes: number,
  decode: ElementType['decode'] = null,
): ElementType => ({
  name,
  blockValues,
  blockBytes,
  decode,
});

/** Every type that a file may hold, by its name in the formats. Reading one without `decode` is refused. */
export const ELEMENT_TYPES: ReadonlyMap<string, ElementType> = new Map(
  [
    type('F32', 1, 4, decodeF32),
    type('F16', 1, 2, decodeF16),
    type('BF16', 1, 2, decodeBf16),
    type('Q8_0', 32, 34, decodeQ8_0),
    type('Q4_0', 32, 18, decodeLegacy(4, false)),
    type('Q4_1', 32, 20, decodeLegacy(4, true)),
    type('Q5_0', 32, 22, decodeLegacy(5, false)),
    type('Q5_1', 32, 24, decodeLegacy(5, true)),
    type('Q2_K', 256, 84, decodeQ2_K),
    type('Q3_K', 256, 110, decodeQ3_K),
    type('Q4_K', 256, 144, decodeQ4_K),
    type('Q5_K', 256, 176, decodeQ5_K),
    type('Q6_K', 256, 210, decodeQ6_K),
    type('IQ4_NL', 32, 18, decodeIQ4_NL),
    type('IQ4_XS', 256, 136, decodeIQ4_XS),
    type('MXFP4', 32, 17, decodeMXFP4),
    type('F64', 1, 8),
    type('I8', 1, 1),
    type('I16', 1, 2),
    type('I32', 1, 4),
    type('I64', 1, 8),
    type('U8', 1, 1),
    type('U16', 1, 2),
    type('U32', 1, 4),
    type('U64', 1, 8),
    type('BOOL', 1, 1),
    type('F8_E4M3', 1, 1),
    type('F8_E5M2', 1, 1),
    type('Q8_1', 32, 36),
    type('Q8_K', 256, 292),
    type('IQ2_XXS', 256, 66),
    type('IQ2_XS', 256, 74),
    type('IQ3_XXS', 256, 98),
    type('IQ1_S', 256, 50),
    type('IQ3_S', 256, 110),
    type('IQ2_S', 256, 82),
    type('IQ1_M', 256, 56),
    type('TQ1_0', 256, 54),
    type('TQ2_0', 256, 66),
    type('NVFP4', 64, 36),
    type('Q1_0', 128, 18),
  ].map((entry) => [entry.name, entry]),
);

/** Names of the types that can be read as float32. */
export const READABLE_TYPES: readonly string[] = [...ELEMENT_TYPES.values()].filter((t) => t.decode).map((t) => t.name);

/** Throws KvError 'unsupported' for a type of which only the size is known. */
export function readableType(elementType: ElementType, tensor: string): NonNullable<ElementType['decode']> {
  if (elementType.decode === null) {
    throw new KvError('unsupported', `tensor ${tensor} is stored as ${elementType.name}`, {
      values: { tensor, type: elementType.name, readable: READABLE_TYPES },
      hint: `convert the weights to one of ${READABLE_TYPES.join(', ')}`,
    });
  }
  return elementType.decode;
}

/** Decodes whole blocks of one type. source: blocks, target: as many values. */
export function dequantize(elementType: ElementType, source: Uint8Array, target: Float32Array): void {
  const blocks = target.length / elementType.blockValues;
  assert(
    Number.isInteger(blocks) && source.length === blocks * elementType.blockBytes,
    `${source.length} bytes of ${elementType.name} for ${target.length} values`,
  );
  readableType(elementType, '')(source, target);
}
