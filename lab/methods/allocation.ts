/**
 * Bits by attention: the pages of a layer and side have 4 to 1 bits of the rot family, on average as many as are asked
 * for. What a page errs counts by the attention that it gets, so the bit that is taken away is always the one that is
 * missed least, w·(D(b − 1) − D(b)); D is convex, so no other choice would be better. Pages begin with 4 bits and lose
 * them one by one, from codes alone, and never get one back: there is nothing to make it of.
 */
import { assert, type ModelConfig, reference, type Side } from 'palimpsest/lab';
import { putHead, SIDES, takeHead } from './headwise.ts';
import { SCORE_BYTES } from './masses.ts';
import { f16Bytes, type PageCode } from './paged.ts';
import { type RotBits, rotHeadBytes, rotName } from './rot-head.ts';

/** Bytes of the number of bits that one side of a page has. */
const WIDTH_BYTES = 1;
/** Squared error of a Gaussian with so many bits (native/formats/rot/rot.ts). */
const DISTORTION: Readonly<Record<RotBits, number>> = { 4: 0.0091, 3: 0.0345, 2: 0.1324, 1: 0.57 };

/**
 * Bits of pages after taking away what is over the sum that is allowed; pages whose weight is equal lose theirs from
 * the newest on. Throws an assertion where all pages with one bit would still be too many.
 */
export function narrowed(bits: readonly RotBits[], weights: readonly number[], mostBits: number): RotBits[] {
  const out = [...bits];
  for (let over = out.reduce((sum, one) => sum + one, 0) - mostBits; over > 0; over--) {
    let [chosen, least] = [-1, Number.POSITIVE_INFINITY];
    for (const [page, have] of out.entries()) {
      if (have === 1) continue;
      const missed = weights[page]! * (DISTORTION[(have - 1) as RotBits] - DISTORTION[have]);
      if (missed <= least) [chosen, least] = [page, missed];
    }
    assert(chosen >= 0, `no page of ${out.length} has a bit to lose`);
    out[chosen] = (out[chosen]! - 1) as RotBits;
  }
  return out;
}

interface SidePages {
  bits: RotBits[];
  /** By page and head. */
  readonly heads: reference.RotHead[][];
}

/**
 * A page code with `bits` on average in every layer. The weight of a page is asked for whenever one leaves the window.
 */
export function allocated(
  config: ModelConfig,
  bits: Readonly<Record<Side, RotBits>>,
  weightOf: (layer: number, page: number) => number,
  see: PageCode['see'],
): PageCode {
  const { layers, kvHeads, headDim } = config;
  const pages = Array.from(
    { length: layers },
    (): Record<Side, SidePages> => ({
      k: { bits: [], heads: [] },
      v: { bits: [], heads: [] },
    }),
  );
  const codeSide = (rows: Float32Array, layer: number, side: Side, page: number, firstRow: number): void => {
    const own = pages[layer]![side];
    own.heads.push(
      Array.from({ length: kvHeads }, (_, head) =>
        reference.CODECS.rot4.encode(takeHead(rows, page, head, config), headDim, firstRow),
      ),
    );
    const before = [...own.bits, 4 as const];
    const weights = before.map((_, at) => weightOf(layer, at));
    own.bits = narrowed(before, weights, bits[side] * before.length);
    for (const [at, have] of own.bits.entries()) {
      if (have === before[at] && at !== page) continue;
      const name = rotName(have);
      for (const [head, coded] of own.heads[at]!.entries()) {
        const narrow = coded.format === name ? coded : reference.demote(coded, name);
        own.heads[at]![head] = narrow;
        putHead(rows, reference.CODECS[name].decode(narrow), { page: at, head, firstRow: narrow.firstRow }, config);
      }
    }
  };
  return {
    ...(see === undefined ? {} : { see }),
    code: (page, kept, firstRow) => {
      for (const [layer, rows] of kept.entries())
        for (const side of SIDES) codeSide(rows[side], layer, side, page, firstRow);
    },
    // A layer keeps the weight of each page, and each side how many bits it has.
    heldBytes: (coded, windowTokens) =>
      pages.reduce(
        (sum, { k, v }) =>
          sum + [...k.bits, ...v.bits].reduce((of, have) => of + kvHeads * rotHeadBytes(have, headDim), 0),
        f16Bytes(config, windowTokens) + layers * coded * (SCORE_BYTES + SIDES.length * WIDTH_BYTES),
      ),
  };
}
