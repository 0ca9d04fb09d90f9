/**
 * Hermes, and Qwen 2.5 and 3 after it: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as often as there are
 * calls.
 */
import { betweenMarks, type CallFormat, callsIn, jsonCall, repeated } from './call.ts';

const [OPEN, CLOSE] = ['<tool_call>', '</tool_call>'];

export const hermes: CallFormat = {
  name: 'hermes',
  // Qwen3-Coder writes XML between the same marks.
  isOf: (template) => template.includes(OPEN) && !template.includes('<function='),
  controls: [OPEN, CLOSE],
  opens: [OPEN],
  opensAtStart: [],
  parse: (answer) => betweenMarks(answer, OPEN, CLOSE, callsIn),
  grammar(tools, rules, { mark, once }): string {
    const call = rules.add(`${mark(OPEN)} "\\n"? ${jsonCall(tools, rules)} "\\n"? ${mark(CLOSE)}`);
    return repeated(call, '"\\n"?', once);
  },
};
