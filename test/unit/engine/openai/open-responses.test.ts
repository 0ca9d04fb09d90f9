// What openresponses.org asks of a server, by its description: six of its seven conversations, begun at once, whose
// responses and events have every field that it requires. The seventh shows a picture, which no model here reads.
import { beforeAll, expect, it } from 'vitest';
import { z } from 'zod';
import { eventsIn, type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});

const count = z.int().min(0);
const status = z.enum(['in_progress', 'completed', 'incomplete']);
const outputText = z.object({
  type: z.literal('output_text'),
  text: z.string(),
  annotations: z.array(z.unknown()),
  logprobs: z.array(z.unknown()),
});
const item = z.discriminatedUnion('type', [
  z.object({
    type: z.literal('message'),
    id: z.string().min(1),
    status,
    role: z.literal('assistant'),
    content: z.array(outputText),
  }),
  z.object({
    type: z.literal('function_call'),
    id: z.string().min(1),
    call_id: z.string().min(1),
    name: z.string().min(1),
    arguments: z.string(),
    status,
  }),
]);
const usage = z.object({
  input_tokens: count,
  output_tokens: count,
  total_tokens: count,
  input_tokens_details: z.object({ cached_tokens: count }),
  output_tokens_details: z.object({ reasoning_tokens: count }),
});
const resource = z.object({
  id: z.string().min(1),
  object: z.literal('response'),
  created_at: count,
  completed_at: count.nullable(),
  status: z.enum(['in_progress', 'completed', 'incomplete', 'failed']),
  incomplete_details: z.object({ reason: z.string() }).nullable(),
  model: z.string().min(1),
  previous_response_id: z.string().nullable(),
  instructions: z.string().nullable(),
  output: z.array(item),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  tools: z.array(
    z.object({
      type: z.literal('function'),
      name: z.string(),
      description: z.string().nullable(),
      parameters: z.record(z.string(), z.unknown()).nullable(),
      strict: z.boolean().nullable(),
    }),
  ),
  tool_choice: z.union([z.enum(['none', 'auto', 'required']), z.object({ type: z.string() })]),
  truncation: z.enum(['auto', 'disabled']),
  parallel_tool_calls: z.boolean(),
  text: z.object({ format: z.object({ type: z.string() }) }),
  ...{ top_p: z.number(), presence_penalty: z.number(), frequency_penalty: z.number(), temperature: z.number() },
  top_logprobs: count,
  reasoning: z.object({ effort: z.string().nullable(), summary: z.string().nullable() }).nullable(),
  usage: usage.nullable(),
  max_output_tokens: count.nullable(),
  max_tool_calls: count.nullable(),
  ...{ store: z.boolean(), background: z.boolean() },
  service_tier: z.string(),
  metadata: z.record(z.string(), z.unknown()),
  safety_identifier: z.string().nullable(),
  prompt_cache_key: z.string().nullable(),
});
type Resource = z.infer<typeof resource>;

const place = { output_index: count, item_id: z.string() };
const inPart = { ...place, content_index: count };
const EVENTS: Readonly<Record<string, z.ZodObject>> = {
  'response.created': z.object({ response: resource }),
  'response.in_progress': z.object({ response: resource }),
  'response.completed': z.object({ response: resource }),
  'response.incomplete': z.object({ response: resource }),
  'response.output_item.added': z.object({ output_index: count, item }),
  'response.output_item.done': z.object({ output_index: count, item }),
  'response.content_part.added': z.object({ ...inPart, part: outputText }),
  'response.content_part.done': z.object({ ...inPart, part: outputText }),
  'response.output_text.delta': z.object({ ...inPart, delta: z.string(), logprobs: z.array(z.unknown()) }),
  'response.output_text.done': z.object({ ...inPart, text: z.string(), logprobs: z.array(z.unknown()) }),
  'response.function_call_arguments.delta': z.object({ ...place, delta: z.string() }),
  'response.function_call_arguments.done': z.object({ ...place, arguments: z.string() }),
};

const said = (role: string, content: string) => ({ type: 'message', role, content });
const TOOL = {
  type: 'function',
  name: 'weather',
  description: 'The weather of a place.',
  parameters: {
    type: 'object',
    properties: { place: { type: 'string', enum: ['Oslo', 'Rome'] } },
    required: ['place'],
    additionalProperties: false,
  },
};
/** A small model calls no tool of its own accord, so each is asked for one. */
const calling = { tools: [TOOL], tool_choice: 'required', parallel_tool_calls: false, max_output_tokens: 400 };

/** By name: what is asked. */
const ASKED = {
  'a text': { input: [said('user', 'What is wax?')] },
  'a text in events': { input: [said('user', 'What is wax?')], stream: true },
  'a system prompt': { input: [said('system', 'You keep bees.'), said('user', 'What is wax?')] },
  'a call': { input: [said('user', 'How is it in Rome?')], ...calling },
  'a call in events': { input: [said('user', 'How is it in Rome?')], ...calling, stream: true },
  'several turns': {
    input: [said('user', 'My name is Ann.'), said('assistant', 'Good day, Ann.'), said('user', 'What is my name?')],
  },
} as const;
type Name = keyof typeof ASKED;

const answers = new Map<Name, { readonly type: string; readonly text: string }>();
beforeAll(async () => {
  await Promise.all(
    (Object.keys(ASKED) as Name[]).map(async (name) => {
      const response = await fetch(`${served.url}/v1/responses`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'reference', max_output_tokens: 48, seed: 3, ...ASKED[name] }),
      });
      answers.set(name, { type: response.headers.get('content-type')!, text: await response.text() });
    }),
  );
});

const whole = (name: Name): Resource => resource.parse(JSON.parse(answers.get(name)!.text));

interface Told {
  readonly type: string;
  readonly sequence_number: number;
  readonly response?: Resource;
}

/** Checks each event by its type, and that they are counted. */
function events(name: Name): Told[] {
  const all = eventsIn(answers.get(name)!.text)
    .filter((data) => data !== '[DONE]')
    .map((data) => JSON.parse(data) as Told);
  for (const event of all) {
    expect(Object.keys(EVENTS)).toContain(event.type);
    EVENTS[event.type]!.parse(event);
  }
  expect(all.map((event) => event.sequence_number)).toEqual(all.map((_, at) => at));
  return all;
}

it.each(['a text', 'a system prompt', 'several turns'] as const)('%s has a message', (name) => {
  const { output, status: end, usage: took } = whole(name);
  expect(output.map(({ type }) => type)).toEqual(['message']);
  expect(['completed', 'incomplete']).toContain(end);
  expect(took!.total_tokens).toBe(took!.input_tokens + took!.output_tokens);
});

it('a text in events is that of the last one', () => {
  const all = events('a text in events');
  const { output } = all.at(-1)!.response!;
  const deltas = all.flatMap((event) => (event.type === 'response.output_text.delta' ? [event] : []));
  const [message] = output as [Extract<Resource['output'][number], { type: 'message' }>];
  expect(deltas.map((event) => (event as unknown as { delta: string }).delta).join('')).toBe(message.content[0]!.text);
  expect(message.content[0]!.text).not.toBe('');
});

it('a call has a name that there is, and arguments that are JSON', () => {
  const [call] = whole('a call').output as [Extract<Resource['output'][number], { type: 'function_call' }>];
  expect([call.type, call.name]).toEqual(['function_call', 'weather']);
  expect(['Oslo', 'Rome']).toContain((JSON.parse(call.arguments) as { place: string }).place);
});

it('a call in events begins, has its arguments and ends before the response does', () => {
  const types = events('a call in events').map(({ type }) => type);
  expect(types).toEqual([
    'response.created',
    'response.in_progress',
    'response.output_item.added',
    'response.function_call_arguments.delta',
    'response.function_call_arguments.done',
    'response.output_item.done',
    'response.completed',
  ]);
});

it('events are said to be some', () => {
  for (const [name, { type }] of answers)
    expect([name, type.split(';', 1)[0]]).toEqual([
      name,
      'stream' in ASKED[name] ? 'text/event-stream' : 'application/json',
    ]);
});
