/**
 * What a way of writing tool calls is, and what most of them have in common: JSON, of which a model may write anything.
 */
import { KvError } from '../../../../native/index.ts';
import { literal, type Notation } from '../../../transformer/grammar/notation.ts';
import type { Rules } from '../../../transformer/grammar/rules.ts';
import { plainOf, spelledValue, spellingOf } from '../../../transformer/template/spelled.ts';
import { Text } from '../../../transformer/template/text.ts';
import { Dict, type Value } from '../../../transformer/template/values.ts';
import type { ToolCall } from '../../../transformer/types.ts';

/** A call as the model wrote it; most families give it no id. */
export interface ParsedCall extends Pick<ToolCall, 'name' | 'arguments' | 'argumentsText'> {
  readonly id?: string;
}

/** An answer taken apart: what is said, and what is called. */
export interface Parsed {
  readonly text: string;
  readonly calls: readonly ParsedCall[];
}

/** A tool that a grammar lets a model call: its name, and the expression of its arguments. */
export interface Callable {
  readonly name: string;
  readonly given: string;
}

/** How calls are to be written in a grammar. */
export interface Spelling {
  /** The chat template that the model follows. */
  readonly template: string;
  /** True if there is one call, not several. */
  readonly once: boolean;
  /** The expression of a mark, whether the model has a token for it or not. */
  mark(text: string): string;
}

/** How a family of models writes calls. */
export interface CallFormat {
  readonly name: string;
  /** True if a chat template makes a model write them so. */
  isOf(template: string): boolean;
  /** Control tokens that are part of a call, and so have to be seen. */
  readonly controls: readonly string[];
  /** What a call begins with, anywhere in an answer. */
  readonly opens: readonly string[];
  /** What a call begins with where it begins the answer. */
  readonly opensAtStart: readonly string[];
  /** null: there is no call, or one that is malformed, so all of it is text. Never throws. */
  parse(answer: string): Parsed | null;
  /** How values are written in a call. Default: JSON. */
  notation?(spelling: Spelling): Notation;
  /**
   * The expression of calls of these tools, from their mark to the end of the answer: whatever fulfils it is parsed.
   * Throws 'unsupported' for names that cannot be written.
   */
  grammar(tools: readonly Callable[], rules: Rules, spelling: Spelling): string;
}

/** A call of any of the tools as an object of JSON. key: what its arguments are called. */
export function jsonCall(tools: readonly Callable[], rules: Rules, key = 'arguments'): string {
  const named = tools.map(({ name, given }) => `${literal(`${JSON.stringify(name).slice(1)}, "${key}": `)} ${given}`);
  return rules.add(`${literal('{"name": "')} (${named.join(' | ')}) "}"`);
}

/** A list of such calls. */
export const jsonCalls = (tools: readonly Callable[], rules: Rules, { once }: Spelling): string =>
  `"[" ${repeated(jsonCall(tools, rules), '", "', once)} "]"`;

/** One or several of an expression, with another one between two. */
export const repeated = (one: string, between: string, once: boolean): string =>
  once ? one : `${one} (${between} ${one})*`;

/** The name of a tool where it stands without quotation marks. Throws 'unsupported'. */
export function bareName(name: string): string {
  if (/^[\w.-]+$/.test(name)) return literal(name);
  throw new KvError(
    'unsupported',
    `this model writes names of tools without quotation marks, and ${name.slice(0, 80)} cannot be`,
    {
      values: { name: name.slice(0, 80) },
      hint: 'a name of letters, digits, _, . and -',
    },
  );
}

/** Where the JSON value that begins at `from` with a bracket ends, or −1. Only brackets and strings are looked at. */
export function jsonEnd(text: string, from: number): number {
  let depth = 0;
  let inString = false;
  for (let at = from; at < text.length; at++) {
    const letter = text[at];
    if (inString) {
      if (letter === '\\') at++;
      else if (letter === '"') inString = false;
    } else if (letter === '"') inString = true;
    else if (letter === '{' || letter === '[') depth++;
    else if ((letter === '}' || letter === ']') && --depth <= 0) return at + 1;
  }
  return -1;
}

/** A call with these arguments. */
export function calledWith(name: string, given: Dict): ParsedCall {
  const argumentsText = spellingOf(given);
  const plain = plainOf(given) as ParsedCall['arguments'];
  return { name, arguments: plain, ...(argumentsText === undefined ? {} : { argumentsText }) };
}

/**
 * A call of { name, arguments }, or `parameters` as some have it; arguments may be JSON in a string. null: it is none.
 */
export function callOf(value: Value): ParsedCall | null {
  if (!(value instanceof Dict)) return null;
  const called = value.named('function');
  const inner = called instanceof Dict ? called : value;
  const [name, id] = [inner.named('name'), value.named('id')];
  const given = inner.named('arguments') ?? inner.named('parameters') ?? new Dict();
  const read = given instanceof Text ? spelledValue(given.value) : given;
  if (!(name instanceof Text) || name.value === '' || !(read instanceof Dict)) return null;
  return { ...calledWith(name.value, read), ...(id instanceof Text && id.value !== '' ? { id: id.value } : {}) };
}

/** The calls of JSON that is a list, or one call by itself; null where it is none, or one of them is none. */
export function callsIn(json: string): ParsedCall[] | null {
  const value = spelledValue(json);
  if (value === undefined) return null;
  const calls = (Array.isArray(value) ? value : [value]).map(callOf);
  return calls.length > 0 && calls.every((call) => call !== null) ? calls : null;
}

/**
 * An answer whose calls stand between two marks, of which the last may be missing where the answer ends. `read` gets
 * what is between. JSON may say a mark within.
 */
export function betweenMarks(
  answer: string,
  open: string,
  close: string,
  read: (inner: string) => ParsedCall[] | null,
): Parsed | null {
  const calls: ParsedCall[] = [];
  let text = '';
  let at = 0;
  for (;;) {
    const from = answer.indexOf(open, at);
    if (from < 0) break;
    text += answer.slice(at, from);
    const end = answer.indexOf(close, behindJson(answer, from + open.length));
    const found = read(answer.slice(from + open.length, end < 0 ? answer.length : end).trim());
    if (found === null) return null;
    calls.push(...found);
    at = end < 0 ? answer.length : end + close.length;
  }
  return calls.length === 0 ? null : { text: (text + answer.slice(at)).trim(), calls };
}

/** Where the JSON value that begins at `from`, or behind white space there, ends; `from` where none does. */
function behindJson(text: string, from: number): number {
  const begin = from + text.slice(from).search(/\S|$/);
  return /[{[]/.test(text[begin] ?? '') ? Math.max(from, jsonEnd(text, begin)) : from;
}
