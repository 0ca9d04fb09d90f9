/**
 * How the errors of a page fade with its age. A first trial is made on the queries right behind a page; later queries
 * look at it less, so the same form costs less. `energyAt` is what is left of ε² at an age in pages, summed over many
 * pages; it is 1 at age 1, where first trials are made.
 *
 * Without evidence it is offset²·age^(−2·fade). A session that measures pages again at later ages moves it towards what
 * it finds.
 */
import { type Course, OCTAVES } from './course.ts';
import type { Estimate, Law } from './law.ts';

/** Measurements that the assumed course counts as in each octave: two pages of a model of 30 layers. Chosen. */
const PRIOR_COUNT = 120;
/** Between what earlier sessions found and what the law assumes. Texts differ by a factor of three. */
const FACTOR_MAX = 4;
/** Fewer trials say nothing of an octave to others. */
const COUNT_LEAST = 10;

export class Fading {
  readonly #law: Pick<Law, 'fade' | 'offset'>;
  readonly #left: readonly number[];
  /** By octave of the age: Σ of what first trials promised, Σ of what was found later, and how many. */
  readonly #promised = new Float64Array(OCTAVES);
  readonly #found = new Float64Array(OCTAVES);
  readonly #count = new Float64Array(OCTAVES);
  /** energyAt by age, as far as it was asked for since the last measurement. */
  #known: number[] = [];

  /** `known`: what earlier sessions found takes the place of what the law assumes, as far as it goes. */
  constructor(law: Pick<Law, 'fade' | 'offset'>, known?: Course) {
    this.#law = law;
    this.#left = (known?.left ?? []).map(({ value }) => Math.min(1, value));
  }

  /** The share of ε² that is left at an age in pages; never above 1. */
  energyAt(age: number): number {
    if (age <= 1) return 1;
    for (let next = this.#known.length; next <= age; next++) this.#known.push(this.#energy(Math.max(1, next)));
    return this.#known[age]!;
  }

  /**
   * A page of this age was measured again: `promised` by its first trial, `found` now, both as the divergence they
   * stand for.
   */
  learn(age: number, promised: number, found: number): void {
    if (age <= 1 || !(promised > 0)) return;
    const at = octaveOf(age);
    this.#promised[at]! += promised;
    this.#found[at]! += found;
    this.#count[at]! += 1;
    this.#known = [];
  }

  /** What this session alone has found, by octave from an age of 2 pages on, as far as enough of them were tried. */
  get found(): Estimate[] {
    const left: Estimate[] = [];
    for (let at = 1; this.#count[at]! >= COUNT_LEAST && this.#found[at]! > 0; at++)
      left.push({ value: Math.min(1, this.#found[at]! / this.#promised[at]!), sd: 0, samples: this.#count[at]! });
    return left;
  }

  #energy(age: number): number {
    const { offset, fade } = this.#law;
    const at = octaveOf(age);
    const byLaw = age <= 1 ? 1 : Math.min(1, offset.value ** 2 * age ** (-2 * fade.value));
    const told = this.#left[at - 1];
    const assumed = told === undefined ? byLaw : Math.min(1, byLaw * bounded(told / byLaw));
    const count = this.#count[at]!;
    if (age <= 1 || count === 0) return assumed;
    const measured = Math.min(1, this.#found[at]! / this.#promised[at]!);
    return (assumed * PRIOR_COUNT + measured * count) / (PRIOR_COUNT + count);
  }
}

/** What sessions told is no stranger than this, or they were others. */
const bounded = (factor: number): number => Math.max(1 / FACTOR_MAX, Math.min(FACTOR_MAX, factor));
const octaveOf = (age: number): number => Math.min(OCTAVES - 1, 31 - Math.clz32(age));
