/**
 * turbo4-prod, turbo3-prod, turbo2-prod: TurboQuant for inner products, as published: one bit less of the code for the
 * mean squared error (turbo.ts), and one bit of every coordinate of a sketch of what it leaves over (QJL). Scores are
 * unbiased: averaged over rotations, ⟨q,x̂⟩ = ⟨q,x⟩.
 *
 *   norm     ν = ‖x‖, kept as ν/√d in f16                     rotate   y = H·D·x
 *   code     as turbo with b − 1 bits; û is what it decodes to, still rotated
 *   sketch   z = H·D·(y − û): s_j = the sign of z_j, and the norm of z over √d, γ, in f16
 *   decode   x̂ = D·H·(û + γ/c·D·H·s), c = E|u_1|·√d for a random unit vector u: the level of the codebook of one bit
 * A score is ⟨HDq, û⟩ + γ/c·⟨HDHDq, s⟩, the estimator of the paper for a sketch with orthogonal rows. Those of the
 * paper are independent; orthogonal ones, which the authors' code of QJL has, have a third of the variance. The sketch
 * is random signs and a Hadamard matrix, so 0.2% of a score remains as bias.
 *
 * Bytes (one head): the codes in bit planes as in rot.ts (b = 4: 2 and 1; 3: 2; 2: the second plane alone), one plane
 * of signs, then 128 f16 scales and 128 f16 norms of sketches: b + 32/d bits per element. Source: TurboQuant, Zandieh
 * et al. 2025, arXiv 2504.19874; QJL, Zandieh et al. 2024, arXiv 2406.03482. It stands here to be compared with, for
 * its keys; as reconstruction its squared error is larger than that of the code of b − 1 bits alone, so values gain
 * nothing. When not to use it: softmax turns the variance of scores into error. At equal bits an unbiased scale
 * (rot.ts) has no bias either and half of the error (docs/lab/formats.md).
 */

import { defineTurned } from '../../formats/descriptor.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import { bytesOf, type ReferenceCodec, toTile } from '../../reference/codec.ts';
import { fromHalf } from '../../reference/half.ts';
import { packPlanes } from '../../reference/planes.ts';
import { rotate } from '../../reference/rotation.ts';
import {
  codeOf,
  decodeTurned,
  eachTurned,
  mixTurned,
  scoresTurned,
  sphereCodebook,
  sphereLevels,
  type TurnedHead,
} from '../../reference/turned.ts';

type ProdName = 'turbo4-prod' | 'turbo3-prod' | 'turbo2-prod';

/** A head with codes, and the signs of a sketch of what they leave over. */
export interface ProdHead extends TurnedHead {
  /** [128, d], 1 where the sketch is above 0, else 0. */
  readonly signs: Uint8Array;
  /** [128] f16 bits: the root mean square of each sketch. */
  readonly norms: Uint16Array;
}

/** The positive level of the codebook of one bit, in float32. */
function signLevel(headDim: number): number {
  const { divisor, levels } = sphereCodebook(1, headDim);
  return Math.fround(levels[1]! / divisor);
}

/** The sketch as rows over a rotation of their own. */
const sketchOf = (head: ProdHead): TurnedHead => ({ ...head, codes: head.signs, scales: head.norms });
const signLevels = ({ headDim, signs }: ProdHead) => ({
  divisor: signLevel(headDim),
  at: (t: number, c: number) => 2 * signs[t * headDim + c]! - 1,
});

/** The rotated rows that the codes alone stand for, [128, d]. */
function rotatedRows(head: ProdHead, bits: number): Float32Array {
  const { divisor, at } = sphereLevels(head, bits);
  const { headDim } = head;
  return Float32Array.from({ length: PAGE_TOKENS * headDim }, (_, i) => {
    const t = Math.floor(i / headDim);
    return t < head.firstRow ? 0 : Math.fround(at(t, i % headDim) * Math.fround(fromHalf(head.scales[t]!) / divisor));
  });
}

/**
 * `bits`: of the code alone. `relative`: the root of D + (1/c² − 1)·D for the error D of the code, with 0.358, 0.1145
 * and 0.0334 at d = 64, rounded up.
 */
const codec = (format: ProdName, bits: number, relative: number): ReferenceCodec<ProdHead> => ({
  format,
  tolerance: { relative, smallest: 1e-3, largest: 1e4 },
  encode(rows, headDim, firstRow = 0) {
    const { bounds } = sphereCodebook(bits, headDim);
    const codes = new Uint8Array(rows.length);
    const turned = new Float32Array(rows.length);
    const scales = eachTurned(rows, headDim, firstRow, (y, rms, t) => {
      turned.set(y, t * headDim);
      for (const [c, value] of y.entries()) codes[t * headDim + c] = codeOf(value, rms, bounds);
    });
    const head = { format, headDim, firstRow, codes, scales, signs: new Uint8Array(rows.length) };
    const coded = rotatedRows(head as unknown as ProdHead, bits);
    const left = turned.map((y, i) => Math.fround(y - coded[i]!));
    const norms = eachTurned(left, headDim, firstRow, (z, _, t) => {
      for (const [c, value] of z.entries()) head.signs[t * headDim + c] = value > 0 ? 1 : 0;
    });
    return { ...head, norms };
  },
  decode(head) {
    const { headDim, firstRow } = head;
    const coded = rotatedRows(head, bits);
    const rows = decodeTurned(sketchOf(head), signLevels(head)).map((left, i) => Math.fround(left + coded[i]!));
    for (let t = firstRow; t < PAGE_TOKENS; t++) rotate(rows.subarray(t * headDim, (t + 1) * headDim), true);
    return rows;
  },
  scores(query, head) {
    const rotated = query.slice();
    rotate(rotated);
    const left = scoresTurned(rotated, sketchOf(head), signLevels(head));
    return scoresTurned(query, head, sphereLevels(head, bits)).map((score, t) => score + left[t]!);
  },
  mix(weights, head) {
    const left = Float32Array.from(mixTurned(weights, sketchOf(head), signLevels(head)));
    rotate(left, true);
    return mixTurned(weights, head, sphereLevels(head, bits)).map((value, c) => value + left[c]!);
  },
  stored({ headDim, codes, signs, scales, norms }, side) {
    const { hi, lo } = packPlanes(toTile(side, headDim, codes), bits === 1 ? 0 : 2, bits === 2 ? 0 : 1);
    return {
      high: hi,
      low: lo,
      signs: packPlanes(toTile(side, headDim, signs), 0, 1).lo,
      scales: bytesOf(scales),
      norms: bytesOf(norms),
    };
  },
});

const define = <const N extends ProdName>(name: N, id: number, rank: number, codeBits: number) =>
  defineTurned({
    ...{ name, id, rank, codeBits },
    parts: [
      { fields: [{ name: 'high', elementBits: codeBits === 2 ? 0 : 2 }] },
      { fields: [{ name: 'low', elementBits: codeBits === 3 ? 0 : 1 }] },
      { fields: [{ name: 'signs', elementBits: 1 }] },
      {
        fields: [
          { name: 'scales', tokenBytes: 2 },
          { name: 'norms', tokenBytes: 2 },
        ],
      },
    ],
    source: 'TurboQuant, Zandieh et al. 2025, arXiv 2504.19874; QJL, Zandieh et al. 2024, arXiv 2406.03482',
  });

export const formats = [
  define('turbo4-prod', 23, 28, 4),
  define('turbo3-prod', 24, 38, 3),
  define('turbo2-prod', 25, 48, 2),
] as const;

export const codecs = {
  'turbo4-prod': codec('turbo4-prod', 3, 0.24),
  'turbo3-prod': codec('turbo3-prod', 2, 0.44),
  'turbo2-prod': codec('turbo2-prod', 1, 0.77),
} as const;
