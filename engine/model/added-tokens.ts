/** Tokens that are found in text before it is cut into words: control tokens and words added after training. */

export interface AddedToken {
  readonly id: number;
  readonly text: string;
  /** Steers the model and is no text: not shown when decoding. */
  readonly control: boolean;
  /** Never recognised in text that somebody else wrote. All control tokens, ends of turns, and turn markers. */
  readonly guarded: boolean;
  /** Swallows white space on its left / right. */
  readonly trimLeft?: boolean;
  readonly trimRight?: boolean;
}

/** Forms of turn markers, for files that do not flag them: <|…|>, <｜…｜>, <start_of_turn>, [INST]. */
const TURN_MARKER = /^(<[|｜].*[|｜]>|<\/?(start|end)_of_turn>|\[\/?[A-Z_]+\])$/;

/** Whether a token that a file does not flag as control must be guarded all the same: its template uses it as a turn marker. */
export function isTurnMarker(text: string, chatTemplate: string | null): boolean {
  return chatTemplate !== null && TURN_MARKER.test(text) && chatTemplate.includes(text);
}

export type Section =
  | { readonly text: string; readonly token: null }
  | { readonly text: null; readonly token: AddedToken };

/** Finds added tokens: leftmost first, the longest where several begin. */
export class AddedTokenFinder {
  /** By first UTF-16 unit, longest first. */
  readonly #byStart = new Map<number, AddedToken[]>();

  constructor(tokens: readonly AddedToken[]) {
    for (const token of tokens) {
      if (token.text === '') continue;
      const start = token.text.charCodeAt(0);
      const bucket = this.#byStart.get(start);
      if (bucket === undefined) this.#byStart.set(start, [token]);
      else bucket.push(token);
    }
    for (const bucket of this.#byStart.values()) bucket.sort((a, b) => b.text.length - a.text.length);
  }

  at(text: string, position: number): AddedToken | undefined {
    return this.#byStart.get(text.charCodeAt(position))?.find((token) => text.startsWith(token.text, position));
  }

  /** Cuts a text at its added tokens; empty stretches are left out. */
  split(text: string): Section[] {
    const sections: Section[] = [];
    let start = 0;
    const pushText = (end: number, trimEnd: boolean): void => {
      const stretch = trimEnd ? text.slice(start, end).trimEnd() : text.slice(start, end);
      if (stretch !== '') sections.push({ text: stretch, token: null });
    };
    for (let at = 0; at < text.length; ) {
      const token = this.at(text, at);
      if (token === undefined) {
        at++;
        continue;
      }
      pushText(at, token.trimLeft === true);
      sections.push({ text: null, token });
      at += token.text.length;
      if (token.trimRight === true) while (at < text.length && /\s/.test(text[at]!)) at++;
      start = at;
    }
    pushText(text.length, false);
    return sections;
  }
}
