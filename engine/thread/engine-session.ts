/** The caller's side of one session, whose cache and tokens are in the model's thread. */
import { resolve } from 'node:path';
import { checkKeys, checkOptions, type FormatName, KvError, show } from '../../native/index.ts';
import type { ThresholdSet } from '../../policy/index.ts';
import type { MemoryUsage, QualityFeedback, SessionReport } from '../cache/types.ts';
import { COMPARE_OPTIONS, CONTINUATION_OPTIONS, GENERATE_OPTIONS, PARK_OPTIONS } from '../options/table.ts';
import type { ContinuationOptions, GenerateOptions, ParkOptions, Progress, Prompt } from '../options/types.ts';
import type { Resumed } from '../session/park/resume.ts';
import type { Divergence, Generated } from '../session/types.ts';
import type { ParkedFile } from './host.ts';

/** Calls the model's thread by a method's name. */
export type CallFunction = (
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
    checkOptions(options, PARK_OPTIONS);
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
export class Generation<Result extends Pick<Generated, 'text'> = Generated> implements AsyncIterable<string> {
  /** Settles when generation has ended. Rejects with what generate refuses, with 'aborted' while the prompt was read, or with what onProgress threw. */
  readonly result: Promise<Result>;
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
    }).then((value) => value as Result);
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
