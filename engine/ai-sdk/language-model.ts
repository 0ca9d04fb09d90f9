/**
 * An engine as a language model of AI SDK (`specificationVersion: 'v3'`, which its versions 6 and 7 take).
 * Conversations go on in the caches that they were in, and every answer says what its cache did
 * (`providerMetadata.palimpsest`).
 *
 *   const model = languageModel(engine)
 *   const { text } = await generateText({ model, prompt: '…' })
 */
import { randomUUID } from 'node:crypto';
import {
  anyText,
  checkKeys,
  checkOptions,
  defaultsOf,
  given,
  type Rows,
  seenLater,
  whole,
} from '../../native/index.ts';
import { argumentsOf, Conversations, templateOf } from '../openai/conversations.ts';
import { type Answer, BegunTurn } from '../openai/turn.ts';
import type { GenerateOptions, SessionOptions } from '../options/types.ts';
import type { Engine } from '../thread/engine.ts';
import type { ToolCall } from '../transformer/types.ts';
import { type ModelCall, type ModelWarning, modelAsked } from './prompt.ts';

/** Options of languageModel. Each has a default. */
export interface LanguageModelOptions {
  /** What AI SDK calls the model. Default: the name of the engine's. */
  readonly modelId?: string;
  /** A chat template (Jinja), or 'hermes'. Default: that of the model; 'hermes' for a model that has none. */
  readonly template?: string;
  /** Most tokens of an answer whose call says nothing of them, as far as the context has room. Default 1024. */
  readonly maxTokens?: number;
  /** Conversations that wait for their next question with all that they have read. Default 16. */
  readonly conversationsMax?: number;
  /** How answers are drawn where a call says nothing of it. Default: as generate does. */
  readonly sampling?: GenerateOptions;
  /** What sessions are opened with: budgets, salts, policies. Default: nothing. */
  readonly session?: SessionOptions;
}

const OPTIONS = {
  modelId: { rule: anyText('a name', 1), help: 'what AI SDK calls the model' },
  template: { rule: anyText('a chat template, or hermes', 1), help: "a chat template instead of the model's own" },
  maxTokens: { rule: whole(1), default: 1024, help: 'most tokens of an answer whose call says nothing of them' },
  conversationsMax: { rule: whole(1), default: 16, help: 'conversations that wait for their next question' },
  sampling: { rule: seenLater<GenerateOptions>('options of generate'), help: 'how answers are drawn by default' },
  session: { rule: seenLater<SessionOptions>('options of openSession'), help: 'what sessions are opened with' },
} as const satisfies Rows<LanguageModelOptions>;

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

/** What the cache did for an answer. */
export interface ModelCacheReport {
  /** Its session in the log. */
  sessionId: string;
  /** What it was drawn with. */
  seed: number;
  /** Bytes of its keys and values now, and what they take in f16. */
  kvBytes: number;
  /** The same in f16. */
  kvBytesF16: number;
  /** Bits of a number, all metadata included. */
  effectiveBits: number;
  /** Moves planned so far. */
  decisions: number;
  /** Predicted mean divergence of what moved, in nats. */
  predictedKld: number;
}

/** A piece of an answer: its text, or a call. */
export type ModelContent =
  | { type: 'text'; text: string }
  | { type: 'tool-call'; toolCallId: string; toolName: string; input: string };

/** A whole answer (LanguageModelV3GenerateResult). */
export interface ModelResult {
  /** Its text and its calls. */
  content: ModelContent[];
  /** Why it ended. */
  finishReason: ModelFinish;
  /** What it took. */
  usage: ModelUsage;
  /** What the cache did. */
  providerMetadata: { palimpsest: { [Name in keyof ModelCacheReport]: ModelCacheReport[Name] } };
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
  checkKeys(options, OPTIONS, 'languageModel');
  checkOptions(options, OPTIONS);
  return new EngineModel(engine, options);
}

class EngineModel implements LanguageModel {
  readonly specificationVersion = 'v3' as const;
  readonly provider = 'palimpsest';
  readonly modelId: string;
  readonly supportedUrls = {};
  readonly #options: LanguageModelOptions;
  readonly #maxTokens: number;
  readonly #template: string | undefined;
  readonly #conversations: Conversations;

  constructor(engine: Engine, options: LanguageModelOptions) {
    const { maxTokens, conversationsMax } = {
      ...defaultsOf<Required<Pick<LanguageModelOptions, 'maxTokens' | 'conversationsMax'>>>(OPTIONS),
      ...given<Partial<Record<'maxTokens' | 'conversationsMax', number>>>(options as object),
    };
    this.modelId = options.modelId ?? engine.info.name;
    this.#options = options;
    this.#maxTokens = maxTokens;
    this.#template = templateOf(engine, options.template);
    this.#conversations = new Conversations(engine, conversationsMax);
  }

  async doGenerate(call: ModelCall): Promise<ModelResult> {
    const { turn, warnings } = await this.#begin(call);
    for await (const _ of turn.texts());
    const answer = await turn.end();
    const calls = answer.toolCalls.map((one) => ({
      ...{ type: 'tool-call' as const, toolCallId: one.id, toolName: one.name, input: argumentsOf(one) },
    }));
    const text = answer.text === '' && calls.length > 0 ? [] : [{ type: 'text' as const, text: answer.text }];
    const response = { id: randomUUID(), modelId: this.modelId, timestamp: new Date() };
    return { content: [...text, ...calls], ...ended(answer), response, warnings };
  }

  async doStream(call: ModelCall): Promise<{ stream: ReadableStream<ModelStreamPart> }> {
    const left = new AbortController();
    const signal = call.abortSignal === undefined ? left.signal : AbortSignal.any([call.abortSignal, left.signal]);
    const { turn, warnings } = await this.#begin({ ...call, abortSignal: signal });
    const parts = this.#parts(turn, warnings);
    const stream = new ReadableStream<ModelStreamPart>(
      {
        pull: async (controller) => {
          const { done, value } = await parts.next();
          if (done === true) controller.close();
          else controller.enqueue(value);
        },
        cancel: async () => {
          left.abort();
          await parts.return(undefined);
        },
      },
      { highWaterMark: 0 },
    );
    return { stream };
  }

  close(): Promise<void> {
    return this.#conversations.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #begin(call: ModelCall): Promise<{ readonly turn: BegunTurn; readonly warnings: ModelWarning[] }> {
    const { sampling = {}, session = {} } = this.#options;
    const { messages, tools, options, warnings } = modelAsked(call, sampling);
    const turn = await BegunTurn.begin(this.#conversations, {
      terms: { tools, template: this.#template, session },
      messages,
      options,
      maxTokens: this.#maxTokens,
      continues: true,
      keeps: false,
      signal: call.abortSignal ?? new AbortController().signal,
    });
    return { turn, warnings };
  }

  async *#parts(turn: BegunTurn, warnings: ModelWarning[]): AsyncGenerator<ModelStreamPart, void> {
    yield { type: 'stream-start', warnings };
    yield { type: 'response-metadata', id: randomUUID(), modelId: this.modelId, timestamp: new Date() };
    const id = 'text';
    let hasText = false;
    try {
      for await (const { text } of turn.texts()) {
        if (!hasText) yield { type: 'text-start', id };
        hasText = true;
        yield { type: 'text-delta', id, delta: text };
      }
      const answer = await turn.end();
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
  const { promptTokens, cachedTokens, tokens, finish, toolCalls, report, seed } = answer;
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
    providerMetadata: {
      palimpsest: {
        ...{ sessionId: report.session, seed, kvBytes: report.kvBytesNow, kvBytesF16: report.kvBytesF16 },
        ...{ effectiveBits: report.effectiveBits, decisions: report.decisions },
        predictedKld: report.summary.predictedKld,
      },
    },
  };
}
