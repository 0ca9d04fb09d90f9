/**
 * An engine as a language model of AI SDK (`specificationVersion: 'v3'`, which its versions 6 and 7 take).
 * Conversations go on in the caches that they were in, and every answer says what its cache did
 * (`providerMetadata.palimpsest`).
 *
 *   const model = languageModel(engine)
 *   const { text } = await generateText({ model, prompt: '…' })
 */
import { randomUUID } from 'node:crypto';
import { checkKeys } from '../../native/index.ts';
import { argumentsOf } from '../openai/conversation.ts';
import {
  cacheReport,
  type LanguageModelOptions,
  LOCAL_MODEL,
  type LocalAnswer,
  LocalModel,
  type ModelCacheReport,
} from '../openai/local-model.ts';
import type { Answer } from '../openai/turn.ts';
import type { Engine } from '../thread/engine.ts';
import type { ToolCall } from '../transformer/types.ts';
import { type ModelCall, type ModelWarning, modelAsked } from './prompt.ts';

/** Tokens of a call. */
export interface ModelUsage {
  /** Of the prompt: all, those that were read, those that were not since a cache held them. */
  inputTokens: { total: number; noCache: number; cacheRead: number; cacheWrite: undefined };
  /** Of the answer. */
  outputTokens: { total: number; text: number; reasoning: undefined };
}

/** Why an answer ended. */
export interface ModelFinish {
  /** In the words of AI SDK. */
  unified: 'stop' | 'length' | 'tool-calls';
  /** In ours. */
  raw: string;
}

/** A piece of an answer: its text, or a call. */
export type ModelContent =
  | { type: 'text'; text: string }
  | { type: 'tool-call'; toolCallId: string; toolName: string; input: string };

/** A value of JSON, as AI SDK has it. */
export type ModelJson = null | string | number | boolean | ModelJson[] | { [name: string]: ModelJson | undefined };

/** The same as JSON, in which everything may be changed. */
export type AsModelJson<T> = unknown extends T
  ? ModelJson
  : T extends object
    ? { -readonly [Name in keyof T]: AsModelJson<T[Name]> }
    : T;

/** What the cache did for an answer, with its receipt where the options of sampling asked for one. */
export type ModelMetadata = AsModelJson<ModelCacheReport>;

/** A whole answer (LanguageModelV3GenerateResult). */
export interface ModelResult {
  /** Its text and its calls. */
  content: ModelContent[];
  /** Why it ended. */
  finishReason: ModelFinish;
  /** What it took. */
  usage: ModelUsage;
  /** What the cache did. */
  providerMetadata: { palimpsest: ModelMetadata };
  /** What it is called. */
  response: { id: string; modelId: string; timestamp: Date };
  /** What was asked for and is not heeded. */
  warnings: ModelWarning[];
}

/** What comes of an answer while it is written (LanguageModelV3StreamPart). */
export type ModelStreamPart =
  | { type: 'stream-start'; warnings: ModelWarning[] }
  | { type: 'response-metadata'; id: string; modelId: string; timestamp: Date }
  | { type: 'text-start' | 'text-end'; id: string }
  | { type: 'text-delta'; id: string; delta: string }
  | { type: 'tool-input-start'; id: string; toolName: string }
  | { type: 'tool-input-delta'; id: string; delta: string }
  | { type: 'tool-input-end'; id: string }
  | { type: 'tool-call'; toolCallId: string; toolName: string; input: string }
  | {
      type: 'finish';
      usage: ModelUsage;
      finishReason: ModelFinish;
      providerMetadata: ModelResult['providerMetadata'];
    }
  | { type: 'error'; error: unknown };

/** A language model of AI SDK. */
export interface LanguageModel {
  /** Which version of the interface it has. */
  readonly specificationVersion: 'v3';
  /** Whose it is. */
  readonly provider: string;
  /** Which model it is. */
  readonly modelId: string;
  /** None are read. */
  readonly supportedUrls: Record<string, RegExp[]>;
  /** Answers at once. Throws what Engine.chat and Chat.send throw. */
  doGenerate(call: ModelCall): Promise<ModelResult>;
  /** Answers as it comes. Throws what it is refused with; what goes wrong later is a part of type 'error'. */
  doStream(call: ModelCall): Promise<{ stream: ReadableStream<ModelStreamPart> }>;
  /** Closes the conversations that wait. The engine stays. */
  close(): Promise<void>;
  /** The same as close(). */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A language model of AI SDK over an engine of this process. Throws 'bad-argument'. */
export function languageModel(engine: Engine, options: LanguageModelOptions = {}): LanguageModel {
  checkKeys(options, LOCAL_MODEL, 'languageModel');
  return new EngineModel(engine, options);
}

class EngineModel implements LanguageModel {
  readonly specificationVersion = 'v3' as const;
  readonly provider = 'palimpsest';
  readonly supportedUrls = {};
  readonly #model: LocalModel;

  constructor(engine: Engine, options: LanguageModelOptions) {
    this.#model = new LocalModel(engine, options);
  }

  get modelId(): string {
    return this.#model.modelId;
  }

  async doGenerate(call: ModelCall): Promise<ModelResult> {
    const { begun, warnings } = await this.#begin(call);
    for await (const _ of begun.texts());
    const answer = await begun.end();
    const calls = answer.toolCalls.map((one) => ({
      ...{ type: 'tool-call' as const, toolCallId: one.id, toolName: one.name, input: argumentsOf(one) },
    }));
    const text = answer.text === '' && calls.length > 0 ? [] : [{ type: 'text' as const, text: answer.text }];
    const response = { id: randomUUID(), modelId: this.modelId, timestamp: new Date() };
    return { content: [...text, ...calls], ...ended(answer), response, warnings };
  }

  async doStream(call: ModelCall): Promise<{ stream: ReadableStream<ModelStreamPart> }> {
    const { begun, warnings } = await this.#begin(call);
    const parts = this.#parts(begun, warnings);
    const stream = new ReadableStream<ModelStreamPart>(
      {
        pull: async (controller) => {
          const { done, value } = await parts.next();
          if (done === true) controller.close();
          else controller.enqueue(value);
        },
        cancel: () => begun.leave(),
      },
      { highWaterMark: 0 },
    );
    return { stream };
  }

  close(): Promise<void> {
    return this.#model.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #begin(call: ModelCall): Promise<{ readonly begun: LocalAnswer; readonly warnings: ModelWarning[] }> {
    const { warnings, ...asked } = modelAsked(call, this.#model.sampling);
    return { begun: await this.#model.begin({ ...asked, signal: call.abortSignal }), warnings };
  }

  async *#parts(begun: LocalAnswer, warnings: ModelWarning[]): AsyncGenerator<ModelStreamPart, void> {
    yield { type: 'stream-start', warnings };
    yield { type: 'response-metadata', id: randomUUID(), modelId: this.modelId, timestamp: new Date() };
    const id = 'text';
    let hasText = false;
    try {
      for await (const text of begun.texts()) {
        if (!hasText) yield { type: 'text-start', id };
        hasText = true;
        yield { type: 'text-delta', id, delta: text };
      }
      const answer = await begun.end();
      if (hasText) yield { type: 'text-end', id };
      for (const call of answer.toolCalls) yield* callParts(call);
      yield { type: 'finish', ...ended(answer) };
    } catch (error) {
      yield { type: 'error', error };
    }
  }
}

function* callParts(call: ToolCall): Generator<ModelStreamPart, void> {
  const { id, name: toolName } = call;
  yield { type: 'tool-input-start', id, toolName };
  yield { type: 'tool-input-delta', id, delta: argumentsOf(call) };
  yield { type: 'tool-input-end', id };
  yield { type: 'tool-call', toolCallId: id, toolName, input: argumentsOf(call) };
}

/** How an answer ended, and what it took. */
function ended(answer: Answer): Pick<ModelResult, 'finishReason' | 'usage' | 'providerMetadata'> {
  const { promptTokens, cachedTokens, tokens, finish, toolCalls } = answer;
  const unified = toolCalls.length > 0 ? 'tool-calls' : finish === 'length' ? 'length' : 'stop';
  return {
    finishReason: { unified, raw: finish },
    usage: {
      inputTokens: {
        ...{ total: promptTokens + cachedTokens, noCache: promptTokens, cacheRead: cachedTokens },
        cacheWrite: undefined,
      },
      outputTokens: { total: tokens, text: tokens, reasoning: undefined },
    },
    providerMetadata: { palimpsest: cacheReport(answer) as ModelMetadata },
  };
}
