/** What LangChain asks a chat model, as the messages, tools and choices of a chat here. */
import type { BaseMessage, ToolMessage } from '@langchain/core/messages';
import { asRecord, given, jsonOf, KvError, show } from '../../native/index.ts';
import type { SendOptions } from '../options/types.ts';
import type { ChatMessage, ChatTool, ToolCall } from '../transformer/types.ts';

const ROLES: Readonly<Record<string, ChatMessage['role']>> = {
  ...{ system: 'system', developer: 'system', human: 'user', user: 'user' },
  ...{ ai: 'assistant', assistant: 'assistant', tool: 'tool' },
};

/** Parts of a message of the assistant that are no text: they are told apart from it, or not read again. */
const BESIDE_TEXT: readonly string[] = ['reasoning', 'thinking', 'tool_use', 'tool_call', 'tool_call_chunk'];

/** Throws 'bad-argument', 'unsupported' for what no answer can be made of. */
export function chatMessages(messages: readonly BaseMessage[]): ChatMessage[] {
  return messages.map((message, index) => chatMessage(message, `messages[${index}]`));
}

function chatMessage(message: BaseMessage, where: string): ChatMessage {
  const kind = message.getType() === 'generic' ? String((message as { role?: unknown }).role) : message.getType();
  const role = Object.hasOwn(ROLES, kind) ? ROLES[kind]! : undefined;
  if (role === undefined)
    throw new KvError('bad-argument', `${where} is of ${show(kind)}, and a chat here has system, human, ai and tool`, {
      values: { where, role: show(kind) },
    });
  const content = textOf(message.content, role, where);
  if (role === 'tool') {
    const { tool_call_id: toolCallId, name } = message as ToolMessage;
    return { role, content, toolCallId, ...given({ name }) };
  }
  const toolCalls = role === 'assistant' ? callsOf(message) : [];
  return { role, content, ...(toolCalls.length === 0 ? {} : { toolCalls }) };
}

/** Texts of a person are joined by line breaks, those of an answer are pieces of one. */
function textOf(content: BaseMessage['content'], role: ChatMessage['role'], where: string): string {
  if (typeof content === 'string') return content;
  const texts: string[] = [];
  for (const part of content as readonly unknown[]) {
    const { type, text } = asRecord(part) ?? {};
    if (typeof part === 'string') texts.push(part);
    else if (typeof text === 'string') texts.push(text);
    else if (role !== 'assistant' || !BESIDE_TEXT.includes(String(type)))
      throw new KvError('unsupported', `${where} has a part of type ${show(type)}, and models here read texts`, {
        values: { where, type: show(type) },
      });
  }
  return texts.join(role === 'assistant' ? '' : '\n');
}

/** Calls with the arguments as they were written, where the message still has them. */
function callsOf(message: BaseMessage): ToolCall[] {
  const { tool_calls: calls = [] } = message as { tool_calls?: readonly LangChainCall[] };
  const { palimpsest } = message.response_metadata as { palimpsest?: { argumentsTexts?: readonly string[] } };
  return calls.map(({ id = '', name, args }, index) => {
    const written = palimpsest?.argumentsTexts?.[index];
    const isSame = written !== undefined && JSON.stringify(jsonOf(written)) === JSON.stringify(args);
    return { id, name, arguments: { ...args }, ...(isSame ? { argumentsText: written } : {}) };
  });
}

interface LangChainCall {
  readonly id?: string;
  readonly name: string;
  readonly args: Readonly<Record<string, unknown>>;
}

/** Tools in OpenAI's form, as a chat has them. */
export function chatTools(tools: readonly unknown[]): ChatTool[] {
  return tools.map((tool, index) => {
    const { name, description, parameters } = asRecord(asRecord(tool)?.['function']) ?? {};
    if (typeof name !== 'string')
      throw new KvError('bad-argument', `tools[${index}] is no function`, { values: { tool: show(tool) } });
    return given<ChatTool>({
      name,
      description: typeof description === 'string' ? description : undefined,
      parameters: asRecord(parameters),
    });
  });
}

/** LangChain's choice ('any' or 'required', 'auto', 'none', a name, OpenAI's object) as a chat has it. */
export function chosen(choice: unknown): NonNullable<SendOptions['toolChoice']> {
  if (choice === undefined || choice === 'auto') return 'auto';
  if (choice === 'any' || choice === 'required') return 'required';
  if (choice === 'none') return 'none';
  const { function: called, name = asRecord(called)?.['name'] } = asRecord(choice) ?? {};
  return { name: typeof choice === 'string' ? choice : String(name) };
}
