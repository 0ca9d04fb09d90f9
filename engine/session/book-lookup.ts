/** Asks what earlier sessions say of a text while a session reads it: once a page or two are known, and whenever its length has doubled since. */
import type { Fingerprint, Lookup } from '../../memory/index.ts';
import { contentOf } from '../cache/content.ts';
import { fingerprintOf } from '../cache/fingerprint.ts';
import type { Governed } from '../cache/governed.ts';
import type { Tokenizer } from '../transformer/types.ts';

/** Kinds of text are told apart from so many tokens on. */
const RECALL_TOKENS = 256;

export class Recall {
  readonly #governed: Governed;
  readonly #tokenizer: Tokenizer;
  readonly #ask: ((fingerprint: Fingerprint) => Promise<Lookup>) | undefined;
  #at = RECALL_TOKENS;

  /** `ask`: left out, only the kind of text is found out. */
  constructor(governed: Governed, tokenizer: Tokenizer, ask?: (fingerprint: Fingerprint) => Promise<Lookup>) {
    this.#governed = governed;
    this.#tokenizer = tokenizer;
    this.#ask = ask;
  }

  /** Called between two chunks of a prompt. What is said counts from the next situation on, and stands in the log. */
  async of(tokens: readonly number[], isClosed: () => boolean): Promise<void> {
    if (tokens.length < this.#at) return;
    const governed = this.#governed;
    this.#at = 2 * tokens.length;
    governed.content = contentOf(this.#tokenizer, tokens);
    if (this.#ask === undefined) return;
    const fingerprint = fingerprintOf(governed);
    const lookup = await this.#ask(fingerprint);
    // The session may have been closed meanwhile: nothing follows its last entry.
    if (isClosed()) return;
    const text = lookup.thresholds.law?.text;
    if (text === undefined || lookup.neighbours.length === 0) return;
    governed.found = { ...governed.found, text };
    governed.mover.write('evidence', { fingerprint, neighbours: lookup.neighbours, thresholds: lookup.thresholds });
  }
}
