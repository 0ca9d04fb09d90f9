// Weights that are rewritten in the form of another type: every weight is what it was in the file, but for the rounding
// of scales of IQ4_XS to 11 bits; ends of what a half can say are 0 or infinite, never something else; and a tensor
// reads as many rows as it is asked for.

import { describe, expect, it } from 'vitest';
import { dequantize, ELEMENT_TYPES } from '../../../../engine/transformer/dequant.ts';
import { packedType, rewritten } from '../../../../engine/transformer/rewrite.ts';
import type { Tensor } from '../../../../engine/transformer/types.ts';
import { seeded } from '../../../random.ts';
import { type SmallType, smallBlocks } from './model-files.ts';

const WIDTH = 512;

/** A matrix whose bytes are these, all of one type. */
function stored(storedType: string, bytes: Uint8Array): Tensor {
  const { blockValues, blockBytes } = ELEMENT_TYPES.get(storedType)!;
  const values = (bytes.length / blockBytes) * blockValues;
  const rowBytes = (WIDTH / blockValues) * blockBytes;
  return {
    ...{ name: 'w', shape: [values / WIDTH, WIDTH], storedType },
    readFloat32: () => floats(storedType, bytes),
    readStored: (row, target) => target.set(bytes.subarray(row * rowBytes, row * rowBytes + target.length)),
  };
}

function floats(type: string, bytes: Uint8Array): Float32Array {
  const { blockValues, blockBytes } = ELEMENT_TYPES.get(type)!;
  const values = new Float32Array((bytes.length / blockBytes) * blockValues);
  dequantize(ELEMENT_TYPES.get(type)!, bytes, values);
  return values;
}

/** What rows of a tensor say in the form that they are packed in. */
function packed(tensor: Tensor, row: number, rows: number): Float32Array {
  const { blockValues, blockBytes } = ELEMENT_TYPES.get(tensor.storedType)!;
  const target = new Uint8Array(((rows * WIDTH) / blockValues) * blockBytes).fill(0xa5);
  tensor.readStored!(row, target);
  return floats(tensor.storedType, target);
}

describe.each(['IQ4_NL', 'MXFP4', 'IQ4_XS', 'Q3_K'] as const)('%s', (type: SmallType) => {
  const bytes = smallBlocks(type, 64 * WIDTH, seeded(5), 0.02);
  const exact = floats(type, bytes);
  const tensor = rewritten(stored(type, bytes));

  it('says in another form what it says in the file', () => {
    expect(tensor).toMatchObject({ name: 'w', shape: [64, WIDTH], storedType: packedType(type) });
    expect(packedType(type)).not.toBe(type);
    const said = packed(tensor, 0, 64);
    // Eleven bits of a scale are off by half a unit in the last place at most.
    const most = type === 'IQ4_XS' ? 2 ** -11 : 0;
    for (const [i, value] of exact.entries())
      expect(Math.abs(said[i]! - value)).toBeLessThanOrEqual(most * Math.abs(value));
  });

  it('in any part of it', () => {
    const whole = packed(tensor, 0, 64);
    expect(packed(tensor, 17, 3)).toEqual(whole.subarray(17 * WIDTH, 20 * WIDTH));
    expect(tensor.readFloat32(0, 64)).toEqual(exact);
  });
});

it('every exponent of MXFP4 is exact, smaller than all that matters, or not a number', () => {
  for (let exponent = 0; exponent < 256; exponent++) {
    const bytes = new Uint8Array((17 * WIDTH) / 32).map((_, i) => (i % 17 === 0 ? exponent : (7 * i) & 255));
    const [exact, said] = [floats('MXFP4', bytes), packed(rewritten(stored('MXFP4', bytes)), 0, 1)];
    for (const [i, value] of exact.entries()) {
      if (exponent > 143) expect(Number.isFinite(said[i]!) && said[i] !== 0, `${exponent}`).toBe(false);
      else expect(Math.abs(said[i]! - value), `${exponent}`).toBeLessThanOrEqual(exponent < 104 ? 12 * 2 ** -25 : 0);
    }
  }
});

it('other types are left as they are', () => {
  for (const type of ['Q2_K', 'Q4_K', 'F16']) {
    const tensor = stored(type, new Uint8Array(0));
    expect(rewritten(tensor)).toBe(tensor);
    expect(packedType(type)).toBe(type);
  }
});
