/**
 * Gemma: `<start_function_call>call:name{key:<escape>text<escape>,n:1}<end_function_call>` (FunctionGemma), and with
 * other marks `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>` (Gemma 4). Values are texts between two quotes of
 * their own, numbers, true, false, null, lists and objects; of Gemma 3, which has no marks for calls, an answer stays
 * text.
 */
import { numberIn } from '../../../transformer/template/spelled.ts';
import { Text } from '../../../transformer/template/text.ts';
import { Dict, type Value } from '../../../transformer/template/values.ts';
import { bareName, betweenMarks, type CallFormat, calledWith, type Parsed, type ParsedCall, repeated } from './call.ts';
import { gemmaNotation } from './gemma-notation.ts';

const KINDS = [
  { open: '<start_function_call>', close: '<end_function_call>', quote: '<escape>' },
  { open: '<|tool_call>', close: '<tool_call|>', quote: '<|"|>' },
] as const;
/** Values in one another. */
const DEPTH_MAX = 64;
const HEAD = /^call:\s*([\w.-]+)\s*(?=\{)/;

export const gemma: CallFormat = {
  name: 'gemma',
  isOf: (template) => KINDS.some(({ open }) => template.includes(open)),
  controls: KINDS.flatMap(({ open, close, quote }) => [open, close, quote]),
  opens: KINDS.map(({ open }) => open),
  opensAtStart: [],
  parse(answer): Parsed | null {
    const kind = KINDS.find(({ open }) => answer.includes(open));
    return kind === undefined ? null : betweenMarks(answer, kind.open, kind.close, (inner) => call(inner, kind.quote));
  },
  notation: (spelling) => gemmaNotation(spelling.mark(kindOf(spelling.template).quote)),
  grammar(tools, rules, { template, mark, once }): string {
    const { open, close } = kindOf(template);
    const named = tools.map(({ name, given }) => `${bareName(name)} ${given}`);
    return repeated(rules.add(`${mark(open)} "call:" (${named.join(' | ')}) ${mark(close)}`), '""', once);
  },
};

const kindOf = (template: string): (typeof KINDS)[number] =>
  KINDS.find(({ open }) => template.includes(open)) ?? KINDS[0];

function call(inner: string, quote: string): ParsedCall[] | null {
  const head = HEAD.exec(inner);
  if (head === null) return null;
  const reader = new Values(inner.slice(head[0].length), quote);
  const given = reader.value(0);
  return !(given instanceof Dict) || !reader.isAtEnd ? null : [calledWith(head[1]!, given)];
}

/** Reads values from left to right; undefined where something is none. */
class Values {
  readonly #text: string;
  readonly #quote: string;
  #at = 0;

  constructor(text: string, quote: string) {
    this.#text = text;
    this.#quote = quote;
  }

  get isAtEnd(): boolean {
    return this.#text.slice(this.#at).trim() === '';
  }

  value(depth: number): Value | undefined {
    if (depth > DEPTH_MAX) return undefined;
    if (this.#takes('{')) return this.#object(depth);
    if (this.#takes('[')) return this.#list(depth);
    if (this.#takes(this.#quote)) return this.#quoted();
    return plain(this.#next(/[^,:{}[\]]*/y).trim());
  }

  #object(depth: number): Value | undefined {
    const fields: [Text, Value][] = [];
    while (!this.#takes('}')) {
      if (fields.length > 0 && !this.#takes(',')) return undefined;
      const name = this.#takes(this.#quote) ? this.#until(this.#quote) : this.#name();
      if (name === undefined || !this.#takes(':')) return undefined;
      const value = this.value(depth + 1);
      if (value === undefined) return undefined;
      fields.push([Text.given(name), value]);
    }
    return new Dict(fields);
  }

  #list(depth: number): Value | undefined {
    const all: Value[] = [];
    while (!this.#takes(']')) {
      if (all.length > 0 && !this.#takes(',')) return undefined;
      const value = this.value(depth + 1);
      if (value === undefined) return undefined;
      all.push(value);
    }
    return all;
  }

  #name(): string | undefined {
    this.#next(/\s*/y);
    return this.#next(/[\w.-]*/y) || undefined;
  }

  /** What a sticky pattern, which may be empty, finds here. */
  #next(pattern: RegExp): string {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)![0];
    this.#at += found.length;
    return found;
  }

  #takes(mark: string): boolean {
    this.#next(/\s*/y);
    if (!this.#text.startsWith(mark, this.#at)) return false;
    this.#at += mark.length;
    return true;
  }

  #quoted(): Text | undefined {
    const text = this.#until(this.#quote);
    return text === undefined ? undefined : Text.given(text);
  }

  #until(mark: string): string | undefined {
    const end = this.#text.indexOf(mark, this.#at);
    if (end < 0) return undefined;
    const text = this.#text.slice(this.#at, end);
    this.#at = end + mark.length;
    return text;
  }
}

const WORDS: Readonly<Record<string, Value>> = { true: true, false: false, null: null };

/** A word without quotes: a number, true, false, null, or itself. */
function plain(word: string): Value | undefined {
  if (word === '') return undefined;
  if (Object.hasOwn(WORDS, word)) return WORDS[word]!;
  const number = /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(word) ? numberIn(word) : Number.NaN;
  return Number.isFinite(Number(number)) ? number : Text.given(word);
}
