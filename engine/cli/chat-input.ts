/** What is typed or pasted on a terminal in a conversation, and what ends an answer or the conversation. */
import { createInterface, type Interface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';

/** What a terminal is told so that it marks what is pasted (bracketed paste). */
const MARK_PASTES = '\u001b[?2004h';
const LEAVE_PASTES = '\u001b[?2004l';
const PROMPT = '> ';
/** Before a line that belongs to the text above it. */
const GOES_ON = '… ';

export interface ChatInputOptions {
  /** Ends the input. */
  readonly signal: AbortSignal;
  /** A terminal, or what stands for one. */
  readonly input?: Readable;
  readonly output?: Writable;
}

/**
 * Reads texts from a terminal. A pasted text is one text, however many lines it has, and so are lines that end in a
 * backslash with the line behind them. Ctrl-C ends the turn that is running; if none is, it forgets what was typed, and
 * pressed twice when nothing was, it ends the input.
 */
export class ChatInput {
  readonly #lines: Interface;
  readonly #output: Writable;
  readonly #signal: AbortSignal;
  readonly #queue: string[] = [];
  /** Lines of a text that goes on. */
  #held: string[] = [];
  #isPasting = false;
  /** Ctrl-C was pressed when nothing was typed. */
  #isLeaving = false;
  #wake: (() => void) | null = null;
  #ended = false;
  #turn: AbortController | null = null;

  constructor({ signal, input = process.stdin, output = process.stderr }: ChatInputOptions) {
    this.#signal = signal;
    this.#output = output;
    this.#lines = createInterface({ input, output, prompt: PROMPT, terminal: true });
    input.on('keypress', (_text: string | undefined, key?: { name?: string }) => this.#pressed(key?.name));
    this.#lines.on('line', (line) => this.#typed(line));
    this.#lines.on('close', () => this.#end());
    this.#lines.on('SIGINT', () => this.#interrupted());
    signal.addEventListener('abort', () => this.#lines.close(), { once: true });
    output.write(MARK_PASTES);
  }

  /** The next text, or null at the end of the input. */
  async next(): Promise<string | null> {
    if (this.#queue.length === 0 && !this.#ended) {
      this.#ask();
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

  #pressed(name: string | undefined): void {
    if (name === 'paste-start') this.#isPasting = true;
    if (name === 'paste-end') this.#isPasting = false;
  }

  #typed(line: string): void {
    this.#isLeaving = false;
    const goesOn = !this.#isPasting && line.endsWith('\\');
    this.#held.push(goesOn ? line.slice(0, -1) : line);
    if (goesOn) this.#ask();
    if (goesOn || this.#isPasting) return;
    this.#queue.push(this.#held.join('\n'));
    this.#held = [];
    this.#wake?.();
  }

  #ask(): void {
    this.#lines.setPrompt(this.#held.length > 0 ? GOES_ON : PROMPT);
    this.#lines.prompt();
  }

  #interrupted(): void {
    if (this.#turn !== null) {
      this.#turn.abort();
      return;
    }
    const isEmpty = this.#held.length === 0 && this.#lines.line === '';
    if (isEmpty && this.#isLeaving) {
      this.#lines.close();
      return;
    }
    this.#isLeaving = isEmpty;
    this.#held = [];
    this.#isPasting = false;
    // To the end of the line, and back to its beginning.
    this.#lines.write(null, { ctrl: true, name: 'e' });
    this.#lines.write(null, { ctrl: true, name: 'u' });
    this.#output.write(isEmpty ? '\nCtrl-C once more ends the conversation, and so does Ctrl-D.\n' : '\n');
    this.#ask();
  }

  #end(): void {
    if (!this.#ended) this.#output.write(LEAVE_PASTES);
    this.#ended = true;
    this.#turn?.abort();
    this.#wake?.();
  }
}
