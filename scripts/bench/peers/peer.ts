/** An engine of others that decodes whole models, several sequences in one batch, in a process of its own. */
import { join } from 'node:path';
import type { Took } from '../measure.ts';

export interface CompanyOptions {
  readonly sequences: number;
  /** Tokens of history of each. */
  readonly depth: number;
  readonly threads: number;
  /** Steps that may follow. */
  readonly room: number;
}

/** Sequences that are decoded together. */
export interface Company {
  /** What the next steps take; each is one batch for all, and each goes on with its likeliest token. */
  steps(count: number): Promise<Took>;
  close(): Promise<void>;
}

export const PEERS = ['llama.cpp', 'ik_llama.cpp'] as const;

/** The programs of peers, and what they need, which the project does not install. */
export const peersIn = (root: string): string => join(root, 'test', 'bench', 'peers');

export interface Peer {
  readonly name: (typeof PEERS)[number];
  /** Loads a model. kernels: for which processors its code is. */
  load(model: string): Promise<{ readonly cpuSeconds: number; readonly kernels: string }>;
  /** What it takes to read a prompt of this many tokens from the beginning. */
  prefill(model: string, tokens: number, threads: number): Promise<Took>;
  together(model: string, options: CompanyOptions): Promise<Company>;
  close(): Promise<void>;
}
