// The contract of a format, asked of every one of CODECS: what it stores has the fields and sizes of its description,
// rows come back within its tolerance at every magnitude that it states, dots on codes are those on decoded rows (T16),
// and the cache decodes what the reference decodes, to the bit.
import { describe, expect, test } from 'vitest';
import { CODECS, FORMAT_NAMES, FORMATS, isMove, isServed, SIDES, servesHeadDim } from '../../native/format.ts';
import { fieldBytes } from '../../native/formats/descriptor.ts';
import { openKvCache, openPool, PAGE_TOKENS } from '../../native/index.ts';
import { fromHalf, type Head, type ReferenceCodec, toHalf } from '../../native/reference/index.ts';
import { relativeError, sameBits } from '../native/dense.ts';
import { gaussianRows } from '../native/rows.ts';
import { isForHome } from '../tier.ts';

test('every format has a reference', () => {
  expect(Object.keys(CODECS).sort()).toEqual([...FORMAT_NAMES].sort());
});

describe.each(FORMAT_NAMES)('%s', (name) => {
  const codec = CODECS[name] as unknown as ReferenceCodec<Head>;
  const format = FORMATS[name];
  const headDims = [64, 80, 128].filter((d) => servesHeadDim(name, d));

  test.each(headDims)('stores the fields of its description at d = %i', (d) => {
    for (const side of SIDES) {
      const stored = codec.stored(codec.encode(gaussianRows(d, 1), d, 0, side), side);
      const fields = format.parts.flatMap((part) => part.fields);
      expect(Object.keys(stored)).toEqual(fields.map((field) => field.name));
      for (const field of fields) expect(stored[field.name]!.length, field.name).toBe(fieldBytes(field, d));
    }
  });

  test('gives rows back within its tolerance at every magnitude that it states', () => {
    const { relative, smallest, largest } = codec.tolerance;
    const sizes: number[] = [];
    for (let size = smallest; size <= largest; size *= 10) sizes.push(size);
    for (const size of sizes.filter((_, place) => isForHome(place, 2) || place === sizes.length - 1)) {
      for (const side of SIDES) {
        const rows = gaussianRows(64, 2).map((x) => x * size);
        const error = relativeError(codec.decode(codec.encode(rows, 64, 0, side)), rows);
        expect(error, `${side} of rms ${size}`).toBeLessThan(relative * 1.1);
      }
    }
  });

  test('takes scores and mixed values from codes as from decoded rows', () => {
    const query = gaussianRows(64, 3).subarray(0, 64);
    const weights = gaussianRows(64, 4).subarray(0, PAGE_TOKENS).map(Math.abs);
    for (const side of SIDES) {
      const head = codec.encode(gaussianRows(64, 5), 64, 0, side);
      const decoded = codec.decode(head);
      const scores = Float64Array.from({ length: PAGE_TOKENS }, (_, t) =>
        query.reduce((sum, x, c) => sum + x * decoded[t * 64 + c]!, 0),
      );
      const mixed = Float64Array.from({ length: 64 }, (_, c) =>
        weights.reduce((sum, weight, t) => sum + weight * decoded[t * 64 + c]!, 0),
      );
      // A decoded number is rounded to float32 some ten times on its way back through the rotation.
      expect(relativeError(codec.scores(query, head), scores)).toBeLessThan(10 * 2 ** -23);
      expect(relativeError(codec.mix(weights, head), mixed)).toBeLessThan(10 * 2 ** -23);
    }
  });

  test.each(isServed(name) ? headDims : [])(
    'is decoded by the cache as by the reference, to the bit, at d = %i',
    (d) => {
      if (!isMove('f16', name)) return expect(name).toBe('f16'); // what every other begins as
      const pool = openPool(2 ** 24);
      const shape = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: d };
      const cache = openKvCache({ shape, pool, windowFormat: 'f16' });
      // Three pages: the second is sealed and has no sinks.
      const rows = SIDES.map((_, i) => gaussianRows(d, 6 + i).map((x) => fromHalf(toHalf(x))));
      for (let page = 0; page < 3; page++) cache.append(0, rows[0]!, rows[1]!);
      for (const [i, side] of SIDES.entries()) {
        cache.transcode(0, 1, side, name);
        const expected = codec.decode(codec.encode(rows[i]!, d, 0, side));
        expect(sameBits(cache.decode(0, 1, side), expected)).toBe(true);
      }
      cache.close();
      pool.close();
    },
  );
});
