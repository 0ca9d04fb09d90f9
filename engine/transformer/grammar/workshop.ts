/** One thread that compiles grammars, one at a time, and follows them. Whoever uses it counts himself in and out. */
import type { Worker } from 'node:worker_threads';
import { KvError, startThread, ThreadClient } from '../../../native/index.ts';
import type { Matched, Standing } from './constraint.ts';
import type { FollowingCalls, FollowingThread } from './following-thread.ts';
import type { Source } from './source.ts';

/** So many compiled grammars are kept in a thread: some MB each at most. */
const KEPT = 8;
/** Of JavaScript; the library has a bound of its own. */
const HEAP_MB_MAX = 512;

/** A grammar that is asked for. */
export interface Asked {
  readonly source: Source;
  /** Tokens that it can ask for by their markCharacter. */
  readonly marks: readonly number[];
  /** What it is known by. */
  readonly key: string;
}

export class Workshop {
  /** Texts that follow grammars here, and those who wait for one. */
  users = 0;
  readonly #worker: Worker;
  readonly #calls: ThreadClient<FollowingCalls>;
  /** By key, the least recently used first. */
  readonly #kept = new Map<string, Asked>();
  #compiling: { readonly key: string; readonly done: Promise<void> } | null = null;
  #nextId = 1;

  constructor(thread: FollowingThread) {
    this.#worker = startThread(new URL('./following-thread.ts', import.meta.url), thread, {
      maxOldGenerationSizeMb: HEAP_MB_MAX,
    });
    this.#worker.unref();
    // Before the client hears of it, which takes what it was told first.
    this.#worker.on('error', (cause) => this.#calls.end(outOfMemory(cause) ?? cause));
    this.#calls = new ThreadClient<FollowingCalls>(this.#worker, {
      thread: 'the thread of grammars',
      ended: () =>
        new KvError('closed', 'the thread that followed the grammar has ended', { hint: 'ask for the answer again' }),
      keepsAlive: 'while called',
    });
  }

  get isEnded(): boolean {
    return this.#calls.ended !== null;
  }

  /** True if a text can begin at once to follow it. */
  has({ key }: Asked): boolean {
    return this.#compiling === null && this.#kept.has(key);
  }

  /** True if it is what is being compiled. */
  isAt({ key }: Asked): boolean {
    return this.#compiling?.key === key;
  }

  /** True if something is being compiled. */
  get isBusy(): boolean {
    return this.#compiling !== null;
  }

  /**
   * Compiles a grammar unless it is here. Throws what CompiledGrammars.compile throws, and 'unsupported' for what takes
   * longer than that; the thread is ended then.
   */
  async compile(asked: Asked, msMax: number): Promise<void> {
    if (this.#kept.has(asked.key)) return;
    if (this.#compiling !== null) return this.#compiling.done;
    const timer = setTimeout(() => void this.end(tooLong(msMax)), msMax);
    const done = this.#calls.call('compile', asked).finally(() => {
      clearTimeout(timer);
      this.#compiling = null;
    });
    this.#compiling = { key: asked.key, done };
    await done;
    this.#use(asked);
  }

  /** The beginning of a text that follows a grammar that is here; null: it was lost. */
  async open(asked: Asked, closed: () => void): Promise<{ matched: Matched; standing: Standing } | null> {
    const { marks, key } = asked;
    const id = this.#nextId++;
    this.#use(asked);
    const standing = await this.#calls.call('open', { marks, key, id });
    if (standing === null) this.#kept.delete(key);
    return standing === null ? null : { matched: this.#matched(id, closed), standing };
  }

  /** Ends the thread: whoever waits for it gets `error`. */
  async end(error?: Error): Promise<void> {
    if (error !== undefined) this.#calls.end(error);
    await this.#worker.terminate();
  }

  #matched(id: number, closed: () => void): Matched {
    const calls = this.#calls;
    let isOpen = true;
    return {
      accept: (token) => calls.call('accept', { id, token }),
      begin: (beginning) => calls.call('begin', { id, beginning }),
      admits: (beginning) => calls.call('admits', { id, beginning }),
      fulfils: (answer) => calls.call('fulfils', { id, answer }),
      close: () => {
        if (!isOpen) return;
        isOpen = false;
        // A thread that has ended has nothing left to close.
        calls.call('close', { id }).catch(() => {});
        closed();
      },
    };
  }

  #use(asked: Asked): void {
    this.#kept.delete(asked.key);
    this.#kept.set(asked.key, asked);
    for (const [oldest, { marks, key }] of this.#kept) {
      if (this.#kept.size <= KEPT) break;
      this.#kept.delete(oldest);
      this.#calls.call('forget', { marks, key }).catch(() => {});
    }
  }
}

function outOfMemory(cause: Error): KvError | null {
  if ((cause as NodeJS.ErrnoException).code !== 'ERR_WORKER_OUT_OF_MEMORY') return null;
  return new KvError('unsupported', `the grammar takes more than ${HEAP_MB_MAX} MB to be read`, {
    values: { megabytesMax: HEAP_MB_MAX },
    hint: 'a smaller one, or parts of it under names of their own',
    cause,
  });
}

const tooLong = (msMax: number): KvError =>
  new KvError('unsupported', `the grammar takes longer than ${msMax / 1000} s to be compiled for this vocabulary`, {
    values: { msMax },
    hint: 'fewer alternatives, counts and classes of characters; an enum is cheaper than patterns',
  });
