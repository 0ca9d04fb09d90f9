/**
 * A program that answers requests, one JSON object per line, in a process of its own: what is measured there is not
 * disturbed by what is measured here.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { KvError } from '../../native/index.ts';

export type Answer = Readonly<Record<string, unknown>>;

interface Waiting {
  resolve(answer: Answer): void;
  reject(error: Error): void;
}

export class Child {
  readonly #name: string;
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, Waiting>();
  #requests = 0;

  /** name: what messages call it. args: of the program, which is node unless another is named. cwd: where it runs. */
  constructor(name: string, args: readonly string[], cwd: string, program = process.execPath) {
    this.#name = name;
    this.#child = spawn(program, [...args], { cwd, stdio: ['pipe', 'pipe', 'inherit'] });
    createInterface({ input: this.#child.stdout! }).on('line', (line) => this.#answer(line));
    // Whoever waits is told when the process has ended; writing to it after that is no error of its own.
    this.#child.stdin!.on('error', () => {});
    this.#child.on('error', ({ message }) => this.#ends(`${name} does not start: ${message}`));
    this.#child.on('exit', (code) => this.#ends(`${name}'s process ended with code ${code}`));
  }

  #ends(message: string): void {
    for (const { reject } of this.#waiting.values()) reject(new KvError('missing-dependency', message));
    this.#waiting.clear();
  }

  #answer(line: string): void {
    // Libraries may print other lines.
    if (!line.startsWith('{')) return;
    const { id, error, ...rest } = JSON.parse(line) as { id: number; error?: string };
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) waiting?.resolve(rest);
    else waiting?.reject(new KvError('unsupported', `${this.#name}: ${error}`));
  }

  /** Throws KvError 'unsupported' with what the program says, 'missing-dependency' when it ends. */
  ask(op: string, values: Answer = {}): Promise<Answer> {
    const id = ++this.#requests;
    if (this.#child.exitCode !== null || this.#child.signalCode !== null)
      throw new KvError('missing-dependency', `${this.#name}'s process has ended`);
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#child.stdin!.write(`${JSON.stringify({ id, op, ...values })}\n`);
    });
  }

  /** Closes the child's input, which ends it, and waits for that. */
  async close(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise<void>((resolve) => this.#child.once('exit', () => resolve()));
    this.#child.stdin!.end();
    await ended;
  }
}

/** The process in which a whole model of ours is measured (whole-model-child.ts). */
export const ourEngine = (root: string): Child =>
  new Child('our engine', ['--import', 'tsx', join(import.meta.dirname, 'whole-model-child.ts')], root);
