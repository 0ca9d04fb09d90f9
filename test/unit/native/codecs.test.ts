// Every codec on every instruction set that this CPU runs, against the TypeScript reference: stored fields, demotions
// and decoded rows of awkward pages, with equal bits (T3). Nothing shorter meets every pair of a format and a head size
// on every set, and each has failed alone before.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  CODECS,
  CODED_HEAD_DIMS,
  FORMATS,
  type FormatName,
  PAGE_TOKENS,
  SERVED_FORMATS,
  SIDES,
} from '../../../native/format.ts';
import { isYardstick } from '../../../native/index.ts';
import type { Head, ReferenceCodec, RotName } from '../../../native/reference/index.ts';
import { ROT_LEVELS } from '../../../native/reference/tables.gen.ts';
import { bits, expectSame, misaligned } from '../../native/bits.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';
import { AWKWARD, awkwardRows } from '../../native/rows.ts';
import { fieldIn, isDemotion, packSide, placesOf, sideBytes } from '../../native/sides.ts';
import { IS_SHORT, isDealt } from '../../tier.ts';

const kernels = loadKernels();
const ISAS = availableIsas(kernels);
/** Formats of the product that have no way to decode rows alone. */
const WHOLE: readonly FormatName[] = ['f16', 'kivi4', 'kivi2', 'band3', 'band2'];
/** Formats that a build of tests adds, which may have none either: each has a folder of its name. */
const ADDED = new Set(readdirSync(join(import.meta.dirname, '../../formats')));
/** Families whose formats are written at once, widest first. */
const AT_ONCE = {
  rot: Object.keys(ROT_LEVELS) as readonly RotName[],
  trellis: ['trellis4', 'trellis3', 'trellis2', 'trellis1'],
} as const;

/**
 * Every awkward page at d = 64; at other head sizes those that differ in kind; one in three with each commit. Where it
 * must be short, one of each size.
 */
const KINDS = IS_SHORT ? ['mixed magnitudes'] : Object.keys(AWKWARD);
/** Sinks of a page stand in another format; where it must be short, every page has some. */
const FIRST_ROWS = IS_SHORT ? [4] : [0, 4];
const ELSEWHERE = ['gaussian', 'channel bias', 'some zero rows', 'huge', 'mixed magnitudes'];
const PAGES: [number, string][] = CODED_HEAD_DIMS.flatMap((d) =>
  KINDS.filter((name) => d === 64 || ELSEWHERE.includes(name)).map((name): [number, string] => [d, name]),
).filter((_, place) => IS_SHORT || isDealt(place, 3));

describe.each(PAGES)('codecs at d = %i on %s', (d, name) => {
  // The native side reads rows at a stride, as heads lie in a page.
  const stride = d + 16;
  const rows = awkwardRows(name, d);
  const strided = misaligned(new Float32Array(PAGE_TOKENS * stride).fill(Number.NaN));
  for (let t = 0; t < PAGE_TOKENS; t++) strided.set(rows.subarray(t * d, (t + 1) * d), t * stride);

  /** The rows, after checking that everything around them still holds the 5 it was filled with. */
  const untouched = (x: Float32Array): Float32Array => {
    const kept = new Float32Array(PAGE_TOKENS * d);
    for (let t = 0; t < PAGE_TOKENS; t++) {
      kept.set(x.subarray(t * stride, t * stride + d), t * d);
      for (let i = t * stride + d; i < (t + 1) * stride; i++) {
        if (x[i] !== 5) expect.fail(`row ${t} was written where it must not be`);
      }
    }
    return kept;
  };

  test.each(SERVED_FORMATS)('%s: stored fields, demotions and decoded rows are the bits of the reference', (format) => {
    const codec = CODECS[format] as unknown as ReferenceCodec<Head>;
    const { id } = FORMATS[format];
    const below = SERVED_FORMATS.filter((to) => isDemotion(format, to));
    for (const firstRow of FIRST_ROWS) {
      for (const side of SIDES) {
        const head = codec.encode(rows, d, firstRow, side);
        const expected = packSide(format, d, codec.stored(head, side));
        const decodedReference = bits(codec.decode(head));
        const lowers = below.map((to): [FormatName, Uint8Array] => {
          const lower = CODECS[to] as unknown as ReferenceCodec<Head>;
          return [to, packSide(to, d, lower.stored(codec.demote!(head, to), side))];
        });
        const isKey = side === 'k';
        for (const [isaName, isa] of ISAS) {
          const packed = new Uint8Array(expected.length);
          kernels.encodeSides(isa, Int32Array.of(id), isKey, d, stride, firstRow, strided, packed);
          for (const { name: field } of placesOf(format, d)) {
            expectSame(
              fieldIn(format, d, packed, field),
              fieldIn(format, d, expected, field),
              `${isaName} ${side} ${field}`,
            );
          }

          const decoded = new Float32Array(PAGE_TOKENS * stride).fill(5);
          kernels.decodeSide(isa, id, isKey, d, stride, firstRow, packed, decoded);
          expectSame(bits(untouched(decoded)), decodedReference, isaName);

          // Rows alone, in any place of a vector of tokens; a format that has no way to decode them says so.
          const tokens = Uint8Array.of(4, 5, 6, 7, 15, 16, 49, 63, 64, 98, 127);
          const alone = new Float32Array(tokens.length * d);
          if (kernels.decodeSideRows(isa, id, isKey, d, tokens.length, tokens, packed, alone) === 1) {
            const same = [...tokens].flatMap((token) => [...decodedReference.subarray(token * d, (token + 1) * d)]);
            expectSame(bits(alone), Uint32Array.from(same), isaName);
          } else if (!isYardstick(format) && !ADDED.has(format)) expect(WHOLE).toContain(format);

          for (const [to, lower] of lowers) {
            const out = new Uint8Array(lower.length);
            kernels.demoteSide(isa, id, FORMATS[to].id, isKey, d, packed, out);
            for (const { name: field } of placesOf(to, d)) {
              const isKept = FORMATS[to].parts.some(({ fields }) =>
                fields.some((one) => one.name === field && one.kept),
              );
              if (!isKept)
                expectSame(fieldIn(to, d, out, field), fieldIn(to, d, lower, field), `${isaName} ${to} ${field}`);
            }
          }
        }
      }
    }
  });

  test.each(['rot', 'trellis'] as const)('all widths of %s at once are those made one by one', (family) => {
    const names: readonly FormatName[] = AT_ONCE[family];
    const ids = names.map((format) => FORMATS[format].id);
    for (const [isaName, isa] of ISAS) {
      const size = sideBytes(d);
      const together = new Uint8Array(ids.length * size);
      kernels.encodeSides(isa, Int32Array.from(ids), true, d, stride, 4, strided, together);
      for (const [i, format] of names.entries()) {
        const alone = new Uint8Array(size);
        kernels.encodeSides(isa, Int32Array.of(ids[i]!), true, d, stride, 4, strided, alone);
        for (const { name: field } of placesOf(format, d)) {
          const isShared = FORMATS[format].parts.some(({ fields }) =>
            fields.some((one) => one.name === field && one.kept && one.elementBits !== 0),
          );
          const made = isShared
            ? fieldIn(names[0]!, d, together, field)
            : fieldIn(format, d, together.subarray(i * size), field);
          expectSame(made, fieldIn(format, d, alone, field), `${isaName} ${format} ${field}`);
        }
      }
    }
  });
});
