/** How much a template may do: steps and letters, counted, so that the same template always ends at the same place. */
import { TemplateFault } from './fault.ts';

/** Steps for a template whatever it is given, and for each letter of what it is given. */
const STEPS = 1 << 20;
const STEPS_PER_LETTER = 64;
/** Letters that are copied or compared in the time of a step. */
const LETTERS_PER_STEP = 8;
/** Macros in macros, and data in data. */
export const DEPTH_MAX = 200;

/** Expressions and blocks within one another while a template runs, those of macros that call macros included. */
const NESTED_MAX = 400;

export class Bounds {
  #left: number;
  #depth = 0;
  #nested = 0;

  constructor(letters: number) {
    this.#left = STEPS + STEPS_PER_LETTER * letters;
  }

  step(steps = 1): void {
    this.#left -= steps;
    if (this.#left < 0) throw new TemplateFault('it does not end: it takes more steps than any prompt needs');
  }

  letters(count: number): void {
    this.step(1 + Math.floor(count / LETTERS_PER_STEP));
  }

  /** Looking for one text in another, which may take the product of their lengths. */
  search(among: number, sought: number): void {
    if (sought <= among) this.letters(among * Math.min(sought, among - sought + 1));
  }

  enter(): void {
    if (++this.#nested > NESTED_MAX) throw new TemplateFault('too much lies in one another');
  }

  leave(): void {
    this.#nested--;
  }

  within<T>(work: () => T): T {
    if (++this.#depth > DEPTH_MAX) throw new TemplateFault('it calls itself without end');
    const result = work();
    this.#depth--;
    return result;
  }
}
