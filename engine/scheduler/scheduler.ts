/**
 * Whose rows are in the next pass over the weights. All who write an answer are in each, as far as they fit; a prompt
 * is read beside them, a piece at a time, for its share of the time (owed.ts); where nobody writes, prompts are read in
 * whole chunks. Of those that write, and of those that read, the first in line come first (line.ts): by priority, then
 * whoever was served least for its weight (fairness.ts). Who is in no pass is between two steps, and so is everybody
 * while somebody works alone, so that room that was found for a step is there to its end.
 */
import { type Outcome, runPass, type Step } from '../cache/pass.ts';
import type { Meter } from '../metrics/meter.ts';
import type { Client } from './fairness.ts';
import { Line } from './line.ts';
import { Logits } from './logits.ts';
import { Owed } from './owed.ts';
import { Pieces } from './pieces.ts';

/** Rows of writers, and of prompts, in one pass: more of them take as many times longer. */
const ROWS_MAX = 128;

/** A step of a session that can be in one pass with those of others. */
export interface Job extends Step {
  /** The pass is over, and this is what became of the step; until this resolves nobody takes another one. */
  ended(outcome: Outcome): Promise<void>;
}

/** Work of one that does it alone, and the tokens of its own that it computes. */
export interface Solo {
  readonly work: () => Promise<void>;
  readonly tokens: number;
}

/** Who takes a turn, whether for a prompt, and what ends its wait. */
export interface Asking {
  readonly client: Client;
  readonly reads: boolean;
  /** Aborts the wait, which then throws this. What has begun goes on to its end. */
  readonly patience?: { readonly signal: AbortSignal; readonly error: () => Error } | undefined;
}

interface Waiting {
  readonly client: Client;
  readonly reads: boolean;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/** Waits for a pass. */
interface InPass extends Waiting {
  readonly job: Job;
}

/** Waits to work alone. */
interface Alone extends Waiting {
  readonly solo: Solo;
}

type Turn = InPass | Alone;

const isInPass = (turn: Turn): turn is InPass => 'job' in turn;
const isWriting = ({ reads }: Waiting): boolean => !reads;
const rowsOf = ({ job }: InPass): number => job.tokenIds.length;
const sum = (turns: readonly InPass[]): number => turns.reduce((rows, turn) => rows + rowsOf(turn), 0);

export class Scheduler {
  /** What answers are drawn from. */
  readonly logits = new Logits();
  readonly #meter: Meter;
  readonly #stepped: () => void;
  readonly #pieces: Pieces;
  readonly #writing = new Line<Turn>();
  readonly #reading = new Line<Turn>();
  /** Those that wait no longer, and are told when nobody takes a step. */
  #gone: { readonly turn: Turn; readonly error: Error }[] = [];
  #current: readonly Turn[] = [];
  readonly #owed = new Owed();
  /** Somebody wrote in the newest pass, and will want the next one as well. */
  #wrote = false;
  #isDue = false;

  /**
   * `interTokenTargetMs`: how long a pass may take that has a piece of a prompt beside writers; `stepped` is called
   * behind each pass, and behind what is done alone.
   */
  constructor(meter: Meter, interTokenTargetMs: number, stepped: () => void) {
    this.#meter = meter;
    this.#stepped = stepped;
    this.#pieces = new Pieces(interTokenTargetMs);
  }

  /** Does a step of a prompt or of an answer, in one pass with those of others. */
  step(asking: Asking, job: Job): Promise<void> {
    return this.#ask(asking, { job });
  }

  /** Does what belongs to a prompt or an answer while nobody else takes a step. */
  alone(asking: Asking, solo: Solo): Promise<void> {
    return this.#ask(asking, { solo });
  }

  /** How many of so many tokens of a prompt are read at once now. */
  piece(tokens: number): number {
    const othersWrite = this.#wrote || this.#current.some(isWriting) || this.#writing.size > 0;
    return othersWrite ? Math.min(tokens, this.#pieces.tokens) : tokens;
  }

  /** What a token of a prompt took of late; null: none was read. */
  get tokenMs(): number | null {
    return this.#pieces.tokenMs;
  }

  /** Whoever waits for a turn of this one waits no longer. */
  drop(client: Client, error: Error): void {
    for (const line of [this.#writing, this.#reading]) {
      const turn = line.find((one) => one.client === client);
      if (turn !== undefined) this.#leaves(turn, error);
    }
  }

  async #ask({ client, reads, patience }: Asking, what: { job: Job } | { solo: Solo }): Promise<void> {
    if (patience?.signal.aborted === true) throw patience.error();
    let abort: (() => void) | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        const turn: Turn = { client, reads, resolve, reject, ...what };
        abort = () => this.#leaves(turn, patience!.error());
        patience?.signal.addEventListener('abort', abort, { once: true });
        this.#lineOf(turn).add(turn);
        if (this.#current.length === 0) this.#soon();
      });
    } finally {
      if (abort !== undefined) patience?.signal.removeEventListener('abort', abort);
    }
  }

  #lineOf({ reads }: Waiting): Line<Turn> {
    return reads ? this.#reading : this.#writing;
  }

  /** What it then does may be to give back pages, which is for a time in which nobody takes a step. */
  #leaves(turn: Turn, error: Error): void {
    if (!this.#lineOf(turn).drop(turn)) return;
    if (this.#current.length === 0) turn.reject(error);
    else this.#gone.push({ turn, error });
  }

  /** The next pass begins when others have had a turn of the event loop, so that who asks at the same time is in it. */
  #soon(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    // Who was in the pass before has drawn a token by then: logits are computed in the first turn.
    setImmediate(() =>
      setImmediate(() => {
        this.#isDue = false;
        this.#next();
      }),
    );
  }

  #next(): void {
    if (this.#current.length > 0) return;
    const next = this.#chosen();
    const turns = next === null || Array.isArray(next) ? (next ?? []) : [next];
    for (const line of [this.#writing, this.#reading]) line.take(turns);
    if (next === null) {
      this.#wrote = false;
      return;
    }
    void this.#during(turns, () => (Array.isArray(next) ? this.#pass(next) : this.#solo(next)));
  }

  /** Who is in the next pass, or whoever works alone; null: nobody waits. */
  #chosen(): InPass[] | Alone | null {
    const writing = this.#writing.inOrder();
    const areWriting = writing.length > 0;
    if (!areWriting) this.#owed.clear();
    const reading = this.#owed.isOwed ? [] : this.#reading.inOrder();
    const lead = reading[0] ?? writing[0];
    if (lead === undefined) return null;
    if (!isInPass(lead)) return lead;
    const { runtime } = lead.job.stepper;
    if (!runtime.dense.isRowwise) return [lead];
    const fitting = (turns: readonly Turn[], most: number): InPass[] => {
      const chosen: InPass[] = [];
      for (const turn of turns) {
        if (chosen.length === most || !isInPass(turn) || turn.job.stepper.runtime !== runtime) continue;
        if (chosen.length === 0 || sum(chosen) + rowsOf(turn) <= ROWS_MAX) chosen.push(turn);
      }
      return chosen;
    };
    // Beside writers one prompt is read at a time, when they have had their share.
    return [...fitting(writing, writing.length), ...fitting(reading, areWriting ? 1 : reading.length)];
  }

  async #pass(turns: readonly InPass[]): Promise<void> {
    const start = performance.now();
    const outcomes = await runPass(turns.map(({ job }) => job));
    for (const [at, outcome] of outcomes.entries()) {
      const { job, resolve, reject } = turns[at]!;
      this.#lineOf(turns[at]!).served(turns[at]!.client, job.tokenIds.length);
      await job.ended(outcome).then(resolve, reject);
    }
    const ms = performance.now() - start;
    this.#meter.passTokens.observe(sum(turns));
    this.#meter.passSeconds.observe(ms / 1000);
    this.#pieces.took(ms, { written: sum(turns.filter(isWriting)), read: sum(turns.filter(({ reads }) => reads)) });
  }

  async #solo(turn: Alone): Promise<void> {
    const { client, solo } = turn;
    this.#lineOf(turn).served(client, solo.tokens);
    try {
      await solo.work();
      turn.resolve();
    } catch (error) {
      turn.reject(error);
    }
  }

  async #during(turns: readonly Turn[], work: () => Promise<void>): Promise<void> {
    this.#current = turns;
    const start = performance.now();
    try {
      await work();
    } finally {
      this.#over(turns, performance.now() - start);
    }
  }

  #over(turns: readonly Turn[], ms: number): void {
    this.#current = [];
    const gone = this.#gone;
    this.#gone = [];
    for (const { turn, error } of gone) turn.reject(error);
    this.#wrote = turns.some(isWriting);
    this.logits.areMany = turns.length > 1;
    const writers = turns.filter(isWriting).length;
    const readers = turns.length - writers;
    this.#owed.took({
      ms,
      writingMs: this.#wrote ? this.#pieces.writingMs : 0,
      hasPrompt: readers > 0,
      writers: writers + this.#writing.size,
      readers: readers + this.#reading.size,
    });
    this.#stepped();
    this.#soon();
  }
}
