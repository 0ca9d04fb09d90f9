/** A conversation on a terminal: the lines that are typed, and what ends an answer or the conversation. */
import { createInterface, type Interface } from 'node:readline';

/** Reads lines from a terminal. Ctrl-C or the signal ends the turn that is running, or the input if none is. */
export class ChatInput {
  readonly #lines: Interface;
  readonly #queue: string[] = [];
  readonly #signal: AbortSignal;
  #wake: (() => void) | null = null;
  #ended = false;
  #turn: AbortController | null = null;

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    this.#lines = createInterface({ input: process.stdin, output: process.stderr, prompt: '> ' });
    this.#lines.on('line', (line) => {
      this.#queue.push(line);
      this.#wake?.();
    });
    this.#lines.on('close', () => {
      this.#ended = true;
      this.#turn?.abort();
      this.#wake?.();
    });
    this.#lines.on('SIGINT', () => {
      if (this.#turn === null) this.#lines.close();
      else this.#turn.abort();
    });
    signal.addEventListener('abort', () => this.#lines.close(), { once: true });
  }

  /** The next line, or null at the end of the input. */
  async next(): Promise<string | null> {
    if (this.#queue.length === 0 && !this.#ended) {
      this.#lines.prompt();
      await new Promise<void>((wake) => {
        this.#wake = wake;
      });
      this.#wake = null;
    }
    return this.#queue.shift() ?? null;
  }

  startTurn(): AbortSignal {
    this.#turn = new AbortController();
    return AbortSignal.any([this.#signal, this.#turn.signal]);
  }

  endTurn(): void {
    this.#turn = null;
  }

  close(): void {
    this.#lines.close();
  }
}
