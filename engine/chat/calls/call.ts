/** What a way of writing tool calls is, and what most of them have in common: JSON, of which a model may write anything. */
import type { ToolCall } from '../../model/types.ts';

/** A call as the model wrote it; most families give it no id. */
export interface ParsedCall extends Pick<ToolCall, 'name' | 'arguments'> {
  readonly id?: string;
}

/** An answer taken apart: what is said, and what is called. */
export interface Parsed {
  readonly text: string;
  readonly calls: readonly ParsedCall[];
}

/** How a family of models writes calls. */
export interface CallFormat {
  readonly name: string;
  /** Whether a chat template makes a model write them so. */
  isOf(template: string): boolean;
  /** Control tokens that are part of a call, and so have to be seen. */
  readonly controls: readonly string[];
  /** What a call begins with, anywhere in an answer. */
  readonly opens: readonly string[];
  /** What a call begins with where it begins the answer. */
  readonly opensAtStart: readonly string[];
  /** null: there is no call, or one that is malformed, so all of it is text. Never throws. */
  parse(answer: string): Parsed | null;
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

/** What JSON says, or undefined. */
export function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** A call of { name, arguments }, or `parameters` as some have it; arguments may be JSON in a string. null: it is none. */
export function callOf(value: unknown): ParsedCall | null {
  if (!isObject(value)) return null;
  const inner = isObject(value['function']) ? value['function'] : value;
  const { name, id } = { name: inner['name'], id: value['id'] };
  const given = inner['arguments'] ?? inner['parameters'] ?? {};
  const read = typeof given === 'string' ? jsonOf(given) : given;
  if (typeof name !== 'string' || name === '' || !isObject(read)) return null;
  return { name, arguments: read, ...(typeof id === 'string' && id !== '' ? { id } : {}) };
}

/** The calls of a list, or of one call by itself; null where one of them is none. */
export function callsOf(value: unknown): ParsedCall[] | null {
  const calls = (Array.isArray(value) ? value : [value]).map(callOf);
  return calls.length > 0 && calls.every((call) => call !== null) ? calls : null;
}

/** An answer whose calls stand between two marks, of which the last may be missing where the answer ends. `read` gets what is between. */
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
    const end = answer.indexOf(close, from + open.length);
    const found = read(answer.slice(from + open.length, end < 0 ? answer.length : end).trim());
    if (found === null) return null;
    calls.push(...found);
    at = end < 0 ? answer.length : end + close.length;
  }
  return calls.length === 0 ? null : { text: (text + answer.slice(at)).trim(), calls };
}
