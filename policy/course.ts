/**
 * How errors go on behind their first trials, as a session found it: what it leaves to others, and what it is given of
 * them. A session has few old pages to learn this from, and when it knows it most of its moves are made.
 */
import { KvError, type Side, show } from '../native/index.ts';
import { checkEstimate, type Estimate } from './law.ts';

/** How far a trial can be believed: what of its difference is found again, and two variances of ln ε. */
export interface Noise {
  /** The share of a first trial's difference from others of its layer and side that is found again, 0 to 1. */
  readonly found: number;
  /** Variance of what pages keep to themselves beyond that. */
  readonly page: number;
  /** Variance of a single repeated trial. */
  readonly chance: number;
}

/** What sessions found of errors behind their first trials. */
export interface Course {
  /** ε² found later in a layer and side, over what first trials and the age of their pages promise, [layers]. */
  readonly persistence: { readonly k: readonly Estimate[]; readonly v: readonly Estimate[] };
  /** The share of ε² that is left, by octave of the age: 2 to 3 pages, 4 to 7, 8 to 15 and so on. */
  readonly left: readonly Estimate[];
  /** How far trials could be believed. */
  readonly noise: Noise;
}

/** Ages from 2^k up to 2^(k+1) share what was measured; no page grows older than 2^20 others. */
export const OCTAVES = 20;
/** Variances of logarithms beyond this are no measurements. */
const VARIANCE_MAX = 100;

const SIDES: readonly Side[] = ['k', 'v'];

/** Throws 'bad-thresholds' unless every number is in its range and there is one estimate per layer and side. */
export function checkCourse(course: Course, layers: number): void {
  const refuse = (id: string, value: unknown, least: number, most: number): never => {
    throw new KvError('bad-thresholds', `${id} is ${show(value)}, not within ${least} to ${most}`, {
      values: { id, layers },
      hint: 'leave the course out; sessions of this version write it',
    });
  };
  const within = (id: string, value: unknown, least: number, most: number): void => {
    if (!(typeof value === 'number' && value >= least && value <= most)) refuse(id, value, least, most);
  };
  const estimates = (given: readonly Estimate[] | undefined, id: string): void => {
    for (const [at, one] of (given ?? []).entries())
      checkEstimate(one, (name, number, least, most) => refuse(`${id}.${at}.${name}`, number, least, most));
  };
  for (const side of SIDES) {
    const given = course.persistence?.[side];
    within(`course.persistence.${side}.length`, given?.length, layers, layers);
    estimates(given, `course.persistence.${side}`);
  }
  within('course.left.length', course.left?.length, 0, OCTAVES - 1);
  estimates(course.left, 'course.left');
  within('course.noise.found', course.noise?.found, 0, 1);
  within('course.noise.page', course.noise?.page, 0, VARIANCE_MAX);
  within('course.noise.chance', course.noise?.chance, 0, VARIANCE_MAX);
}

/** Four digits say all that is known of such numbers, and keep logs small. */
export const fourDigits = (value: number): number => Number(value.toPrecision(4));
