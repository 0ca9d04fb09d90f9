/**
 * Where in an answer a call begins: the text of its tokens is looked through for marks, whichever tokens these are
 * written in.
 */
import { markCharacter } from '../../../transformer/grammar/source.ts';
import type { Tokenizer } from '../../../transformer/types.ts';
import type { CallFormat } from './call.ts';

/** What no grammar of calls takes. */
const NEVER = '\0';

/** The marks of a format for which a model has tokens, and the ids of these. */
export interface MarkTokens {
  readonly marks: readonly string[];
  readonly ids: readonly number[];
}

export function markTokens(tokenizer: Tokenizer, { controls }: CallFormat): MarkTokens {
  const found = controls.flatMap((mark) => {
    const ids = tokenizer.encode(mark, { special: true });
    return ids.length === 1 ? [{ mark, id: ids[0]! }] : [];
  });
  return { marks: found.map(({ mark }) => mark), ids: found.map(({ id }) => id) };
}

/**
 * State for one answer. Its text is held as Latin-1, one character for each byte, because a token can end inside a
 * UTF-8 character.
 */
export class CallWatch {
  readonly #tokenizer: Tokenizer;
  readonly #format: Pick<CallFormat, 'opens' | 'opensAtStart'>;
  readonly #tokens: MarkTokens;
  /** The last bytes, of which a mark may go on. */
  #tail = '';
  /** The answer as far as it came; null: it does not begin with a call. */
  #start: string | null = '';

  constructor(tokenizer: Tokenizer, format: Pick<CallFormat, 'opens' | 'opensAtStart'>, tokens: MarkTokens) {
    this.#tokenizer = tokenizer;
    this.#format = format;
    this.#tokens = tokens;
  }

  /**
   * The text of the call that begins where this token is written next, as far as the token says it; marks that are
   * tokens are their characters. null: none begins.
   */
  begun(id: number): string | null {
    const piece = this.#piece(id);
    const text = this.#tail + piece;
    const { opens, opensAtStart } = this.#format;
    const found = opens
      .map((open) => ({ open, at: text.indexOf(open) }))
      .filter(({ at }) => at >= 0)
      .sort((a, b) => a.at - b.at)[0];
    if (found !== undefined) return this.#mark(found.open) + decoded(text.slice(found.at + found.open.length));
    if (this.#start === null) return null;
    const begin = decoded(this.#start + piece).trimStart();
    return opensAtStart.some((open) => begin.startsWith(open)) ? begin : null;
  }

  /** The token was written, and no call begins there. */
  push(id: number): void {
    const piece = this.#piece(id);
    const longest = Math.max(...this.#format.opens.map((open) => open.length));
    this.#tail = (this.#tail + piece).slice(-(longest - 1));
    if (this.#start === null) return;
    this.#start += piece;
    const begin = Buffer.from(this.#start, 'latin1').toString().trimStart();
    if (begin !== '' && !this.#format.opensAtStart.some((open) => open.startsWith(begin))) this.#start = null;
  }

  #piece(id: number): string {
    const mark = this.#tokens.marks[this.#tokens.ids.indexOf(id)];
    return mark ?? Buffer.from(this.#tokenizer.bytes(id)).toString('latin1');
  }

  #mark(open: string): string {
    const index = this.#tokens.marks.indexOf(open);
    return index < 0 ? open : markCharacter(index);
  }
}

/** Bytes as a text; where they end within a character, what is never admitted. */
function decoded(bytes: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Buffer.from(bytes, 'latin1'));
  } catch {
    return NEVER;
  }
}
