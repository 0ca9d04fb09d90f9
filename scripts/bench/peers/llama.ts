/**
 * llama.cpp as a peer. It runs in a child process, from the package in test/bench/peers, which the project does not install. A step of a
 * whole model is timed; attention over a history is the difference between a step with that history and one without.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { KvError } from '../../../native/index.ts';
import type { Shape } from '../shapes.ts';

export const LLAMA_TYPES = ['f16', 'q8_0', 'q4_0'] as const;
export type LlamaType = (typeof LLAMA_TYPES)[number];

/** The bytes of an element. The last two types have blocks of 32 with an f16 scale. */
const ELEMENT_BYTES: Readonly<Record<LlamaType, number>> = { f16: 2, q8_0: 34 / 32, q4_0: 18 / 32 };

/** The bytes of K and V of one token and KV head. */
export const llamaBytesPerToken = (type: LlamaType, { headDim }: Shape): number => 2 * headDim * ELEMENT_BYTES[type];

export interface LlamaContext {
  /** Runs one decode step, which makes the history one token longer, and returns its seconds. */
  step(): Promise<number>;
  close(): Promise<void>;
}

interface Waiting {
  resolve(answer: Record<string, unknown>): void;
  reject(error: Error): void;
}

const folderIn = (root: string): string => join(root, 'test', 'bench', 'peers');

export const llamaIsInstalled = (root: string): boolean =>
  existsSync(join(folderIn(root), 'node_modules', 'node-llama-cpp'));
export const LLAMA_MISSING =
  'llama.cpp: not measured; npm --prefix test/bench/peers ci --ignore-scripts installs it (725 MB)';

export class LlamaPeer {
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, Waiting>();
  #requests = 0;

  constructor(root: string) {
    this.#child = spawn(process.execPath, ['llama.mjs'], { cwd: folderIn(root), stdio: ['pipe', 'pipe', 'inherit'] });
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.#answer(line));
    this.#child.on('exit', (code) => {
      for (const { reject } of this.#waiting.values()) {
        reject(new KvError('missing-dependency', `llama.cpp's process ended with code ${code}`));
      }
      this.#waiting.clear();
    });
  }

  #answer(line: string): void {
    // The library may print other lines.
    if (!line.startsWith('{')) return;
    const { id, error, ...rest } = JSON.parse(line) as { id: number; error?: string };
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) waiting?.resolve(rest);
    else waiting?.reject(new KvError('unsupported', `llama.cpp: ${error}`));
  }

  #ask(op: string, values: Readonly<Record<string, unknown>>): Promise<Record<string, unknown>> {
    const id = ++this.#requests;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#child.stdin!.write(`${JSON.stringify({ id, op, ...values })}\n`);
    });
  }

  /** Makes a context with `depth` tokens of history. */
  async open(model: string, type: LlamaType, depth: number, threads: number): Promise<LlamaContext> {
    const context = ++this.#requests;
    await this.#ask('open', { model, type: type.toUpperCase(), depth, threads, context });
    return {
      step: async () => ((await this.#ask('step', { context, count: 1 }))['seconds'] as number[])[0]!,
      close: async () => void (await this.#ask('close', { context })),
    };
  }

  /** Closes the child's input, which ends it. */
  close(): void {
    this.#child.stdin!.end();
  }
}
