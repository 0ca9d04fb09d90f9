/**
 * How values are written: JSON, or what a family of models has in its place. Grammars of schemas are made of these
 * parts.
 */

export interface Notation {
  /** Expressions of what begins and ends a text, of what is between two values, and between a name and its value. */
  readonly quote: string;
  readonly comma: string;
  readonly colon: string;
  /** A character of a text whose length is bounded. */
  readonly character: string;
  /**
   * What the rule `searched` says: any characters, and then the rule `found`. Null if texts cannot follow a pattern,
   * which is written as JSON escapes it.
   */
  readonly search: ((searched: string, found: string) => string) | null;
  /**
   * Rules of any value, by name: value, object, array, string, number, integer, and what these need. Their alternatives
   * begin differently.
   */
  readonly rules: Readonly<Record<string, string>>;
  /**
   * The expression of one value, and of the name of a property. where: what it is called in errors. Throw 'unsupported'
   * for what cannot be written.
   */
  value(value: unknown, where: string): string;
  name(name: string, where: string): string;
}

/** A text as it stands. */
export const literal = (text: string): string => `"${text.replace(/["\\]/g, '\\$&')}"`;

/** A character that stands in a text of JSON as it is. */
const CHARACTER = '[^"\\\\\\x00-\\x1f\\x7f]';

/** The same in texts whose length is bounded: of ASCII, since the library cannot count others both rightly and fast. */
const COUNTED_CHARACTER = '[\\x20-\\x21\\x23-\\x5b\\x5d-\\x7e]';

/** Rules whose alternatives begin differently. */
const JSON_RULES = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (string ": " value (", " string ": " value)*)? "}"',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" text',
  // In one rule to its end: most tokens are more than one character, and what leaves a rule is tried token by token.
  text: `"\\"" | ${CHARACTER} text | "\\\\" escape text`,
  // Halves of a character beyond U+FFFF are not written, so that each escape is a character.
  escape: '["\\\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex)',
  hex: '[0-9a-fA-F]',
  // A number has as many digits as a float64 tells apart, and no exponent that it could not hold.
  number: '"-"? digits ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
  integer: '"-"? digits',
  digits: '"0" | [1-9] [0-9]{0,14}',
} as const;

/** Numbers, which all notations have in common. */
export const NUMBER_RULES: Readonly<Record<string, string>> = {
  number: JSON_RULES.number,
  integer: JSON_RULES.integer,
  digits: JSON_RULES.digits,
  hex: JSON_RULES.hex,
};

/** On one line, with a space behind commas and colons. */
export const JSON_NOTATION: Notation = {
  quote: '"\\""',
  comma: '", "',
  colon: '": "',
  character: COUNTED_CHARACTER,
  search: (searched, found) => `${CHARACTER} ${searched} | "\\\\" escape ${searched} | ${found}`,
  rules: JSON_RULES,
  value: (value) => literal(JSON.stringify(value)),
  name: (name) => literal(JSON.stringify(name)),
};
