/**
 * higgs4, higgs3, higgs2: HIGGS, a rotation and a fixed optimal grid of two dimensions.
 *
 *   norm    ν = ‖x‖, kept as ν/√d in f16                     rotate   y = H·D·x
 *   (rotation.ts)
 *   code    each pair (y_2i, y_2i+1)·√d/ν becomes the nearest of 256, 64 or 16 points of the grid that errs least on
 *   pairs of Gaussians (tables.gen.ts, GRIDS)
 *   decode  x̂ = ν/√d·D·H·points
 * A grid of pairs errs 8 to 10% less than one of single channels, which is what one has of it: nothing is calibrated,
 * and there is no mean. Differences from the paper: the group that shares a norm is the row of a head instead of 1,024
 * numbers, and coordinates of points are integers over a common divisor, which adds up to 1% to the squared error at 4
 * bits.
 *
 * The nearest point has the largest fround(a·p + b·q) − fround((p² + q²)/2n), where (p, q) are the integers of a point,
 * n the divisor and a, b = y/rms, in float32; the first of equals.
 *
 * Bytes (one head): pairs row by row; the four high bits of every code, two a byte, the first in the low half; what is
 * left of a code (four bits likewise, or two bits, four a byte, the first lowest); then 128 f16 scales: b + 16/d bits
 * per element. Source: HIGGS, Malinovskii et al. 2024, arXiv 2411.17525, which is for weights; AQUA-KV, Shutova et al.
 * 2025, arXiv 2501.19392, codes caches with it. It stands here to be compared with. When not to use it: where speed
 * counts; attention decodes its pages.
 */

import { defineTurned, planesAndScales } from '../../formats/descriptor.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type ReferenceCodec } from '../../reference/codec.ts';
import { GRIDS } from '../../reference/tables.gen.ts';
import { eachTurned, readTurned, type TurnedHead } from '../../reference/turned.ts';

type HiggsName = 'higgs4' | 'higgs3' | 'higgs2';

const POINTS = { higgs4: 256, higgs3: 64, higgs2: 16 } as const;

/** The nearest point of a grid: its number. */
function nearest(a: number, b: number, { divisor, points }: (typeof GRIDS)[16]): number {
  let code = 0;
  let most = Number.NEGATIVE_INFINITY;
  for (const [i, [p, q]] of points.entries()) {
    const along = Math.fround(Math.fround(a * p) + Math.fround(b * q));
    const score = Math.fround(along - Math.fround((p * p + q * q) / (2 * divisor)));
    if (score > most) {
      most = score;
      code = i;
    }
  }
  return code;
}

/** `codes` of a head: [128, d/2]. */
function levelsOf({ headDim, codes }: TurnedHead, format: HiggsName) {
  const { divisor, points } = GRIDS[POINTS[format]];
  return { divisor, at: (t: number, c: number) => points[codes[(t * headDim + c) >> 1]!]![c % 2]! };
}

/** Numbers below 2^bits as bytes, the first lowest; nothing where `bits` is 0. */
function packed(values: Uint8Array, bits: number): Uint8Array {
  if (bits === 0) return new Uint8Array(0);
  const each = 8 / bits;
  return Uint8Array.from({ length: values.length / each }, (_, i) =>
    values.subarray(i * each, (i + 1) * each).reduce((byte, value, at) => byte | (value << (at * bits)), 0),
  );
}

/** `relative` is the root of the relative squared error on a Gaussian, rounded up. */
const codec = (format: HiggsName, lowBits: number, relative: number): ReferenceCodec<TurnedHead> => ({
  format,
  tolerance: { relative, smallest: 1e-4, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const codes = new Uint8Array((PAGE_TOKENS * headDim) / 2);
    const grid = GRIDS[POINTS[format]];
    const scales = eachTurned(rows, headDim, firstRow, (y, rms, t) => {
      for (let c = 0; c < headDim; c += 2) {
        codes[(t * headDim + c) / 2] = nearest(Math.fround(y[c]! / rms), Math.fround(y[c + 1]! / rms), grid);
      }
    });
    return { format, headDim, firstRow, codes, scales };
  },
  ...readTurned((head) => levelsOf(head, format)),
  stored: ({ codes, scales }) => ({
    high: packed(
      codes.map((code) => code >> lowBits),
      4,
    ),
    low: packed(
      codes.map((code) => code & (2 ** lowBits - 1)),
      lowBits,
    ),
    scales: bytesOf(scales),
  }),
});

const SOURCE = 'HIGGS, Malinovskii et al. 2024, arXiv 2411.17525';
const define = <const N extends HiggsName>(name: N, id: number, rank: number, codeBits: number) =>
  defineTurned({ name, id, rank, codeBits, parts: planesAndScales(codeBits), source: SOURCE });

export const formats = [define('higgs4', 26, 23, 4), define('higgs3', 27, 33, 3), define('higgs2', 28, 43, 2)] as const;

export const codecs = {
  higgs4: codec('higgs4', 4, 0.095),
  higgs3: codec('higgs3', 2, 0.18),
  higgs2: codec('higgs2', 0, 0.335),
} as const;
