/** Requests of Anthropic's API as schemas, and what they are as requests of a chat. */
import { z } from 'zod';
import type { Said } from '../openai/asked.ts';
import { type ChatRequest, GOVERNING, maybe, model, SAMPLING, STOPS_MAX } from '../openai/request.ts';
import { conversationIn } from '../transformer/conversation-file.ts';

const text = z.looseObject({ type: z.literal('text'), text: z.string() });
const texts = z.union([z.string(), z.array(text)]);
/** What models here do not write, and need not read. */
const thought = z.looseObject({ type: z.enum(['thinking', 'redacted_thinking']) });
const block = z.discriminatedUnion('type', [
  text,
  z.looseObject({
    type: z.literal('tool_use'),
    id: z.string(),
    name: z.string(),
    input: z.record(z.string(), z.unknown()),
  }),
  z.looseObject({ type: z.literal('tool_result'), tool_use_id: z.string(), content: maybe(texts) }),
  thought,
]);
const message = z.looseObject({ role: z.enum(['user', 'assistant']), content: z.union([z.string(), z.array(block)]) });
type Message = z.infer<typeof message>;

const tool = z.looseObject({
  type: maybe(z.literal('custom')),
  name: z.string().min(1),
  description: maybe(z.string()),
  input_schema: z.record(z.string(), z.unknown()),
});

const toolChoice = z.discriminatedUnion('type', [
  z.looseObject({ type: z.enum(['auto', 'any']), disable_parallel_tool_use: maybe(z.boolean()) }),
  z.looseObject({ type: z.literal('tool'), name: z.string(), disable_parallel_tool_use: maybe(z.boolean()) }),
  z.looseObject({ type: z.literal('none') }),
]);

const CONVERSATION = {
  model,
  system: maybe(texts),
  messages: z.array(message).min(1).describe('of texts, calls of tools and what these gave back'),
  tools: maybe(z.array(tool)),
  tool_choice: maybe(toolChoice),
};

export const COUNT_REQUEST = z.looseObject(CONVERSATION);

export const MESSAGES_REQUEST = z
  .looseObject({
    ...CONVERSATION,
    max_tokens: z.int().min(1),
    stop_sequences: maybe(z.array(z.string().min(1)).max(STOPS_MAX)),
    stream: maybe(z.boolean()),
    temperature: SAMPLING.temperature,
    top_p: SAMPLING.top_p,
    top_k: SAMPLING.top_k,
    seed: SAMPLING.seed,
    ...GOVERNING,
  })
  .describe('What is not named here is let pass and does nothing.');
export type MessagesRequest = z.infer<typeof MESSAGES_REQUEST>;
export type CountRequest = z.infer<typeof COUNT_REQUEST>;

/** What is said, with the messages of the system first. Throws 'bad-argument', 'unsupported'. */
export function saidIn({ system, messages, tools }: CountRequest): Said {
  const body = {
    messages: [
      ...(system == null ? [] : [{ role: 'system', content: joined(system) }]),
      ...messages.flatMap((one) => (one.role === 'user' ? asked(one) : [answered(one)])),
    ],
    tools: (tools ?? []).map(({ name, description, input_schema }) => ({
      type: 'function',
      function: { name, ...(description == null ? {} : { description }), parameters: input_schema },
    })),
  };
  const read = conversationIn(Buffer.from(JSON.stringify(body)), 'the body');
  return { messages: read.messages, tools: read.options.tools };
}

const joined = (content: z.infer<typeof texts>): string =>
  typeof content === 'string' ? content : content.map((one) => one.text).join('\n');

/** What tools gave back, each a message of its own, and then what is asked. */
function asked({ content }: Message): object[] {
  if (typeof content === 'string') return [{ role: 'user', content }];
  const said = content.filter((one) => one.type === 'text');
  return [
    ...content
      .filter((one) => one.type === 'tool_result')
      .map((one) => ({ role: 'tool', tool_call_id: one.tool_use_id, content: joined(one.content ?? '') })),
    ...(said.length === 0 ? [] : [{ role: 'user', content: joined(said) }]),
  ];
}

function answered({ content }: Message): object {
  if (typeof content === 'string') return { role: 'assistant', content };
  const calls = content.filter((one) => one.type === 'tool_use');
  return {
    role: 'assistant',
    content: joined(content.filter((one) => one.type === 'text')),
    ...(calls.length === 0
      ? {}
      : {
          tool_calls: calls.map(({ id, name, input }) => ({
            id,
            type: 'function',
            function: { name, arguments: JSON.stringify(input) },
          })),
        }),
  };
}

/** What it asks for, as a chat of OpenAI's API says it. */
export function chatRequestOf(request: MessagesRequest): ChatRequest {
  const { messages, tools, tool_choice: choice, stop_sequences: stop, ...rest } = request;
  const named = choice?.type === 'tool' ? ({ type: 'function', function: { name: choice.name } } as const) : null;
  const mode = choice?.type === 'any' ? 'required' : choice?.type === 'none' ? 'none' : null;
  return {
    ...rest,
    messages,
    tools: tools ?? null,
    stop,
    tool_choice: named ?? mode,
    parallel_tool_calls:
      choice != null && 'disable_parallel_tool_use' in choice && choice.disable_parallel_tool_use === true
        ? false
        : null,
  };
}
