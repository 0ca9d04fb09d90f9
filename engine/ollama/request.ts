/** Requests of Ollama's API as schemas, and what they are as requests of a chat. */
import { z } from 'zod';
import type { Said } from '../openai/asked.ts';
import { type ChatRequest, GOVERNING, maybe, SAMPLING, schema } from '../openai/request.ts';
import { conversationIn } from '../transformer/conversation-file.ts';

const options = maybe(
  z.looseObject({
    ...SAMPLING,
    num_predict: maybe(z.int()).describe('most tokens of the answer; below 1: as many as the server says'),
  }),
);

const none = maybe(z.array(z.unknown()).length(0)).describe('pictures are not read');

const message = z.looseObject({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: maybe(z.string()),
  images: none,
  tool_calls: maybe(
    z.array(
      z.looseObject({ function: z.looseObject({ name: z.string(), arguments: z.record(z.string(), z.unknown()) }) }),
    ),
  ),
});

const EITHER = {
  model: z.string().max(300),
  format: maybe(z.union([z.enum(['', 'json']), schema])).describe('json, or a schema that the answer fulfils'),
  options,
  stream: maybe(z.boolean()).describe('left out: true'),
  adapters: GOVERNING.adapters,
};

export const OLLAMA_CHAT_REQUEST = z.looseObject({
  ...EITHER,
  messages: z.array(message).min(1),
  tools: maybe(z.array(z.unknown())),
});
export type OllamaChatRequest = z.infer<typeof OLLAMA_CHAT_REQUEST>;

export const GENERATE_REQUEST = z.looseObject({
  ...EITHER,
  prompt: z.string().min(1),
  system: maybe(z.string()),
  images: none,
  suffix: maybe(z.literal('')).describe('nothing is filled in between two texts'),
  raw: maybe(z.literal(false)).describe('a text that goes on is asked for at /v1/completions'),
});

export const SHOW_REQUEST = z.looseObject({ model: z.string().max(300) });

type Either = z.infer<z.ZodObject<typeof EITHER>>;

/** A name as this server knows it: Ollama's clients add a tag to it. */
export const untagged = (name: string): string => name.replace(/:latest$/, '');

/** What it asks for, as a chat of OpenAI's API says it. */
export function chatRequestOf(
  { options: asked, format, stream, adapters }: Either,
  {
    messages,
    tools,
  }: { readonly messages: readonly unknown[]; readonly tools?: readonly unknown[] | null | undefined },
): ChatRequest {
  const { num_predict: most, ...sampling } = asked ?? {};
  return {
    ...sampling,
    messages: [...messages],
    tools: tools == null ? null : [...tools],
    max_tokens: most == null || most < 1 ? null : most,
    response_format: formatOf(format),
    stream: stream !== false,
    adapters,
  };
}

function formatOf(format: Either['format']): ChatRequest['response_format'] {
  if (format == null || format === '') return null;
  if (format === 'json') return { type: 'json_object' };
  return { type: 'json_schema', json_schema: { schema: format } };
}

/** What is said. Ollama's calls have no ids, so each answer is of the call at its place. */
export function saidIn({ messages, tools }: Pick<OllamaChatRequest, 'messages' | 'tools'>): Said {
  let calls: string[] = [];
  const told = messages.map((one, at) => {
    const { role, content, tool_calls: called } = one;
    if (role === 'tool') return { role, tool_call_id: calls.shift() ?? null, content: content ?? '' };
    if (role !== 'assistant' || called == null || called.length === 0) return { role, content: content ?? '' };
    calls = called.map((_, index) => `m${String(at).padStart(4, '0')}${String(index).padStart(4, '0')}`);
    const tool_calls = called.map(({ function: { name, arguments: given } }, index) => ({
      id: calls[index],
      type: 'function',
      function: { name, arguments: JSON.stringify(given) },
    }));
    return { role, content: content ?? '', tool_calls };
  });
  const read = conversationIn(Buffer.from(JSON.stringify({ messages: told, tools: tools ?? [] })), 'the body');
  return { messages: read.messages, tools: read.options.tools };
}
