/**
 * The ladder of one page side: the formats it may still take, what each would cost, and the way down that buys every
 * saved byte at the lowest price. ε² stands for cost here: c and g are the same for all formats of a page side.
 *
 * A price is Δε² per byte saved. The lower convex hull of (bytes, ε²) from the present format on has rising prices, so
 * taking hull steps of many page sides cheapest first is the best use of any number of bytes, up to one last step.
 */
import { FORMAT_NAMES, FORMATS, type FormatName, isMove, type Side, TIERS, type Tier } from '../native/index.ts';

export { TIERS, type Tier } from '../native/index.ts';

export const tierOf = (format: FormatName): Tier => FORMATS[format].tier;

/** Index in FORMAT_NAMES → index in TIERS. */
export const TIER_RANK: readonly number[] = FORMAT_NAMES.map((name) => TIERS.indexOf(tierOf(name)));

/** Place in FORMAT_NAMES, best first. */
export const rank = (format: FormatName): number => FORMAT_NAMES.indexOf(format);

/** By rank: whether a page side may go from one format to another at all. */
const MAY_BECOME = FORMAT_NAMES.map((from) => FORMAT_NAMES.map((to) => isMove(from, to)));

export const FORMAT_COUNT = FORMAT_NAMES.length;
/** ε² of a format that was not tried. */
export const UNTRIED = -1;

/**
 * Next format on the hull, or −1 at its end. `epsilon2` holds one row of FORMAT_COUNT numbers at `at` (UNTRIED where
 * nothing is known), `bytes` one per format, `from` and `lowest` are ranks. Of equal prices the farther format wins.
 */
export function nextRung(
  epsilon2: Float64Array,
  at: number,
  bytes: readonly number[],
  from: number,
  lowest: number,
): number {
  let best = -1;
  let bestPrice = Number.POSITIVE_INFINITY;
  for (let to = from + 1; to <= lowest; to++) {
    if (epsilon2[at + to]! < 0 || bytes[to]! >= bytes[from]! || !MAY_BECOME[from]![to]) continue;
    const price = rungPrice(epsilon2, at, bytes, from, to);
    if (price <= bestPrice) {
      best = to;
      bestPrice = price;
    }
  }
  return best;
}

/** Δε² per byte saved, never below 0: a measurement that says a coarser format errs less buys nothing. */
export function rungPrice(
  epsilon2: Float64Array,
  at: number,
  bytes: readonly number[],
  from: number,
  to: number,
): number {
  return Math.max(0, epsilon2[at + to]! - epsilon2[at + from]!) / (bytes[from]! - bytes[to]!);
}

/** Writes one row of ε² from a trial: 0 for f16 and q8 unless tried, UNTRIED for codes that were not. */
export function fillEpsilon2(
  target: Float64Array,
  at: number,
  epsilon: Readonly<Partial<Record<FormatName, number>>>,
): void {
  for (let format = 0; format < FORMAT_COUNT; format++) {
    const value = epsilon[FORMAT_NAMES[format]!];
    target[at + format] = value !== undefined ? value * value : TIER_RANK[format] === 0 ? 0 : UNTRIED;
  }
}

/**
 * The fixed steps of the ladder, best first: values go down before keys, for 2-bit keys cost twenty times what 2-bit values cost (measured).
 * 1-bit values come last: rot3:rot1 has the bytes of rot2:rot2 and 1.4 times its divergence (measured).
 */
export const STEPS: readonly Readonly<Record<Side, FormatName>>[] = [
  { k: 'q8', v: 'q8' },
  { k: 'rot4', v: 'rot4' },
  { k: 'rot4', v: 'rot2' },
  { k: 'rot3', v: 'rot2' },
  { k: 'rot2', v: 'rot2' },
  { k: 'rot2', v: 'rot1' },
];
