/**
 * A text that knows which of its letters were given by whoever asks, and which are the template's own. A template sees
 * the letters alone. If a method cannot tell letter by letter, the whole result counts as given. That is always safe:
 * letters that were given only lose the right to spell control tokens.
 */

/** The units of UTF-16 at which code points begin, and the length behind them; null where each unit is one. */
function pointStarts(value: string): readonly number[] | null {
  if (!/[\ud800-\udbff][\udc00-\udfff]/.test(value)) return null;
  const starts: number[] = [];
  let at = 0;
  for (const letter of value) {
    starts.push(at);
    at += letter.length;
  }
  return [...starts, at];
}

const HTML: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', "'": '&#39;', '"': '&#34;' };

export class Text {
  static readonly empty = new Text('', []);
  readonly value: string;
  /** Borders of the stretches that were given: from, to, from, to, …, in units of UTF-16. */
  readonly given: readonly number[];
  /** True behind `safe` or `escape`: texts that are added to it are escaped for HTML, as Python's Markup does. */
  readonly isMarkup: boolean;
  #starts: readonly number[] | null | undefined;

  private constructor(value: string, given: readonly number[], isMarkup = false) {
    this.value = value;
    this.given = given;
    this.isMarkup = isMarkup;
  }

  /** Letters of the template. */
  static own(value: string): Text {
    return value === '' ? Text.empty : new Text(value, []);
  }

  /** Letters of whoever asks. */
  static given(value: string): Text {
    return value === '' ? Text.empty : new Text(value, [0, value.length]);
  }

  /** Letters that were made of these texts: given where any of them holds given ones. */
  static from(value: string, ...sources: readonly Text[]): Text {
    return sources.some((source) => source.given.length > 0) ? Text.given(value) : Text.own(value);
  }

  static join(parts: readonly Text[], between: Text = Text.empty): Text {
    if (parts.length === 1) return parts[0]!.plain;
    const given: number[] = [];
    let value = '';
    const add = (part: Text): void => {
      for (let at = 0; at < part.given.length; at += 2) {
        const from = part.given[at]! + value.length;
        if (given.at(-1) === from) given.pop();
        else given.push(from);
        given.push(part.given[at + 1]! + value.length);
      }
      value += part.value;
    };
    for (const [index, part] of parts.entries()) {
      if (index > 0 && between.value !== '') add(between);
      add(part);
    }
    return value === '' ? Text.empty : new Text(value, given);
  }

  /** By units of UTF-16, from 0. */
  slice(from: number, to: number = this.value.length): Text {
    if (from <= 0 && to >= this.value.length) return this;
    if (from >= to) return this.isMarkup ? Text.empty.markup : Text.empty;
    const given: number[] = [];
    for (let at = 0; at < this.given.length; at += 2) {
      const [first, last] = [Math.max(this.given[at]!, from), Math.min(this.given[at + 1]!, to)];
      if (first < last) given.push(first - from, last - from);
    }
    return new Text(this.value.slice(from, to), given, this.isMarkup);
  }

  /** Other letters in the same places, where there are as many. */
  withLetters(value: string): Text {
    const given = value.length === this.value.length ? this.given : Text.from(value, this).given;
    return new Text(value, given, this.isMarkup);
  }

  /** The same as markup. */
  get markup(): Text {
    return this.isMarkup ? this : new Text(this.value, this.given, true);
  }

  /** The same as no markup. */
  get plain(): Text {
    return this.isMarkup ? new Text(this.value, this.given) : this;
  }

  /** Escaped for HTML, unless it is markup. */
  get escaped(): Text {
    return this.isMarkup ? this : this.withLetters(this.value.replace(/[&<>'"]/g, (letter) => HTML[letter]!)).markup;
  }

  /** True if no letter from `from` to `to` was given. */
  isOwn(from: number, to: number): boolean {
    let [low, high] = [0, this.given.length / 2];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.given[2 * middle + 1]! > from) high = middle;
      else low = middle + 1;
    }
    return 2 * low >= this.given.length || this.given[2 * low]! >= to;
  }

  /** True if all letters from `from` to `to` were given. */
  isGiven(from: number, to: number): boolean {
    for (let at = 0; at < this.given.length; at += 2)
      if (this.given[at]! <= from && this.given[at + 1]! >= to) return true;
    return from >= to;
  }

  /** Code points, as Python counts. */
  get length(): number {
    return this.#points === null ? this.value.length : this.#points.length - 1;
  }

  /** The unit of UTF-16 at which a code point begins. */
  unitOf(point: number): number {
    return this.#points === null ? point : this.#points[point]!;
  }

  /** The code point that begins at a unit of UTF-16. */
  pointAt(unit: number): number {
    return this.#points === null || unit < 0 ? unit : this.#points.indexOf(unit);
  }

  letterAt(point: number): Text {
    return this.slice(this.unitOf(point), this.unitOf(point + 1));
  }

  letters(): Text[] {
    return Array.from({ length: this.length }, (_, point) => this.letterAt(point).plain);
  }

  get #points(): readonly number[] | null {
    if (this.#starts === undefined) this.#starts = pointStarts(this.value);
    return this.#starts;
  }
}

/** Markup if `like` is. */
export const sameKind = (like: Text, text: Text): Text => (like.isMarkup ? text.markup : text);
