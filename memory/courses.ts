/**
 * What several sessions found of errors behind their first trials, as one: means in logarithms, each session by its
 * weight and, for a layer and side, by how many trials it rests on. Between sessions a layer differs by more than any
 * of them is uncertain of itself, so the spread among them is the uncertainty of the next one.
 */
import { type Course, type Estimate, fourDigits, OCTAVES } from '../policy/index.ts';

export interface WeightedCourse {
  readonly course: Course;
  /** 0 to 1: how near the session was. */
  readonly weight: number;
}

/** Trials at which a session counts half of what it would with ever so many. */
const TRIALS_HALF = 8;
/** Spread of ln of one number between sessions, until there are enough to measure it. Chosen. */
const SPREAD_ASSUMED = 0.5;

/** Sessions of one model of `layers` layers; null without any. */
export function joinCourses(given: readonly WeightedCourse[], layers: number): Course | null {
  const fits = ({ persistence: { k, v } }: Course): boolean => k.length === layers && v.length === layers;
  const all = given.filter(({ course, weight }) => weight > 0 && fits(course));
  if (all.length === 0) return null;
  const ofSide = (side: 'k' | 'v'): Estimate[] =>
    Array.from({ length: layers }, (_, layer) => joined(all, ({ persistence }) => persistence[side][layer]));
  const total = all.reduce((sum, { weight }) => sum + weight, 0);
  const mean = (of: (noise: Course['noise']) => number): number =>
    fourDigits(all.reduce((sum, { course, weight }) => sum + weight * of(course.noise), 0) / total);
  const known = Math.max(...all.map(({ course }) => course.left.length));
  return {
    persistence: { k: ofSide('k'), v: ofSide('v') },
    left: Array.from({ length: Math.min(known, OCTAVES - 1) }, (_, octave) => joined(all, ({ left }) => left[octave])),
    noise: { found: mean(({ found }) => found), page: mean(({ page }) => page), chance: mean(({ chance }) => chance) },
  };
}

function joined(all: readonly WeightedCourse[], of: (course: Course) => Estimate | undefined): Estimate {
  let [weight, sum, squares, samples] = [0, 0, 0, 0];
  for (const one of all) {
    const told = of(one.course);
    if (told === undefined || !(told.samples > 0)) continue;
    const own = (one.weight * told.samples) / (told.samples + TRIALS_HALF);
    const ln = Math.log(told.value);
    weight += own;
    sum += own * ln;
    squares += own * ln * ln;
    samples++;
  }
  if (weight === 0) return { value: 1, sd: SPREAD_ASSUMED, samples: 0 };
  const mean = sum / weight;
  const spread = Math.max(0, squares - weight * mean * mean);
  const sd = Math.sqrt((spread + SPREAD_ASSUMED ** 2) / (weight + 1));
  return { value: fourDigits(Math.exp(mean)), sd: fourDigits(sd), samples };
}

/**
 * How far layers and sides lie apart in ln of what lasts of their errors, about: what sessions say of one is believed
 * by how much surer than this they are of it. Believed whole, sessions of random tokens among others made errors of
 * one layer ten times as dear as those of the next, and a text had 4.8 times the divergence.
 */
const PERSISTENCE_SPREAD = 0.5;

/** What a session takes of a joined course: of each layer and side as much as is believed of it. */
export function believed(course: Course): Course {
  const ofSide = (estimates: readonly Estimate[]): Estimate[] =>
    estimates.map(({ value, sd, samples }) => {
      const belief = PERSISTENCE_SPREAD ** 2 / (PERSISTENCE_SPREAD ** 2 + sd ** 2);
      return { value: fourDigits(value ** belief), sd, samples };
    });
  const { k, v } = course.persistence;
  return { ...course, persistence: { k: ofSide(k), v: ofSide(v) } };
}

/** Sessions that a joined course rests on: those of the layer and side that most of them told of. */
export const sessionsBehind = ({ persistence: { k, v } }: Course): number =>
  Math.max(0, ...[...k, ...v].map(({ samples }) => samples));

/**
 * Joined courses of different sessions as one, as if the sessions of all had been joined at once, each as near as the
 * others. All of the same number of layers; null without any.
 */
export function mergeCourses(given: readonly Course[]): Course | null {
  const [first] = given;
  if (first === undefined || given.length === 1) return first ?? null;
  const ofSide = (side: 'k' | 'v'): Estimate[] =>
    first.persistence[side].map((_, layer) => merged(given.map(({ persistence }) => persistence[side][layer])));
  const octaves = Math.max(...given.map(({ left }) => left.length));
  const weights = given.map((course) => Math.max(1, sessionsBehind(course)));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const mean = (of: (noise: Course['noise']) => number): number =>
    fourDigits(given.reduce((sum, { noise }, at) => sum + weights[at]! * of(noise), 0) / total);
  return {
    persistence: { k: ofSide('k'), v: ofSide('v') },
    left: Array.from({ length: octaves }, (_, octave) => merged(given.map(({ left }) => left[octave]))),
    noise: { found: mean(({ found }) => found), page: mean(({ page }) => page), chance: mean(({ chance }) => chance) },
  };
}

/** What `joined` makes of sessions, taken apart again: weight, mean and spread of the logarithms. */
function merged(given: readonly (Estimate | undefined)[]): Estimate {
  const known = given.filter((one): one is Estimate => one !== undefined && one.samples > 0);
  if (known.length < 2) return known[0] ?? { value: 1, sd: SPREAD_ASSUMED, samples: 0 };
  const samples = known.reduce((sum, one) => sum + one.samples, 0);
  const mean = known.reduce((sum, one) => sum + one.samples * Math.log(one.value), 0) / samples;
  const spread = known.reduce((sum, { value, sd, samples: weight }) => {
    const own = Math.max(0, sd * sd * (weight + 1) - SPREAD_ASSUMED ** 2);
    return sum + own + weight * (Math.log(value) - mean) ** 2;
  }, 0);
  const sd = Math.sqrt((spread + SPREAD_ASSUMED ** 2) / (samples + 1));
  return { value: fourDigits(Math.exp(mean)), sd: fourDigits(sd), samples };
}
