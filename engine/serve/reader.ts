/**
 * A log, read in a thread of its own: however long a question takes, neither the server nor the program that runs it waits with anything else.
 * Verifying reads every byte, so it has a thread for itself, one at a time.
 */
import type { Worker } from 'node:worker_threads';
import { KvError, show, startThread } from '../../native/index.ts';
import { masterKeysInUse } from '../../witness/index.ts';
import { type Call, fromWire, type Reply } from '../thread/protocol.ts';
import type { Follower, ToldDecision } from './follow.ts';

/** Questions that may wait for an answer. */
const WAITING_MAX = 64;
/** So long a verification counts as the present one. */
const VERIFIED_MS = 10_000;

type Method = Exclude<keyof Follower, 'close'>;
type Answer<M extends Method> = Awaited<ReturnType<Follower[M]>>;

export class LogReader {
  readonly #dir: string;
  readonly #thread: Worker;
  readonly #pending = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  readonly #watchers = new Set<(decisions: readonly ToldDecision[]) => void>();
  #nextId = 1;
  #gone: Error | null = null;
  #verified: { readonly answer: Promise<unknown>; readonly atMs: number } | null = null;

  constructor(dir: string) {
    this.#dir = dir;
    this.#thread = startThread(new URL('./reader-thread.ts', import.meta.url), {
      dir,
      masterKeys: masterKeysInUse(),
    });
    this.#thread.on('message', (reply: Reply) => this.#receive(reply));
    this.#thread.on('error', (error) => this.#end(error instanceof Error ? error : new Error(show(error))));
    this.#thread.on('exit', () => this.#end(new KvError('closed', 'the live view was closed')));
  }

  /** Asks the thread. Throws what its method throws, 'busy' when too many questions wait, 'closed'. */
  ask<M extends Method>(method: M, params: Parameters<Follower[M]>[0]): Promise<Answer<M>> {
    if (this.#gone !== null) return Promise.reject(this.#gone);
    if (this.#pending.size >= WAITING_MAX)
      return Promise.reject(new KvError('busy', 'too many questions wait for the log', { hint: 'ask again later' }));
    const id = this.#nextId++;
    const call: Call = { id, method, params };
    this.#thread.postMessage(call);
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve: (value) => resolve(value as Answer<M>), reject });
    });
  }

  /** Whether every byte is what was written, as of some seconds ago at most. */
  verify(): Promise<unknown> {
    const now = performance.now();
    if (this.#verified === null || now - this.#verified.atMs > VERIFIED_MS) {
      const own = new LogReader(this.#dir);
      const answer = own.ask('verify', undefined as never);
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
      if (this.#watchers.size === 0 && this.#gone === null)
        void this.ask('unwatch', undefined as never).catch(() => {});
    };
  }

  async close(): Promise<void> {
    this.#gone ??= new KvError('closed', 'the live view was closed');
    await this.#thread.terminate();
  }

  #receive(reply: Reply): void {
    if (reply.kind === 'event') {
      for (const watcher of [...this.#watchers]) watcher(reply.event as readonly ToldDecision[]);
      return;
    }
    const pending = this.#pending.get(reply.id);
    this.#pending.delete(reply.id);
    if (reply.kind === 'value') pending?.resolve(reply.value);
    else pending?.reject(fromWire(reply.error));
  }

  #end(error: Error): void {
    this.#gone ??= error;
    for (const pending of this.#pending.values()) pending.reject(this.#gone);
    this.#pending.clear();
  }
}
