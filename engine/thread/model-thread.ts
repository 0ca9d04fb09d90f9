/** The thread that runs models, as its caller has it: started, called, told of, and ended where it may be. */
import { isMainThread, type Worker } from 'node:worker_threads';
import { type Handlers, KvError, startThread, ThreadClient } from '../../native/index.ts';
import { type EngineEvent, eventTeller, type TellEvent } from '../events/event.ts';
import { listen } from '../events/logger.ts';
import type { EngineOptions } from '../options/types.ts';
import type { LoadProgress } from '../transformer/types.ts';
import type { CommonsOptions } from './commons.ts';
import { GateKeeper, keep, release } from './gate.ts';
import type { HostOptions } from './host.ts';
import { closeAtEnd, isClosed } from './natural-end.ts';
import type { News } from './news.ts';

/** What a thread runs: one model that has everything for itself, or what several will have in common. */
export type Started = { readonly host: HostOptions } | { readonly commons: CommonsOptions };

export class ModelThread<Calls extends Handlers<Calls>> {
  readonly calls: ThreadClient<Calls, News>;
  readonly #worker: Worker;
  readonly #gate = new GateKeeper();
  readonly #hear: ((event: EngineEvent) => void) | null;
  readonly #onLoading: EngineOptions['onProgress'];

  /** owner: who is closed when the process comes to its natural end. */
  constructor(
    started: Started,
    owner: { close(): Promise<void> },
    { logger, onProgress }: Pick<EngineOptions, 'logger' | 'onProgress'>,
  ) {
    this.#hear = logger === undefined ? null : listen(logger);
    this.#onLoading = onProgress;
    this.#worker = startThread(new URL('./worker.ts', import.meta.url), {
      ...started,
      gate: this.#gate.shared,
      // A thread that ends takes those along that it has started, and no gate is asked.
      isGuarded: isMainThread,
      isHeard: this.#hear !== null,
    });
    keep(this.#gate);
    closeAtEnd(owner);
    this.#worker.on('exit', () => {
      release(this.#gate);
      isClosed(owner);
    });
    this.calls = new ThreadClient(this.#worker, {
      thread: "the model's thread",
      keepsAlive: 'while called',
      ended: () => new KvError('closed', 'the engine was closed'),
      onNews: (news) => (news.kind === 'loading' ? this.#loading(news.progress) : this.#hear?.(news.event)),
    });
  }

  /** Tells the logger what happens beside the thread. */
  readonly tell: TellEvent = (event, fields) => {
    if (this.#hear !== null) eventTeller(this.#hear)(event, fields);
  };

  /** Ends the thread as soon as the native work under way is done. */
  async terminate(): Promise<void> {
    await this.#gate.close();
    await this.#worker.terminate();
  }

  /** What the caller's own code throws when it is told of the loading ends it. */
  #loading(progress: LoadProgress): void {
    if (this.calls.ended !== null) return;
    try {
      this.#onLoading?.(progress);
    } catch (error) {
      this.calls.end(error as Error);
      void this.terminate();
    }
  }
}
