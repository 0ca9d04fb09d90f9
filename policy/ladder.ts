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
  type FormatPair,
  isFormatName,
  isMove,
  LATENT_NAMES,
  type LatentName,
  latentTier,
  SIDES,
  type Side,
  TIERS,
  type Tier,
} from '../native/index.ts';
import { kindOf, nextForm } from './form-machine.ts';
import type { PageForm } from './types.ts';

export { TIERS, type Tier } from '../native/index.ts';

/** All forms that a page side or a page can be in: formats, then latents, the best of each first. */
export const FORMS: readonly PageForm[] = [...FORMAT_NAMES, ...LATENT_NAMES];

export const isLatent = (form: PageForm): form is LatentName => !isFormatName(form);

export const tierOf = (form: PageForm): Tier => (isFormatName(form) ? FORMATS[form].tier : latentTier(form));

/** Index in FORMS → index in TIERS. */
export const TIER_RANK: readonly number[] = FORMS.map((name) => TIERS.indexOf(tierOf(name)));

/** Place in FORMS. */
export const rank = (form: PageForm): number => FORMS.indexOf(form);

/** The rank of the first latent. */
export const FIRST_LATENT = FORMAT_NAMES.length;

/** True if the machine has an arrow for a step down, and the lower form can be made of the other one. */
function isStep(from: PageForm, to: PageForm): boolean {
  if (isLatent(to)) return rank(to) > rank(from) && nextForm(kindOf(from), 'rematerialize', 'latent') !== null;
  return !isLatent(from) && isMove(from, to) && nextForm(kindOf(from), 'demote', kindOf(to)) !== null;
}

/** By rank: whether a page side, or a page, may go from one form to another at all. Made when it is first asked. */
let steps: readonly (readonly boolean[])[] | undefined;
const mayBecome = (): readonly (readonly boolean[])[] =>
  (steps ??= FORMS.map((from) => FORMS.map((to) => isStep(from, to))));

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
  const may = mayBecome()[from]!;
  for (let to = from + 1; to <= lowest; to++) {
    if (epsilon2[at + to]! < 0 || bytes[to]! >= bytes[from]! || !may[to]) continue;
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

/** The place of a format on the ladder; none: it is no rung of that side. */
const placeOf = (side: Side, name: FormatName): number | undefined => FORMATS[name].rungs?.[side];

/** The rungs of the ladder of each side, best first, as formats describe themselves. */
export const RUNGS: Readonly<Record<Side, readonly FormatName[]>> = Object.fromEntries(
  SIDES.map((side) => [
    side,
    FORMAT_NAMES.filter((name) => placeOf(side, name) !== undefined).sort(
      (a, b) => placeOf(side, a)! - placeOf(side, b)!,
    ),
  ]),
) as Record<Side, FormatName[]>;

/**
 * The ladder: at every place that some format has, each side is in the last of its rungs up to there. Values go down
 * before keys, down to one bit: trellis3:trellis1 has the bytes of trellis2:trellis2 and 0.6 to 0.7 times its
 * divergence, on both models that were measured (policy/README.md, What wins where). Where another format takes a
 * place, `uniform` and `age` decide otherwise: they get new versions, and the present ones keep the steps that they
 * have now under their names, for their logs.
 */
export const STEPS: Steps = [...new Set(SIDES.flatMap((side) => RUNGS[side].map((name) => placeOf(side, name)!)))]
  .sort((a, b) => a - b)
  .map((place) => {
    const at = (side: Side): FormatName => RUNGS[side].findLast((name) => placeOf(side, name)! <= place)!;
    return { k: at('k'), v: at('v') };
  });

/** The finest rungs of at most so many bits. */
export function rungsOf(codeBits: number): FormatPair {
  const finest = (side: Side): FormatName => RUNGS[side].find((name) => FORMATS[name].codeBits <= codeBits)!;
  return { k: finest('k'), v: finest('v') };
}

/** The steps of the time before trellis codes. They have names because logs of that time were decided by them. */
export const STEPS_OF_ROT: Steps = [
  { k: 'q8', v: 'q8' },
  { k: 'rot4', v: 'rot4' },
  { k: 'rot4', v: 'rot2' },
  { k: 'rot3', v: 'rot2' },
  { k: 'rot2', v: 'rot2' },
  { k: 'rot2', v: 'rot1' },
];
