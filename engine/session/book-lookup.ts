/**
 * Asks what earlier sessions say of a text while a session reads it: once a page or two are known, and whenever its
 * length has doubled since.
 */
import type { Fingerprint, Lookup } from '../../memory/index.ts';
import { contentOf } from '../cache/content.ts';
import { fingerprintOf } from '../cache/fingerprint.ts';
import type { Reader } from './reader.ts';

/** Kinds of text are told apart from so many tokens on. */
const RECALL_TOKENS = 256;

export class BookLookup {
  readonly #reader: Reader;
  readonly #ask: ((fingerprint: Fingerprint) => Promise<Lookup>) | undefined;
  #at = RECALL_TOKENS;

  /** `ask`: left out, only the kind of text is found out. */
  constructor(reader: Reader, ask?: (fingerprint: Fingerprint) => Promise<Lookup>) {
    this.#reader = reader;
    this.#ask = ask;
  }

  /** Called between two chunks of a prompt. What is said counts from the next situation on, and stands in the log. */
  async lookUp(): Promise<void> {
    const { tokens, governed, runtime } = this.#reader;
    if (tokens.length < this.#at) return;
    this.#at = 2 * tokens.length;
    governed.recognized(contentOf(runtime.model.tokenizer, tokens));
    if (this.#ask === undefined) return;
    const fingerprint = fingerprintOf(governed);
    const lookup = await this.#ask(fingerprint);
    // The session may have been closed meanwhile: nothing follows its last entry.
    if (this.#reader.isClosed) return;
    // How errors go on is taken from the first answer alone: by now the session has seen some of it itself.
    const { course: _, sources, ...rest } = lookup.thresholds;
    const thresholds = sources?.law === undefined ? rest : { ...rest, sources: { law: sources.law } };
    const text = thresholds.law?.text;
    if (text === undefined || lookup.neighbours.length === 0) return;
    governed.heard({ text });
    governed.mover.write('evidence', { fingerprint, neighbours: lookup.neighbours, thresholds });
  }
}
