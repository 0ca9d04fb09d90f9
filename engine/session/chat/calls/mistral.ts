/**
 * Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]`, and since its eleventh tokenizer
 * `[TOOL_CALLS]name[ARGS]{…}`, once for each call, with `[CALL_ID]…` between name and arguments where calls have ids.
 */
import { spelledValue } from '../../../transformer/template/spelled.ts';
import { Dict } from '../../../transformer/template/values.ts';
import {
  bareName,
  type CallFormat,
  calledWith,
  callsIn,
  jsonCalls,
  jsonEnd,
  type Parsed,
  type ParsedCall,
  repeated,
} from './call.ts';

const [OPEN, ARGUMENTS, ID] = ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'];

export const mistral: CallFormat = {
  name: 'mistral',
  isOf: (template) => template.includes(OPEN),
  controls: [OPEN, ARGUMENTS, ID],
  opens: [OPEN],
  opensAtStart: [],
  parse(answer): Parsed | null {
    const first = answer.indexOf(OPEN);
    const calls: ParsedCall[] = [];
    for (let at = first; at >= 0 && at < answer.length; ) {
      const written = answer.slice(at);
      // White space may follow each part.
      const end = written.startsWith(OPEN) ? endOf(written) : -1;
      const found = end < 0 ? null : read(written.slice(OPEN.length, end).trim());
      if (found === null) return null;
      calls.push(...found);
      at += end + written.slice(end).search(/\S|$/);
    }
    return first < 0 ? null : { text: answer.slice(0, first).trim(), calls };
  },
  grammar(tools, rules, spelling): string {
    const { template, mark, once } = spelling;
    if (!template.includes(ARGUMENTS)) return `${mark(OPEN)} " "? ${jsonCalls(tools, rules, spelling)}`;
    const id = template.includes(ID) ? `(${mark(ID)} [a-zA-Z0-9]{9})?` : '';
    const named = tools.map(({ name, given }) => `${bareName(name)} ${id} ${mark(ARGUMENTS)} ${given}`);
    return repeated(rules.add(`${mark(OPEN)} (${named.join(' | ')})`), '""', once);
  },
};

/** Where the JSON of what begins with the mark ends, or −1. */
function endOf(written: string): number {
  const list = /^\s*\[/.exec(written.slice(OPEN.length));
  return list === null
    ? jsonEnd(written, written.indexOf('{') < 0 ? written.length : written.indexOf('{'))
    : jsonEnd(written, OPEN.length + list[0].length - 1);
}

/** What stands behind one mark: a list of calls, or a name and its arguments. */
function read(written: string): ParsedCall[] | null {
  // A name is followed by a mark in square brackets; a list begins with one.
  if (written.startsWith('[')) return callsIn(written);
  const open = written.indexOf('{');
  if (open < 0) return null;
  const [name, id] = written.slice(0, open).replace(ARGUMENTS, '').split(ID);
  const given = spelledValue(written.slice(open));
  if (name!.trim() === '' || !(given instanceof Dict)) return null;
  const told = id?.trim() ?? '';
  return [{ ...calledWith(name!.trim(), given), ...(told === '' ? {} : { id: told }) }];
}
