/**
 * How the errors of a page fade with its age. A first trial is made on the queries right behind a page; later queries
 * look at it less, so the same form costs less. `energyAt` is what is left of ε² at an age in pages, summed over many
 * pages; it is 1 at age 1, where first trials are made.
 *
 * Without evidence it is offset²·age^(−2·fade). A session that measures pages again at later ages moves it towards what
 * it finds.
 */
import type { Law } from './law.ts';

/** Ages from 2^k up to 2^(k+1) share what was measured; no page grows older than 2^20 others. */
const OCTAVES = 20;
/** Measurements that the assumed course counts as in each octave: two pages of a model of 30 layers. Chosen. */
const PRIOR_COUNT = 120;

export class Fading {
  readonly #law: Pick<Law, 'fade' | 'offset'>;
  /** By octave of the age: Σ of what first trials promised, Σ of what was found later, and how many. */
  readonly #promised = new Float64Array(OCTAVES);
  readonly #found = new Float64Array(OCTAVES);
  readonly #count = new Float64Array(OCTAVES);
  /** energyAt by age, as far as it was asked for since the last measurement. */
  #known: number[] = [];

  constructor(law: Pick<Law, 'fade' | 'offset'>) {
    this.#law = law;
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

  #energy(age: number): number {
    const { offset, fade } = this.#law;
    const assumed = age <= 1 ? 1 : Math.min(1, offset.value ** 2 * age ** (-2 * fade.value));
    const at = octaveOf(age);
    const count = this.#count[at]!;
    if (age <= 1 || count === 0) return assumed;
    const measured = Math.min(1, this.#found[at]! / this.#promised[at]!);
    return (assumed * PRIOR_COUNT + measured * count) / (PRIOR_COUNT + count);
  }
}

const octaveOf = (age: number): number => Math.min(OCTAVES - 1, 31 - Math.clz32(age));
