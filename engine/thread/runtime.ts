/**
 * Several models in one thread, whose sessions share one budget, one schedule and one log. Each is an engine as
 * createEngine makes one, which leaves the rest to the others when it is closed.
 */
import { checkKeys, checkOption, checkOptions, given, KvError } from '../../native/index.ts';
import type { TellEvent } from '../events/event.ts';
import { ENGINE_OPTIONS } from '../options/table.ts';
import type { EngineOptions } from '../options/types.ts';
import { obtainModel } from '../transformer/hub/obtain.ts';
import type { HostClient } from './calls/index.ts';
import type { OfEngine, RuntimeCalls } from './calls/runtime.ts';
import { Closing } from './closing.ts';
import { Engine } from './engine.ts';
import { checkRuntimeOptions, commonsOptions, MODEL_OPTIONS, modelOptions } from './engine-options.ts';
import { ModelThread } from './model-thread.ts';

/** Options of one model of a runtime. Only the model is needed. */
export type RuntimeModelOptions = Pick<
  EngineOptions,
  'model' | 'dense' | 'activations' | 'adapters' | 'threads' | 'cacheDir' | 'offline' | 'onProgress' | 'signal'
>;

/** Options of createRuntime: those of createEngine that are not about one model. */
export type RuntimeOptions = Omit<EngineOptions, keyof RuntimeModelOptions>;

/**
 * A thread for several models: `openEngine` loads one after the other. All their sessions share its kvBudget; whoever
 * needs room has it from idle sessions of any model, and passes over the weights of one model alternate with those of
 * the others. Throws 'bad-argument', and what opening a state folder throws.
 */
export async function createRuntime(options: RuntimeOptions = {}): Promise<EngineRuntime> {
  checkRuntimeOptions(options);
  const runtime = new EngineRuntime(options);
  try {
    await runtime.flush();
    return runtime;
  } catch (error) {
    await runtime.terminate();
    throw error;
  }
}

/** Models that share one budget, one schedule and one log. Made by createRuntime. */
export class EngineRuntime {
  readonly #thread: ModelThread<RuntimeCalls>;
  readonly #options: RuntimeOptions;
  readonly #engines = new Map<EngineCalls, Engine>();
  readonly #closing: Closing;

  /** @internal use createRuntime */
  constructor(options: RuntimeOptions) {
    this.#options = options;
    this.#thread = new ModelThread({ commons: commonsOptions(options) }, this, options);
    this.#closing = new Closing(this.#thread);
  }

  /**
   * Loads a model beside those that there are. Throws what createEngine throws. An abort ends the download; a model
   * that is being loaded by then is closed again.
   */
  async openEngine(options: RuntimeModelOptions): Promise<Engine> {
    checkKeys(options, MODEL_OPTIONS, 'openEngine');
    checkOption('model', ENGINE_OPTIONS.model, options.model);
    checkOptions(options, MODEL_OPTIONS);
    const { offline, onProgress, signal } = options;
    const model = await obtainModel(options.model, { offline, onProgress, signal });
    const { isa, binding } = this.#options;
    const kernels = given<Pick<EngineOptions, 'isa' | 'binding'>>({ isa, binding });
    const what = modelOptions({ ...options, ...kernels, model });
    const onEvent = onProgress ?? (() => {});
    const number = await this.#thread.calls.call('openEngine', what, { onEvent, signal });
    const engine = new EngineCalls(this.#thread, number);
    try {
      const opened = await Engine.of({ calls: engine, tell: this.tell, terminate: () => engine.leave() });
      // Of a small model the thread has made an engine before it hears that nobody wants it.
      if (signal?.aborted === true) throw new KvError('aborted', 'the loading of the model was aborted');
      this.#engines.set(engine, opened);
      return opened;
    } catch (error) {
      await engine.leave();
      throw error;
    }
  }

  /** Those that are open, in the order in which they were opened. */
  get engines(): readonly Engine[] {
    return [...this.#engines].filter(([{ ended }]) => ended === null).map(([, engine]) => engine);
  }

  /** @internal Tells the logger what happens beside the engines. */
  get tell(): TellEvent {
    return this.#thread.tell;
  }

  /** What all engines count together, as the metrics() of each of them. */
  async metrics(): Promise<string> {
    return this.#thread.calls.call('metrics', undefined);
  }

  /** Tells the sessions of all engines that memory is short, or no longer, as the setLowMemory() of an engine. */
  async setLowMemory(value: boolean): Promise<void> {
    await this.#thread.calls.call('memoryIsLow', value === true);
  }

  /** Waits until all that was logged is on disk. */
  async flush(): Promise<void> {
    await this.#thread.calls.call('flush', undefined);
  }

  /** The same as that of an engine, of the log that all of them write. */
  get unanchoredEntries(): number | null {
    return this.#closing.unanchoredEntries;
  }

  /** Closes all engines and their sessions, flushes the log, and ends the thread. */
  async close(): Promise<void> {
    await this.#closing.close();
  }

  /** Ends the thread as soon as the native work under way is done. The log keeps what was acknowledged. */
  async terminate(): Promise<void> {
    await this.#thread.terminate();
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** The calls of one engine, on the way to it in a thread that has several. */
class EngineCalls implements HostClient {
  readonly #thread: ModelThread<RuntimeCalls>;
  readonly #engine: number;
  #left: Error | null = null;

  constructor(thread: ModelThread<RuntimeCalls>, engine: number) {
    this.#thread = thread;
    this.#engine = engine;
  }

  get ended(): Error | null {
    return this.#left ?? this.#thread.calls.ended;
  }

  readonly call: HostClient['call'] = (name, params, options) => {
    if (this.ended !== null) return Promise.reject(this.ended);
    const call: OfEngine = { engine: this.#engine, name, params };
    // Options and answers are those of the call that it names.
    return this.#thread.calls.call('ofEngine', call, options as object) as ReturnType<typeof this.call<typeof name>>;
  };

  /** Closes its sessions and lets go of the model; the thread goes on. */
  async leave(): Promise<void> {
    if (this.ended !== null) return;
    this.#left = new KvError('closed', 'the engine was closed');
    await this.#thread.calls.call('closeEngine', { engine: this.#engine });
  }
}
