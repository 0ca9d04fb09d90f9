// Are the bytes still the bytes? Fixed rows are encoded again, by the reference and by the kernels, and compared with the
// vectors in codecs.json. When this fails, stored pages of earlier versions have become unreadable: raise layoutVersion in
// native/format.ts, say so in the changelog, and rewrite the file with `npm run golden -- codecs`.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { FORMATS, type FormatName, PAGE_TOKENS, SIDES } from '../../native/format.ts';
import {
  GOLDEN_FILE,
  GOLDEN_FIRST_ROW,
  GOLDEN_VERSION,
  type GoldenVector,
  goldenRows,
  goldenVectors,
} from '../../scripts/golden-codecs.ts';
import { loadKernels } from '../native/kernels-binding.ts';

const golden = JSON.parse(readFileSync(GOLDEN_FILE, 'utf8')) as {
  magic: string;
  version: number;
  vectors: GoldenVector[];
};

test('the file is of the version that this test reads', () => {
  expect([golden.magic, golden.version]).toEqual(['palimpsest codec vectors', GOLDEN_VERSION]);
});

test('the reference still gives every vector', () => {
  expect(goldenVectors()).toEqual(golden.vectors);
});

describe('the kernels', () => {
  const kernels = loadKernels();
  const rot = golden.vectors.filter((vector) => FORMATS[vector.format as FormatName].rotated);
  test.each(rot)('$format at d = $headDim, rows times 2^$power', (vector) => {
    const { headDim: d } = vector;
    const { id, codeBits } = FORMATS[vector.format as FormatName];
    for (const side of SIDES) {
      const stored = new Uint8Array((PAGE_TOKENS * d * codeBits) / 8);
      const [hi, lo] = [stored.subarray(0, (PAGE_TOKENS * d) / 4), stored.subarray((PAGE_TOKENS * d) / 4)];
      const k = new Int8Array(PAGE_TOKENS);
      const mean = new Int8Array(d);
      const reference = new Int8Array(1);
      const rows = goldenRows(d, vector.power);
      const meanScale = kernels.encodeRot(
        kernels.best(),
        id,
        side === 'k',
        d,
        d,
        GOLDEN_FIRST_ROW,
        rows,
        hi,
        lo,
        k,
        mean,
        reference,
      );
      expect(createHash('sha256').update(stored).digest('hex')).toBe(vector.codesSha256[side]);
      expect(Buffer.from(Int16Array.from(k).buffer).toString('hex')).toBe(vector.rowScales);
      expect(Buffer.from(mean.buffer).toString('hex')).toBe(vector.means);
      expect([meanScale, reference[0]]).toEqual([vector.meanScale, vector.reference]);
    }
  });
});
