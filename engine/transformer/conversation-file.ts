/**
 * A conversation as it is sent to an OpenAI server, and as templates know it: a list of messages, or an object that has
 * `tools`, `add_generation_prompt` and `continue_final_message` beside `messages`.
 */
import { asRecord, KvError } from '../../native/index.ts';
import { checkMessages, checkTools } from './chat-messages.ts';
import type { ChatMessage, ChatRenderOptions, ChatTool, ToolCall } from './types.ts';

export interface ReadConversation {
  readonly messages: readonly ChatMessage[];
  readonly options: ChatRenderOptions & { readonly tools: readonly ChatTool[] };
}

/** Throws 'bad-argument' for what is none. */
export function conversationIn(json: unknown): ReadConversation {
  const object = Array.isArray(json) ? { messages: json } : asRecord(json);
  const listed = object?.['messages'];
  if (!Array.isArray(listed))
    throw new KvError('bad-argument', 'a conversation is a list of messages, or an object with messages', {
      hint: '{"messages": [{"role": "user", "content": "Hi"}], "tools": []}',
    });
  const messages = listed.map(messageIn);
  checkMessages(messages);
  const given = object?.['tools'] ?? [];
  const tools = (
    Array.isArray(given) ? given.map((tool) => asRecord(tool)?.['function'] ?? tool) : given
  ) as ChatTool[];
  checkTools(tools);
  const continuesLast = object?.['continue_final_message'] === true;
  return {
    messages,
    options: { tools, continuesLast, addGenerationPrompt: object?.['add_generation_prompt'] !== false },
  };
}

/** What is none comes back as it was, for checkMessages to refuse. */
function messageIn(given: unknown): ChatMessage {
  const message = asRecord(given);
  if (message == null) return given as ChatMessage;
  const { role, content, tool_calls: calls, tool_call_id: toolCallId, name } = message;
  return {
    role,
    content: content ?? '',
    ...(calls == null ? {} : { toolCalls: Array.isArray(calls) ? calls.map(callIn) : calls }),
    ...(toolCallId == null ? {} : { toolCallId }),
    ...(name == null ? {} : { name }),
  } as ChatMessage;
}

function callIn(given: unknown): ToolCall {
  const { id = '', function: called } = asRecord(given) ?? {};
  const { name, arguments: args = {} } = asRecord(called) ?? {};
  return { id, name, arguments: typeof args === 'string' ? argumentsIn(args) : args } as ToolCall;
}

function argumentsIn(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new KvError('bad-argument', 'the arguments of a call are no JSON', {
      values: { arguments: text.slice(0, 200) },
      cause,
    });
  }
}
