/** What AI SDK asks a language model, as the messages, tools and options of a chat here. */
import { asRecord, given, jsonOf, KvError, show } from '../../native/index.ts';
import { drawnSeed } from '../openai/asked.ts';
import type { GenerateOptions, SendOptions } from '../options/types.ts';
import type { JsonSchema } from '../transformer/grammar/options.ts';
import type { ChatMessage, ChatTool, ToolCall } from '../transformer/types.ts';

/** A part of a message. Which fields it has follows from its type. */
export interface ModelPart {
  /** 'text', 'tool-call', 'tool-result', 'reasoning', 'file' and others. */
  readonly type: string;
  /** Of a text. */
  readonly text?: string;
  /** Which call it is, or answers. */
  readonly toolCallId?: string;
  /** What is called. */
  readonly toolName?: string;
  /** The arguments of a call: an object, or JSON of one. */
  readonly input?: unknown;
  /** What a tool gave back: `{ type, value }`. */
  readonly output?: unknown;
}

/** A message of a prompt. */
export interface ModelMessage {
  /** Who says it. */
  readonly role: 'system' | 'user' | 'assistant' | 'tool';
  /** A text, or parts of one. */
  readonly content: string | readonly ModelPart[];
}

/** A tool that a model may call. */
export interface ModelTool {
  /** 'function'; those of providers are not served. */
  readonly type: string;
  /** How the model calls it. */
  readonly name: string;
  /** What it does. */
  readonly description?: string | undefined;
  /** Its arguments, as a JSON schema. */
  readonly inputSchema?: unknown;
}

/** What a model is called with (LanguageModelV3CallOptions of @ai-sdk/provider, as far as it is heeded here). */
export interface ModelCall {
  /** The conversation. */
  readonly prompt: readonly ModelMessage[];
  /** Tokens of the answer at most. */
  readonly maxOutputTokens?: number | undefined;
  /** As temperature of generate. */
  readonly temperature?: number | undefined;
  /** As topP of generate. */
  readonly topP?: number | undefined;
  /** As topK of generate. */
  readonly topK?: number | undefined;
  /** As presencePenalty of generate. */
  readonly presencePenalty?: number | undefined;
  /** As frequencyPenalty of generate. */
  readonly frequencyPenalty?: number | undefined;
  /** Texts that end the answer. */
  readonly stopSequences?: readonly string[] | undefined;
  /** As seed of generate. Default: another one each time. */
  readonly seed?: number | undefined;
  /** What the answer has to be. */
  readonly responseFormat?:
    | { readonly type: 'text' }
    | { readonly type: 'json'; readonly schema?: unknown }
    | undefined;
  /** What it may call. */
  readonly tools?: readonly ModelTool[] | undefined;
  /** Whether it calls. */
  readonly toolChoice?: { readonly type: string; readonly toolName?: string } | undefined;
  /** Ends it. */
  readonly abortSignal?: AbortSignal | undefined;
}

/** Something that was asked for and is not heeded. */
export interface ModelWarning {
  /** What kind of warning it is. */
  type: 'unsupported';
  /** What was asked for. */
  feature: string;
  /** Why it is not heeded. */
  details?: string;
}

/** A call as a chat has it. */
export interface ModelAsked {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly options: SendOptions;
  readonly warnings: ModelWarning[];
}

/** Throws 'bad-argument', 'unsupported' for what no answer can be made of. */
export function modelAsked(call: ModelCall, defaults: GenerateOptions): ModelAsked {
  const tools = (call.tools ?? []).filter(({ type }) => type === 'function');
  const left = (call.tools ?? []).filter(({ type }) => type !== 'function');
  const { toolChoice: choice, responseFormat: format } = call;
  const options = given<SendOptions>({
    ...defaults,
    ...given({
      temperature: call.temperature,
      topP: call.topP,
      topK: call.topK,
      presencePenalty: call.presencePenalty,
      frequencyPenalty: call.frequencyPenalty,
      stop: call.stopSequences,
      seed: call.seed ?? drawnSeed(),
      maxTokens: call.maxOutputTokens,
    }),
    grammar: format?.type === 'json' ? { jsonSchema: (format.schema ?? { type: 'object' }) as JsonSchema } : undefined,
    toolChoice: tools.length === 0 ? undefined : choiceOf(choice),
  });
  return {
    messages: call.prompt.flatMap((message, index) => messagesOf(message, `prompt[${index}]`)),
    tools: tools.map(({ name, description, inputSchema }) =>
      given<ChatTool>({ name, description, parameters: asRecord(inputSchema) }),
    ),
    options,
    warnings: left.map(({ name }) => ({ type: 'unsupported', feature: `tool ${name}`, details: 'a provider runs it' })),
  };
}

function choiceOf(choice: ModelCall['toolChoice']): NonNullable<SendOptions['toolChoice']> {
  if (choice?.type === 'tool') return { name: choice.toolName ?? '' };
  return choice?.type === 'none' || choice?.type === 'required' ? choice.type : 'auto';
}

/** One message, but for what tools gave back: one each. */
function messagesOf({ role, content }: ModelMessage, where: string): ChatMessage[] {
  if (typeof content === 'string') return [{ role, content }];
  if (role === 'tool')
    return content.map((part) => ({
      ...{ role, content: outputText(part.output), toolCallId: part.toolCallId ?? '' },
      ...given({ name: part.toolName }),
    }));
  const texts: string[] = [];
  const toolCalls: ToolCall[] = [];
  for (const part of content) {
    if (part.type === 'text') texts.push(part.text ?? '');
    else if (part.type === 'tool-call') toolCalls.push(callOf(part));
    else if (part.type !== 'reasoning')
      throw new KvError('unsupported', `${where} has a part of type ${show(part.type)}, and models here read texts`, {
        values: { where, type: show(part.type) },
      });
  }
  return [{ role, content: texts.join(role === 'user' ? '\n' : ''), ...(toolCalls.length === 0 ? {} : { toolCalls }) }];
}

function callOf({ toolCallId = '', toolName = '', input }: ModelPart): ToolCall {
  const read = typeof input === 'string' ? jsonOf(input) : input;
  return { id: toolCallId, name: toolName, arguments: asRecord(read) ?? {} };
}

/** What a tool gave back, as a text. */
function outputText(output: unknown): string {
  const { value = output } = asRecord(output) ?? {};
  return typeof value === 'string' ? value : JSON.stringify(value ?? null);
}
