/** A conversation on a terminal: the lines that are typed, and for each turn the tokens that the cache does not hold yet. */
import { createInterface, type Interface } from 'node:readline';
import type { ChatMessage } from '../model/types.ts';

/**
 * The turns of a conversation as token ids. A chat template renders a whole conversation, but the cache already holds all of it except
 * the newest turn, which is what the rendering has beyond that of the turn before. Answers are rendered as '', because the cache holds
 * their tokens as they were generated.
 */
export class ChatTurns {
  readonly #tokenize: (messages: readonly ChatMessage[]) => Promise<number[]>;
  #messages: readonly ChatMessage[];
  #held: readonly number[] = [];
  #asked: { readonly messages: readonly ChatMessage[]; readonly ids: readonly number[] } | null = null;

  constructor(tokenize: (messages: readonly ChatMessage[]) => Promise<number[]>, first: readonly ChatMessage[]) {
    this.#tokenize = tokenize;
    this.#messages = first;
  }

  /** The token ids to read for this question. */
  async ask(content: string): Promise<number[]> {
    const question: ChatMessage = { role: 'user', content };
    const messages = [...this.#messages, question];
    const ids = await this.#tokenize(messages);
    this.#asked = { messages, ids };
    if (this.#held.every((id, at) => ids[at] === id)) return ids.slice(this.#held.length);
    // The template has changed earlier turns too, so the question alone is the best that can be rendered.
    return this.#tokenize([question]);
  }

  /** Notes that the question was read and at least partly answered, so it is now in the cache. */
  answered(): void {
    if (this.#asked === null) return;
    this.#held = this.#asked.ids;
    this.#messages = [...this.#asked.messages, { role: 'assistant', content: '' }];
    this.#asked = null;
  }
}

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
