/** What all requests for answers share: the engine, its conversations, and how many may ask at one time. */
import { randomUUID } from 'node:crypto';
import { basename } from 'node:path';
import { checkKeys, checkOptions, defaultsOf, given, KvError } from '../../native/index.ts';
import type { GenerateOptions, SessionOptions } from '../options/types.ts';
import type { Store } from '../store/store.ts';
import type { Engine } from '../thread/engine.ts';
import { CHAT_TOKENS_MIN, openConversation } from '../thread/open-chat.ts';
import { type OwnersOptions, templateOf } from './conversation.ts';
import { Conversations } from './conversations.ts';
import { RETRY_SECONDS, Refusal } from './failure.ts';
import { ANSWERS_OPTIONS, type AnswersOptions, TEMPERATURE } from './options.ts';
import type { UsedTokens } from './turn.ts';

/** What is the same in all that is told of one request. */
export interface Told {
  readonly id: string;
  /** Seconds since the epoch. */
  readonly created: number;
  readonly model: string;
  readonly fingerprint: string;
}

/** Who asks, for as long as they wait. */
export interface Asker {
  readonly signal: AbortSignal;
  /** What their requests share a cache by; undefined: with all others. */
  readonly salt?: string;
  /** Requests begin no earlier than this priority has them. */
  readonly priority?: number;
  /** True if they are told of all conversations, not of their own alone. */
  readonly seesAll?: boolean;
  /** Their share of turns beside others of their priority. */
  readonly weight?: number;
  /** What their sessions are opened with whatever they ask for. */
  readonly own?: OwnersOptions;
  /** Requests of theirs that are answered or wait at one time; undefined: as many as of all. */
  readonly requestsMax?: number;
  /** Is told what each answer of theirs took, at its end. */
  readonly used?: (tokens: UsedTokens) => void;
}

type Resolved = Required<Pick<AnswersOptions, 'maxTokens' | 'requestsMax' | 'conversationsMax' | 'bodyBytesMax'>>;

/** Letters of the digest of the weights that answers carry. */
const FINGERPRINT_LETTERS = 12;

export class Service {
  readonly engine: Engine;
  readonly conversations: Conversations;
  readonly limits: Resolved;
  /** The name that clients ask for. */
  readonly model: string;
  /** Instead of the model's own; undefined: that one. */
  readonly template: string | undefined;
  readonly sampling: GenerateOptions;
  readonly #session: SessionOptions;
  /** Seconds since the epoch. */
  readonly startedS = Math.floor(Date.now() / 1000);
  #asking = 0;
  /** The same by salt. */
  readonly #askingBy = new Map<string, number>();

  /** Throws 'bad-argument', 'bad-config'. */
  constructor(engine: Engine, options: AnswersOptions, store: Store | null = null) {
    checkKeys(options, ANSWERS_OPTIONS, 'answers');
    checkOptions(options, ANSWERS_OPTIONS);
    this.engine = engine;
    this.limits = { ...defaultsOf<Resolved>(ANSWERS_OPTIONS), ...given<Partial<Resolved>>(options) };
    this.model = options.modelName ?? engine.info.name;
    this.template = templateOf(engine, options.template);
    this.sampling = { temperature: TEMPERATURE, ...options.sampling };
    this.#session = options.session ?? {};
    this.conversations = new Conversations(engine, this.limits.conversationsMax, store);
  }

  /** Throws 'budget-too-small' where the memory of the server holds no conversation, however short. */
  async checkRoom(): Promise<void> {
    const least = { ...this.#session, witness: false };
    const { session } = await openConversation(this.engine, CHAT_TOKENS_MIN, least);
    await session.close();
  }

  /** The options of a session: those of the server, and those of the request instead. */
  sessionFor(asked: SessionOptions): SessionOptions {
    return { ...this.#session, ...asked };
  }

  /** The model as lists of models have it. */
  get card(): object {
    const { config, digest, fileBytes } = this.engine.info;
    const { contextLength, vocabSize, hiddenSize } = config;
    return {
      id: this.model,
      object: 'model',
      created: this.startedS,
      owned_by: 'palimpsest',
      meta: { n_ctx_train: contextLength, n_vocab: vocabSize, n_embd: hiddenSize, size: fileBytes, digest },
      // What /v1/embeddings answers: no trained embedder.
      embeddings: 'mean-of-last-hidden-states',
    };
  }

  /** True of a name of this model. */
  isNamed(model: string): boolean {
    const { name, path } = this.engine.info;
    return [this.model, name, basename(path)].includes(model);
  }

  /** Throws 'not-found' for a model that is not this one. */
  checkModel(model: string | null | undefined): void {
    if (model == null || this.isNamed(model)) return;
    throw new KvError('not-found', `the model ${model.slice(0, 100)} is not served here`, {
      values: { model: model.slice(0, 300), param: 'model', served: this.model },
      hint: `ask for ${this.model}, or for none`,
    });
  }

  told(kind: 'chatcmpl' | 'cmpl'): Told {
    return {
      id: `${kind}-${randomUUID().replaceAll('-', '')}`,
      created: Math.floor(Date.now() / 1000),
      model: this.model,
      fingerprint: `fp_${this.engine.info.digest.slice(0, FINGERPRINT_LETTERS)}`,
    };
  }

  /** Counts a request of somebody until the function that this returns is called. Throws 'busy'. */
  enter({ salt = '', requestsMax: own = Number.POSITIVE_INFINITY }: Omit<Asker, 'signal'> = {}): () => void {
    const { requestsMax } = this.limits;
    const ofKey = this.#askingBy.get(salt) ?? 0;
    if (ofKey >= own) throw busyWith(own, ' of this key');
    if (this.#asking >= requestsMax) throw busyWith(requestsMax);
    this.#asking++;
    this.#askingBy.set(salt, ofKey + 1);
    let isIn = true;
    return () => {
      if (!isIn) return;
      isIn = false;
      this.#asking--;
      const left = this.#askingBy.get(salt)! - 1;
      if (left === 0) this.#askingBy.delete(salt);
      else this.#askingBy.set(salt, left);
    };
  }

  close(): Promise<void> {
    return this.conversations.close();
  }
}

const busyWith = (requestsMax: number, whose = ''): Refusal =>
  new Refusal(
    429,
    new KvError('busy', `${requestsMax} requests${whose} are answered or wait already`, {
      values: { requestsMax },
      hint: 'come back in a moment',
    }),
    { 'retry-after': String(RETRY_SECONDS) },
  );
