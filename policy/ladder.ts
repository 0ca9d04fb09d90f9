/**
 * The ladder of one page side: the formats it may still take, what each would cost, and the way down that buys every
 * saved byte at the lowest price. ε² stands for cost here: c and g are the same for all formats of a page side.
 *
 * A price is Δε² per byte saved. The lower convex hull of (bytes, ε²) from the present format on has rising prices, so
 * taking hull steps of many page sides cheapest first is the best use of any number of bytes, up to one last step.
 */
import {
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isFormatName,
  isMove,
  LATENT_NAMES,
  type LatentName,
  type Side,
  TIERS,
  type Tier,
} from '../native/index.ts';
import type { PageForm } from './types.ts';

export { TIERS, type Tier } from '../native/index.ts';

/** All forms that a page side or a page can be in: formats, then latents, the best of each first. */
export const FORMS: readonly PageForm[] = [...FORMAT_NAMES, ...LATENT_NAMES];

export const isLatent = (form: PageForm): form is LatentName => !isFormatName(form);

/**
 * Latents of 8 and 4 bits err less than the codes of 4 bits that are warm, those of 3 bits about as much as codes of 3
 * bits (measured).
 */
export const tierOf = (form: PageForm): Tier =>
  isFormatName(form) ? FORMATS[form].tier : form === 'xq8' || form === 'xq4' ? 'warm' : 'archive';

/** Index in FORMS → index in TIERS. */
export const TIER_RANK: readonly number[] = FORMS.map((name) => TIERS.indexOf(tierOf(name)));

/** Place in FORMS. */
export const rank = (form: PageForm): number => FORMS.indexOf(form);

/** The rank of the first latent. */
export const FIRST_LATENT = FORMAT_NAMES.length;

/** Latents are coded when a page is sealed, so only a page that still has the formats of that time can become one. */
function mayBecome(from: PageForm, to: PageForm): boolean {
  if (isFormatName(from) && isFormatName(to)) return isMove(from, to);
  return isLatent(to) && (isLatent(from) ? rank(to) > rank(from) : TIER_RANK[rank(from)] === 0);
}

/** By rank: whether a page side, or a page, may go from one form to another at all. */
const MAY_BECOME = FORMS.map((from) => FORMS.map((to) => mayBecome(from, to)));

export const FORM_COUNT = FORMS.length;
/** ε² of a format that was not tried. */
export const UNTRIED = -1;

/**
 * Next format on the hull, or −1 at its end. `epsilon2` holds one row of FORM_COUNT numbers at `at` (UNTRIED where
 * nothing is known), `bytes` one per form, `from` and `lowest` are ranks. Of equal prices the farther format wins.
 * `beside`: bytes that the first step frees besides.
 */
export function nextRung(
  epsilon2: Float64Array,
  at: number,
  bytes: readonly number[],
  from: number,
  lowest: number,
  beside = 0,
): number {
  let best = -1;
  let bestPrice = Number.POSITIVE_INFINITY;
  for (let to = from + 1; to <= lowest; to++) {
    if (epsilon2[at + to]! < 0 || bytes[to]! >= bytes[from]! || !MAY_BECOME[from]![to]) continue;
    const price = rungPrice(epsilon2, at, bytes, from, to, beside);
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
  beside = 0,
): number {
  return Math.max(0, epsilon2[at + to]! - epsilon2[at + from]!) / (bytes[from]! - bytes[to]! + beside);
}

/** Writes one row of ε² from a trial: 0 for f16 and q8 unless tried, UNTRIED for codes that were not. */
export function fillEpsilon2(
  target: Float64Array,
  at: number,
  epsilon: Readonly<Partial<Record<PageForm, number>>>,
): void {
  for (let format = 0; format < FORM_COUNT; format++) {
    const value = epsilon[FORMS[format]!];
    target[at + format] = value !== undefined ? value * value : TIER_RANK[format] === 0 ? 0 : UNTRIED;
  }
}

/** Steps of a ladder that policies go down without measuring, best first. */
export type Steps = readonly Readonly<Record<Side, FormatName>>[];

/**
 * Values go down before keys, down to one bit: trellis3:trellis1 has the bytes of trellis2:trellis2 and 0.6 to 0.7
 * times its divergence, on both models that were measured (policy/README.md, What wins where).
 */
export const STEPS: Steps = [
  { k: 'q8', v: 'q8' },
  { k: 'trellis4', v: 'trellis4' },
  { k: 'trellis4', v: 'trellis2' },
  { k: 'trellis3', v: 'trellis2' },
  { k: 'trellis3', v: 'trellis1' },
  { k: 'trellis2', v: 'trellis1' },
];
/** The steps of the time before trellis codes, for the logs of that time. */
export const STEPS_OF_ROT: Steps = [
  { k: 'q8', v: 'q8' },
  { k: 'rot4', v: 'rot4' },
  { k: 'rot4', v: 'rot2' },
  { k: 'rot3', v: 'rot2' },
  { k: 'rot2', v: 'rot2' },
  { k: 'rot2', v: 'rot1' },
];
