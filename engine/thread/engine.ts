/**
 * The caller's side of an engine. The model runs in one worker thread, so the caller's event loop stays free while it
 * reads and generates; only text, numbers and reports cross.
 */
import { resolve } from 'node:path';
import { checkKeys, checkOptions, KvError, show } from '../../native/index.ts';
import type { Forecast } from '../cache/budget.ts';
import type { TourEvent, TourOptions, TourResult } from '../evaluate/tour.ts';
import type { TellEvent } from '../events/event.ts';
import { withPolicyFile } from '../options/policy-file.ts';
import { EMBED_OPTIONS, RESUME_OPTIONS, SESSION_OPTIONS } from '../options/table.ts';
import type { EmbedOptions, EngineOptions, Progress, Prompt, ResumeOptions, SessionOptions } from '../options/types.ts';
import type { Embeddings } from '../session/embedding.ts';
import { obtainModel } from '../transformer/hub/obtain.ts';
import { templateNamed } from '../transformer/named-templates.ts';
import type { ChatMessage, RenderOptions } from '../transformer/types.ts';
import type { Embedding } from './calls/embeddings.ts';
import type { ProvedAnswer, ReceiptOptions } from './calls/engine.ts';
import type { HostCalls, HostClient } from './calls/index.ts';
import { Chat } from './chat.ts';
import type { ChatOptions } from './chat-options.ts';
import { Closing } from './closing.ts';
import { EngineAdapters } from './engine-adapters.ts';
import { checkEngineOptions, hostOptions } from './engine-options.ts';
import { EngineSession } from './engine-session.ts';
import type { KeptChat } from './kept-chat.ts';
import type { LoadedInfo } from './loaded.ts';
import { ModelThread } from './model-thread.ts';
import { openChat } from './open-chat.ts';

/** Loads a model in its own thread. Throws what loading throws; the thread is gone then. */
export async function createEngine(options: EngineOptions): Promise<Engine> {
  checkEngineOptions(options);
  const { offline, onProgress, signal } = options;
  // In the caller's thread, where a download leaves the event loop free and can be aborted.
  const model = await obtainModel(options.model, { offline, onProgress, signal });
  const engine = new Engine({ ...options, model });
  const abort = (): void => void engine.terminate();
  signal?.addEventListener('abort', abort, { once: true });
  try {
    if (signal?.aborted === true) throw new KvError('aborted', 'aborted before the model was loaded');
    await engine.start();
    signal?.throwIfAborted();
    return engine;
  } catch (error) {
    await engine.terminate();
    throw signal?.aborted === true
      ? new KvError('aborted', 'the loading of the model was aborted', { cause: error })
      : error;
  } finally {
    signal?.removeEventListener('abort', abort);
  }
}

/** Texts that are read in the same passes; each holds a cache of its own meanwhile. */
const EMBEDDED_AT_ONCE = 8;

/** A template that is named by its text. */
const withTemplate = ({ template, ...rest }: RenderOptions): RenderOptions => ({
  ...rest,
  ...(template === undefined ? {} : { template: templateNamed(template) }),
});

/** Where an engine is: in a thread of its own, or among others. */
interface EngineHome {
  readonly calls: HostClient;
  readonly tell: TellEvent;
  terminate(): Promise<void>;
}

/**
 * A model in a thread of its own, and the state folder that its sessions share. Made by createEngine, or for one of
 * several models by openEngine() of a runtime.
 */
export class Engine {
  readonly #home: EngineHome;
  readonly #calls: HostClient;
  /** Adapters that sessions can be opened with, by name. */
  readonly adapters: EngineAdapters;
  readonly #closing: Closing;
  #info: LoadedInfo | null = null;
  /** @internal Tells the logger what happens beside the engine. */
  readonly tell: TellEvent;

  /** @internal use createEngine, or openEngine() of a runtime */
  constructor(home: EngineHome | EngineOptions) {
    const own = 'calls' in home ? home : new ModelThread<HostCalls>({ host: hostOptions(home) }, this, home);
    this.#home = own;
    this.#calls = own.calls;
    this.#closing = new Closing(own);
    this.tell = own.tell;
    this.adapters = new EngineAdapters(own.calls);
  }

  /** @internal */
  static async of(home: EngineHome): Promise<Engine> {
    const engine = new Engine(home);
    await engine.start();
    return engine;
  }

  /** @internal */
  async start(): Promise<void> {
    this.#info = await this.#calls.call('info', undefined);
  }

  /** What was loaded. Throws 'closed' before the engine has started. */
  get info(): LoadedInfo {
    if (this.#info === null) throw new KvError('closed', 'the engine has not been started');
    return this.#info;
  }

  /**
   * Once the engine is closed: entries of its log that no checkpoint covers in a place outside of it, where `anchor`
   * names some. 0: all are covered; null: none is anchored, or the engine is not closed.
   */
  get unanchoredEntries(): number | null {
    return this.#closing.unanchoredEntries;
  }

  /** Bytes the cache would take at a length, per format pair. */
  async forecast(tokens: number): Promise<Forecast> {
    if (!Number.isSafeInteger(tokens) || tokens < 1)
      throw new KvError('bad-argument', 'a forecast needs a positive whole number of tokens', {
        values: { tokens: show(tokens) },
      });
    return this.#calls.call('forecast', { tokens });
  }

  /**
   * Token ids of a prompt as the first generate() of a session would read it. Refuses one of more than `tokensMax`
   * before counting on. begins: false for a text that goes on, which has no token of a beginning.
   */
  async tokenize(prompt: Prompt, tokensMax = Number.MAX_SAFE_INTEGER, begins = true): Promise<number[]> {
    if (!Number.isSafeInteger(tokensMax) || tokensMax < 0)
      throw new KvError('bad-argument', 'the most tokens of a prompt are a whole number', {
        values: { tokensMax: show(tokensMax) },
      });
    return this.#calls.call('tokenize', { prompt, tokensMax, begins });
  }

  /** The text of token ids, control tokens included. Throws 'bad-argument' for none, 'bad-value' for no such token. */
  async detokenize(ids: readonly number[]): Promise<string> {
    return this.#calls.call('detokenize', { ids });
  }

  /**
   * The prompt that messages become, by the chat template of the model or another one (`template`: Jinja, or 'hermes').
   * Throws 'bad-tokenizer' without a template, 'bad-argument' for what are no messages or tools.
   */
  async render(messages: readonly ChatMessage[], options: RenderOptions = {}): Promise<string> {
    return this.#calls.call('render', { messages, options: withTemplate(options) });
  }

  /** The same as token ids, as a chat reads them. Throws 'context-too-long' where they are far too many. */
  async renderTokens(messages: readonly ChatMessage[], options: RenderOptions = {}): Promise<number[]> {
    return this.#calls.call('renderTokens', { messages, options: withTemplate(options) });
  }

  /**
   * Texts as vectors of length 1: the mean of the model's states behind its last layer and its final norm, over all
   * tokens of a text. That is no trained embedder: texts of one subject are mostly nearer to each other than to others,
   * and no instruction for queries is known. Each text is read exactly, in a session of its own that takes its turn and
   * its share of memory and is gone then; a text has the same vector in any company. Throws 'context-too-long',
   * 'bad-argument' for an empty text, and 'budget-too-small' for one that the `kvBudget` of the engine cannot hold in
   * f16.
   */
  async embed(texts: readonly Prompt[], options: EmbedOptions = {}): Promise<Embeddings> {
    checkKeys(options, EMBED_OPTIONS, 'embed');
    checkOptions(options, EMBED_OPTIONS);
    if (!Array.isArray(texts))
      throw new KvError('bad-argument', 'what is embedded is a list of texts', { values: { texts: show(texts) } });
    const { signal, ...rest } = options;
    const failed = new AbortController();
    const either = signal === undefined ? failed.signal : AbortSignal.any([signal, failed.signal]);
    const all: Embedding[] = [];
    for (let at = 0; at < texts.length; at += EMBEDDED_AT_ONCE) {
      const some = texts
        .slice(at, at + EMBEDDED_AT_ONCE)
        .map((text: Prompt) => this.#calls.call('embed', { text, options: rest }, { signal: either }));
      for (const one of some) one.catch(() => failed.abort());
      await Promise.allSettled(some);
      all.push(...(await Promise.all(some)));
    }
    return { vectors: all.map(({ vector }) => vector), tokens: all.reduce((sum, { tokens }) => sum + tokens, 0) };
  }

  /**
   * Opens a conversation with an empty cache. Throws 'bad-argument', 'budget-too-small', 'unsupported', 'not-found'
   * before any work.
   */
  async openSession(options: SessionOptions = {}): Promise<EngineSession> {
    checkKeys(options, SESSION_OPTIONS, 'openSession');
    return new EngineSession(await this.#calls.call('open', withPolicyFile(options)), this.#calls);
  }

  /**
   * A conversation: messages in, text out, history kept in the cache and never read twice. Throws what openSession
   * throws, 'bad-tokenizer' without a chat template, 'unsupported' for tools that the template does not know, and for
   * toolChoice 'missing-dependency' and what its schemas are refused with. `docs/library.md` has the options and an
   * example.
   */
  async chat(options: ChatOptions = {}): Promise<Chat> {
    return new Chat(this.#calls, await openChat(this, this.#calls, withPolicyFile(options)));
  }

  /**
   * A session that goes on where a parked one was, under a new id; its log begins with the id of the parked one.
   * pathOrId: a file that park() wrote, or an id (its beginning or end) that is parked in the state folder. Options
   * that are given replace those that it was opened with. Keys and values are the parked ones, bit for bit, if the
   * model, the policy, the formats and all checksums are what they were; otherwise the tokens are read again, and
   * `resumed` of the session says why. Throws 'not-found', 'bad-file', 'unsupported', 'checksum-mismatch' where not
   * even the tokens can be trusted, 'model-mismatch' where they mean something else to this model, and what openSession
   * and generate throw.
   */
  async resume(pathOrId: string, options: ResumeOptions = {}): Promise<EngineSession> {
    checkKeys(options, RESUME_OPTIONS, 'resume');
    if (typeof pathOrId !== 'string' || pathOrId === '')
      throw new KvError('bad-argument', 'a parked session is named by a path or an id', {
        values: { given: show(pathOrId) },
      });
    const { onProgress, signal, ...session } = options;
    const onEvent = ({ progress }: { progress: Progress }): void => onProgress?.(progress);
    const params = { from: pathOrId, options: withPolicyFile(session) };
    const { id, resumed } = await this.#calls.call('resume', params, { onEvent, signal });
    return new EngineSession(id, this.#calls, resumed);
  }

  /** @internal A conversation that Chat.save has kept, with the tools and the template that it had. */
  async resumeChat(
    { chat, parked }: KeptChat,
    options: Pick<ChatOptions, 'tools' | 'template'>,
    own: SessionOptions = {},
  ): Promise<Chat> {
    const { id, resumed } = await this.#calls.call('resume', { from: parked, options: own });
    const session = new EngineSession(id, this.#calls, resumed);
    try {
      const { contextTokens, mostTokens, dateMs, entries, calls } = chat;
      const opened = await openChat(this, this.#calls, { ...options, session, contextTokens });
      const conversation = { ...opened.conversation, mostTokens, date: new Date(dateMs) };
      return new Chat(this.#calls, { ...opened, conversation }, entries, calls);
    } catch (error) {
      await session.close('error');
      throw error;
    }
  }

  /**
   * Verifies a receipt as verifyReceipt() does, and runs its answer again: the tokens of the request are read, the
   * moves of the log made where they were made, and the same tokens and text must come out. Throws what that throws,
   * 'bad-signature' where something else comes out, 'model-mismatch', and 'unsupported' where the answer cannot be run
   * again: this machine computes otherwise, or its session did what the log does not tell.
   */
  async verifyReceipt(
    receipt: unknown,
    options: ReceiptOptions & { readonly signal?: AbortSignal },
  ): Promise<ProvedAnswer> {
    const { signal, log, ...plain } = options;
    return this.#calls.call('verifyReceipt', { receipt, options: { ...plain, log: resolve(log) } }, { signal });
  }

  /**
   * What the engine counts about itself, as text that Prometheus reads (exposition format 0.0.4): bytes of keys and
   * values by tier and format, decisions by action and reason, times of tokens and of the log, fallbacks. Labels never
   * name a session, a layer, a model or a path. Answered between two steps. `docs/serve.md` lists the metrics.
   */
  async metrics(): Promise<string> {
    return this.#calls.call('metrics', undefined);
  }

  /**
   * Tells the policies of all sessions, and of those that open afterwards, that memory is short, or no longer. Sessions
   * that wait are parked, in memory or on disk if `idleSessions` says so. What a session is told by itself counts for
   * it until the engine is told again.
   */
  async setLowMemory(value: boolean): Promise<void> {
    await this.#calls.call('memoryIsLow', value === true);
  }

  /**
   * @internal the demonstration behind `npm start`: a document with codes, read within a budget and by the exact cache,
   *   compared
   */
  async tour(
    session: SessionOptions,
    options: TourOptions,
    onEvent: (event: TourEvent) => void,
    signal?: AbortSignal,
  ): Promise<TourResult> {
    return this.#calls.call('tour', { session, tour: options }, { onEvent, signal });
  }

  /**
   * Closes every session (each becomes one entry and one experience), flushes the log, ends the thread. An engine that
   * no call uses keeps no process alive, and is closed when the process comes to its end.
   */
  async close(): Promise<void> {
    await this.#closing.close();
  }

  /**
   * Ends the thread as soon as the native work under way is done. The log keeps what was acknowledged. An engine of a
   * runtime closes its sessions and leaves the thread to the others.
   */
  async terminate(): Promise<void> {
    await this.#home.terminate();
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
