/**
 * Asks what earlier sessions say of a text while a session reads it: once a page or two are known, and whenever its
 * length has doubled since.
 */
import { beginningOf, contentOf, TOKENS_MAX } from '../cache/content.ts';
import { fingerprintOf } from '../cache/fingerprint.ts';
import type { Reader } from './reader.ts';
import type { SessionSetup } from './setup.ts';

/** Kinds of text are told apart from so many tokens on. */
const RECALL_TOKENS = 256;

export class BookLookup {
  readonly #reader: Reader;
  readonly #ask: SessionSetup['recall'];
  readonly #hintOf: SessionSetup['hintOf'];
  #at = RECALL_TOKENS;
  /** Tokens that helpers have seen. */
  #hinted = 0;

  /** `recall`: left out, only the kind of text is found out. */
  constructor(reader: Reader, { recall, hintOf }: Pick<SessionSetup, 'recall' | 'hintOf'>) {
    this.#reader = reader;
    this.#ask = recall;
    this.#hintOf = hintOf;
  }

  /** Called between two chunks of a prompt. What is said counts from the next situation on, and stands in the log. */
  async lookUp(): Promise<void> {
    const { tokens, governed, runtime } = this.#reader;
    if (tokens.length < this.#at) return;
    this.#at = 2 * tokens.length;
    governed.recognized(contentOf(runtime.model.tokenizer, tokens));
    await this.#askHelpers();
    if (this.#ask === undefined || this.#reader.isClosed) return;
    const fingerprint = fingerprintOf(governed);
    const { hint } = governed;
    const lookup = await this.#ask(fingerprint, hint ?? undefined);
    // The session may have been closed meanwhile: nothing follows its last entry.
    if (this.#reader.isClosed) return;
    // How errors go on is taken from the first answer alone: by now the session has seen some of it itself.
    const { course: _, sources, ...rest } = lookup.thresholds;
    const thresholds = sources?.law === undefined ? rest : { ...rest, sources: { law: sources.law } };
    const text = thresholds.law?.text;
    if (text === undefined || lookup.neighbours.length === 0) return;
    governed.heard({ text });
    const { neighbours } = lookup;
    governed.mover.write('evidence', { fingerprint, ...(hint === null ? {} : { hint }), neighbours, thresholds });
  }

  /** What helpers say of a beginning that has grown; where they say nothing, what they said of less of it stays. */
  async #askHelpers(): Promise<void> {
    const { tokens, governed, runtime } = this.#reader;
    const seen = Math.min(TOKENS_MAX, tokens.length);
    if (this.#hintOf === undefined || seen <= this.#hinted) return;
    const hint = await this.#hintOf(beginningOf(runtime.model.tokenizer, tokens));
    if (hint === null) return;
    this.#hinted = seen;
    governed.hinted(hint);
  }
}
