/**
 * A log, read in a thread of its own: however long a question takes, neither the server nor the program that runs it
 * waits with anything else. The thread has one question at a time, so that one whose asker went away is never begun.
 * Verifying reads every byte, so it has a thread for itself, one at a time.
 */
import type { Worker } from 'node:worker_threads';
import { type AnswerOf, KvError, type ParamsOf, startThread, ThreadClient } from '../../native/index.ts';
import { masterKeysInUse } from '../../witness/index.ts';
import type { ToldDecision } from './follow.ts';
import type { ReaderCalls } from './reader-thread.ts';

/** Questions that may wait for an answer. */
const WAITING_MAX = 64;
/** So long a verification counts as the present one. */
const VERIFIED_MS = 10_000;

interface Waiting {
  begin(): void;
}

const closed = (): KvError => new KvError('closed', 'the live view was closed');

export class LogReader {
  readonly #dir: string;
  readonly #thread: Worker;
  readonly #calls: ThreadClient<ReaderCalls, readonly ToldDecision[]>;
  /** Questions that have not been asked yet, the next one first. */
  readonly #waiting: Waiting[] = [];
  #isAsking = false;
  readonly #watchers = new Set<(decisions: readonly ToldDecision[]) => void>();
  #verified: { readonly answer: Promise<unknown>; readonly atMs: number } | null = null;

  constructor(dir: string) {
    this.#dir = dir;
    this.#thread = startThread(new URL('./reader-thread.ts', import.meta.url), {
      dir,
      masterKeys: masterKeysInUse(),
    });
    this.#calls = new ThreadClient(this.#thread, {
      thread: 'the thread that reads the log',
      ended: closed,
      onNews: (decisions) => {
        for (const watcher of [...this.#watchers]) watcher(decisions);
      },
    });
  }

  /**
   * Asks the thread when it is this question's turn. Throws what its method throws, 'busy' when too many questions
   * wait, 'aborted' when its asker went away before its turn, 'closed'.
   */
  async ask<Name extends keyof ReaderCalls>(
    name: Name,
    params: ParamsOf<ReaderCalls[Name]>,
    signal?: AbortSignal,
  ): Promise<AnswerOf<ReaderCalls[Name]>> {
    if (this.#calls.ended === null && this.#waiting.length >= WAITING_MAX)
      throw new KvError('busy', 'too many questions wait for the log', { hint: 'ask again later' });
    await this.#turn(signal);
    try {
      return await this.#calls.call(name, params);
    } finally {
      this.#isAsking = false;
      this.#next();
    }
  }

  #turn(signal: AbortSignal | undefined): Promise<void> {
    return new Promise((begin, refuse) => {
      const gone = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        refuse(new KvError('aborted', 'whoever asked went away'));
      };
      const waiting: Waiting = {
        begin: () => {
          signal?.removeEventListener('abort', gone);
          begin();
        },
      };
      this.#waiting.push(waiting);
      if (signal?.aborted === true) return gone();
      signal?.addEventListener('abort', gone, { once: true });
      this.#next();
    });
  }

  /** Nobody is asking: the next one may. */
  #next(): void {
    if (this.#isAsking) return;
    const next = this.#waiting.shift();
    if (next === undefined) return;
    this.#isAsking = true;
    next.begin();
  }

  /** True if every byte is what was written, as of some seconds ago at most. */
  verify(): Promise<unknown> {
    const now = performance.now();
    if (this.#verified === null || now - this.#verified.atMs > VERIFIED_MS) {
      const own = new LogReader(this.#dir);
      const answer = own.ask('verify', undefined);
      const done = (): void => {
        this.#verified = { answer, atMs: performance.now() };
        void own.close();
      };
      answer.then(done, done);
      // While it runs it is the present one, however long that takes.
      this.#verified = { answer, atMs: Number.POSITIVE_INFINITY };
    }
    return this.#verified.answer;
  }

  /** Calls `watcher` with decisions that `after` has not told. → a function that ends it. */
  watch(watcher: (decisions: readonly ToldDecision[]) => void): () => void {
    this.#watchers.add(watcher);
    return () => {
      this.#watchers.delete(watcher);
      if (this.#watchers.size === 0 && this.#calls.ended === null) void this.ask('unwatch', undefined).catch(() => {});
    };
  }

  async close(): Promise<void> {
    this.#calls.end(closed());
    await this.#thread.terminate();
  }
}
