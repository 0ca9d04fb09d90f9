/**
 * The caller's side of an engine. The model runs in one worker thread, so the caller's event loop stays free while it reads
 * and generates; only text, numbers and reports cross.
 */
import type { Worker } from 'node:worker_threads';
import { checkKeys, KvError, show, startThread } from '../../native/index.ts';
import type { Forecast } from '../cache/budget.ts';
import type { TourEvent, TourOptions, TourResult } from '../evaluate/tour.ts';
import { RESUME_OPTIONS, SESSION_OPTIONS } from '../options/table.ts';
import type { EngineOptions, Progress, Prompt, ResumeOptions, SessionOptions } from '../options/types.ts';
import type { Resumed } from '../session/park/resume.ts';
import { obtainModel } from '../transformer/hub/obtain.ts';
import type { LoadProgress } from '../transformer/types.ts';
import { Chat } from './chat.ts';
import type { ChatOptions } from './chat-options.ts';
import { checkEngineOptions, hostOptions } from './engine-options.ts';
import { type CallFunction, EngineSession } from './engine-session.ts';
import { GateKeeper, keep, release } from './gate.ts';
import type { LoadedInfo } from './host.ts';
import { openChat } from './open-chat.ts';
import { type Call, fromWire, LOADING, type Reply } from './protocol.ts';

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
  event(event: unknown): void;
  /** What the caller's own code threw when it was told of an event: the call is being aborted, and ends with this. */
  thrown?: { readonly error: Error };
}

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

/** A model in a thread of its own, and the state folder that its sessions share. Made by createEngine. */
export class Engine {
  readonly #worker: Worker;
  readonly #gate = new GateKeeper();
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #gone: Error | null = null;
  #closing: Promise<void> | null = null;
  #info: LoadedInfo | null = null;
  readonly #onLoading: EngineOptions['onProgress'];
  /** What the caller's own code threw when it was told of the loading, which ends with this. */
  #thrown: Error | null = null;

  /** @internal use createEngine */
  constructor(options: EngineOptions) {
    this.#onLoading = options.onProgress;
    this.#worker = startThread(new URL('./worker.ts', import.meta.url), {
      host: hostOptions(options),
      gate: this.#gate.shared,
    });
    keep(this.#gate);
    this.#worker.on('message', (reply: Reply) => this.#receive(reply));
    this.#worker.on('error', (error) => this.#end(error instanceof Error ? error : new Error(show(error))));
    this.#worker.on('exit', () => {
      release(this.#gate);
      this.#end(new KvError('closed', 'the engine was closed'));
    });
  }

  /** @internal */
  async start(): Promise<void> {
    this.#info = (await this.#call('info', null)) as LoadedInfo;
  }

  /** What was loaded. Throws 'closed' before the engine has started. */
  get info(): LoadedInfo {
    if (this.#info === null) throw new KvError('closed', 'the engine has not been started');
    return this.#info;
  }

  /** Bytes the cache would take at a length, per format pair. */
  async forecast(tokens: number): Promise<Forecast> {
    if (!Number.isSafeInteger(tokens) || tokens < 1)
      throw new KvError('bad-argument', 'a forecast needs a positive whole number of tokens', {
        values: { tokens: show(tokens) },
      });
    return (await this.#call('forecast', { tokens })) as Forecast;
  }

  /** Token ids of a prompt as the first generate() of a session would read it. Refuses one of more than `tokensMax` before counting on. */
  async tokenize(prompt: Prompt, tokensMax = Number.MAX_SAFE_INTEGER): Promise<number[]> {
    return (await this.#call('tokenize', { prompt, tokensMax })) as number[];
  }

  /** Opens a conversation with an empty cache. Throws 'bad-argument', 'budget-too-small', 'unsupported', 'not-found' before any work. */
  async openSession(options: SessionOptions = {}): Promise<EngineSession> {
    checkKeys(options, SESSION_OPTIONS, 'openSession');
    const id = (await this.#call('open', options)) as string;
    return new EngineSession(id, (method, params, event, signal) => this.#call(method, params, event, signal));
  }

  /**
   * A conversation: messages in, text out, history kept in the cache and never read twice. Throws what openSession throws, 'bad-tokenizer' without a
   * chat template, 'unsupported' for tools that the template does not know, and for toolChoice 'missing-dependency' and what its schemas are refused with. `docs/library.md` has the options and an example.
   */
  async chat(options: ChatOptions = {}): Promise<Chat> {
    const call: CallFunction = (method, params, event, signal) => this.#call(method, params, event, signal);
    return new Chat(call, await openChat(this, call, options));
  }

  /**
   * A session that goes on where a parked one was, under a new id; its log begins with the id of the parked one. pathOrId: a file that park() wrote, or an
   * id (its beginning or end) that is parked in the state folder. Options that are given replace those that it was opened with. Keys and values are the
   * parked ones, bit for bit, if the model, the policy, the formats and all checksums are what they were; otherwise the tokens are read again,
   * and `resumed` of the session says why. Throws 'not-found', 'bad-file', 'unsupported', 'checksum-mismatch' where not even the tokens can be trusted,
   * 'model-mismatch' where they mean something else to this model, and what openSession and generate throw.
   */
  async resume(pathOrId: string, options: ResumeOptions = {}): Promise<EngineSession> {
    checkKeys(options, RESUME_OPTIONS, 'resume');
    if (typeof pathOrId !== 'string' || pathOrId === '')
      throw new KvError('bad-argument', 'a parked session is named by a path or an id', {
        values: { given: show(pathOrId) },
      });
    const { onProgress, signal, ...session } = options;
    const event = (value: unknown): void => onProgress?.((value as { progress: Progress }).progress);
    const answer = await this.#call('resume', { path: pathOrId, options: session }, event, signal);
    const { id, resumed } = answer as { id: string; resumed: Resumed };
    return new EngineSession(id, (method, params, ...more) => this.#call(method, params, ...more), resumed);
  }

  /**
   * What the engine counts about itself, as text that Prometheus reads (exposition format 0.0.4): bytes of keys and values by tier and format,
   * decisions by action and reason, times of tokens and of the log, fallbacks. Labels never name a session, a layer, a model or a path. Answered
   * between two steps. `docs/serve.md` lists the metrics.
   */
  async metrics(): Promise<string> {
    return (await this.#call('metrics', null)) as string;
  }

  /** @internal the demonstration behind `npm start`: a document with codes, read within a budget and by the exact cache, compared */
  async tour(
    session: SessionOptions,
    options: TourOptions,
    onEvent: (event: TourEvent) => void,
    signal?: AbortSignal,
  ): Promise<TourResult> {
    return (await this.#call(
      'tour',
      { session, tour: options },
      (event) => onEvent(event as TourEvent),
      signal,
    )) as TourResult;
  }

  /** Closes every session (each becomes one entry and one experience), flushes the log, ends the thread. */
  async close(): Promise<void> {
    if (this.#gone !== null && this.#closing === null) return;
    this.#closing ??= this.#call('close', null).then(
      () => this.terminate(),
      // What could not be written must not keep the thread, and with it the process, alive.
      (error: unknown) => this.terminate().then(() => Promise.reject(error)),
    );
    await this.#closing;
  }

  /** Ends the thread as soon as the native work under way is done. The log keeps what was acknowledged. */
  async terminate(): Promise<void> {
    await this.#gate.close();
    await this.#worker.terminate();
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #call(
    method: string,
    params: unknown,
    event: (event: unknown) => void = () => {},
    signal?: AbortSignal,
  ): Promise<unknown> {
    if (this.#gone !== null) return Promise.reject(this.#gone);
    if (signal?.aborted) return Promise.reject(new KvError('aborted', `aborted before ${method} began`));
    const id = this.#nextId++;
    const call: Call = { id, method, params };
    return new Promise((resolveCall, rejectCall) => {
      const abort = (): void => this.#worker.postMessage({ abort: id });
      try {
        this.#worker.postMessage(call);
      } catch (cause) {
        throw new KvError(
          'bad-argument',
          `what was given to ${method} cannot be sent to the model's thread: ${(cause as Error).message}`,
          { hint: 'options are plain data', cause },
        );
      }
      const settle = (): void => signal?.removeEventListener('abort', abort);
      this.#pending.set(id, {
        resolve: (value) => {
          settle();
          resolveCall(value);
        },
        reject: (error) => {
          settle();
          rejectCall(error);
        },
        event,
      });
      signal?.addEventListener('abort', abort, { once: true });
    });
  }

  #receive(reply: Reply): void {
    if (reply.id === LOADING) this.#loading(reply);
    const pending = this.#pending.get(reply.id);
    if (pending === undefined) return;
    if (reply.kind === 'event') {
      if (pending.thrown !== undefined) return;
      try {
        pending.event(reply.event);
      } catch (error) {
        pending.thrown = { error: error as Error };
        this.#worker.postMessage({ abort: reply.id });
      }
      return;
    }
    this.#pending.delete(reply.id);
    if (pending.thrown !== undefined) pending.reject(pending.thrown.error);
    else if (reply.kind === 'value') pending.resolve(reply.value);
    else pending.reject(fromWire(reply.error));
  }

  #loading(reply: Reply): void {
    if (reply.kind !== 'event' || this.#thrown !== null) return;
    try {
      this.#onLoading?.(reply.event as LoadProgress);
    } catch (error) {
      this.#thrown = error as Error;
      void this.terminate();
    }
  }

  #end(failure: Error): void {
    const error = this.#thrown ?? failure;
    this.#gone ??= error;
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
  }
}
