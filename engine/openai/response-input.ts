/** The input of `/v1/responses` as the messages that a chat reads. */
import { given, KvError } from '../../native/index.ts';
import { conversationIn } from '../transformer/conversation-file.ts';
import type { ChatMessage, ChatTool } from '../transformer/types.ts';
import type { InputItem, ResponseRequest } from './request.ts';

/** Messages and tools as OpenAI's chats have them. */
interface ChatBody {
  readonly messages: readonly object[];
  readonly tools: readonly object[];
}

/** What was said before, one item each, as the API has them. */
export const itemsOf = ({ input }: Pick<ResponseRequest, 'input'>): readonly InputItem[] =>
  typeof input === 'string' ? [{ type: 'message', role: 'user', content: input }] : input;

/**
 * The messages of a response: its instructions, what was said before it and what it is asked. Throws 'bad-argument',
 * 'unsupported'.
 */
export function conversationOf(
  { instructions, tools }: Pick<ResponseRequest, 'instructions' | 'tools'>,
  items: readonly InputItem[],
): { readonly messages: readonly ChatMessage[]; readonly tools: readonly ChatTool[] } {
  const first = instructions == null ? [] : [{ role: 'system', content: instructions }];
  const body: ChatBody = {
    messages: [...first, ...messagesOf(items)],
    tools: (tools ?? []).map((tool) => ({ type: 'function', function: given({ ...tool, type: undefined }) })),
  };
  const read = conversationIn(Buffer.from(JSON.stringify(body)), 'the input');
  return { messages: read.messages, tools: read.options.tools };
}

/** Calls are part of the message of the assistant before them, or of one of their own. */
function messagesOf(items: readonly InputItem[]): object[] {
  const messages: { role: string; content?: unknown; tool_calls?: object[]; tool_call_id?: string }[] = [];
  for (const item of items) {
    if (item.type === 'reasoning') continue;
    if (item.type === 'function_call') {
      const last = messages.at(-1);
      const call = { id: item.call_id, type: 'function', function: { name: item.name, arguments: item.arguments } };
      if (last?.role === 'assistant') last.tool_calls = [...(last.tool_calls ?? []), call];
      else messages.push({ role: 'assistant', content: null, tool_calls: [call] });
    } else if (item.type === 'function_call_output')
      messages.push({ role: 'tool', tool_call_id: item.call_id, content: item.output });
    else messages.push({ role: item.role, content: item.content });
  }
  if (messages.length === 0) throw new KvError('bad-argument', 'nothing is said', { values: { param: 'input' } });
  return messages;
}
