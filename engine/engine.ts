/**
 * The caller's side of an engine. The model runs in one worker thread, so the caller's event loop stays free while it reads
 * and generates; only text, numbers and reports cross.
 */
import { resolve } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { checkKeys, type FormatName, KvError, show, startThread } from '../native/index.ts';
import type { ThresholdSet } from '../policy/index.ts';
import type { Forecast } from './budget.ts';
import { checkEngineOptions, hostOptions } from './engine-options.ts';
import type { TourEvent, TourOptions, TourResult } from './evaluate/tour.ts';
import { GateKeeper, keep, release } from './gate.ts';
import type { LoadedInfo, ParkedFile } from './host.ts';
import { obtainModel } from './model/hub/obtain.ts';
import type { LoadProgress } from './model/types.ts';
import {
  COMPARE_OPTIONS,
  CONTINUATION_OPTIONS,
  GENERATE_OPTIONS,
  PARK_OPTIONS,
  RESUME_OPTIONS,
  SESSION_OPTIONS,
} from './option-names.ts';
import type { Resumed } from './park/resume.ts';
import { type Call, fromWire, LOADING, type Reply } from './protocol.ts';
import type {
  ContinuationOptions,
  Divergence,
  EngineOptions,
  Generated,
  GenerateOptions,
  MemoryUsage,
  ParkOptions,
  Progress,
  Prompt,
  QualityFeedback,
  ResumeOptions,
  SessionOptions,
  SessionReport,
} from './types.ts';

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

type CallFunction = (
  method: string,
  params: unknown,
  event?: (event: unknown) => void,
  signal?: AbortSignal,
) => Promise<unknown>;

/** One conversation. Turns continue over the same cache. */
export class EngineSession {
  /** Its name in the log. */
  readonly id: string;
  /** How it came back, if it was parked; null: it was not. */
  readonly resumed: Resumed | null;
  readonly #call: CallFunction;
  #closing: Promise<void> | null = null;

  /** @internal */
  constructor(id: string, call: CallFunction, resumed: Resumed | null = null) {
    this.id = id;
    this.resumed = resumed;
    this.#call = call;
  }

  /**
   * Reads the prompt and generates: `for await (const text of session.generate('…'))`; `.result` holds the summary.
   * A string is a plain prompt, messages go through the model's chat template, numbers are token ids.
   */
  generate(prompt: Prompt | null, options: GenerateOptions = {}): Generation {
    const left = new AbortController();
    return new Generation(
      async (event) => {
        checkKeys(options, GENERATE_OPTIONS, 'generate');
        const { signal, onProgress: _, ...plain } = options;
        const either = signal === undefined ? left.signal : AbortSignal.any([signal, left.signal]);
        return this.#call('generate', { session: this.id, prompt, options: plain }, event, either);
      },
      () => left.abort(),
      options?.onProgress,
    );
  }

  /** Reads a prompt without answering it; generate(null) or park() can follow. What generate refuses is refused here too. */
  async read(
    prompt: Prompt,
    options: { onProgress?: (progress: Progress) => void; signal?: AbortSignal } = {},
  ): Promise<void> {
    checkKeys(options, COMPARE_OPTIONS, 'read');
    const event = (value: unknown): void => options.onProgress?.((value as { progress: Progress }).progress);
    await this.#call('read', { session: this.id, prompt }, event, options.signal);
  }

  /**
   * n continuations of one prompt, which is read once: the session then holds the prompt, and each continuation was written over a fork of it, with the seeds
   * `seed`, `seed` + 1, … Those that an abort leaves unfinished have finish 'aborted'. Throws what generate refuses, and 'bad-argument' for more than one without a
   * temperature, which would all be the same.
   */
  async continuations(prompt: Prompt, options: ContinuationOptions): Promise<Generated[]> {
    checkKeys(options, CONTINUATION_OPTIONS, 'continuations');
    const { signal, onProgress, ...plain } = options;
    const event = (value: unknown): void => onProgress?.((value as { progress: Progress }).progress);
    return (await this.#call(
      'continuations',
      { session: this.id, prompt, options: plain },
      event,
      signal,
    )) as Generated[];
  }

  /** A session that continues from here; pages are shared until either side changes them. */
  async fork(): Promise<EngineSession> {
    return new EngineSession((await this.#call('fork', { session: this.id })) as string, this.#call);
  }

  /**
   * Writes the session to a file that only its owner can read, and closes it: engine.resume() goes on from there. The file holds the tokens as well as
   * the cache. path: default `parked/<id>.parked` in the state folder, where erasing the session removes it too. Throws 'busy', 'io', 'not-found' where
   * there is nothing to predict by, and 'unsupported' for sessions with latents; the session is then still open.
   */
  async park(path?: string, options: ParkOptions = {}): Promise<ParkedFile> {
    checkKeys(options, PARK_OPTIONS, 'park');
    if (path !== undefined && (typeof path !== 'string' || path === ''))
      throw new KvError('bad-argument', 'a parked session needs a path', { values: { path: show(path) } });
    const target = path === undefined ? null : resolve(path);
    const parked = (await this.#call('park', {
      session: this.id,
      path: target,
      predict: options.predict === true,
    })) as ParkedFile;
    this.#closing = Promise.resolve();
    return parked;
  }

  /** Bytes, formats per layer, decisions and times so far. */
  async report(): Promise<SessionReport> {
    return (await this.#call('report', { session: this.id })) as SessionReport;
  }

  /** Runs the same tokens through an exact cache and compares the last of them (needs `compareTokens`, see SessionOptions). */
  async compare(
    options: { onProgress?: (progress: Progress) => void; signal?: AbortSignal } = {},
  ): Promise<Divergence> {
    checkKeys(options, COMPARE_OPTIONS, 'compare');
    const event = (value: unknown): void => options.onProgress?.((value as { progress: Progress }).progress);
    return (await this.#call('compare', { session: this.id }, event, options.signal)) as Divergence;
  }

  /** Bytes of the session's cache: where they are, and what bounds them. */
  async memoryUsage(): Promise<MemoryUsage> {
    return (await this.#call('memoryUsage', { session: this.id })) as MemoryUsage;
  }

  /**
   * Tells what the quality turned out to be, which moves the constant of the error law: for sessions opened with the thresholds that this returns,
   * or that saveThresholds writes. compare() does it by itself. Throws 'bad-value'.
   */
  async adaptThresholds(feedback: QualityFeedback): Promise<ThresholdSet> {
    return (await this.#call('adaptThresholds', { session: this.id, feedback })) as ThresholdSet;
  }

  /** As PolicyCache.restore, in a session that keeps `latents`. Throws 'busy' while it generates, and what that throws. */
  async restore(layer: number, page: number, format?: FormatName): Promise<number> {
    return (await this.#call('restore', { session: this.id, layer, page, format })) as number;
  }

  /** Tells the policy that memory is short (or no longer). */
  async setLowMemory(value: boolean): Promise<void> {
    await this.#call('lowMemory', { session: this.id, value: value === true });
  }

  /** Writes what this session has learned into a threshold file. Throws 'bad-argument', 'io'. */
  async saveThresholds(path: string): Promise<void> {
    if (typeof path !== 'string' || path === '')
      throw new KvError('bad-argument', 'a threshold file needs a path', { values: { path: show(path) } });
    await this.#call('saveThresholds', { session: this.id, path: resolve(path) });
  }

  /** Waits until every decision so far is on disk. → highest acknowledged sequence number, −1 without a log. */
  async flush(): Promise<number> {
    return (await this.#call('flush', null)) as number;
  }

  /** Frees the session; `reason` goes into the log. A second call does nothing, also when the engine was closed meanwhile. */
  async close(reason: 'done' | 'aborted' | 'error' = 'done'): Promise<void> {
    if (reason !== 'done' && reason !== 'aborted' && reason !== 'error') {
      throw new KvError('bad-argument', "a session ends 'done', 'aborted' or with an 'error'", {
        values: { reason: show(reason) },
      });
    }
    this.#closing ??= this.#call('closeSession', { session: this.id, reason }).then(
      () => {},
      (error: unknown) => {
        if (!(error instanceof KvError && error.code === 'closed')) throw error;
      },
    );
    await this.#closing;
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Text as it comes; `result` settles when generation ended, failed or was aborted. Leaving the loop early aborts it. */
export class Generation implements AsyncIterable<string> {
  /** Settles when generation has ended. Rejects with what generate refuses, with 'aborted' while the prompt was read, or with what onProgress threw. */
  readonly result: Promise<Generated>;
  readonly #texts: string[] = [];
  readonly #leave: () => void;
  #waiting: (() => void)[] = [];
  #done = false;

  /** @internal */
  constructor(
    start: (event: (event: unknown) => void) => Promise<unknown>,
    leave: () => void,
    onProgress?: (progress: Progress) => void,
  ) {
    this.#leave = leave;
    this.result = start((event) => {
      const { text, progress } = event as { text?: string; progress?: Progress };
      if (progress !== undefined) onProgress?.(progress);
      if (text !== undefined) {
        this.#texts.push(text);
        this.#wake();
      }
    }).then((value) => value as Generated);
    const finish = (): void => {
      this.#done = true;
      this.#wake();
    };
    this.result.then(finish, finish);
  }

  /** Text as it comes. Leaving the loop aborts the generation. */
  async *[Symbol.asyncIterator](): AsyncGenerator<string, void> {
    let at = 0;
    try {
      for (;;) {
        while (at < this.#texts.length) yield this.#texts[at++]!;
        if (this.#done) break;
        await new Promise<void>((wake) => this.#waiting.push(wake));
      }
    } finally {
      if (!this.#done) this.#leave();
    }
    await this.result;
  }

  /** All text at once. */
  async text(): Promise<string> {
    return (await this.result).text;
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
