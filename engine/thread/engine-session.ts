/** The caller's side of one session, whose cache and tokens are in the model's thread. */
import { resolve } from 'node:path';
import { checkKeys, checkOptions, checkPath, type FormatName, KvError, show } from '../../native/index.ts';
import type { ThresholdSet } from '../../policy/index.ts';
import type { MemoryUsage, QualityFeedback, SessionReport } from '../cache/types.ts';
import { COMPARE_OPTIONS, CONTINUATION_OPTIONS, GENERATE_OPTIONS, PARK_OPTIONS } from '../options/table.ts';
import type { ContinuationOptions, GenerateOptions, ParkOptions, Progress, Prompt } from '../options/types.ts';
import type { Resumed } from '../session/park/resume.ts';
import type { Divergence, Generated, StreamedText, Written } from '../session/types.ts';
import type { HostClient } from './calls/index.ts';
import type { ParkedFile } from './calls/parking.ts';

interface ReadOptions {
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

const reading = ({ onProgress, signal }: ReadOptions) => ({
  onEvent: ({ progress }: { readonly progress: Progress }): void => onProgress?.(progress),
  signal,
});

/** One conversation. Turns continue over the same cache. */
export class EngineSession {
  /** Its name in the log. */
  readonly id: string;
  /** How it came back, if it was parked; null: it was not. */
  readonly resumed: Resumed | null;
  readonly #calls: HostClient;
  #closing: Promise<void> | null = null;

  /** @internal */
  constructor(id: string, calls: HostClient, resumed: Resumed | null = null) {
    this.id = id;
    this.resumed = resumed;
    this.#calls = calls;
  }

  /**
   * Reads the prompt and generates: `for await (const text of session.generate('…'))`; `.result` holds the summary.
   * A string is a plain prompt, messages go through the model's chat template, numbers are token ids.
   */
  generate(prompt: Prompt | null, options: GenerateOptions = {}): Generation {
    const left = new AbortController();
    return new Generation(
      async (onEvent) => {
        checkKeys(options, GENERATE_OPTIONS, 'generate');
        const { signal, onProgress: _, ...plain } = options;
        const either = signal === undefined ? left.signal : AbortSignal.any([signal, left.signal]);
        return this.#calls.call('generate', { session: this.id, prompt, options: plain }, { onEvent, signal: either });
      },
      () => left.abort(),
      options?.onProgress,
    );
  }

  /**
   * Reads a prompt without answering it; generate(null) or park() can follow. What generate refuses is refused here
   * too.
   */
  async read(
    prompt: Prompt,
    options: { onProgress?: (progress: Progress) => void; signal?: AbortSignal } = {},
  ): Promise<void> {
    checkKeys(options, COMPARE_OPTIONS, 'read');
    await this.#calls.call('read', { session: this.id, prompt }, reading(options));
  }

  /**
   * n continuations of one prompt, which is read once: the session then holds the prompt, and each continuation was
   * written over a fork of it, with the seeds `seed`, `seed` + 1, … Those that an abort leaves unfinished have finish
   * 'aborted'. Throws what generate refuses, and 'bad-argument' for more than one without a temperature, which would
   * all be the same.
   */
  async continuations(prompt: Prompt, options: ContinuationOptions): Promise<Generated[]> {
    checkKeys(options, CONTINUATION_OPTIONS, 'continuations');
    const { signal, onProgress, ...plain } = options;
    const params = { session: this.id, prompt, options: plain };
    return this.#calls.call('continuations', params, reading({ signal, onProgress }));
  }

  /** A session that continues from here; pages are shared until either side changes them. */
  async fork(): Promise<EngineSession> {
    return new EngineSession(await this.#calls.call('fork', { session: this.id }), this.#calls);
  }

  /**
   * Writes the session to a file that only its owner can read, and closes it: engine.resume() goes on from there. The
   * file holds the tokens as well as the cache. path: default `parked/<id>.parked` in the state folder, where erasing
   * the session removes it too. Throws 'busy', 'io', 'not-found' where there is nothing to predict by, and
   * 'unsupported' for sessions with latents; the session is then still open.
   */
  async park(path?: string, options: ParkOptions = {}): Promise<ParkedFile> {
    checkKeys(options, PARK_OPTIONS, 'park');
    checkOptions(options, PARK_OPTIONS);
    if (path !== undefined) checkPath(path, 'a parked session');
    const where = { path: path === undefined ? null : resolve(path), predict: options.predict === true };
    const parked = await this.#calls.call('park', { session: this.id, ...where });
    this.#closing = Promise.resolve();
    return parked;
  }

  /** Bytes, formats per layer, decisions and times so far. */
  async report(): Promise<SessionReport> {
    return this.#calls.call('report', { session: this.id });
  }

  /**
   * Runs the same tokens through an exact cache and compares the last of them (needs `compareTokens`, see
   * SessionOptions).
   */
  async compare(
    options: { onProgress?: (progress: Progress) => void; signal?: AbortSignal } = {},
  ): Promise<Divergence> {
    checkKeys(options, COMPARE_OPTIONS, 'compare');
    return this.#calls.call('compare', { session: this.id }, reading(options));
  }

  /** Bytes of the session's cache: where they are, and what bounds them. */
  async memoryUsage(): Promise<MemoryUsage> {
    return this.#calls.call('memoryUsage', { session: this.id });
  }

  /**
   * Tells what the quality turned out to be, which moves the constant of the error law: for sessions opened with the
   * thresholds that this returns, or that saveThresholds writes. compare() does it by itself. Throws 'bad-value'.
   */
  async adaptThresholds(feedback: QualityFeedback): Promise<ThresholdSet> {
    return this.#calls.call('adaptThresholds', { session: this.id, feedback });
  }

  /**
   * Does what PolicyCache.restore says, in a session that keeps `latents`; where it keeps `originals` as well, what has
   * one is made of that. A page that has no latent is made again of its originals alone, and policies move it on only
   * when they must. Throws what that throws, 'busy' while it generates, and 'unsupported' for a page without either,
   * and, where originals are kept, while a fork shares pages.
   */
  async restore(layer: number, page: number, format?: FormatName): Promise<number> {
    return this.#calls.call('restore', { session: this.id, layer, page, format });
  }

  /** Tells the policy that memory is short (or no longer). */
  async setLowMemory(value: boolean): Promise<void> {
    await this.#calls.call('lowMemory', { session: this.id, value: value === true });
  }

  /** Writes what this session has learned into a threshold file. Throws 'bad-argument', 'io'. */
  async saveThresholds(path: string): Promise<void> {
    checkPath(path, 'a threshold file');
    await this.#calls.call('saveThresholds', { session: this.id, path: resolve(path) });
  }

  /** Waits until every decision so far is on disk. → highest acknowledged sequence number, −1 without a log. */
  async flush(): Promise<number> {
    return this.#calls.call('flush', undefined);
  }

  /**
   * Frees the session; `reason` goes into the log. A second call does nothing, also when the engine was closed
   * meanwhile.
   */
  async close(reason: 'done' | 'aborted' | 'error' = 'done'): Promise<void> {
    if (reason !== 'done' && reason !== 'aborted' && reason !== 'error') {
      throw new KvError('bad-argument', "a session ends 'done', 'aborted' or with an 'error'", {
        values: { reason: show(reason) },
      });
    }
    this.#closing ??= this.#calls.call('closeSession', { session: this.id, reason }).then(
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

/**
 * Text as it comes; `result` settles when generation ended, failed or was aborted. Leaving the loop early aborts it.
 */
export class Generation<Result extends Pick<Generated, 'text'> = Generated> implements AsyncIterable<string> {
  /**
   * Settles when generation has ended. Rejects with what generate refuses, with 'aborted' while the prompt was read, or
   * with what onProgress threw.
   */
  readonly result: Promise<Result>;
  readonly #texts: StreamedText[] = [];
  readonly #leave: () => void;
  #waiting: (() => void)[] = [];
  #done = false;

  /** @internal */
  constructor(
    start: (onEvent: (event: Written) => void) => Promise<Result>,
    leave: () => void,
    onProgress?: (progress: Progress) => void,
  ) {
    this.#leave = leave;
    this.result = start(({ text, tiers = null, logprobs = null, progress }) => {
      if (progress !== undefined) onProgress?.(progress);
      if (text !== undefined) {
        this.#texts.push({ text, tiers, logprobs });
        this.#wake();
      }
    });
    const finish = (): void => {
      this.#done = true;
      this.#wake();
    };
    this.result.then(finish, finish);
  }

  /** Text as it comes. Leaving the loop aborts the generation. */
  async *[Symbol.asyncIterator](): AsyncGenerator<string, void> {
    for await (const { text } of this.events()) yield text;
  }

  /** The same, each text with what `tierSummary` and `logprobs` ask for. Leaving the loop aborts the generation. */
  async *events(): AsyncGenerator<StreamedText, void> {
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
