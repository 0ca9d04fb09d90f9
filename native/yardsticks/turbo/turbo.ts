/**
 * turbo4, turbo3, turbo2: TurboQuant for the mean squared error, as published.
 *
 * Any row of d channels, rotated at random, has coordinates that follow one known law, that of a coordinate of a random
 * unit vector: the same codebook serves every row of every model, and nothing is calibrated.
 *   norm    ν = ‖x‖, kept as ν/√d in f16, so that it fits wherever x fits
 *   rotate  y = H·D·x
 *   (rotation.ts)
 *   code    the nearest level of y·√d/ν in the Lloyd-Max codebook of that law, for this d
 *   (tables.gen.ts, SPHERE)
 *   decode  x̂ = ν/√d·D·H·level
 * There is no mean, codes of different widths do not nest, and ⟨x̂,x⟩ is smaller than ⟨x,x⟩, by the relative squared
 * error on average (12% at 2 bits). Differences from the paper: the rotation is random signs and a Hadamard matrix
 * instead of one that is uniform over all rotations, as in every implementation, and levels are integers over a common
 * divisor, which adds 0.3% to the squared error at 4 bits.
 *
 * Bytes (one head): the codes in bit planes as in rot.ts (4 bits: 2 and 2; 3 bits: 2 and 1; 2 bits: 2), then 128 f16
 * scales: b + 16/d bits per element. Source: TurboQuant, Zandieh et al. 2025, arXiv 2504.19874. It stands here to be
 * compared with: the rot family is the same code with means subtracted, an unbiased scale of half the size, and nested
 * codes (docs/lab/formats.md). When not to use it: for keys whose rows have much in common (models with biases at their
 * keys), because the norm is spent on what is common.
 */

import { defineTurned, planesAndScales } from '../../formats/descriptor.ts';
import { bytesOf, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { packPlanes } from '../../reference/planes.ts';
import {
  codeOf,
  eachTurned,
  readTurned,
  sphereCodebook,
  sphereLevels,
  type TurnedHead,
} from '../../reference/turned.ts';

type TurboName = 'turbo4' | 'turbo3' | 'turbo2';

/**
 * `relative` is the root of the relative squared error on a Gaussian: 0.0091, 0.0334 and 0.1145 at d = 64, rounded up.
 */
const codec = (format: TurboName, bits: number, relative: number): ReferenceCodec<TurnedHead> => ({
  format,
  // Scales below 6e-5 are subnormal in f16 and have few digits.
  tolerance: { relative, smallest: 1e-4, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const codes = new Uint8Array(rows.length);
    const { bounds } = sphereCodebook(bits, headDim);
    const scales = eachTurned(rows, headDim, firstRow, (y, rms, t) => {
      for (const [c, value] of y.entries()) codes[t * headDim + c] = codeOf(value, rms, bounds);
    });
    return { format, headDim, firstRow, codes, scales };
  },
  ...readTurned((head) => sphereLevels(head, bits)),
  stored({ headDim, codes, scales }, side) {
    const { hi, lo } = packPlanes(toTile(side, headDim, codes), 2, bits - 2);
    return { high: hi, low: lo, scales: bytesOf(scales) };
  },
});

const SOURCE = 'TurboQuant, Zandieh et al. 2025, arXiv 2504.19874';
const define = <const N extends TurboName>(name: N, id: number, rank: number, codeBits: number) =>
  defineTurned({ name, id, rank, codeBits, parts: planesAndScales(codeBits), source: SOURCE });

export const formats = [define('turbo4', 20, 24, 4), define('turbo3', 21, 34, 3), define('turbo2', 22, 44, 2)] as const;

export const codecs = {
  turbo4: codec('turbo4', 4, 0.098),
  turbo3: codec('turbo3', 3, 0.185),
  turbo2: codec('turbo2', 2, 0.345),
} as const;
