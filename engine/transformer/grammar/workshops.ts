/**
 * The threads that follow the grammars of one model. A grammar cannot leave the thread that compiled it, and a thread
 * that compiles answers nobody. So a grammar is compiled where no answer follows another one; where there is no such
 * thread, one more begins.
 */
import { KvError, unlessAborted } from '../../../native/index.ts';
import type { LoadedModel } from '../types.ts';
import { Constraint } from './constraint.ts';
import { type Vocabulary, vocabularyOf } from './vocabulary.ts';
import { type Asked, Workshop } from './workshop.ts';

/** Threads of one model. Who needs one more waits for the end of an answer. Chosen, not measured. */
const THREADS_MAX = 8;
/** What nobody has used for so long ends, but for the last one: it has the grammar of the next answer, perhaps. */
const IDLE_MS = 10_000;
/** Longest time to compile a grammar, by the clock. Chosen, not measured: who asks for it may leave before. */
const COMPILE_MS_MAX = 60_000;

export interface WorkshopOptions {
  /** Name of the package of the library. */
  readonly library?: string;
  readonly compileMsMax?: number;
  readonly threadsMax?: number;
  /** Does what nothing of this thread is needed for. */
  readonly resting?: <Result>(work: () => Promise<Result>) => Promise<Result>;
}

interface Placed {
  readonly workshop: Workshop;
  readonly compiled: Promise<void>;
}

export class Workshops {
  readonly #model: Pick<LoadedModel, 'config' | 'tokenizer'>;
  readonly #options: WorkshopOptions;
  #vocabulary: Promise<Vocabulary> | null = null;
  readonly #open = new Set<Workshop>();
  /** When they end that nobody uses. */
  readonly #idle = new WeakMap<Workshop, NodeJS.Timeout>();
  /** Told when a thread may have become free. */
  readonly #waiting = new Set<() => void>();
  #isClosed = false;

  constructor(model: Pick<LoadedModel, 'config' | 'tokenizer'>, options: WorkshopOptions = {}) {
    this.#model = model;
    this.#options = options;
  }

  /**
   * The beginning of a text that follows a grammar. Throws what Workshop.compile throws, 'aborted', 'closed'. fulfils:
   * what no thread is told.
   */
  async open(
    asked: Asked,
    fulfils: ((text: string) => boolean) | null,
    signal: AbortSignal | undefined,
  ): Promise<Constraint> {
    const { resting = (work) => work() } = this.#options;
    for (;;) {
      const { workshop, compiled } = await resting(() => this.#place(asked, signal));
      try {
        await resting(() => unlessAborted(compiled, signal, aborted));
        const opened = await workshop.open(asked, () => this.#leave(workshop));
        if (opened !== null) return new Constraint(opened.matched, opened.standing, fulfils);
      } catch (error) {
        this.#leave(workshop);
        throw error;
      }
      this.#leave(workshop);
    }
  }

  /** Ends all threads. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#tell();
    await Promise.all([...this.#open].map((workshop) => this.#end(workshop)));
  }

  /** Waits for a thread that has the grammar, or where it can be compiled, which begins, and counts its user in. */
  async #place(asked: Asked, signal: AbortSignal | undefined): Promise<Placed> {
    const { compileMsMax = COMPILE_MS_MAX } = this.#options;
    this.#vocabulary ??= vocabularyOf(this.#model);
    const vocabulary = await this.#vocabulary;
    for (;;) {
      if (signal?.aborted) throw aborted();
      if (this.#isClosed) throw new KvError('closed', 'the engine was closed');
      const found = this.#find(asked) ?? this.#begin(vocabulary);
      if (found !== null) {
        found.users++;
        clearTimeout(this.#idle.get(found));
        return { workshop: found, compiled: found.compile(asked, compileMsMax) };
      }
      let heard = (): void => {};
      const change = new Promise<void>((resolve) => {
        heard = resolve;
        this.#waiting.add(heard);
      });
      await unlessAborted(change, signal, aborted).finally(() => this.#waiting.delete(heard));
    }
  }

  #find(asked: Asked): Workshop | null {
    for (const workshop of this.#open) if (workshop.isEnded) this.#open.delete(workshop);
    const there = [...this.#open];
    return (
      there.find((workshop) => workshop.has(asked)) ??
      there.find((workshop) => workshop.isAt(asked)) ??
      there.find(({ users, isBusy }) => users === 0 && !isBusy) ??
      null
    );
  }

  #begin(vocabulary: Vocabulary): Workshop | null {
    const { library = '@mlc-ai/web-xgrammar', threadsMax = THREADS_MAX } = this.#options;
    if (this.#open.size >= threadsMax) return null;
    const workshop = new Workshop({ vocabulary, library });
    this.#open.add(workshop);
    return workshop;
  }

  /** One of its users is done with it. What is compiled for nobody is not compiled to its end. */
  #leave(workshop: Workshop): void {
    workshop.users--;
    if (workshop.users > 0) return;
    if (workshop.isBusy || workshop.isEnded) void this.#end(workshop);
    else this.#idle.set(workshop, setTimeout(() => this.#endIdle(workshop), IDLE_MS).unref());
    this.#tell();
  }

  #endIdle(workshop: Workshop): void {
    if (this.#open.size > 1) void this.#end(workshop);
  }

  async #end(workshop: Workshop): Promise<void> {
    this.#open.delete(workshop);
    await workshop.end();
  }

  #tell(): void {
    for (const heard of this.#waiting) heard();
  }
}

const aborted = (): KvError => new KvError('aborted', 'aborted while the grammar was compiled');
