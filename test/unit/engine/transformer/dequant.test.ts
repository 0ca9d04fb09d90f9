// Decodes hand-made blocks whose weights a person can check, then seeded random blocks against a slow second
// implementation that looks up every single weight on its own, bit by bit, straight from the layout's description.
import { afterAll, describe, expect, test } from 'vitest';
import { FileBytes } from '../../../../engine/transformer/bytes.ts';
import { dequantize, ELEMENT_TYPES, READABLE_TYPES } from '../../../../engine/transformer/dequant.ts';
import { RandomNumbers } from '../../../../engine/transformer/sampling/random.ts';
import { StoredTensor } from '../../../../engine/transformer/stored-tensor.ts';
import { KvError } from '../../../../native/index.ts';
import { temporaryFolder } from './model-files.ts';

const SEED = 20_240_611;
const folder = temporaryFolder();
afterAll(() => folder.remove());

function decode(type: string, source: Uint8Array): number[] {
  const { blockBytes, blockValues } = ELEMENT_TYPES.get(type)!;
  const target = new Float32Array((source.length / blockBytes) * blockValues);
  dequantize(ELEMENT_TYPES.get(type)!, source, target);
  return [...target];
}

const HALF = { one: [0x00, 0x3c], two: [0x00, 0x40], half: [0x00, 0x38], quarter: [0x00, 0x34] } as const;

describe('blocks made by hand', () => {
  test('Q8_0: scale 1/2, codes −16 … 15', () => {
    const codes = Array.from({ length: 32 }, (_, j) => (j - 16) & 255);
    expect(decode('Q8_0', Uint8Array.from([...HALF.half, ...codes]))).toEqual(codes.map((_, j) => (j - 16) / 2));
  });

  test('Q4_0: scale 2, byte j holds j and 15 − j', () => {
    const bytes = Array.from({ length: 16 }, (_, j) => j | ((15 - j) << 4));
    const expected = [...bytes.map((_, j) => 2 * (j - 8)), ...bytes.map((_, j) => 2 * (15 - j - 8))];
    expect(decode('Q4_0', Uint8Array.from([...HALF.two, ...bytes]))).toEqual(expected);
  });

  test('Q4_1: scale 1/4, minimum 2', () => {
    const bytes = Array.from({ length: 16 }, (_, j) => j | ((15 - j) << 4));
    const expected = [...bytes.map((_, j) => j / 4 + 2), ...bytes.map((_, j) => (15 - j) / 4 + 2)];
    expect(decode('Q4_1', Uint8Array.from([...HALF.quarter, ...HALF.two, ...bytes]))).toEqual(expected);
  });

  test('Q5_0: every second weight has its high bit', () => {
    const bytes = Array.from({ length: 16 }, (_, j) => j | (j << 4));
    const expected = Array.from({ length: 32 }, (_, i) => (i % 16) + (i % 2 === 1 ? 16 : 0) - 16);
    expect(decode('Q5_0', Uint8Array.from([...HALF.one, 0xaa, 0xaa, 0xaa, 0xaa, ...bytes]))).toEqual(expected);
  });

  test('Q5_1: the second half has its high bits', () => {
    const bytes = Array.from({ length: 16 }, () => 0x31);
    const expected = Array.from({ length: 32 }, (_, i) => (i < 16 ? 1 : 3 + 16) + 2);
    expect(decode('Q5_1', Uint8Array.from([...HALF.one, ...HALF.two, 0, 0, 0xff, 0xff, ...bytes]))).toEqual(expected);
  });

  test('IQ4_NL: sixteen levels that are not evenly spaced', () => {
    const levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    const bytes = Array.from({ length: 16 }, (_, j) => j | ((15 - j) << 4));
    const expected = [...levels, ...levels.toReversed()].map((level) => level / 2);
    expect(decode('IQ4_NL', Uint8Array.from([...HALF.half, ...bytes]))).toEqual(expected);
  });

  test('MXFP4: exponent 128 is a scale of 2, and the values are those of a 4-bit float', () => {
    const positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
    const bytes = Array.from({ length: 16 }, (_, j) => j | ((15 - j) << 4));
    const values = [...positive, ...positive.map((value) => -value)].map((value) => 2 * value);
    const expected = [...values, ...values.toReversed()];
    expect(decode('MXFP4', Uint8Array.from([128, ...bytes])).map((x) => x + 0)).toEqual(expected.map((x) => x + 0));
  });

  test('MXFP4: exponent 255 is not a number', () => {
    expect(decode('MXFP4', Uint8Array.from([255, ...new Array(16).fill(0x11)]))).toEqual(
      new Array(32).fill(Number.NaN),
    );
  });

  // Runs of 32 in a half of 128 hold the codes 0, 1, 2, 3.
  const pairs = Array.from({ length: 64 }, () => 0b11100100);

  test('Q2_K: scales 0 … 15 and minimums 15 … 0 of 16 weights each', () => {
    const scales = Array.from({ length: 16 }, (_, g) => g | ((15 - g) << 4));
    const expected = Array.from({ length: 256 }, (_, i) => {
      const g = Math.floor(i / 16);
      return g * (Math.floor(i / 32) % 4) - 0.5 * (15 - g);
    });
    const bytes = Uint8Array.from([...scales, ...pairs, ...HALF.one, ...HALF.half]);
    expect(decode('Q2_K', bytes).map((x) => x + 0)).toEqual(expected.map((x) => x + 0));
  });

  test('Q3_K: the even runs have their high bit', () => {
    // Scales 0, 4, 8, … 60, less 32: low nibbles of g and g + 8 share a byte, pairs of g, g + 4, g + 8 and g + 12
    // another.
    const scale = (g: number): number => 4 * g;
    const low = Array.from({ length: 8 }, (_, g) => (scale(g) & 15) | ((scale(g + 8) & 15) << 4));
    const high = Array.from({ length: 4 }, (_, g) =>
      [0, 4, 8, 12].reduce((byte, more) => byte | ((scale(g + more) >> 4) << (more / 2)), 0),
    );
    const expected = Array.from({ length: 256 }, (_, i) => {
      const run = Math.floor(i / 32);
      return (scale(Math.floor(i / 16)) - 32) * ((run % 4) + (run % 2 === 0 ? 4 : 0) - 4) * 2;
    });
    const hmask = Array.from({ length: 32 }, () => 0b01010101);
    const bytes = Uint8Array.from([...hmask, ...pairs, ...low, ...high, ...HALF.two]);
    expect(decode('Q3_K', bytes).map((x) => x + 0)).toEqual(expected.map((x) => x + 0));
  });

  test('IQ4_XS: 6-bit scales of runs of 32', () => {
    const scales = [0, 9, 18, 27, 36, 45, 54, 63];
    const high = scales.reduce((word, scale, r) => word | ((scale >> 4) << (2 * r)), 0);
    const low = [0, 2, 4, 6].map((r) => (scales[r]! & 15) | ((scales[r + 1]! & 15) << 4));
    // Level 8 is 1 and level 15 is 113.
    const bytes = Uint8Array.from([...HALF.two, high & 255, high >> 8, ...low, ...new Array(128).fill(0xf8)]);
    const expected = scales.flatMap((scale) =>
      Array.from({ length: 32 }, (_, j) => 2 * (scale - 32) * (j < 16 ? 1 : 113)),
    );
    expect(decode('IQ4_XS', bytes)).toEqual(expected);
  });

  // Scales 1 … 8 and minimums 8 … 1 would not show the upper bits: these are 1, 2, 3, 63, 33, 34, 17, 48 and 5, 6, 7,
  // 62, 40, 41, 18, 63.
  const SCALES = [1, 2, 3, 63, 33, 34, 17, 48];
  const MINIMUMS = [5, 6, 7, 62, 40, 41, 18, 63];
  const packed = [
    ...[0, 1, 2, 3].map((g) => SCALES[g]! | ((SCALES[g + 4]! >> 4) << 6)),
    ...[0, 1, 2, 3].map((g) => MINIMUMS[g]! | ((MINIMUMS[g + 4]! >> 4) << 6)),
    ...[4, 5, 6, 7].map((g) => (SCALES[g]! & 15) | ((MINIMUMS[g]! & 15) << 4)),
  ];

  test('Q4_K: groups of 32 with 6-bit scales and minimums', () => {
    // Group g holds the code g + 1 throughout.
    const nibbles = [0, 1, 2, 3].flatMap((pair) =>
      Array.from({ length: 32 }, () => (2 * pair + 1) | ((2 * pair + 2) << 4)),
    );
    const expected = SCALES.flatMap((scale, g) =>
      Array.from({ length: 32 }, () => scale * (g + 1) - 0.5 * MINIMUMS[g]!),
    );
    expect(decode('Q4_K', Uint8Array.from([...HALF.one, ...HALF.half, ...packed, ...nibbles]))).toEqual(expected);
  });

  test('Q5_K: the same with a high bit in the odd groups', () => {
    const high = Array.from({ length: 32 }, () => 0b10101010);
    const nibbles = [0, 1, 2, 3].flatMap((pair) =>
      Array.from({ length: 32 }, () => (2 * pair + 1) | ((2 * pair + 2) << 4)),
    );
    const expected = SCALES.flatMap((scale, g) =>
      Array.from({ length: 32 }, () => scale * (g + 1 + (g % 2 === 1 ? 16 : 0)) - 0.5 * MINIMUMS[g]!),
    );
    expect(decode('Q5_K', Uint8Array.from([...HALF.one, ...HALF.half, ...packed, ...high, ...nibbles]))).toEqual(
      expected,
    );
  });

  test('Q6_K: runs of 32, scales of 16', () => {
    // Low nibbles 1 (first two runs) and 2 (last two); high pairs 0, 1, 2, 3 for the four runs; scale s is s − 8.
    const low = Array.from({ length: 128 }, () => 0x21);
    const high = Array.from({ length: 64 }, () => 0b11100100);
    const scales = Array.from({ length: 16 }, (_, s) => (s - 8) & 255);
    const expected = Array.from({ length: 256 }, (_, i) => {
      const run = Math.floor((i % 128) / 32);
      return (Math.floor(i / 16) - 8) * ((run < 2 ? 1 : 2) + 16 * run - 32) * 2;
    });
    const bytes = Uint8Array.from([...low, ...high, ...scales, ...HALF.two]);
    expect(decode('Q6_K', bytes).map((x) => x + 0)).toEqual(expected.map((x) => x + 0));
  });
});

/** Bit `index` of a byte string, lowest first. */
const bit = (source: Uint8Array, index: number): number => (source[index >> 3]! >> (index & 7)) & 1;
/** `width` bits from bit `index` on. */
function bits(source: Uint8Array, index: number, width: number): number {
  let value = 0;
  for (let i = width - 1; i >= 0; i--) value = 2 * value + bit(source, index + i);
  return value;
}
const signed = (value: number): number => (value >= 128 ? value - 256 : value);
function half(source: Uint8Array, at: number): number {
  const word = bits(source, 8 * at, 16);
  const [exponent, mantissa] = [(word >> 10) & 31, word & 1023];
  return (word >> 15 ? -1 : 1) * (exponent === 0 ? mantissa / 2 ** 24 : (1 + mantissa / 1024) * 2 ** (exponent - 15));
}
/**
 * 6-bit number g of the scales (kind 0) or minimums (kind 1) of a K block: four whole ones each, then four in two
 * parts.
 */
function sixBits(block: Uint8Array, at: number, g: number, kind: 0 | 1): number {
  if (g < 4) return bits(block, 8 * (at + 4 * kind + g), 6);
  return bits(block, 8 * (at + 4 + g) + 4 * kind, 4) + 16 * bits(block, 8 * (at + 4 * kind + g - 4) + 6, 2);
}

/** Which bytes of nibbles hold weight i of runs of 32: the low halves the first sixteen, the high halves the others. */
const nibble = (block: Uint8Array, at: number, i: number): number =>
  bits(block, 8 * (at + 16 * Math.floor(i / 32) + (i % 16)) + (i % 32 < 16 ? 0 : 4), 4);
const level = (code: number): number =>
  [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113][code]!;
/** Sign, two bits of exponent with bias 1, one bit of mantissa. */
function smallFloat(code: number): number {
  const [sign, exponent, mantissa] = [code >> 3, (code >> 1) & 3, code & 1];
  const size = exponent === 0 ? mantissa / 2 : (1 + mantissa / 2) * 2 ** (exponent - 1);
  return sign === 1 ? -size : size;
}
/** Bits 2r and up of 32 bytes for each half of 128 weights, in run r of four. */
const pair = (block: Uint8Array, at: number, i: number): number =>
  bits(block, 8 * (at + 32 * Math.floor(i / 128) + (i % 32)) + 2 * (Math.floor(i / 32) % 4), 2);

/** Weight i of a block, in float64. */
const SLOW: Readonly<Record<string, (block: Uint8Array, i: number) => number>> = {
  F32: (block) => new DataView(block.buffer, block.byteOffset).getFloat32(0, true),
  F16: (block) => half(block, 0),
  BF16: (block) => new DataView(Uint8Array.of(0, 0, block[0]!, block[1]!).buffer).getFloat32(0, true),
  Q8_0: (block, i) => half(block, 0) * signed(block[2 + i]!),
  Q4_0: (block, i) => half(block, 0) * (bits(block, 16 + 8 * (i % 16) + (i < 16 ? 0 : 4), 4) - 8),
  Q4_1: (block, i) => half(block, 0) * bits(block, 32 + 8 * (i % 16) + (i < 16 ? 0 : 4), 4) + half(block, 2),
  Q5_0: (block, i) =>
    half(block, 0) * (bits(block, 48 + 8 * (i % 16) + (i < 16 ? 0 : 4), 4) + 16 * bit(block, 16 + i) - 16),
  Q5_1: (block, i) =>
    half(block, 0) * (bits(block, 64 + 8 * (i % 16) + (i < 16 ? 0 : 4), 4) + 16 * bit(block, 32 + i)) + half(block, 2),
  Q2_K: (block, i) => {
    const g = Math.floor(i / 16);
    return half(block, 80) * bits(block, 8 * g, 4) * pair(block, 16, i) - half(block, 82) * bits(block, 8 * g + 4, 4);
  },
  Q3_K: (block, i) => {
    const g = Math.floor(i / 16);
    const low = bits(block, 8 * (96 + (g % 8)) + (g < 8 ? 0 : 4), 4);
    const scale = low + 16 * bits(block, 8 * (104 + (g % 4)) + 2 * Math.floor(g / 4), 2) - 32;
    const high = bit(block, 8 * (i % 32) + Math.floor(i / 32));
    return half(block, 108) * scale * (pair(block, 32, i) - (high === 1 ? 0 : 4));
  },
  IQ4_NL: (block, i) => half(block, 0) * level(nibble(block, 2, i)),
  IQ4_XS: (block, i) => {
    const run = Math.floor(i / 32);
    const scale = bits(block, 32 + 4 * run, 4) + 16 * bits(block, 16 + 2 * run, 2) - 32;
    return half(block, 0) * scale * level(nibble(block, 8, i));
  },
  MXFP4: (block, i) => 2 ** (block[0]! - 127) * smallFloat(nibble(block, 1, i)),
  Q4_K: (block, i) => {
    const g = Math.floor(i / 32);
    const code = bits(block, 8 * (16 + 32 * Math.floor(g / 2) + (i % 32)) + 4 * (g % 2), 4);
    return half(block, 0) * sixBits(block, 4, g, 0) * code - half(block, 2) * sixBits(block, 4, g, 1);
  },
  Q5_K: (block, i) => {
    const g = Math.floor(i / 32);
    const code =
      bits(block, 8 * (48 + 32 * Math.floor(g / 2) + (i % 32)) + 4 * (g % 2), 4) +
      16 * bit(block, 8 * (16 + (i % 32)) + g);
    return half(block, 0) * sixBits(block, 4, g, 0) * code - half(block, 2) * sixBits(block, 4, g, 1);
  },
  Q6_K: (block, i) => {
    const [side, run, j] = [Math.floor(i / 128), Math.floor(i / 32) % 4, i % 32];
    const low = bits(block, 8 * (64 * side + 32 * (run % 2) + j) + 4 * Math.floor(run / 2), 4);
    const high = bits(block, 8 * (128 + 32 * side + j) + 2 * run, 2);
    return half(block, 208) * signed(block[192 + Math.floor(i / 16)]!) * (low + 16 * high - 32);
  },
};

/** Where the f16 numbers of a block stand: kept finite, the rest is random. */
const HALVES: Readonly<Record<string, readonly number[]>> = {
  F16: [0],
  BF16: [0],
  Q8_0: [0],
  Q4_0: [0],
  Q4_1: [0, 2],
  Q5_0: [0],
  Q5_1: [0, 2],
  Q4_K: [0, 2],
  Q5_K: [0, 2],
  Q6_K: [208],
  Q2_K: [80, 82],
  Q3_K: [108],
  IQ4_NL: [0],
  IQ4_XS: [0],
};

test('every readable type has its slow twin', () => {
  expect(Object.keys(SLOW).sort()).toEqual([...READABLE_TYPES].sort());
});

test.each(READABLE_TYPES)(`%s: 40 random blocks agree with the slow implementation (seed ${SEED})`, (name) => {
  const random = new RandomNumbers(SEED);
  const { blockBytes, blockValues } = ELEMENT_TYPES.get(name)!;
  const source = new Uint8Array(40 * blockBytes);
  for (let i = 0; i < source.length; i++) source[i] = Math.floor(random.uniform() * 256);
  for (let block = 0; block < 40; block++) {
    // Exponents below all ones: neither infinite nor NaN.
    for (const at of HALVES[name] ?? []) source[block * blockBytes + at + 1]! &= 0xbb;
    if (name === 'F32') source[block * 4 + 3]! &= 0xbf;
    // Below 255, which is not a number.
    if (name === 'MXFP4') source[block * 17]! &= 0xfe;
  }
  const expected = Array.from({ length: 40 * blockValues }, (_, i) => {
    const block = Math.floor(i / blockValues);
    return Math.fround(SLOW[name]!(source.subarray(block * blockBytes, (block + 1) * blockBytes), i % blockValues));
  });
  expect(decode(name, source).map((x) => x + 0)).toEqual(expected.map((x) => x + 0));
});

test('a tensor read in parts is the tensor read whole, across read chunks', () => {
  const random = new RandomNumbers(SEED);
  const { blockBytes } = ELEMENT_TYPES.get('Q4_0')!;
  const [rows, columns] = [70, 32 * 1000];
  const bytes = new Uint8Array(rows * 1000 * blockBytes);
  for (let i = 0; i < bytes.length; i++) bytes[i] = i % blockBytes === 1 ? 0x2c : Math.floor(random.uniform() * 256);
  const file = FileBytes.open(folder.write('rows', bytes));
  const tensor = new StoredTensor('t', [rows, columns], ELEMENT_TYPES.get('Q4_0')!, file, 0);
  const whole = tensor.readFloat32();
  // Compared by place, since two million numbers make a slow equality.
  for (const [from, to] of [
    [0, 1],
    [69, 70],
    [3, 41],
  ] as const) {
    const part = tensor.readFloat32(from, to);
    expect(part.length).toBe((to - from) * columns);
    expect(part.findIndex((value, i) => value !== whole[from * columns + i])).toBe(-1);
  }
  file.close();
});

test('rows that end inside a block are refused', () => {
  const file = FileBytes.open(folder.write('short', new Uint8Array(34)));
  const tensor = new StoredTensor('t', [2, 16], ELEMENT_TYPES.get('Q8_0')!, file, 0);
  expect([...tensor.readFloat32()]).toEqual(new Array(32).fill(0));
  expect(() => tensor.readFloat32(0, 1)).toThrow(KvError);
  file.close();
});
