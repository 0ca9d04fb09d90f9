/**
 * rotq4, rotq3, rotq2: rot4, rot3 and rot2 (formats/rot/) with keys steered by queries. They have the bytes of
 * those and are read by the same kernels, but the codes of keys are steered by the queries that the layer keeps
 * (reference/steering.ts), in the basis of y: each width codes for itself, so they do not nest. With the rms r of y
 * and û = r·u,
 *   scale   t = r·⟨y,y⟩/⟨y,û⟩ in the metric of the queries, as float32 sums over channels in their order
 * Values, keys of layers that keep no query, and rows without a positive scale (which become zero rows) have nothing
 * else of their own.
 *
 * Source: the query metric of SQuat, Wang et al. 2025 (arXiv 2503.24358), over the rotation of the rot family.
 * When not to use it: docs/lab/formats.md has what it loses beside trellis.
 */
import { defineYardstick, type Tier } from '../../formats/descriptor.ts';
import { codeBits, codec, type RotHead, type RotName, rotName } from '../../formats/rot/rot.ts';
import { PAGE_TOKENS } from '../../layout.ts';
import type { ReferenceCodec } from '../../reference/codec.ts';
import { treeDot } from '../../reference/float32.ts';
import { encode4 } from '../../reference/lloydmax.ts';
import { decodedMean, lessOrigin } from '../../reference/origins.ts';
import { planeBits } from '../../reference/planes.ts';
import { rotatedParts } from '../../reference/rotated.ts';
import { rotate } from '../../reference/rotation.ts';
import { scaleCode, ZERO_ROW } from '../../reference/row-scale.ts';
import { lessShares, plusShares, type Steering } from '../../reference/steering.ts';
import { ROT_LEVELS } from '../../reference/tables.gen.ts';

/** The head with its keys coded again, steered by queries. Means and reference stay. */
function steer(head: RotHead, rows: Float32Array, { feedback, weights }: Steering): RotHead {
  const { headDim, firstRow, reference, fromZero } = head;
  const format = rotName(head.format);
  const mean = decodedMean(head);
  const { divisor, levels } = ROT_LEVELS[format];
  const drop = 4 - codeBits(format);
  const codes = new Uint8Array(head.codes.length);
  const rowScales = new Uint16Array(PAGE_TOKENS).fill(ZERO_ROW & 0xffff);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const row = rows.slice(t * headDim, (t + 1) * headDim).map((x) => x * 2 ** -reference);
    const y = lessOrigin(row, mean, fromZero[t]!);
    rotate(y);
    const r = Math.fround(Math.sqrt(Math.fround(treeDot(y, y) / headDim)));
    const errors = new Float32Array(headDim);
    let [along, square] = [0, 0];
    for (let c = 0; c < headDim; c++) {
      const target = lessShares(y[c]!, c, errors, feedback);
      const code = encode4(target, r) >> drop;
      const decoded = Math.fround(r * Math.fround(levels[code]! / divisor));
      errors[c] = decoded - y[c]!;
      codes[t * headDim + c] = code;
      // N·y and N·û at this channel.
      const whole = plusShares(y[c]!, c, y, feedback);
      const ours = Math.fround(whole + Math.fround(decoded - target));
      along = Math.fround(along + Math.fround(weights[c]! * Math.fround(whole * ours)));
      square = Math.fround(square + Math.fround(weights[c]! * Math.fround(whole * whole)));
    }
    if (along > 0 && square > 0) rowScales[t] = scaleCode(Math.fround(r * Math.fround(square / along))) & 0xffff;
  }
  return { ...head, codes, rowScales };
}

/** The same for keys whose codes are steered. Its heads name the format whose bytes they have. */
const steeredCodec = (format: string, plain: RotName, relative: number): ReferenceCodec<RotHead> => {
  const { encode: plainly, demote: _, ...rest } = codec(plain, relative);
  return {
    ...rest,
    format,
    encode(rows, headDim, firstRow = 0, side = 'k', steering = null) {
      const head = plainly(rows, headDim, firstRow);
      return side === 'k' && steering !== null ? steer(head, rows, steering) : head;
    },
  };
};

const defineSteered = <const N extends string>(name: N, id: number, rank: number, tier: Tier, plain: RotName) =>
  defineYardstick({
    name,
    id,
    rank,
    tier,
    codeBits: codeBits(plain),
    sides: ['k'],
    nested: false,
    rotated: true,
    steered: 'metric',
    parts: rotatedParts(planeBits(codeBits(plain)), false),
    source: `${plain} with the query metric of SQuat (Wang et al. 2025, arXiv 2503.24358); docs/lab/formats.md`,
    layoutVersion: 2,
  });

export const formats = [
  defineSteered('rotq4', 29, 19, 'warm', 'rot4'),
  defineSteered('rotq3', 30, 29, 'archive', 'rot3'),
  defineSteered('rotq2', 31, 39, 'archive', 'rot2'),
] as const;

export const codecs = {
  rotq4: steeredCodec('rotq4', 'rot4', 0.1),
  rotq3: steeredCodec('rotq3', 'rot3', 0.19),
  rotq2: steeredCodec('rotq2', 'rot2', 0.38),
} as const;
