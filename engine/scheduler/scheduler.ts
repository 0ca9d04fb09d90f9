/**
 * Whose rows are in the next pass over the weights. All who write an answer are in each; a prompt is read beside them,
 * a piece at a time, for its share of the time; where nobody writes, prompts are read in whole chunks, who asked first
 * first. Who is in no pass is between two steps, and so is everybody while somebody works alone, so that room that was
 * found for a step is there to its end.
 */
import { type Outcome, runPass, type Step } from '../cache/pass.ts';
import type { Meter } from '../metrics/meter.ts';
import { Logits } from './logits.ts';
import { Pieces } from './pieces.ts';

/**
 * The share of time that prompts get while others write. Chosen, not measured: a prompt takes a third longer from
 * writers than nothing would, and four times as long itself.
 */
const READING_SHARE = 1 / 4;
/** Rows of writers, and of prompts, in one pass: more of them take as many times longer. */
const ROWS_MAX = 128;

/** A step of a session that can be in one pass with those of others. */
export interface Job extends Step {
  /** The pass is over, and this is what became of the step; until this resolves nobody takes another one. */
  ended(outcome: Outcome): Promise<void>;
}

/** Who waits for a pass, or to work alone. */
interface Turn {
  readonly reads: boolean;
  /** What it does in a pass; null: it works alone. */
  readonly job: Job | null;
  readonly begin: () => void;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

const isWriting = ({ reads }: Turn): boolean => !reads;
const rowsOf = ({ job }: Turn): number => job?.tokenIds.length ?? 0;
const sum = (turns: readonly Turn[]): number => turns.reduce((rows, turn) => rows + rowsOf(turn), 0);

export class Scheduler {
  /** What answers are drawn from. */
  readonly logits = new Logits();
  readonly #meter: Meter;
  readonly #pieces = new Pieces();
  readonly #waiting: Turn[] = [];
  #current: readonly Turn[] = [];
  /** Milliseconds that writers may take before a prompt is read on. */
  #owedMs = 0;
  /** Somebody wrote in the newest pass, and will want the next one as well. */
  #wrote = false;
  #isDue = false;

  constructor(meter: Meter) {
    this.#meter = meter;
  }

  /** Does a step of a prompt (`reads`) or of an answer, in one pass with those of others. */
  step(reads: boolean, job: Job): Promise<void> {
    return new Promise((resolve, reject) => this.#ask({ reads, job, begin: () => {}, resolve, reject }));
  }

  /** Does what belongs to a prompt (`reads`) or an answer while nobody else takes a step. */
  alone(reads: boolean, work: () => Promise<void>): Promise<void> {
    return new Promise((resolve, reject) => {
      const turn: Turn = {
        reads,
        job: null,
        begin: () => void this.#during([turn], work).then(resolve, reject),
        resolve,
        reject,
      };
      this.#ask(turn);
    });
  }

  /** How many of so many tokens of a prompt are read at once now. */
  piece(tokens: number): number {
    const othersWrite = this.#wrote || this.#current.some(isWriting) || this.#waiting.some(isWriting);
    return othersWrite ? Math.min(tokens, this.#pieces.tokens) : tokens;
  }

  #ask(turn: Turn): void {
    this.#waiting.push(turn);
    if (this.#current.length === 0) this.#soon();
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
    const turns = this.#chosen();
    if (turns.length === 0) {
      this.#wrote = false;
      return;
    }
    for (const turn of turns) this.#waiting.splice(this.#waiting.indexOf(turn), 1);
    const jobs = turns.flatMap(({ job }) => job ?? []);
    if (jobs.length === 0) turns[0]!.begin();
    else void this.#during(turns, () => this.#pass(turns, jobs));
  }

  /** Who is in the next pass, or whoever works alone. */
  #chosen(): readonly Turn[] {
    const areWriting = this.#waiting.some(isWriting);
    if (!areWriting) this.#owedMs = 0;
    const isOwed = this.#owedMs > 0;
    const lead = isOwed ? this.#waiting.find(isWriting) : this.#waiting[0];
    if (lead === undefined) return [];
    const runtime = lead.job?.stepper.runtime;
    if (runtime === undefined || !runtime.dense.isRowwise) return [lead];
    const turns = [lead];
    for (const turn of this.#waiting) {
      if (turn === lead || turn.job?.stepper.runtime !== runtime) continue;
      const alike = turns.filter(({ reads }) => reads === turn.reads);
      // Beside writers one prompt is read at a time, when they have had their share.
      const mayRead = !areWriting || (!isOwed && alike.length === 0);
      if ((turn.reads && !mayRead) || sum(alike) + rowsOf(turn) > ROWS_MAX) continue;
      turns.push(turn);
    }
    return turns;
  }

  async #pass(turns: readonly Turn[], jobs: readonly Job[]): Promise<void> {
    const start = performance.now();
    const outcomes = await runPass(jobs);
    for (const [at, outcome] of outcomes.entries())
      await jobs[at]!.ended(outcome).then(turns[at]!.resolve, turns[at]!.reject);
    const ms = performance.now() - start;
    this.#meter.passTokens.observe(sum(turns));
    this.#meter.passSeconds.observe(ms / 1000);
    this.#pieces.took(ms, { written: sum(turns.filter(isWriting)), read: sum(turns.filter(({ reads }) => reads)) });
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
    this.#wrote = turns.some(isWriting);
    this.logits.areMany = turns.length > 1;
    if (!turns.some(({ reads }) => reads)) this.#owedMs = Math.max(0, this.#owedMs - ms);
    else if (this.#wrote || this.#waiting.some(isWriting)) {
      // What a pass takes longer for a prompt in it is that prompt's.
      const readingMs = this.#wrote ? Math.max(0, ms - this.#pieces.writingMs) : ms;
      this.#owedMs += readingMs * (1 / READING_SHARE - 1);
    }
    this.#soon();
  }
}
