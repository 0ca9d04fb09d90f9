/** Whether a session can be used: a call has it or it waits for one, and it is sound, torn or closed. */
import { KvError } from '../../native/index.ts';

/**
 * Torn: a step failed half-way, so some layers hold tokens that others do not, and nothing may build on them. Closed is
 * for ever.
 */
type Condition = 'sound' | 'torn' | 'closed';

/** The session, for what is said of it. */
interface Named {
  readonly id: string;
  readonly tokens: readonly number[];
}

export class Occupancy {
  readonly #session: Named;
  #condition: Condition = 'sound';
  #isTaken = false;
  /** The call that has it waits for room, and uses nothing of it yet. */
  #isResting = false;
  #calls = 0;
  #endedMs = performance.now();
  #pauseMs: number | null = null;

  constructor(session: Named) {
    this.#session = session;
  }

  /** A call takes the session and has it until end(). Throws 'busy', 'closed'. */
  begin(): void {
    this.checkSound();
    if (this.#isTaken) throw this.#busy();
    this.#isTaken = true;
    this.#pauseMs = this.#calls === 0 ? null : performance.now() - this.#endedMs;
    this.#calls++;
  }

  /** The call that has it is done. */
  end(): void {
    this.#isTaken = false;
    this.#endedMs = performance.now();
  }

  /** Does work that has the session to itself. Throws 'busy', 'closed' before it begins. */
  async during<Result>(work: () => Promise<Result>): Promise<Result> {
    this.begin();
    try {
      return await work();
    } finally {
      this.end();
    }
  }

  /** The call that has it waits for something else; until then it is as free as between two calls, but to calls. */
  async resting(work: () => Promise<void>): Promise<void> {
    this.#isResting = true;
    try {
      await work();
    } finally {
      this.#isResting = false;
    }
  }

  /** True if nothing of it is in use. */
  get isFree(): boolean {
    return (!this.#isTaken || this.#isResting) && this.#condition === 'sound';
  }

  /** True if a call has it that waits for something else, and uses nothing of it yet. */
  get isResting(): boolean {
    return this.#isTaken && this.#isResting;
  }

  /** How many calls have had it. */
  get calls(): number {
    return this.#calls;
  }

  /** When the last call ended, on the clock of performance.now(). */
  get endedMs(): number {
    return this.#endedMs;
  }

  /** How long it waited before the newest call; null: there was none before. */
  get pauseMs(): number | null {
    return this.#pauseMs;
  }

  get isClosed(): boolean {
    return this.#condition === 'closed';
  }

  /** Layers hold different tokens. */
  tear(): void {
    if (this.#condition === 'sound') this.#condition = 'torn';
  }

  /** They hold the same again. */
  mend(): void {
    if (this.#condition === 'torn') this.#condition = 'sound';
  }

  /** No further step begins; a call that has the session ends by itself. */
  close(): void {
    this.#condition = 'closed';
  }

  /** Throws 'closed' for a session that cannot go on. */
  checkSound(): void {
    const { id, tokens } = this.#session;
    if (this.#condition === 'closed')
      throw new KvError('closed', 'the session was closed', { values: { session: id } });
    if (this.#condition === 'torn')
      throw new KvError('closed', 'a step of the session failed half-way, so it cannot go on', {
        values: { session: id, tokens: tokens.length },
        hint: 'open a new session',
      });
  }

  /** Throws 'closed' as checkSound, and 'busy' while a call uses it. */
  checkFree(): void {
    this.checkSound();
    if (this.#isTaken && !this.#isResting) throw this.#busy();
  }

  #busy(): KvError {
    return new KvError('busy', 'the session is in use by another call', {
      values: { session: this.#session.id },
      hint: 'wait for the running call, or fork() before it',
    });
  }
}
