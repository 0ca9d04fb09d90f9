/** Texts that end repetitions, found in the tokens of a history, however they are cut into tokens. */
import type { Tokenizer } from '../types.ts';
import type { Breaks } from './penalties.ts';

/** The breakers of one history, which only grows from call to call; each of its tokens is looked at once. */
export class Breakers implements Breaks {
  readonly #texts: readonly string[];
  readonly #tokenizer: Pick<Tokenizer, 'decode' | 'stream'>;
  readonly #stream: ReturnType<Tokenizer['stream']>;
  readonly #alone = new Map<number, boolean>();
  /** Tokens that were looked at, and how many of them end with the last break. */
  #seen = 0;
  #brokenAt = 0;
  /** The end of their text: as many characters as may be the beginning of a break. */
  #tail = '';
  readonly #kept: number;

  constructor(texts: readonly string[], tokenizer: Pick<Tokenizer, 'decode' | 'stream'>) {
    this.#texts = texts;
    this.#tokenizer = tokenizer;
    this.#stream = tokenizer.stream();
    this.#kept = Math.max(0, ...texts.map((text) => text.length - 1));
  }

  tokensSince(history: readonly number[], window: number): number {
    for (; this.#seen < history.length; this.#seen++) {
      const text = this.#tail + this.#stream.push(history[this.#seen]!);
      if (this.#isBroken(text, this.#tail.length)) this.#brokenAt = this.#seen + 1;
      this.#tail = this.#kept === 0 ? '' : text.slice(-this.#kept);
    }
    return Math.min(window, history.length - this.#brokenAt);
  }

  has(id: number): boolean {
    let has = this.#alone.get(id);
    if (has === undefined) {
      has = this.#isBroken(this.#tokenizer.decode([id], { continues: true }), 0);
      this.#alone.set(id, has);
    }
    return has;
  }

  /** True if one of the texts ends behind the first `before` characters. */
  #isBroken(text: string, before: number): boolean {
    return this.#texts.some((breaker) => text.includes(breaker, Math.max(0, before - breaker.length + 1)));
  }
}
