/**
 * Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]`, and since its eleventh tokenizer `[TOOL_CALLS]name[ARGS]{…}`, once for each call, with
 * `[CALL_ID]…` between name and arguments where calls have ids.
 */
import { type CallFormat, callsOf, jsonEnd, jsonOf, type Parsed, type ParsedCall } from './call.ts';

const [OPEN, ARGUMENTS, ID] = ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'];

export const mistral: CallFormat = {
  name: 'mistral',
  isOf: (template) => template.includes(OPEN),
  controls: [OPEN, ARGUMENTS, ID],
  opens: [OPEN],
  opensAtStart: [],
  parse(answer): Parsed | null {
    const [text, ...written] = answer.split(OPEN);
    const found = written.map((one) => (one.trimStart().startsWith('[') ? list(one.trim()) : named(one.trim())));
    if (found.length === 0 || found.some((calls) => calls === null)) return null;
    return { text: text!.trim(), calls: found.flatMap((calls) => calls!) };
  },
};

function list(written: string): ParsedCall[] | null {
  const end = jsonEnd(written, 0);
  return end === written.length ? callsOf(jsonOf(written)) : null;
}

function named(written: string): ParsedCall[] | null {
  const open = written.indexOf('{');
  if (open < 0 || jsonEnd(written, open) !== written.length) return null;
  const [name, id] = written.slice(0, open).replace(ARGUMENTS, '').split(ID);
  const given = { name: name!.trim(), arguments: jsonOf(written.slice(open)), id: id?.trim() };
  return given.arguments === undefined ? null : callsOf(given);
}
