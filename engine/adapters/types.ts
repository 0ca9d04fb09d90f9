/** An adapter: low-rank matrices beside those of a model, to whose answers theirs are added; they are never merged. */
import type { AdapterMatrix } from '../transformer/types.ts';

/** What is known of an adapter. */
export interface AdapterInfo {
  /**
   * SHA-256 over all that is added, after scales and reordering (hexadecimal): the same numbers have the same digest,
   * whatever file they came from.
   */
  readonly digest: string;
  /** What its file is: 'PEFT' or 'GGUF'. */
  readonly format: 'PEFT' | 'GGUF';
  /** How many matrices of the model it adds to. */
  readonly matrices: number;
  /** Their kinds: q, k, v, o, gate, up, down. */
  readonly slots: readonly string[];
  /** The smallest and the largest rank among them. */
  readonly ranks: readonly [least: number, most: number];
  /** Numbers in all of its matrices. */
  readonly parameters: number;
  /** Of an activated LoRA: the token ids from whose last place in a prompt on it adds. Absent: it adds to all rows. */
  readonly invocation?: readonly number[] | undefined;
}

/** An adapter that was read for a model. */
export interface Adapter extends AdapterInfo {
  readonly added: readonly AdapterMatrix[];
}
