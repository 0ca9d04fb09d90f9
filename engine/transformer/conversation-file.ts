/**
 * A conversation as it is sent to an OpenAI server, and as templates know it: a list of messages, or an object that has
 * `tools`, `add_generation_prompt` and `continue_final_message` beside `messages`. Numbers of arguments and schemas
 * stay as they were written.
 */
import { asRecord, KvError, parseJson, show } from '../../native/index.ts';
import { checkMessages, checkTools } from './chat-messages.ts';
import { plainOf, spelledValue, spellingOf } from './template/spelled.ts';
import { Text } from './template/text.ts';
import { Dict, type Value } from './template/values.ts';
import type { ChatMessage, ChatRenderOptions, ChatTool, ToolCall } from './types.ts';

export interface ReadConversation {
  readonly messages: readonly ChatMessage[];
  readonly options: ChatRenderOptions & { readonly tools: readonly ChatTool[] };
}

/** bytes: JSON of `what`, which messages name. Throws 'bad-argument' for what is no conversation. */
export function conversationIn(bytes: Uint8Array, what: string): ReadConversation {
  parseJson(bytes, { code: 'bad-argument', what });
  const value = spelledValue(Buffer.from(bytes).toString('utf8'))!;
  const field = (name: string): Value | undefined => (value instanceof Dict ? value.named(name) : undefined);
  const listed = Array.isArray(value) ? value : field('messages');
  if (!Array.isArray(listed))
    throw new KvError('bad-argument', 'a conversation is a list of messages, or an object with messages', {
      hint: '{"messages": [{"role": "user", "content": "Hi"}], "tools": []}',
    });
  const messages = listed.map((message, index) => messageIn(message, `messages[${index}]`));
  checkMessages(messages);
  const given = field('tools') ?? [];
  const tools = (Array.isArray(given) ? given.map(toolIn) : plainOf(given)) as ChatTool[];
  checkTools(tools);
  const continueFinalMessage = field('continue_final_message') === true;
  if (continueFinalMessage && field('add_generation_prompt') === true)
    throw new KvError(
      'bad-argument',
      'add_generation_prompt begins an answer, continue_final_message goes on with one',
      {
        hint: 'leave one of the two out',
      },
    );
  return {
    messages,
    options: { tools, continueFinalMessage, addGenerationPrompt: field('add_generation_prompt') !== false },
  };
}

/** A field of what may be no object; undefined where it is null, too. */
const fieldOf = (of: Value, name: string): Value | undefined =>
  (of instanceof Dict ? of.named(name) : undefined) ?? undefined;

/** The field of a text beside the data that it spells, where it says more. */
function spelling(
  field: 'argumentsText' | 'parametersText',
  value: Value | undefined,
): Readonly<Record<string, string>> {
  const text = value === undefined ? undefined : spellingOf(value);
  return text === undefined ? {} : { [field]: text };
}

/** What is none comes back as it was, for checkMessages to refuse. */
function messageIn(given: Value, where: string): ChatMessage {
  if (!(given instanceof Dict)) return plainOf(given) as ChatMessage;
  const { role, content, tool_call_id: toolCallId, name } = plainOf(given) as Readonly<Record<string, unknown>>;
  const calls = fieldOf(given, 'tool_calls');
  const toolCalls = Array.isArray(calls)
    ? calls.map((call, index) => callIn(call, `${where}.tool_calls[${index}]`))
    : plainOf(calls ?? null);
  return {
    role: role === 'developer' ? 'system' : role,
    content: contentIn(content, where),
    ...(calls === undefined ? {} : { toolCalls }),
    ...(toolCallId == null ? {} : { toolCallId }),
    ...(name == null ? {} : { name }),
  } as ChatMessage;
}

/** The parts of a text that models read, one a line, as llama.cpp joins them; what is no list comes back as it was. */
const TEXT_PARTS: readonly unknown[] = ['text', 'input_text', 'output_text'];

/** Throws 'unsupported' for pictures, sounds and files. */
function contentIn(content: unknown, where: string): unknown {
  if (!Array.isArray(content)) return content ?? '';
  const texts = content.map((part: unknown, index) => {
    const { type, text } = asRecord(part) ?? {};
    if (TEXT_PARTS.includes(type) && typeof text === 'string') return text;
    const param = `${where}.content[${index}]`;
    throw new KvError('unsupported', `${param} is no text, and models here read nothing else`, {
      values: { param, type: show(type) },
      hint: '{"type": "text", "text": "…"}',
    });
  });
  return texts.join('\n');
}

function callIn(given: Value, where: string): ToolCall {
  const called = fieldOf(given, 'function') ?? null;
  const [id, name] = [fieldOf(given, 'id') ?? Text.empty, fieldOf(called, 'name') ?? null];
  const written = fieldOf(called, 'arguments') ?? new Dict();
  const args = written instanceof Text ? argumentsIn(written.value, `${where}.function.arguments`) : written;
  const call = { id: plainOf(id), name: plainOf(name), arguments: plainOf(args) };
  return { ...call, ...spelling('argumentsText', args) } as ToolCall;
}

function argumentsIn(text: string, param: string): Value {
  const value = spelledValue(text);
  if (value !== undefined) return value;
  throw new KvError('bad-argument', `the arguments of a call are no JSON: ${param}`, {
    values: { param, arguments: text.slice(0, 200) },
  });
}

/** A tool by itself, or as the `function` of one. */
function toolIn(given: Value): ChatTool {
  const tool = fieldOf(given, 'function') ?? given;
  return { ...(plainOf(tool) as ChatTool), ...spelling('parametersText', fieldOf(tool, 'parameters')) };
}
