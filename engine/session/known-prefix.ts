/**
 * The beginning of a text, where others have begun alike: what they know of its pages is asked for when it is read, and
 * what the tokens behind it ask of them is measured whenever an answer has been written, for those who come next.
 */
import { laterText, type Prefix, type PrefixLookup, pageDigests } from '../../memory/index.ts';
import { type FormatName, movablePages, PAGE_KINDS, pageOf, SIDES, type TrialCandidate } from '../../native/index.ts';
import type { LaterReport } from '../../policy/index.ts';
import { fingerprintOf } from '../cache/fingerprint.ts';
import type { Reader } from './reader.ts';

/** What a session needs for it. */
export interface Beginnings {
  readonly key: Uint8Array;
  /** Asks who began alike; left out: the caller has named what the session starts with. */
  readonly ask?: (asked: {
    readonly pages: readonly string[];
    readonly fingerprint: readonly number[];
  }) => Promise<PrefixLookup>;
}

/** Trials ask the last tokens; fewer new ones than these were asked already. */
const TOKENS_LEAST = 16;
/** Pages of layers that are measured behind one answer: with SmolLM2-135M some 80 ms. The others are next. */
const PLACES_AT_ONCE = 512;
/**
 * What pages are coded in once more: without a trellis, which takes a fraction of the time, and as low as they ever
 * are, so that it can be done with every page. One that has this form already says nothing.
 */
const RECODED: Readonly<Record<(typeof SIDES)[number], FormatName>> = { k: 'rot2', v: 'rot1' };
const RESIDENT = PAGE_KINDS.indexOf('resident');
const NOTHING: readonly string[] = [];

export class KnownPrefix {
  readonly #reader: Reader;
  readonly #given: Beginnings | undefined;
  #pages: readonly string[] = NOTHING;
  /** Σ of ε² and how many were measured, [pages, layers × 2]. */
  #sums = new Float64Array(0);
  #counts = new Uint32Array(0);
  #answers = 0;
  /** Tokens when it was measured last. */
  #measuredAt = 0;
  #next = 0;

  constructor(reader: Reader, given: Beginnings | undefined) {
    const { terms } = reader.governed;
    this.#reader = reader;
    this.#given = terms.policy.needsTrials && !terms.exact ? given : undefined;
  }

  /** True if these are the first tokens of a text, of which others may know. */
  isBeginning(ids: readonly number[]): boolean {
    return this.#given !== undefined && this.#reader.tokens.length === 0 && pageOf(ids.length) > 0;
  }

  /** The first tokens of a text come to be read. */
  async begin(ids: readonly number[]): Promise<void> {
    const { governed, weights } = this.#reader;
    const { key, ask } = this.#given!;
    const pages = pageDigests(key, weights, ids);
    if (pages[0] !== this.#pages[0] || pages.length !== this.#pages.length) this.#start(pages);
    if (ask === undefined) return;
    const fingerprint = fingerprintOf(governed);
    const { known, neighbours } = await ask({ pages, fingerprint });
    // The session may have been closed meanwhile: nothing follows its last entry.
    if (known === null || this.#reader.isClosed) return;
    const { layers } = governed.shape;
    const later = known.answers.map((answers, page): LaterReport => {
      const side = (index: number): number[] =>
        Array.from({ length: layers }, (_, layer) => {
          const epsilon2 = known.epsilon2[(page * layers + layer) * SIDES.length + index]!;
          return epsilon2 > 0 ? Number(epsilon2.toPrecision(3)) : 0;
        });
      return { page, answers, k: side(0), v: side(1) };
    });
    governed.heard({ later });
    governed.mover.write('note', { beginning: neighbours });
  }

  #start(pages: readonly string[]): void {
    const places = pages.length * this.#reader.governed.shape.layers * SIDES.length;
    this.#pages = pages;
    this.#sums = new Float64Array(places);
    this.#counts = new Uint32Array(places);
    this.#answers = 0;
    this.#measuredAt = 0;
  }

  /** Tokens were taken back: what follows them now is another text. */
  cut(tokens: number): void {
    this.#measuredAt = Math.min(this.#measuredAt, tokens);
    if (pageOf(tokens) < this.#pages.length) this.#pages = this.#pages.slice(0, pageOf(tokens));
  }

  /** An answer has been written: what did it and its question ask of the beginning? */
  measure(): void {
    const { governed, tokens } = this.#reader;
    const { kv, log, tally, shape, terms } = governed;
    // Who writes nothing leaves nothing.
    if (this.#given === undefined || log === null) return;
    const pages = Math.min(this.#pages.length, movablePages(kv.length(), terms.context.windowTokens));
    if (pages === 0 || tokens.length - this.#measuredAt < TOKENS_LEAST) return;
    const start = performance.now();
    const places = pages * shape.layers;
    const tables = Array.from({ length: shape.layers }, (_, layer) => kv.table(layer));
    for (let i = 0; i < Math.min(places, PLACES_AT_ONCE); i++) {
      const at = (this.#next + i) % places;
      const [layer, page] = [at % shape.layers, Math.floor(at / shape.layers)];
      if (tables[layer]!.kind[page] === RESIDENT) this.#measurePage(layer, page);
    }
    this.#next = (this.#next + PLACES_AT_ONCE) % places;
    this.#answers++;
    this.#measuredAt = tokens.length;
    tally.trialsTook(performance.now() - start);
    governed.remember(this.#found(pages));
  }

  #measurePage(layer: number, page: number): void {
    const { kv, shape } = this.#reader.governed;
    const candidates = SIDES.flatMap((side): TrialCandidate[] =>
      kv.format(layer, page, side) === RECODED[side] ? [] : [{ side, format: RECODED[side] }],
    );
    if (candidates.length === 0) return;
    for (const [index, epsilon] of kv.trial(layer, page, candidates).entries()) {
      if (!(epsilon > 0)) continue;
      const at = (page * shape.layers + layer) * SIDES.length + SIDES.indexOf(candidates[index]!.side as 'k' | 'v');
      this.#sums[at]! += epsilon * epsilon;
      this.#counts[at]! += 1;
    }
  }

  #found(pages: number): Prefix {
    const places = pages * this.#reader.governed.shape.layers * SIDES.length;
    const mean = this.#sums.subarray(0, places).map((sum, at) => sum / this.#counts[at]!);
    return { pages: this.#pages.slice(0, pages), later: laterText(mean), answers: this.#answers };
  }
}
