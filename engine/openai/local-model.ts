/** An engine as the model that a framework of this process asks: conversations that go on, and what they cost. */
import { anyText, checkOptions, defaultsOf, given, type Rows, seenLater, whole } from '../../native/index.ts';
import type { Receipt, ReceiptRequest } from '../../witness/index.ts';
import type { GenerateOptions, SendOptions, SessionOptions } from '../options/types.ts';
import type { Engine } from '../thread/engine.ts';
import type { ChatMessage, ChatTool } from '../transformer/types.ts';
import { templateOf } from './conversation.ts';
import { Conversations } from './conversations.ts';
import { type Answer, BegunTurn } from './turn.ts';

/** Options of languageModel and of ChatPalimpsest. Each has a default. */
export interface LanguageModelOptions {
  /** What the framework calls the model. Default: the name of the engine's. */
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

export const LOCAL_MODEL = {
  modelId: { rule: anyText('a name', 1), help: 'what the framework calls the model' },
  template: { rule: anyText('a chat template, or hermes', 1), help: "a chat template instead of the model's own" },
  maxTokens: { rule: whole(1), default: 1024, help: 'most tokens of an answer whose call says nothing of them' },
  conversationsMax: { rule: whole(1), default: 16, help: 'conversations that wait for their next question' },
  sampling: { rule: seenLater<GenerateOptions>('options of generate'), help: 'how answers are drawn by default' },
  session: { rule: seenLater<SessionOptions>('options of openSession'), help: 'what sessions are opened with' },
} as const satisfies Rows<LanguageModelOptions>;

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
  /** Tokens of the prompt that were not read, because a cache held them. */
  cachedTokens: number;
  /** What proves the answer (docs/receipts.md), where the options of sampling asked for it. */
  receipt?: Receipt;
  /** What running it again takes beside the receipt. */
  request?: ReceiptRequest;
}

export const cacheReport = ({ report, seed, cachedTokens, receipt }: Answer): ModelCacheReport => ({
  ...{ sessionId: report.session, seed, kvBytes: report.kvBytesNow, kvBytesF16: report.kvBytesF16 },
  ...{ effectiveBits: report.effectiveBits, decisions: report.decisions, predictedKld: report.summary.predictedKld },
  ...{ cachedTokens, ...receipt },
});

/** A call as a chat has it. */
export interface LocalAsked {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
  readonly options: SendOptions;
  /** Ends the answer. */
  readonly signal: AbortSignal | undefined;
}

export class LocalModel {
  readonly modelId: string;
  readonly sampling: GenerateOptions;
  readonly #session: SessionOptions;
  readonly #maxTokens: number;
  readonly #template: string | undefined;
  readonly #conversations: Conversations;

  /** Throws 'bad-argument'. */
  constructor(engine: Engine, options: LanguageModelOptions) {
    checkOptions(options, LOCAL_MODEL);
    const { maxTokens, conversationsMax } = {
      ...defaultsOf<Required<Pick<LanguageModelOptions, 'maxTokens' | 'conversationsMax'>>>(LOCAL_MODEL),
      ...given<Partial<Record<'maxTokens' | 'conversationsMax', number>>>(options as object),
    };
    this.modelId = options.modelId ?? engine.info.name;
    this.sampling = options.sampling ?? {};
    this.#session = options.session ?? {};
    this.#maxTokens = maxTokens;
    this.#template = templateOf(engine, options.template);
    this.#conversations = new Conversations(engine, conversationsMax);
  }

  /** Begins an answer. Throws what it is refused with. */
  async begin({ messages, tools, options, signal }: LocalAsked): Promise<LocalAnswer> {
    const left = new AbortController();
    const turn = await BegunTurn.begin(this.#conversations, {
      terms: { tools, template: this.#template, session: this.#session },
      messages,
      options,
      maxTokens: this.#maxTokens,
      continues: true,
      keeps: false,
      signal: signal === undefined ? left.signal : AbortSignal.any([signal, left.signal]),
    });
    return new LocalAnswer(turn, left);
  }

  /** Closes the conversations that wait. The engine stays. */
  close(): Promise<void> {
    return this.#conversations.close();
  }
}

/** An answer that has begun. */
export class LocalAnswer {
  readonly #turn: BegunTurn;
  readonly #left: AbortController;
  #ended: Promise<Answer> | undefined;

  constructor(turn: BegunTurn, left: AbortController) {
    this.#turn = turn;
    this.#left = left;
  }

  /** Its texts as they come. */
  async *texts(): AsyncGenerator<string, void> {
    for await (const { text } of this.#turn.texts()) yield text;
  }

  /** Waits for its end. Throws what it failed with. */
  end(): Promise<Answer> {
    this.#ended ??= this.#turn.end();
    return this.#ended;
  }

  /** Ends it for a reader that is gone; its conversation waits with what was written. Nothing, once it has ended. */
  async leave(): Promise<void> {
    this.#left.abort();
    await this.end().catch(() => {});
  }
}
