/** A conversation on a terminal: lines as they are typed, and each turn as the tokens that the cache does not hold yet. */
import { createInterface, type Interface } from 'node:readline';
import type { ChatMessage } from '../model/types.ts';

/**
 * Turns as token ids. A chat template renders a whole conversation, the cache holds all but the newest turn; what is new is
 * what the rendering has beyond that of the turn before. Answers stand in it as '', since their tokens are in the cache as
 * they were generated.
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

  /** → ids to read for this question. */
  async ask(content: string): Promise<number[]> {
    const question: ChatMessage = { role: 'user', content };
    const messages = [...this.#messages, question];
    const ids = await this.#tokenize(messages);
    this.#asked = { messages, ids };
    if (this.#held.every((id, at) => ids[at] === id)) return ids.slice(this.#held.length);
    // A template that rewrites what came before: the question alone is the nearest to what it would say.
    return this.#tokenize([question]);
  }

  /** The question was read and answered, wholly or in part: it is in the cache from now on. */
  answered(): void {
    if (this.#asked === null) return;
    this.#held = this.#asked.ids;
    this.#messages = [...this.#asked.messages, { role: 'assistant', content: '' }];
    this.#asked = null;
  }
}

/** Lines of a terminal. Ctrl-C ends the turn that runs, or else the input; so does the signal. */
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

  /** The next line; null when there is none any more. */
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
