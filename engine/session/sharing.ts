/** What a session asks of the memory that it shares with others (SharedMemory, shared-memory.ts). */
import type { IdlePlace, Neighbours } from '../cache/away.ts';
import type { PressureReport } from '../cache/types.ts';
import type { Client } from '../scheduler/fairness.ts';
import type { Asking, Job, Scheduler, Solo } from '../scheduler/scheduler.ts';
import type { Floor } from './floors.ts';

/** A session, by what tells it from others, and as one that takes turns. */
interface Named {
  readonly id: string;
  readonly client: Client;
}

/** How a session asks for a turn. */
export type Turn = Omit<Asking, 'client'>;

/** Pages of a session that is parked: their tokens, and how many it held together with others, from the first on. */
export interface ParkedPages {
  readonly tokenIds: readonly number[];
  readonly pages: number;
}

export interface Sharing extends Neighbours {
  readonly scheduler: Scheduler;
  /** Where sessions that wait are parked; null: nowhere. */
  readonly place: IdlePlace | null;
  /**
   * Waits until there is room for a call at the end of which a session holds so many tokens. Throws 'budget-exceeded'
   * where that does not fit and nobody is at work who might make room, 'aborted', 'closed'.
   */
  enter(session: Named, tokens: number, signal: AbortSignal | undefined): Promise<void>;
  /**
   * A session that is empty begins with pages that others hold of these tokens, and reads the rest. It waits for those
   * that another one reads just now, as long as that one reads them and nothing is aborted. → tokens that it need not
   * read, at most all of them
   */
  begin(session: Named, tokenIds: readonly number[], signal: AbortSignal | undefined): Promise<number> | number;
  /** A prompt has been read, or as much of it as there will be. */
  hasRead(session: Named): void;
  /**
   * Does work that puts pages into the empty cache of a session which held the first `pages` of them together with
   * others before it was parked. Those that are there it has before, and they are held together again. The work is told
   * how many; it leaves the cache with all of its pages, or empty.
   */
  holdAgain<Result>(session: Named, parked: ParkedPages, work: (held: number) => Result): Result;
  /** So many tokens of a session are as they were, and those behind them are gone. */
  cut(session: Named, tokens: number): void;
  /** Pages of a session were sealed. */
  holds(session: Named): void;
  /** A session is closed: its pages are not there any more. */
  left(session: Named): void;
  /** The call has ended. */
  leave(session: Named): void;
  /**
   * Promises a session so many bytes until it and all that go on from it are closed. Throws 'budget-exceeded' where all
   * that are promised do not fit into the budget.
   */
  commit(floorBytes: number): Floor;
  /** How calls of a session came to their room. */
  pressure(session: Named): PressureReport;
  /**
   * Does a step of a prompt or an answer in a pass with those of others. Where the memory has no room for it, which it
   * says before it appends anything, it is tried again when another session has ended its work.
   */
  step(session: Named, turn: Turn, job: Job): Promise<void>;
  /** Does a step with what belongs to it while nobody else takes one, and tries it again in the same way. */
  stepAlone(session: Named, turn: Turn, solo: Solo): Promise<void>;
  /** A session does no further step: where it waits for one, it waits no longer. */
  drop(session: Named, error: Error): void;
  /**
   * Puts the pages of a session back if they are parked, or leaves its cache empty where they are of no use, or where a
   * session that was let to work (`isAtWork`) finds no room for them as they were. Throws 'budget-exceeded', 'io'.
   */
  wake(session: Named, isAtWork: boolean): void;
}
