/**
 * Rows become columns of text: a third of what the same numbers take as JSON. `page/data.ts` says how and reads them
 * again.
 */
import type { Columns } from './page/data.ts';

/** Digits that anybody looks at. Whole numbers keep all of theirs. */
const DIGITS = 5;

const textOf = (value: number | null): string => {
  if (value === null || Number.isNaN(value)) return '~';
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(DIGITS)));
};

/**
 * Collects rows of numbers by column. A name that ends in `+` takes the differences between neighbours, which must be
 * numbers.
 */
export class Packer {
  readonly #names: readonly string[];
  readonly #columns: string[][];
  readonly #last: (string | null)[];
  readonly #before: number[];
  length = 0;

  constructor(names: readonly string[]) {
    this.#names = names;
    this.#columns = names.map(() => []);
    this.#last = names.map(() => null);
    this.#before = names.map(() => 0);
  }

  /** One value for each name, in their order. */
  add(row: readonly (number | null)[]): void {
    this.length++;
    for (let i = 0; i < row.length; i++) {
      let value = row[i]!;
      if (this.#names[i]!.endsWith('+')) {
        const now = value ?? 0;
        value = now - this.#before[i]!;
        this.#before[i] = now;
      }
      const text = textOf(value);
      this.#columns[i]!.push(text === this.#last[i] ? '' : text);
      this.#last[i] = text;
    }
  }

  columns(): Columns {
    return Object.fromEntries(this.#names.map((name, i) => [name, this.#column(i)]));
  }

  /**
   * The first column says how many rows there are; the others end behind the last value that differs from the one
   * before.
   */
  #column(at: number): string {
    const texts = this.#columns[at]!;
    let end = texts.length;
    while (at > 0 && end > 0 && texts[end - 1] === '') end--;
    return texts.slice(0, end).join(',');
  }
}
