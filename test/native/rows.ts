/** Seeded data for codec and kernel tests: Gaussian rows and rows that are awkward on purpose. */

import { PAGE_TOKENS } from '../../native/format.ts';
import { seeded } from '../random.ts';

/** N(0,1) by Box and Muller. */
export function gaussian(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

export function gaussianRows(d: number, seed: number, spread = 1): Float32Array {
  const random = seeded(seed);
  return Float32Array.from({ length: PAGE_TOKENS * d }, () => spread * gaussian(random));
}

type Fill = (t: number, c: number, random: () => number) => number;

/** Pages [128, d] of one head that break naive codecs. All values are finite and within f16. */
export const AWKWARD: Readonly<Record<string, Fill>> = {
  gaussian: (_t, _c, random) => gaussian(random),
  'outlier channels': (_t, c, random) => gaussian(random) * (c % 31 === 3 ? 20 : 1),
  'channel bias': (_t, c, random) => gaussian(random) + (c % 7 === 0 ? 50 : 0),
  'one large token': (t, _c, random) => gaussian(random) * (t === 9 ? 50 : 1),
  'all zero': () => 0,
  'signed zeros': (t, c) => ((t + c) % 2 === 0 ? -0 : 0),
  'some zero rows': (t, _c, random) => (t % 3 === 0 ? 0 : gaussian(random)),
  'rows near zero': (t, c, random) =>
    gaussian(random) * (t % 11 === 5 ? 0.05 : 1) + (t % 11 === 5 ? 0 : 8 * ((c % 3) - 1)),
  'constant page': () => 0.3,
  'constant rows': (t) => t - 64,
  'constant channels': (_t, c) => (c % 5) - 2,
  'one element': (t, c) => (t === 70 && c === 5 ? 1 : 0),
  denormals: (_t, _c, random) => gaussian(random) * 1e-40,
  'tiny, squares vanish': (_t, _c, random) => gaussian(random) * 1e-24,
  'below the f16 grid': (_t, _c, random) => gaussian(random) * 1e-7,
  huge: (_t, _c, random) => (random() < 0.5 ? -65504 : 65504),
  'mixed magnitudes': (t, _c, random) => gaussian(random) * 10 ** ((t % 17) - 12),
  'half-way values': (t, c) => ((t * 37 + c * 11) % 255) - 127 + ((t + c) % 2) / 2,
};

export function awkwardRows(name: string, d: number, seed = 1): Float32Array {
  const random = seeded(seed);
  const fill = AWKWARD[name]!;
  return Float32Array.from({ length: PAGE_TOKENS * d }, (_, i) => fill(Math.floor(i / d), i % d, random));
}
