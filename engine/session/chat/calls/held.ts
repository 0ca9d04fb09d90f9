/**
 * An answer while it is written: its text is passed on until a call may have begun, which is held back until the answer
 * is complete.
 */
import { StopText } from '../../stop.ts';
import type { CallFormat, Parsed } from './call.ts';

export class HeldCalls {
  readonly #format: CallFormat;
  readonly #before: StopText;
  /** Not certain yet whether the answer begins with a call. */
  #start: string | null = '';
  #all = '';
  #shown = 0;

  constructor(format: CallFormat) {
    this.#format = format;
    this.#before = new StopText(format.opens);
  }

  /** → text that is no part of a call */
  push(piece: string): string {
    this.#all += piece;
    if (this.#start === null) return this.#pass(piece);
    this.#start += piece;
    const begin = this.#start.trimStart();
    const { opensAtStart } = this.#format;
    const mayBegin = begin === '' || opensAtStart.some((open) => begin.startsWith(open) || open.startsWith(begin));
    if (opensAtStart.length > 0 && mayBegin) return '';
    const held = this.#start;
    this.#start = null;
    return this.#pass(held);
  }

  /**
   * The answer is complete, or cut off where it had as many tokens as it may have. → what it is, and text that was held
   * back and is none of its calls
   */
  end(isCut = false): { readonly parsed: Parsed | null; readonly rest: string } {
    const parsed = this.#format.parse(this.#all) ?? (isCut ? this.#beforeCut() : null);
    return { parsed, rest: parsed === null ? this.#all.slice(this.#shown) : '' };
  }

  /** The calls before one that was cut off, which stays text; null: there are none. */
  #beforeCut(): Parsed | null {
    const all = this.#all;
    for (let at = all.length; at > 0; at--) {
      // The last whole call ends before the mark of the next one, or at its bracket, perhaps in a list.
      const isMark = this.#format.opens.some((open) => all.startsWith(open, at));
      if (!isMark && all[at - 1] !== '}') continue;
      for (const closing of isMark ? [''] : ['', ']']) {
        const parsed = this.#format.parse(all.slice(0, at) + closing);
        if (parsed === null) continue;
        const cut = all.slice(at).replace(/^[\s,;]+/, '');
        return { text: `${parsed.text}${parsed.text === '' ? '' : '\n'}${cut}`, calls: parsed.calls };
      }
    }
    return null;
  }

  #pass(piece: string): string {
    const text = this.#before.push(piece);
    this.#shown += text.length;
    return text;
  }
}
