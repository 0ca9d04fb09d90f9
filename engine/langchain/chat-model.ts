/**
 * An engine as a chat model of LangChain, in the process. Conversations go on in the caches that they were in, and
 * every answer says what its cache did (`response_metadata.palimpsest`). Needs the package `@langchain/core`.
 *
 *   const model = new ChatPalimpsest({ engine });
 *   const { text } = await model.invoke('…');
 */
import type { CallbackManagerForLLMRun } from '@langchain/core/callbacks/manager';
import type { BaseLanguageModelInput, StructuredOutputMethodOptions } from '@langchain/core/language_models/base';
import {
  BaseChatModel,
  type BaseChatModelCallOptions,
  type BaseChatModelParams,
  type BindToolsInput,
  type LangSmithParams,
} from '@langchain/core/language_models/chat_models';
import {
  assembleStructuredOutputPipeline,
  createContentParser,
  createFunctionCallingParser,
} from '@langchain/core/language_models/structured_output';
import { AIMessage, AIMessageChunk, type BaseMessage, type BaseMessageChunk } from '@langchain/core/messages';
import { ChatGenerationChunk, type ChatResult } from '@langchain/core/outputs';
import type { Runnable } from '@langchain/core/runnables';
import { convertToOpenAITool } from '@langchain/core/utils/function_calling';
import { toJsonSchema } from '@langchain/core/utils/json_schema';
import { isSerializableSchema, type SerializableSchema } from '@langchain/core/utils/standard_schema';
import { type InteropZodType, isInteropZodSchema } from '@langchain/core/utils/types';
import { given } from '../../native/index.ts';
import { drawnSeed } from '../openai/asked.ts';
import { argumentsOf } from '../openai/conversation.ts';
import {
  cacheReport,
  type LanguageModelOptions,
  LOCAL_MODEL,
  type LocalAnswer,
  LocalModel,
} from '../openai/local-model.ts';
import type { Answer } from '../openai/turn.ts';
import type { GenerateOptions, SendOptions } from '../options/types.ts';
import type { Engine } from '../thread/engine.ts';
import type { JsonSchema } from '../transformer/grammar/options.ts';
import { chatMessages, chatTools, chosen } from './messages.ts';

/** What a ChatPalimpsest is made of: an engine, the options of languageModel, and what every chat model may have. */
export interface ChatPalimpsestFields extends LanguageModelOptions, BaseChatModelParams {
  /** The engine that answers. It is closed by whoever opened it. */
  readonly engine: Engine;
}

/** What a call of a ChatPalimpsest may say, beside `stop`, `signal` and `tool_choice`. */
export interface ChatPalimpsestCallOptions extends BaseChatModelCallOptions {
  /** What it may call. bindTools says it. */
  tools?: BindToolsInput[];
  /** False: one call at most. */
  parallel_tool_calls?: boolean;
  /** What the answer has to be, as a JSON schema. withStructuredOutput says it. */
  jsonSchema?: Record<string, unknown>;
  /** How it is drawn, before what the model was made with: temperature, maxTokens, seed, topP and others. */
  sampling?: GenerateOptions;
}

/** A schema of an object: of zod or another library with standard schemas, or JSON. */
export type ChatPalimpsestSchema<T extends Record<string, unknown>> =
  | SerializableSchema<T>
  | InteropZodType<T>
  | Record<string, unknown>;

/** A chat model of LangChain over an engine of this process. */
export class ChatPalimpsest extends BaseChatModel<ChatPalimpsestCallOptions> {
  readonly #engine: Engine;
  readonly #model: LocalModel;

  /** The name of the class, for whoever traces. */
  static override lc_name(): string {
    return 'ChatPalimpsest';
  }

  /** Throws 'bad-argument'. */
  constructor(fields: ChatPalimpsestFields) {
    super(fields);
    this.#engine = fields.engine;
    const own = Object.keys(LOCAL_MODEL).map((name) => [name, fields[name as keyof LanguageModelOptions]]);
    this.#model = new LocalModel(fields.engine, given<LanguageModelOptions>(Object.fromEntries(own)));
  }

  /** What kind of model it is, for whoever traces. */
  override _llmType(): string {
    return 'palimpsest';
  }

  /** What answers are cached under, where LangChain has a cache of them. */
  override _identifyingParams(): Record<string, unknown> {
    return { model: this.#engine.info.digest, ...this.#model.sampling };
  }

  /** What LangSmith is told. */
  override getLsParams(options: this['ParsedCallOptions']): LangSmithParams {
    const { temperature, maxTokens } = { ...this.#model.sampling, ...options.sampling };
    return {
      ...{ ls_provider: 'palimpsest', ls_model_name: this.#model.modelId, ls_model_type: 'chat' },
      ...given({ ls_temperature: temperature, ls_max_tokens: maxTokens, ls_stop: options.stop }),
    } as LangSmithParams;
  }

  /** Tokens of a text, by the model's own tokenizer. */
  override async getNumTokens(content: Parameters<BaseChatModel['getNumTokens']>[0]): Promise<number> {
    const texts = typeof content === 'string' ? [content] : content.map((part) => String(part['text'] ?? ''));
    return (await this.#engine.tokenize(texts.join('\n'), Number.MAX_SAFE_INTEGER, false)).length;
  }

  /** The same model with tools that it may call. */
  override bindTools(
    tools: BindToolsInput[],
    kwargs: Partial<ChatPalimpsestCallOptions> = {},
  ): Runnable<BaseLanguageModelInput, AIMessageChunk, ChatPalimpsestCallOptions> {
    const converted = tools.map((tool) => convertToOpenAITool(tool as Record<string, unknown>));
    return this.withConfig({ ...kwargs, tools: converted }) as ReturnType<ChatPalimpsest['bindTools']>;
  }

  /** The same model whose answers are objects of a schema: by a grammar, or as the arguments of a call. */
  override withStructuredOutput<T extends Record<string, unknown> = Record<string, unknown>>(
    schema: ChatPalimpsestSchema<T>,
    config?: StructuredOutputMethodOptions<false>,
  ): Runnable<BaseLanguageModelInput, T>;
  override withStructuredOutput<T extends Record<string, unknown> = Record<string, unknown>>(
    schema: ChatPalimpsestSchema<T>,
    config?: StructuredOutputMethodOptions<true>,
  ): Runnable<BaseLanguageModelInput, { raw: BaseMessage; parsed: T }>;
  override withStructuredOutput(
    schema: ChatPalimpsestSchema<Record<string, unknown>>,
    { name = 'extract', method = 'jsonSchema', includeRaw = false }: StructuredOutputMethodOptions<boolean> = {},
  ): Runnable {
    const json = isInteropZodSchema(schema) || isSerializableSchema(schema) ? toJsonSchema(schema) : schema;
    if (method === 'functionCalling') {
      const tools = [{ type: 'function', function: { name, parameters: json } }];
      const llm = this.bindTools(tools, { tool_choice: name, parallel_tool_calls: false });
      return assembleStructuredOutputPipeline(llm, createFunctionCallingParser(schema as never, name), includeRaw);
    }
    const asked = method === 'jsonMode' ? { type: 'object' } : (json as Record<string, unknown>);
    const llm = this.withConfig({ jsonSchema: asked }) as Runnable<BaseLanguageModelInput, BaseMessageChunk>;
    return assembleStructuredOutputPipeline(llm as never, createContentParser(schema as never), includeRaw);
  }

  /** One answer. Throws what Engine.chat and Chat.send throw. */
  override async _generate(messages: BaseMessage[], options: this['ParsedCallOptions']): Promise<ChatResult> {
    const begun = await this.#begin(messages, options);
    for await (const _ of begun.texts());
    const answer = await begun.end();
    options.signal?.throwIfAborted();
    const calls = answer.toolCalls.map(({ id, name, arguments: args }) => {
      return { id, name, args: { ...args }, type: 'tool_call' as const };
    });
    const told = endOf(answer, this.#model.modelId);
    const message = new AIMessage({ content: answer.text, tool_calls: calls, ...told } as never);
    const {
      input_tokens: promptTokens,
      output_tokens: completionTokens,
      total_tokens: totalTokens,
    } = told.usage_metadata;
    return {
      generations: [
        { text: answer.text, message, generationInfo: { finish_reason: told.response_metadata.finish_reason } },
      ],
      llmOutput: { tokenUsage: { promptTokens, completionTokens, totalTokens } },
    };
  }

  /** One answer as it comes: its texts, then its calls, what it took and what the cache did. */
  override async *_streamResponseChunks(
    messages: BaseMessage[],
    options: this['ParsedCallOptions'],
    runManager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    const begun = await this.#begin(messages, options);
    try {
      for await (const text of begun.texts()) {
        const chunk = new ChatGenerationChunk({ text, message: new AIMessageChunk({ content: text }) });
        yield chunk;
        await runManager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
      }
      const answer = await begun.end();
      options.signal?.throwIfAborted();
      const calls = answer.toolCalls.map((call, index) => {
        const { id, name } = call;
        return { id, name, index, args: argumentsOf(call), type: 'tool_call_chunk' as const };
      });
      const told = endOf(answer, this.#model.modelId);
      const message = new AIMessageChunk({ content: '', tool_call_chunks: calls, ...told } as never);
      const { finish_reason } = told.response_metadata;
      yield new ChatGenerationChunk({ text: '', message, generationInfo: { finish_reason } });
    } finally {
      await begun.leave();
    }
  }

  /** Closes the conversations that wait. The engine stays. */
  close(): Promise<void> {
    return this.#model.close();
  }

  /** The same as close(). */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #begin(messages: BaseMessage[], asked: this['ParsedCallOptions']): Promise<LocalAnswer> {
    const { tools = [], tool_choice, parallel_tool_calls, jsonSchema, sampling, stop, signal } = asked;
    const options = given<SendOptions>({
      seed: drawnSeed(),
      ...this.#model.sampling,
      ...given<GenerateOptions>(sampling ?? {}),
      ...given({ stop }),
      grammar: jsonSchema === undefined ? undefined : { jsonSchema: jsonSchema as JsonSchema },
      toolChoice: tools.length === 0 ? undefined : chosen(tool_choice),
      parallelToolCalls: tools.length === 0 ? undefined : parallel_tool_calls,
    });
    const converted = tools.map((tool) => convertToOpenAITool(tool as Record<string, unknown>));
    return this.#model.begin({ messages: chatMessages(messages), tools: chatTools(converted), options, signal });
  }
}

/** How an answer ended, and what it took. LangChain's types of messages have no place for usage under all options. */
function endOf(answer: Answer, modelId: string) {
  const { promptTokens, cachedTokens, tokens, finish, toolCalls } = answer;
  const input = promptTokens + cachedTokens;
  const written = toolCalls.length === 0 ? {} : { argumentsTexts: toolCalls.map(argumentsOf) };
  return {
    usage_metadata: {
      ...{ input_tokens: input, output_tokens: tokens, total_tokens: input + tokens },
      input_token_details: { cache_read: cachedTokens },
    },
    response_metadata: {
      ...{ model_provider: 'palimpsest', model_name: modelId },
      finish_reason: toolCalls.length > 0 ? 'tool_calls' : finish === 'length' ? 'length' : 'stop',
      palimpsest: { ...cacheReport(answer), ...written },
    },
  };
}
