/**
 * Llama 3.1 to 3.3: the whole answer is `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` before it,
 * several with `;` between them; or, of the tools that the model was trained with,
 * `<|python_tag|>name.call(query="…")`. Other code behind the tag is text.
 */
import { jsonOf } from '../../../../native/index.ts';
import { spelledValue } from '../../../transformer/template/spelled.ts';
import { Dict } from '../../../transformer/template/values.ts';
import { type CallFormat, callOf, jsonCall, jsonEnd, type Parsed, type ParsedCall, repeated } from './call.ts';

const TAG = '<|python_tag|>';
const BUILT_IN = /^(\w+)\.call\((.*)\)$/s;
const ARGUMENT = /^\s*(\w+)\s*=\s*("(?:[^"\\]|\\.)*")\s*(?:,|$)/s;

export const llama: CallFormat = {
  name: 'llama',
  isOf: (template) =>
    template.includes(TAG) || (template.includes('<|start_header_id|>') && template.includes('"parameters"')),
  controls: [TAG],
  opens: [TAG],
  opensAtStart: ['{'],
  parse(answer): Parsed | null {
    // An answer that is JSON may say the tag within.
    const tag = answer.trimStart().startsWith('{') ? -1 : answer.indexOf(TAG);
    const text = tag < 0 ? '' : answer.slice(0, tag).trim();
    const written = (tag < 0 ? answer : answer.slice(tag + TAG.length)).trim();
    const calls = written.startsWith('{') ? objects(written) : tag < 0 ? null : builtIn(written);
    return calls === null ? null : { text, calls };
  },
  // Behind the tag as well: what built-in tools take is no JSON, and has no schema.
  grammar(tools, rules, { mark, once }): string {
    return `(${mark(TAG)})? ${repeated(jsonCall(tools, rules, 'parameters'), '"; "', once)}`;
  },
};

function objects(written: string): ParsedCall[] | null {
  const all: ParsedCall[] = [];
  for (let rest = written; rest !== ''; ) {
    const end = rest.startsWith('{') ? jsonEnd(rest, 0) : -1;
    const value = end < 0 ? undefined : spelledValue(rest.slice(0, end));
    // An answer in JSON may have a name too.
    if (!(value instanceof Dict) || !['parameters', 'arguments'].some((key) => value.named(key) !== undefined))
      return null;
    const call = callOf(value);
    if (call === null) return null;
    all.push(call);
    rest = rest.slice(end).replace(/^[\s;]+/, '');
  }
  return all.length === 0 ? null : all;
}

function builtIn(written: string): ParsedCall[] | null {
  const match = BUILT_IN.exec(written);
  if (match === null) return null;
  const given: [string, unknown][] = [];
  for (let rest = match[2]!.trim(); rest !== ''; ) {
    const argument = ARGUMENT.exec(rest);
    const value = argument === null ? undefined : jsonOf(argument[2]!);
    if (value === undefined) return null;
    given.push([argument![1]!, value]);
    rest = rest.slice(argument![0].length).trim();
  }
  return [{ name: match[1]!, arguments: Object.fromEntries(given) }];
}
