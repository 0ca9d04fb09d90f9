/**
 * Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, or an answer that is `functools[…]` with
 * the same list.
 */
import { betweenMarks, type CallFormat, callsIn, jsonCalls, type Parsed } from './call.ts';

const [OPEN, CLOSE, WORD] = ['<|tool_call|>', '<|/tool_call|>', 'functools'];

export const phi: CallFormat = {
  name: 'phi',
  isOf: (template) => ['<|tool|>', OPEN, WORD].some((mark) => template.includes(mark)),
  controls: [OPEN, CLOSE],
  opens: [OPEN],
  opensAtStart: [`${WORD}[`],
  parse(answer): Parsed | null {
    const whole = answer.trim();
    if (!whole.startsWith(WORD)) return betweenMarks(answer, OPEN, CLOSE, callsIn);
    const calls = callsIn(whole.slice(WORD.length));
    return calls === null ? null : { text: '', calls };
  },
  grammar(tools, rules, spelling): string {
    const list = rules.add(jsonCalls(tools, rules, spelling));
    return `${spelling.mark(OPEN)} ${list} ${spelling.mark(CLOSE)} | "${WORD}" ${list}`;
  },
};
