// The types that weights are written in, against their readers: what a block holds comes back, nothing is off by more
// than half a step of its scale, and the best scale is no worse than the usual one.
import { describe, expect, it, test } from 'vitest';
import { quantize, WRITTEN_TYPES, type WrittenType } from '../../../../engine/transformer/convert/quantize.ts';
import { dequantize, ELEMENT_TYPES } from '../../../../engine/transformer/dequant.ts';
import { seeded } from '../../../random.ts';

const VALUES = 32 * 200;

function readBack(type: WrittenType, bytes: Uint8Array, count: number): Float32Array {
  const values = new Float32Array(count);
  dequantize(ELEMENT_TYPES.get(type)!, bytes, values);
  return values;
}
const through = (type: WrittenType, values: Float32Array): Float32Array =>
  readBack(type, quantize(type, values), values.length);

/** Roughly normal, at scales from block to block as weights have them. */
function weights(seed: number): Float32Array {
  const random = seeded(seed);
  return Float32Array.from({ length: VALUES }, (_, i) => {
    const scale = 10 ** (-3 + 4 * ((i >> 5) / (VALUES / 32)));
    return scale * (random() + random() + random() + random() - 2);
  });
}

/** The code on the other side reaches a step less, and the scale of least squares may be a little smaller still. */
const BEYOND = 1.25;

/** Half a step of a block, and what its numbers lose as halves. */
function bound(type: WrittenType, block: Float32Array, value: number): number {
  const largest = block.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
  const span = block.reduce((a, b) => Math.max(a, b)) - block.reduce((a, b) => Math.min(a, b));
  // A half is off by 2^-11 of itself, or below 2^-14 by 2^-25; a code multiplies what its scale is off by.
  const half = (number: number): number => 2 ** -11 * number + 2 ** -25;
  switch (type) {
    case 'F32':
      return 0;
    case 'F16':
      return half(Math.abs(value));
    case 'BF16':
      return 2 ** -8 * Math.abs(value);
    case 'Q8_0':
      return largest / 254 + 127 * half(largest / 127);
    case 'Q5_0':
      return BEYOND * (largest / 16) + 16 * half(largest / 16);
    case 'Q4_0':
      return BEYOND * (largest / 8) + 8 * half(largest / 8);
    case 'Q5_1':
      return span / 62 + 31 * half(span / 31) + half(largest);
    case 'Q4_1':
      return span / 30 + 15 * half(span / 15) + half(largest);
  }
}

describe.each(WRITTEN_TYPES)('%s', (type) => {
  it('is off by no more than its blocks say', () => {
    const values = weights(5);
    const read = through(type, values);
    for (const [i, value] of values.entries()) {
      const block = values.subarray(i & ~31, (i & ~31) + 32);
      expect(Math.abs(read[i]! - value), `${i}: ${value}`).toBeLessThanOrEqual(bound(type, block, value));
    }
  });

  it('holds zeros, one value, and what it has held before', () => {
    expect(through(type, new Float32Array(64))).toEqual(new Float32Array(64));
    expect(through(type, new Float32Array(64).fill(-127 / 128))).toEqual(new Float32Array(64).fill(-127 / 128));
    // Codes from end to end of the scale, which no other scale says as well.
    const [least, most] = { Q4_0: [-8, 7], Q4_1: [0, 15], Q5_0: [-16, 15], Q5_1: [0, 31] }[type as 'Q4_0'] ?? [
      -127, 127,
    ];
    const held = Float32Array.from({ length: 96 }, (_, i) => ((i * 7) % (most! - least! + 1)) + least!).map(
      (code, i) => (i % 32 === 0 ? least! : i % 32 === 1 ? most! : code) / 64,
    );
    expect(through(type, held)).toEqual(held);
  });
});

test('the scale of least squares errs less than the one that reaches the largest weight', () => {
  const values = weights(9);
  for (const [type, reach] of [
    ['Q4_0', 8],
    ['Q5_0', 16],
  ] as const) {
    const read = through(type, values);
    let [own, usual] = [0, 0];
    for (let from = 0; from < VALUES; from += 32) {
      const block = values.subarray(from, from + 32);
      const largest = block.reduce((most, one) => (Math.abs(one) > Math.abs(most) ? one : most), 0);
      const scale = largest / -reach;
      for (const [j, value] of block.entries()) {
        const code = Math.min(reach - 1, Math.max(-reach, Math.round(value / scale)));
        own += (read[from + j]! - value) ** 2 / largest ** 2;
        usual += (scale * code - value) ** 2 / largest ** 2;
      }
    }
    expect(own / usual, type).toBeLessThan(0.98);
  }
});

test('F16 refuses what it does not reach, and keeps what is the largest it has', () => {
  expect(through('F16', Float32Array.of(65504, -65504))).toEqual(Float32Array.of(65504, -65504));
  expect(() => quantize('F16', Float32Array.of(1, -7e4))).toThrow(/-70000/);
});
