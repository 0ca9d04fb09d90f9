/**
 * The contract of yardsticks: rules by which others keep or drop single tokens. No session drops tokens, so the rules
 * are in palimpsest-lab, to be compared with in the simulator and by `evaluate`. Like a policy, a yardstick is pure:
 * the same context and the same observations give the same answer.
 *
 * One session is one KV head of one layer. Where several query heads share a KV head, what is observed is the mean over
 * them (SnapKV, issue 22).
 */
import type { FormatName } from '../../native/index.ts';

/** What a session is, as far as a yardstick may know. */
export interface YardstickContext {
  /** Of the model, from 0, and how many there are. */
  readonly layer: number;
  readonly layers: number;
  /** Tokens of the prompt. Those behind it are written one by one. */
  readonly promptTokens: number;
  /** Bytes of the key and the value of one token of one head. */
  readonly tokenBytes: Readonly<Record<FormatName, number>>;
}

/** What some tokens that were just read asked of those that are held, themselves included. */
export interface Observed {
  /** Positions that are held, ascending. */
  readonly held: readonly number[];
  /** Positions of the queries, ascending. Not every token's query need be known. */
  readonly queries: readonly number[];
  /** Probabilities of each query, [queries, held]; 0 for tokens behind it. */
  readonly attention: Float32Array;
}

/** Which tokens stay: positions, ascending, all of them held before, each in a format not better than it had. */
export interface Kept {
  readonly tokens: readonly number[];
  /** [tokens]; left out: all in f16. */
  readonly formats?: readonly FormatName[];
}

export interface YardstickSession {
  observe(step: Observed): void;
  /** Chooses from the held tokens, positions ascending, what stays within the bytes of `budgetTokens` tokens in f16. */
  keep(held: readonly number[], budgetTokens: number): Kept;
}

export interface Yardstick {
  readonly id: string;
  /** Paper, and what it defaults to. */
  readonly source: string;
  /**
   * 'step': keep() is asked whenever the next tokens would not fit. 'prompt': once, when the prompt has been read; all
   * later tokens stay.
   */
  readonly when: 'step' | 'prompt';
  /** The rotary position of a token: its own, or its place among those that are held. */
  readonly positions: 'own' | 'slot';
  /** True if it looks at attention; without it observe() is never called. */
  readonly observes: boolean;
  open(context: YardstickContext): YardstickSession;
}
