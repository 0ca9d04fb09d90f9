/**
 * Values as Gemma writes them in calls: texts between two quotes of their own and without escapes, names without
 * quotes, no spaces.
 */
import { KvError } from '../../../../native/index.ts';
import { literal, type Notation, NUMBER_RULES } from '../../../transformer/grammar/notation.ts';

/**
 * What a text cannot have: control characters other than ends of lines and tabulators, and a `<` that a mark might
 * begin with.
 */
const UNWRITABLE = /(?![\n\t])\p{Cc}|<(?=[a-z<|]|$)/u;
const CHARACTER = '[^<\\x00-\\x08\\x0b-\\x1f\\x7f]';
const BEHIND_LESS = '[^a-z<|\\x00-\\x1f\\x7f]';

/** quote: the expression of the mark that texts stand between. */
export function gemmaNotation(quote: string): Notation {
  const text = (value: string, where: string): string => {
    if (UNWRITABLE.test(value))
      throw new KvError(
        'unsupported',
        `this model cannot write the text ${JSON.stringify(value).slice(0, 80)} at ${where}`,
        {
          values: { text: value.slice(0, 80), where },
          hint: 'a text without control characters, and without < before small letters',
        },
      );
    return `${quote} ${literal(value).replaceAll('\n', '\\n').replaceAll('\t', '\\t')} ${quote}`;
  };
  const name = (property: string, where: string): string =>
    /^[\w.-]+$/.test(property) ? literal(property) : text(property, where);
  const value = (given: unknown, where: string): string => {
    if (typeof given === 'string') return text(given, where);
    if (typeof given !== 'object' || given === null) return literal(JSON.stringify(given));
    if (Array.isArray(given)) return `"[" ${given.map((one) => value(one, where)).join(' "," ')} "]"`;
    const fields = Object.entries(given).map(([key, one]) => `${name(key, where)} ":" ${value(one, where)}`);
    return `"{" ${fields.join(' "," ')} "}"`;
  };
  return {
    quote,
    comma: '","',
    colon: '":"',
    character: '[\\x20-\\x3b\\x3d-\\x7e]',
    search: null,
    rules: {
      ...NUMBER_RULES,
      value: 'object | array | string | number | "true" | "false" | "null"',
      object: '"{" (string ":" value ("," string ":" value)*)? "}"',
      array: '"[" (value ("," value)*)? "]"',
      string: `${quote} text`,
      text: `${quote} | ${CHARACTER} text | "<" ${BEHIND_LESS} text`,
    },
    value,
    name,
  };
}
