// Are the bytes still the bytes? Fixed rows are encoded again, by the reference and by the kernels, and compared with
// the vectors in codecs.json. When this fails, stored pages of earlier versions have become unreadable: raise
// layoutVersion in native/format.ts, say so in the changelog, and rewrite the file with `npm run golden -- codecs`.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { FORMATS, type FormatName, isServed, PAGE_TOKENS, SIDES } from '../../native/format.ts';
import {
  GOLDEN_FILE,
  GOLDEN_FIRST_ROW,
  GOLDEN_VERSION,
  type GoldenSides,
  type GoldenVector,
  goldenRows,
  goldenTrellis,
  goldenVectors,
  goldenYardsticks,
} from '../../scripts/golden-codecs.ts';
import { loadKernels } from '../native/kernels-binding.ts';
import { fieldIn, placesOf, sideBytes } from '../native/sides.ts';

const golden = JSON.parse(readFileSync(GOLDEN_FILE, 'utf8')) as {
  magic: string;
  version: number;
  vectors: GoldenVector[];
  yardsticks: GoldenSides[];
  trellis: GoldenSides[];
};

test('the file is of the version that this test reads', () => {
  expect([golden.magic, golden.version]).toEqual(['palimpsest codec vectors', GOLDEN_VERSION]);
});

test('the reference still gives every vector', () => {
  expect(goldenVectors()).toEqual(golden.vectors);
  expect(goldenYardsticks()).toEqual(golden.yardsticks);
  expect(goldenTrellis()).toEqual(golden.trellis);
});

describe('the kernels', () => {
  const kernels = loadKernels();
  test.each(golden.vectors)('$format at d = $headDim, rows times 2^$power', (vector) => {
    const { headDim: d } = vector;
    const format = vector.format as FormatName;
    for (const side of SIDES) {
      const packed = new Uint8Array(sideBytes(d));
      const ids = Int32Array.of(FORMATS[format].id);
      kernels.encodeSides(kernels.best(), ids, side === 'k', d, d, GOLDEN_FIRST_ROW, goldenRows(d, vector.power), packed);
      const codes = createHash('sha256');
      for (const { name, elementBits } of placesOf(format, d)) {
        if (elementBits > 0) codes.update(fieldIn(format, d, packed, name));
      }
      expect(codes.digest('hex')).toBe(vector.codesSha256[side]);
      const decoded = new Float32Array(PAGE_TOKENS * d);
      kernels.decodeSide(kernels.best(), ids[0]!, side === 'k', d, d, GOLDEN_FIRST_ROW, packed, decoded);
      expect(createHash('sha256').update(decoded).digest('hex')).toBe(vector.decodedSha256);
    }
  });

  const sides = [...golden.yardsticks, ...golden.trellis].filter(({ format }) => isServed(format));
  test.each(sides)('$format at d = $headDim', ({ format, headDim: d, storedSha256, decodedSha256 }) => {
    const { id } = FORMATS[format];
    for (const side of SIDES) {
      const packed = new Uint8Array(sideBytes(d));
      const rows = goldenRows(d, 0);
      kernels.encodeSides(kernels.best(), Int32Array.of(id), side === 'k', d, d, GOLDEN_FIRST_ROW, rows, packed);
      const stored = createHash('sha256');
      for (const { name } of placesOf(format, d)) stored.update(fieldIn(format, d, packed, name));
      expect(stored.digest('hex')).toBe(storedSha256[side]);
      const decoded = new Float32Array(PAGE_TOKENS * d);
      kernels.decodeSide(kernels.best(), id, side === 'k', d, d, GOLDEN_FIRST_ROW, packed, decoded);
      expect(createHash('sha256').update(decoded).digest('hex')).toBe(decodedSha256[side]);
    }
  });
});
