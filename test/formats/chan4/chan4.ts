/**
 * chan4: 4-bit codes with scales per channel for keys, per token for values, and the largest elements kept apart, as
 * KVQuant and KIVI treat keys and values (algorithms.md). It stands here to show the hooks of a format in attention:
 * the scales of the channels of a page are folded into the query, and what is kept apart is added to scores and to
 * mixed values.
 *
 * The 32 elements of largest magnitude of a page and head (the earliest of equals) are kept as (token, channel, f16)
 * and count as 0 in what follows.
 *   keys    s_t = 1 and s_c = f16(max_t |x| / 7)         values   s_t = f16(max_c |x| / 7) and s_c = 1
 *   code = round half even(x / (s_t·s_c)), clamped to ±7, plus 8; x̂ = s_t·s_c·(code − 8), plus what was kept apart.
 *
 * Bytes (one head): codes in the i8 tile's order, two a byte, the first in the low half; then 128 f16 scales of tokens,
 * d of channels, and 32 times 4 bytes: 4 + 16/d + 1/8 + 8/d bits per element. When not to use it: it is a
 * demonstration.
 */
import { CODED_HEAD_DIMS, defineFormat } from '../../../native/formats/descriptor.ts';
import { PAGE_TOKENS } from '../../../native/layout.ts';
import { bytesOf, type Head, type ReferenceCodec, toTile } from '../../../native/reference/codec.ts';
import { roundHalfEven } from '../../../native/reference/float32.ts';
import { fromHalf, toHalf } from '../../../native/reference/half.ts';

const OUTLIERS = 32;

interface Outlier {
  readonly token: number;
  readonly channel: number;
  /** f16 bits. */
  readonly half: number;
}

interface Chan4Head extends Head {
  /** [128, d], 1..15. */
  readonly codes: Uint8Array;
  /** [128] and [d] f16 bits. */
  readonly tokenScales: Uint16Array;
  readonly channelScales: Uint16Array;
  readonly outliers: readonly Outlier[];
}

/** Keeps the largest elements of the rows from firstRow apart; they become 0 in `rows`. */
function takeOutliers(rows: Float32Array, headDim: number, firstRow: number): Outlier[] {
  return Array.from({ length: OUTLIERS }, () => {
    let at = firstRow * headDim;
    for (let i = at; i < rows.length; i++) if (Math.abs(rows[i]!) > Math.abs(rows[at]!)) at = i;
    // Rows that another format gave back may be a little beyond the range of f16.
    const half = toHalf(Math.max(-65504, Math.min(65504, rows[at]!)));
    rows[at] = 0;
    return { token: Math.floor(at / headDim), channel: at % headDim, half };
  });
}

const ONE = toHalf(1);
const chan4: ReferenceCodec<Chan4Head> = {
  format: 'chan4',
  // Of 128 or of 64 normal numbers the largest is below 3 times their rms; a step of max/7 errs by its own size over
  // √12.
  tolerance: { relative: 0.14, smallest: 1e-3, largest: 1e4 },
  encode(given, headDim, firstRow = 0, side = 'k') {
    const rows = given.slice();
    const outliers = takeOutliers(rows, headDim, firstRow);
    const tokenScales = new Uint16Array(PAGE_TOKENS);
    const channelScales = new Uint16Array(headDim).fill(ONE);
    if (side === 'k') {
      tokenScales.fill(ONE, firstRow);
      for (let c = 0; c < headDim; c++) {
        let max = 0;
        for (let t = firstRow; t < PAGE_TOKENS; t++) max = Math.max(max, Math.abs(rows[t * headDim + c]!));
        channelScales[c] = toHalf(Math.fround(max / 7));
      }
    } else {
      for (let t = firstRow; t < PAGE_TOKENS; t++) {
        const max = rows.subarray(t * headDim, (t + 1) * headDim).reduce((most, x) => Math.max(most, Math.abs(x)), 0);
        tokenScales[t] = toHalf(Math.fround(max / 7));
      }
    }
    const codes = Uint8Array.from(rows, (x, i) => {
      const scale = Math.fround(
        fromHalf(tokenScales[Math.floor(i / headDim)]!) * fromHalf(channelScales[i % headDim]!),
      );
      if (scale === 0) return 8;
      return roundHalfEven(Math.min(7, Math.max(-7, Math.fround(x / scale)))) + 8;
    });
    return { format: 'chan4', headDim, firstRow, codes, tokenScales, channelScales, outliers };
  },
  decode({ headDim, codes, tokenScales, channelScales, outliers }) {
    const rows = Float32Array.from(codes, (code, i) => {
      const scale = Math.fround(
        fromHalf(tokenScales[Math.floor(i / headDim)]!) * fromHalf(channelScales[i % headDim]!),
      );
      return Math.fround((code - 8) * scale);
    });
    for (const { token, channel, half } of outliers) {
      rows[token * headDim + channel] = Math.fround(rows[token * headDim + channel]! + fromHalf(half));
    }
    return rows;
  },
  /** The query takes the scales of the channels: q·k̂_t = s_t·⟨q∘s, code − 8⟩ and what was kept apart. */
  scores(query, { headDim, codes, tokenScales, channelScales, outliers }) {
    const folded = Float64Array.from(query, (x, c) => x * fromHalf(channelScales[c]!));
    const scores = Float64Array.from({ length: PAGE_TOKENS }, (_, t) => {
      const sum = folded.reduce((total, x, c) => total + x * (codes[t * headDim + c]! - 8), 0);
      return fromHalf(tokenScales[t]!) * sum;
    });
    for (const { token, channel, half } of outliers) scores[token]! += query[channel]! * fromHalf(half);
    return scores;
  },
  mix(weights, { headDim, codes, tokenScales, channelScales, outliers }) {
    const mixed = Float64Array.from({ length: headDim }, (_, c) => {
      const sum = weights.reduce(
        (total, weight, t) => total + weight * fromHalf(tokenScales[t]!) * (codes[t * headDim + c]! - 8),
        0,
      );
      return sum * fromHalf(channelScales[c]!);
    });
    for (const { token, channel, half } of outliers) mixed[channel]! += weights[token]! * fromHalf(half);
    return mixed;
  },
  stored({ headDim, codes, tokenScales, channelScales, outliers }, side) {
    const tile = toTile(side, headDim, codes);
    return {
      codes: Uint8Array.from({ length: tile.length / 2 }, (_, i) => tile[2 * i]! | (tile[2 * i + 1]! << 4)),
      tokenScales: bytesOf(tokenScales),
      channelScales: bytesOf(channelScales),
      outliers: Uint8Array.from(
        outliers.flatMap(({ token, channel, half }) => [token, channel, half & 255, half >> 8]),
      ),
    };
  },
};

export const formats = [
  defineFormat({
    name: 'chan4',
    id: 61,
    rank: 22,
    tier: 'warm',
    codeBits: 4,
    from: 'better',
    window: false,
    nested: false,
    headDims: CODED_HEAD_DIMS,
    rope: 'post',
    rotated: false,
    parts: [
      { fields: [{ name: 'codes', elementBits: 4 }] },
      {
        fields: [
          { name: 'tokenScales', tokenBytes: 2 },
          { name: 'channelScales', channelBytes: 2 },
          { name: 'outliers', headBytes: 4 * OUTLIERS },
        ],
      },
    ],
    source: 'KVQuant, Hooper et al. 2024, and KIVI, Liu et al. 2024, for the hooks; not their formats',
    layoutVersion: 1,
  }),
] as const;

export const codecs = { chan4 } as const;
