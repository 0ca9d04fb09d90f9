/**
 * squat4, squat2: SQuat. They have the bytes of kivi4 and kivi2 and are read by the same kernels (formats/kivi/),
 * but keys are steered by the queries that the layer keeps (reference/steering.ts): channels are coded one after the
 * other, each with the range of what it is coded as. Values, and keys of layers that keep no query, are those of KIVI.
 * They do not nest, because each width has errors of its own.
 *
 * Source: SQuat, Wang et al. 2025 (arXiv 2503.24358). Not theirs: what formats/kivi/kivi.ts and reference/steering.ts
 * say. When not to use it: see formats/kivi/kivi.ts.
 */
import { defineYardstick, type Tier } from '../../formats/descriptor.ts';
import { codec, decode, encode, KIVI_BITS, type KiviHead, type KiviName, kiviParts } from '../../formats/kivi/kivi.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import type { ReferenceCodec } from '../../reference/codec.ts';
import { lessShares, type Steering } from '../../reference/steering.ts';

/** Keys as they are coded: without what their channels take back of the errors of channels before them. */
function steer(
  format: KiviName,
  rows: Float32Array,
  headDim: number,
  firstRow: number,
  { feedback }: Steering,
): KiviHead {
  const targets = rows.slice();
  const errors = Array.from({ length: PAGE_TOKENS }, () => new Float32Array(headDim));
  for (let c = 0; c < headDim; c++) {
    for (let t = firstRow; t < PAGE_TOKENS; t++) {
      targets[t * headDim + c] = lessShares(rows[t * headDim + c]!, c, errors[t]!, feedback);
    }
    const decoded = decode(encode(format, column(targets, headDim, c), 1, firstRow, 'k'));
    for (let t = firstRow; t < PAGE_TOKENS; t++) errors[t]![c] = decoded[t]! - rows[t * headDim + c]!;
  }
  return encode(format, targets, headDim, firstRow, 'k');
}

const column = (rows: Float32Array, headDim: number, c: number): Float32Array =>
  Float32Array.from({ length: PAGE_TOKENS }, (_, t) => rows[t * headDim + c]!);

/** The same for keys whose codes are steered. Its heads name the format whose bytes they have. */
const steeredCodec = (format: string, plain: KiviName, relative: number): ReferenceCodec<KiviHead> => {
  const { encode: plainly, demote: _, ...rest } = codec(plain, relative);
  return {
    ...rest,
    format,
    encode: (rows, headDim, firstRow = 0, side = 'k', steering = null) =>
      side === 'k' && steering !== null
        ? steer(plain, rows, headDim, firstRow, steering)
        : plainly(rows, headDim, firstRow, side),
  };
};

const defineSteered = <const N extends string>(name: N, id: number, rank: number, tier: Tier, plain: KiviName) =>
  defineYardstick({
    name,
    id,
    rank,
    tier,
    codeBits: KIVI_BITS[plain],
    sides: ['k'],
    nested: false,
    rotated: false,
    steered: 'metric',
    parts: kiviParts(plain, false),
    source: 'SQuat, Wang et al. 2025, arXiv 2503.24358; docs/lab/formats.md',
    layoutVersion: 1,
  });

export const formats = [
  defineSteered('squat4', 14, 21, 'warm', 'kivi4'),
  defineSteered('squat2', 15, 41, 'archive', 'kivi2'),
] as const;

export const codecs = {
  squat4: steeredCodec('squat4', 'kivi4', 0.08),
  squat2: steeredCodec('squat2', 'kivi2', 0.4),
} as const;
