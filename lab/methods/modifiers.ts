/**
 * Modifiers of the rot family, each by itself, so that what it is worth is seen beside the plain family at equal bits:
 * `rot2+mass`, or `rot3:rot2+mass` with formats of keys and of values.
 *
 *   plain       nothing: rot in the loop that all of these are read by
 *   nomean      without the mean of the channels of a page
 *   prerope     keys before their rotary embedding, as differences have them
 *   mass, ema   pages with more attention have more bits (allocation.ts), by all attention so far or a moving average
 *   of it (masses.ts)
 *   lowrankR    what coding left, as a product of rank R in f16 (lowrank.ts)
 *   delta, dpcm rows as differences (delta.ts)
 *   gqa         ⌈log₄ g⌉ more bits for keys where g query heads share a KV head
 *   anchorsN    the N rows of a page and head with most attention so far exactly, and out of the mean; anchorsNk: of
 *   keys alone
 *   endsN       a bit more in the first N and the last N layers; middleN: in 2N layers around the middle one, to
 *   compare with
 */
import { firstToken, type ModelConfig, PAGE_TOKENS, type RopeTable, type Side } from 'palimpsest/lab';
import { allocated } from './allocation.ts';
import { deltaCode, dpcmCode } from './delta.ts';
import { type HeadCode, headwise, type Place } from './headwise.ts';
import { lowRankBytes, lowRankOf } from './lowrank.ts';
import { Masses, SCORE_BYTES } from './masses.ts';
import type { PageCode, PageMethod } from './paged.ts';
import { codedRow, codeRot, type RotBits, rotHeadBytes, scaleUnit } from './rot-head.ts';

const MODIFIERS = [
  'plain',
  'nomean',
  'prerope',
  'mass',
  'ema',
  'lowrank',
  'delta',
  'dpcm',
  'gqa',
  'anchors',
  'ends',
  'middle',
] as const;
type ModifierName = (typeof MODIFIERS)[number];
/** The modifiers that a number stands behind. */
const NUMBERED: readonly ModifierName[] = ['lowrank', 'anchors', 'ends', 'middle'];

export interface Modified {
  readonly bits: Readonly<Record<Side, RotBits>>;
  readonly name: ModifierName;
  /** Rank, rows or layers; 0 where there is nothing to count. */
  readonly count: number;
  readonly sides: readonly Side[];
}

/** The modifier that a cache names; null for any other cache. */
export function modifiedOf(cache: string): Modified | null {
  const [, k, v, name, digits, keys] = /^rot([1-4])(?::rot([1-4]))?\+([a-z]+?)([1-9][0-9]?)?(k)?$/.exec(cache) ?? [];
  const known = MODIFIERS.find((one) => one === name);
  if (known === undefined || NUMBERED.includes(known) !== (digits !== undefined)) return null;
  if (keys !== undefined && known !== 'anchors') return null;
  return {
    bits: { k: Number(k) as RotBits, v: Number(v ?? k) as RotBits },
    name: known,
    count: Number(digits ?? 0),
    sides: keys === undefined ? ['k', 'v'] : ['k'],
  };
}

/** Each modifier once or twice, at the widths where its rivals are. */
export const modifiedCaches = (): string[] => [
  ...['rot4+plain', 'rot3+plain', 'rot2+plain', 'rot3+nomean', 'rot2+nomean', 'rot2+prerope'],
  ...['rot3+mass', 'rot2+mass', 'rot3+ema', 'rot2+ema'],
  ...['rot2+lowrank1', 'rot2+lowrank2', 'rot2+lowrank4'],
  ...['rot3+delta', 'rot3+dpcm', 'rot2+dpcm', 'rot2+gqa'],
  ...['rot2+anchors1', 'rot2+anchors2', 'rot2+anchors4', 'rot2+anchors2k', 'rot3+anchors2'],
  ...['rot2+ends2', 'rot2+middle2'],
];

/** The loop's method of a modifier. */
export const modifiedPages =
  (modified: Modified): PageMethod =>
  ({ model: { config } }, rope, tokens) =>
    pagesOf(modified, config, rope, tokens);

function pagesOf(
  { bits, name, count, sides }: Modified,
  config: ModelConfig,
  rope: RopeTable,
  tokens: number,
): PageCode {
  const { layers, kvHeads, queryHeads, headDim } = config;
  const plainly =
    (bitsOf: (place: Place) => RotBits): HeadCode =>
    (rows, place) => {
      const own = bitsOf(place);
      codeRot(rows, own, place.firstRow);
      return rotHeadBytes(own, headDim);
    };
  const widened = (own: RotBits, more: number): RotBits => Math.min(4, own + more) as RotBits;
  const plain = plainly(({ side }) => bits[side]);
  switch (name) {
    case 'plain':
      return headwise(config, rope, { code: plain });
    case 'prerope':
      return headwise(config, rope, { code: plain, isBeforeRope: true });
    case 'nomean':
      return headwise(config, rope, { code: (rows, place) => withoutMean(rows, bits[place.side], place.firstRow) });
    case 'mass':
    case 'ema': {
      const masses = new Masses(config, tokens);
      const weightOf = (layer: number, page: number): number =>
        name === 'ema' ? masses.averageOfPage(layer, page) : masses.ofPage(layer, page);
      return allocated(config, bits, weightOf, masses.see.bind(masses));
    }
    case 'lowrank':
      return headwise(config, rope, { code: withLowRank(plain, headDim, count) });
    case 'delta':
    case 'dpcm': {
      const code = name === 'delta' ? deltaCode : dpcmCode;
      return headwise(config, rope, {
        code: (rows, place) => code(bits[place.side])(rows, place),
        isBeforeRope: true,
      });
    }
    case 'gqa': {
      const more = Math.ceil(Math.log2(queryHeads / kvHeads) / 2);
      return headwise(config, rope, {
        code: plainly(({ side }) => (side === 'k' ? widened(bits.k, more) : bits.v)),
      });
    }
    case 'anchors': {
      const masses = new Masses(config, tokens);
      const code = besideAnchors(plain, { masses, count, sides, headDim });
      const pages = headwise(config, rope, { see: masses.see.bind(masses), code });
      // Tokens in the window have a sum in each head, from which rows are chosen.
      return {
        ...pages,
        heldBytes: (coded, windowTokens) =>
          pages.heldBytes(coded, windowTokens) + layers * kvHeads * windowTokens * SCORE_BYTES,
      };
    }
    case 'ends':
    case 'middle': {
      const first = Math.floor(layers / 2) - count;
      const isIn = (layer: number): boolean =>
        name === 'ends' ? Math.min(layer, layers - 1 - layer) < count : layer >= first && layer < first + 2 * count;
      return headwise(config, rope, {
        code: plainly(({ side, layer }) => widened(bits[side], isIn(layer) ? 1 : 0)),
      });
    }
  }
}

/** What a code leaves is kept as a product of this rank. */
function withLowRank(plain: HeadCode, headDim: number, rank: number): HeadCode {
  return (rows, place) => {
    const exact = rows.slice();
    const bytes = plain(rows, place);
    const left = exact.map((one, i) => (i < place.firstRow * headDim ? 0 : one - rows[i]!));
    for (const [i, one] of lowRankOf(left, headDim, rank).entries()) rows[i]! += one;
    return bytes + lowRankBytes(rank, headDim);
  };
}

interface Anchors extends Pick<Modified, 'count' | 'sides'> {
  readonly masses: Masses;
  readonly headDim: number;
}

/** The rows that got most attention stay in f16. */
function besideAnchors(plain: HeadCode, { masses, count, sides, headDim }: Anchors): HeadCode {
  return (rows, place) => {
    if (!sides.includes(place.side)) return plain(rows, place);
    const chosen = mostSeen(masses, place, count);
    const exact = chosen.map((t) => rows.slice(t * headDim, (t + 1) * headDim));
    leaveOut(rows, chosen, headDim, place.firstRow);
    const bytes = plain(rows, place);
    for (const [at, t] of chosen.entries()) rows.set(exact[at]!, t * headDim);
    // The rows in f16, and which they are; keys and values have the same, told once.
    const told = place.side === 'k' ? 1 : 0;
    return bytes + count * (2 * headDim + told);
  };
}

/** rot without its mean. → bytes */
function withoutMean(rows: Float32Array, bits: RotBits, firstRow: number): number {
  const d = rows.length / PAGE_TOKENS;
  const unit = scaleUnit(rows);
  for (let t = firstRow; t < PAGE_TOKENS; t++) rows.set(codedRow(rows.subarray(t * d, (t + 1) * d), bits, unit), t * d);
  // The means and their scale are not kept.
  return rotHeadBytes(bits, d) - d - 2;
}

/** The rows of a page that got most attention from the queries of a KV head, in their order. */
function mostSeen(masses: Masses, { layer, head, page, firstRow }: Place, count: number): number[] {
  const rows = Array.from({ length: PAGE_TOKENS - firstRow }, (_, at) => firstRow + at);
  const mass = rows.map((t) => masses.ofRow(layer, head, firstToken(page) + t));
  return rows
    .toSorted((one, other) => mass[other - firstRow]! - mass[one - firstRow]! || one - other)
    .slice(0, count)
    .toSorted((one, other) => one - other);
}

/**
 * Puts the mean of the other rows in the place of some, so that they are no part of the mean and have nothing to code.
 */
function leaveOut(rows: Float32Array, chosen: readonly number[], d: number, firstRow: number): void {
  for (let c = 0; c < d; c++) {
    let sum = 0;
    for (let t = firstRow; t < PAGE_TOKENS; t++) if (!chosen.includes(t)) sum += rows[t * d + c]!;
    const mean = sum / (PAGE_TOKENS - firstRow - chosen.length);
    for (const t of chosen) rows[t * d + c] = mean;
  }
}
