/** Requests of OpenAI's API as schemas: what is checked, and what the OpenAPI document says, both come from here. */
import { z } from 'zod';
import { asRecord, KvError } from '../../native/index.ts';
import { ADAPTERS_MAX } from '../options/table.ts';

/** What a field may be left out as, which some clients write as null. */
export const maybe = <Schema extends z.ZodType>(schema: Schema) => schema.nullish();

/** Answers of one request. */
const N_MAX = 16;
export const STOPS_MAX = 16;

/** How tokens are drawn, as OpenAI and, for what it does not have, llama-server name it. */
export const SAMPLING = {
  temperature: maybe(z.number().min(0).max(100)).describe('0: the most likely token'),
  top_p: maybe(z.number().gt(0).max(1)),
  top_k: maybe(z.int().min(0)).describe('0: all'),
  min_p: maybe(z.number().min(0).max(1)),
  typical_p: maybe(z.number().gt(0).max(1)),
  repeat_penalty: maybe(z.number()),
  repeat_last_n: maybe(z.int().min(-1)),
  frequency_penalty: maybe(z.number()),
  presence_penalty: maybe(z.number()),
  logit_bias: maybe(z.record(z.string().regex(/^\d{1,9}$/, 'a token id'), z.number())),
  seed: maybe(z.int()).describe('left out: another one each time, which the answer tells'),
  stop: maybe(z.union([z.string(), z.array(z.string()).max(STOPS_MAX)])),
};

/** What is asked of the cache and the scheduler; clients pass it through. */
export const GOVERNING = {
  kv_budget: maybe(z.union([z.string().max(40), z.number().positive()])).describe('as kvBudget of openSession'),
  kld_budget: maybe(z.number().positive()).describe('as kldBudget of openSession, in nats'),
  cache_salt: maybe(z.string().max(256)).describe('requests with another one share no cache'),
  prompt_cache_key: maybe(z.string().max(256)).describe('the same: requests with another one share no cache'),
  adapters: maybe(
    z.union([
      z.literal('proposed'),
      z.array(z.object({ name: z.string().max(256), scale: maybe(z.number()) })).max(ADAPTERS_MAX),
    ]),
  ).describe(
    'as adapters of openSession, in place of those of the server; []: none; proposed: those that earlier sessions with such a text used',
  ),
  priority: maybe(z.int()).describe('as schedulingPriority: lower is served first'),
  session: maybe(z.string().max(200)).describe('a session of /v1/sessions/held, which goes on with its cache as it is'),
  receipt: maybe(z.boolean()).describe('true: the answer comes with a receipt (docs/receipts.md)'),
};

/** What requests of both kinds say of how tokens are drawn and what is governed. */
const EITHER = z.object({ ...SAMPLING, ...GOVERNING });
export type EitherRequest = z.infer<typeof EITHER>;

const STREAMING = {
  stream: maybe(z.boolean()),
  stream_options: maybe(z.looseObject({ include_usage: maybe(z.boolean()) })),
};

const toolChoice = z.union([
  z.enum(['auto', 'none', 'required']),
  z.looseObject({ type: z.literal('function'), function: z.looseObject({ name: z.string().min(1) }) }),
]);

/** A schema of JSON Schema. */
export const schema = z.union([z.record(z.string(), z.unknown()), z.boolean()]);

/** What an answer has to be. Never free text where it cannot be followed. */
const responseFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object'), schema: maybe(schema) }),
  z.looseObject({ type: z.literal('json_schema'), json_schema: z.looseObject({ schema }) }),
]);

export const model = maybe(z.string().max(300)).describe('one of /v1/models; left out: the one there is');

export const CHAT_REQUEST = z
  .looseObject({
    model,
    messages: z.array(z.unknown()).min(1).describe('as OpenAI has them, of texts; a last one of the assistant goes on'),
    tools: maybe(z.array(z.unknown())).describe('functions that the model may ask for'),
    tool_choice: maybe(toolChoice),
    parallel_tool_calls: maybe(z.boolean()).describe('false: one call at most'),
    response_format: maybe(responseFormat),
    grammar: maybe(z.string()).describe('GBNF that the answer follows'),
    max_completion_tokens: maybe(z.int().min(1)),
    max_tokens: maybe(z.int().min(1)),
    n: maybe(z.int().min(1).max(N_MAX)),
    logprobs: maybe(z.boolean()),
    top_logprobs: maybe(z.int().min(0).max(20)),
    store: maybe(z.boolean()).describe('false: nothing of it is kept where the server has a store'),
    add_generation_prompt: maybe(z.boolean()).describe('true: a last message of the assistant is not gone on with'),
    ...STREAMING,
    ...SAMPLING,
    ...GOVERNING,
  })
  .describe('What is not named here is let pass and does nothing.');
export type ChatRequest = z.infer<typeof CHAT_REQUEST>;

export const COMPLETION_REQUEST = z
  .looseObject({
    model,
    prompt: z.union([z.string(), z.array(z.string()).length(1), z.array(z.int().min(0)).min(1)]),
    max_tokens: maybe(z.int().min(1)),
    n: maybe(z.int().min(1).max(N_MAX)),
    logprobs: maybe(z.int().min(0).max(20)),
    suffix: maybe(z.literal('')).describe('nothing is filled in between two texts'),
    echo: maybe(z.literal(false)),
    best_of: maybe(z.literal(1)),
    grammar: maybe(z.string()).describe('GBNF that the answer follows'),
    ...STREAMING,
    ...SAMPLING,
    ...GOVERNING,
    session: maybe(z.undefined()).describe('a text has a session of its own'),
  })
  .describe('What is not named here is let pass and does nothing.');
export type CompletionRequest = z.infer<typeof COMPLETION_REQUEST>;

/** A text, or parts of one. */
const content = z.union([z.string(), z.array(z.unknown())]);

/** What is said before an answer. Items of reasoning are let pass: models here keep none. */
export const knownItem = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('message'), role: z.string(), content }),
  z.looseObject({
    type: z.literal('function_call'),
    call_id: z.string(),
    name: z.string(),
    arguments: z.string(),
  }),
  z.looseObject({ type: z.literal('function_call_output'), call_id: z.string(), output: content }),
  z.looseObject({ type: z.literal('reasoning') }),
]);
/** A message may leave out that it is one. */
const inputItem = z.preprocess((item) => {
  const given = asRecord(item);
  return given !== undefined && given['type'] == null ? { ...given, type: 'message' } : item;
}, knownItem);
export type InputItem = z.infer<typeof knownItem>;

const functionTool = z.looseObject({
  type: z.literal('function'),
  name: z.string().min(1),
  description: maybe(z.string()),
  parameters: maybe(z.record(z.string(), z.unknown())),
  strict: maybe(z.boolean()),
});

const textFormat = z.discriminatedUnion('type', [
  z.looseObject({ type: z.literal('text') }),
  z.looseObject({ type: z.literal('json_object') }),
  z.looseObject({ type: z.literal('json_schema'), name: maybe(z.string()), schema }),
]);

export const RESPONSE_REQUEST = z
  .looseObject({
    model,
    input: z.union([z.string(), z.array(inputItem).min(1)]),
    instructions: maybe(z.string()).describe('the system message of this answer alone'),
    previous_response_id: maybe(z.string()).describe('goes on behind a response that was stored'),
    store: maybe(z.boolean()).describe('false: nothing can go on behind it'),
    tools: maybe(z.array(functionTool)),
    tool_choice: maybe(
      z.union([
        z.enum(['auto', 'none', 'required']),
        z.looseObject({ type: z.literal('function'), name: z.string().min(1) }),
      ]),
    ),
    parallel_tool_calls: maybe(z.boolean()).describe('false: one call at most'),
    text: maybe(z.looseObject({ format: maybe(textFormat) })),
    max_output_tokens: maybe(z.int().min(1)),
    top_logprobs: maybe(z.int().min(0).max(20)),
    include: maybe(z.array(z.string())),
    metadata: maybe(z.record(z.string(), z.string())),
    prompt_cache_options: maybe(z.looseObject({ comparison_response_id: maybe(z.string()) })).describe(
      'comparison_response_id: the answer says why it could not go on in the cache of that response',
    ),
    background: maybe(z.literal(false)),
    conversation: maybe(z.undefined()).describe('use previous_response_id'),
    stream: maybe(z.boolean()),
    ...SAMPLING,
    ...GOVERNING,
  })
  .describe('What is not named here is let pass and does nothing.');
export type ResponseRequest = z.infer<typeof RESPONSE_REQUEST>;

/** What is done with a session says its path. */
export const SESSION_REQUEST = z.looseObject({});

/** Texts of one request. */
const TEXTS_MAX = 2048;
const ids = z.array(z.int().min(0)).min(1);

export const EMBEDDING_REQUEST = z.looseObject({
  model,
  input: z
    .union([
      ids,
      z.array(ids).min(1).max(TEXTS_MAX),
      z.array(z.string().min(1)).min(1).max(TEXTS_MAX),
      z.string().min(1),
    ])
    .describe('a text or several, as letters or as token ids'),
  encoding_format: maybe(z.enum(['float', 'base64'])).describe('base64: numbers of 32 bits, the lowest byte first'),
  dimensions: maybe(z.undefined()).describe('the model has as many as it has'),
  priority: GOVERNING.priority,
});
export type EmbeddingRequest = z.infer<typeof EMBEDDING_REQUEST>;

/** More letters would keep the thread of the model, and with it all answers, for more than a tenth of a second. */
const TOKENIZED_LETTERS_MAX = 2 ** 18;

export const TOKENIZE_REQUEST = z.looseObject({
  content: z.string().max(TOKENIZED_LETTERS_MAX),
  add_special: maybe(z.boolean()).describe('true: with the token that begins a prompt, where the model has one'),
});

export const DETOKENIZE_REQUEST = z.looseObject({ tokens: z.array(z.int().min(0)) });

export const TEMPLATE_REQUEST = z.looseObject({
  messages: z.array(z.unknown()).min(1),
  tools: maybe(z.array(z.unknown())),
  add_generation_prompt: maybe(z.boolean()),
  continue_final_message: maybe(z.boolean()),
});

/** The body as the schema has it. Throws 'bad-argument' with the place in `param`. */
export function checkedBody<Schema extends z.ZodType>(schema: Schema, body: unknown): z.infer<Schema> {
  const { success, data, error } = schema.safeParse(body);
  if (success) return data;
  const [issue] = error.issues as [z.core.$ZodIssue];
  const { path, message } = deepest(issue);
  const param = placeOf(path);
  throw new KvError('bad-argument', param === '' ? `the body: ${message}` : `${param}: ${message}`, {
    values: { param: param === '' ? null : param },
  });
}

/**
 * Of a value that is none of several, what the last of them says is wrong with it says the most; of a key, what keys
 * are.
 */
function deepest(issue: z.core.$ZodIssue): { readonly path: readonly PropertyKey[]; readonly message: string } {
  if (issue.code === 'invalid_key') return { path: issue.path, message: `a key is ${issue.issues[0]!.message}` };
  if (issue.code !== 'invalid_union') return issue;
  const within = issue.errors.flat().map((one) => ({ ...one, path: [...issue.path, ...one.path] }) as z.core.$ZodIssue);
  return within.map(deepest).reduce((best, one) => (one.path.length >= best.path.length ? one : best), issue);
}

/** ['messages', 1, 'content'] → 'messages[1].content' */
const placeOf = (path: readonly PropertyKey[]): string =>
  path.map((part, at) => (typeof part === 'number' ? `[${part}]` : `${at === 0 ? '' : '.'}${String(part)}`)).join('');
