/** Tokens that are found in text before it is cut into words: control tokens and words added after training. */
import { KvError } from '../../native/index.ts';
import type { ChatTemplates } from './types.ts';

export interface AddedToken {
  readonly id: number;
  readonly text: string;
  /** A control token: it steers the model and is left out of decoded text. */
  readonly control: boolean;
  /** Never recognised in untrusted text. True of control tokens, ends of turns and turn markers. */
  readonly guarded: boolean;
  /** Found in normalized text, if it is not guarded. */
  readonly normalized?: boolean;
  /** Swallows white space on its left / right. */
  readonly trimLeft?: boolean;
  readonly trimRight?: boolean;
}

/** Forms of turn markers, for files that do not flag them: <|…|>, <｜…｜>, <start_of_turn>, [INST]. */
const TURN_MARKER = /^(<[|｜].*[|｜]>|<\/?(start|end)_of_turn>|\[\/?[A-Z_]+\])$/;

/**
 * True if a token must be guarded although its file does not flag it as control, because the template uses it as a turn
 * marker.
 */
export function isTurnMarker(text: string, { plain, tools }: ChatTemplates): boolean {
  return TURN_MARKER.test(text) && [plain, tools].some((template) => template?.includes(text) === true);
}

/** White space as Unicode has it, which is not what `\s` is: U+0085 is, U+FEFF is not. */
const isSpace = (letter: string): boolean => /\p{White_Space}/u.test(letter);

export type Section =
  | { readonly text: string; readonly token: null }
  | { readonly text: null; readonly token: AddedToken };

/** True if a token may be found where its text begins at this place. */
export type MayBe = (token: AddedToken, position: number) => boolean;

/** Longest text of an added token. Published ones have up to 40 characters. */
const TEXT_CHARACTERS_MAX = 256;

/**
 * Finds added tokens from left to right, preferring the longest. Throws KvError 'bad-tokenizer' for a token that is too
 * long.
 */
export class AddedTokenFinder {
  readonly #byText = new Map<string, AddedToken>();
  /**
   * Token lengths by first UTF-16 unit, longest first: one lookup per length, however many tokens share a beginning.
   */
  readonly #lengths = new Map<number, number[]>();

  constructor(tokens: readonly AddedToken[]) {
    for (const token of tokens) {
      const { text } = token;
      if (text === '' || this.#byText.has(text)) continue;
      if (text.length > TEXT_CHARACTERS_MAX) {
        throw new KvError('bad-tokenizer', `an added token has ${text.length} characters`, {
          values: { id: token.id, charactersMax: TEXT_CHARACTERS_MAX },
        });
      }
      this.#byText.set(text, token);
      const lengths = this.#lengths.get(text.charCodeAt(0));
      if (lengths === undefined) this.#lengths.set(text.charCodeAt(0), [text.length]);
      else if (!lengths.includes(text.length)) lengths.push(text.length);
    }
    for (const lengths of this.#lengths.values()) lengths.sort((a, b) => b - a);
  }

  /** The longest that begins here, of those that may be there. */
  #at(text: string, position: number, mayBe: MayBe): AddedToken | undefined {
    for (const length of this.#lengths.get(text.charCodeAt(position)) ?? []) {
      const token = this.#byText.get(text.slice(position, position + length));
      if (token !== undefined && mayBe(token, position)) return token;
    }
    return undefined;
  }

  /**
   * Cuts a text at its added tokens; empty stretches are left out. As in the package `tokenizers`, white space that is
   * a token by itself stays one behind a token that swallows white space.
   */
  split(text: string, mayBe: MayBe = () => true): Section[] {
    const sections: Section[] = [];
    // Where the text begins that no token has taken yet.
    let start = 0;
    const pushText = (end: number): void => {
      if (end > start) sections.push({ text: text.slice(start, end), token: null });
    };
    for (let at = 0; at < text.length; ) {
      const token = this.#at(text, at, mayBe);
      if (token === undefined) {
        at++;
        continue;
      }
      let end = at;
      if (token.trimLeft === true) while (end > start && isSpace(text[end - 1]!)) end--;
      pushText(end);
      sections.push({ text: null, token });
      at += token.text.length;
      start = at;
      if (token.trimRight === true) while (start < text.length && isSpace(text[start]!)) start++;
    }
    pushText(text.length);
    return sections;
  }
}
