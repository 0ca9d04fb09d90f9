/**
 * Promotion on use: for as long as an answer is written, the pages that its question looks at most come back in four
 * bits, made of their originals. Which pages these are, each layer says for itself, by the attention of the question's
 * own tokens. The form that a page had is kept beside its original, so that the page goes back without being encoded.
 * A part of the budget stays free for it. Policies are told nothing: what promoted sides take more is taken off both
 * what is used and what may be, and whoever moves or tries such a page has it in its low form again first.
 */
import {
  assert,
  type CacheShape,
  FORMATS,
  type FormatName,
  firstToken,
  type KvCache,
  LOWEST_FORMATS,
  PAGE_KINDS,
  type Part,
  pageBytes,
  SIDES,
  type Side,
  sidesOf,
} from '../../native/index.ts';
import type { FormArrows, FormState } from '../../policy/index.ts';
import type { Originals } from '../originals/originals.ts';
import type { OriginalsTerms } from '../originals/types.ts';

/** The part of a budget that stays free for what comes back for an answer, at most: others pay for it all along. */
export const RESERVE_SHARE = 1 / 8;

/** Bytes of a budget that stay free for the promotion of so many pages of each layer. */
export function reserveFor(pages: number, { layers, kvHeads, headDim }: CacheShape, budgetBytes: number): number {
  const more = SIDES.map(
    (side) => pageBytes(PROMOTED_FORMAT, kvHeads, headDim) - pageBytes(LOWEST_FORMATS[side], kvHeads, headDim),
  );
  const bytes = pages * layers * more.reduce((sum, one) => sum + Math.max(0, one), 0);
  return Math.min(bytes, Math.floor(RESERVE_SHARE * budgetBytes));
}

/** What pages come back in where their originals have eight bits. */
const PROMOTED_FORMAT: FormatName = 'trellis4';
/** What pages come back in. */
export const comesBackIn = ({ format }: OriginalsTerms): FormatName => (format === 'q8' ? PROMOTED_FORMAT : format);
/** The last tokens of a prompt, whose attention says which pages come back, and which are read again then. */
export const QUESTION_TOKENS = 32;
/** Shares are told to a millionth. */
const PARTS = 1e6;
const RESIDENT = PAGE_KINDS.indexOf('resident');

/** A page that a question looks at, by the share of its layer's attention. */
export interface AskedPage {
  readonly layer: number;
  readonly page: number;
  readonly share: number;
}

interface PromotedSide {
  readonly layer: number;
  readonly page: number;
  readonly side: Side;
  readonly from: FormatName;
  readonly to: FormatName;
  readonly bytes: number;
}

/** What the log is told: sides that came back, with the share of their page, or went. */
type Note = (body: Readonly<Record<string, unknown>>) => void;

interface PromotedParts {
  readonly cache: KvCache;
  readonly originals: Originals;
  /** True while other caches share pages with this one: then none is promoted. */
  readonly isShared: () => boolean;
  readonly note: Note;
  readonly arrows: FormArrows;
  /** The state of a side of a page that is in this form and not promoted. */
  readonly stateOf: (page: number, form: FormatName) => FormState;
}

/** What attention gave to the pages of every layer while a question was read. */
export class Question {
  readonly #cache: KvCache;
  readonly #before: readonly Float64Array[];

  /** The next tokens are the question. */
  constructor(cache: KvCache) {
    this.#cache = cache;
    this.#before = massesOf(cache);
  }

  /** Called behind it. The pages of each layer that it looked at, the first most; without sinks, which are exact. */
  pages(): readonly (readonly AskedPage[])[] {
    return massesOf(this.#cache).map((now, layer) => {
      const before = this.#before[layer]!;
      // The last mass is that of the open page, which is sealed under way now and then: its count goes on as a page's.
      const gained = now.map((mass, page) => Math.max(0, mass - (before[page] ?? 0)));
      const total = gained.reduce((sum, mass) => sum + mass, 0);
      if (!(total > 0)) return [];
      return Array.from(gained.subarray(0, -1), (mass, page) => ({ layer, page, share: mass / total }))
        .filter(({ share }) => share > 0)
        .sort((a, b) => b.share - a.share || a.page - b.page);
    });
  }
}

/** Of every layer, what its pages and the open one received, without the sinks. */
const massesOf = (cache: KvCache): readonly Float64Array[] =>
  Array.from({ length: cache.shape.layers }, (_, layer) => {
    const { mass, sinkMass } = cache.table(layer);
    mass[0]! -= sinkMass;
    return mass;
  });

export class Promoted {
  readonly #cache: KvCache;
  readonly #originals: Originals;
  readonly #isShared: () => boolean;
  readonly #note: Note;
  readonly #arrows: FormArrows;
  readonly #stateOf: PromotedParts['stateOf'];
  #sides: readonly PromotedSide[] = [];
  #bytes = 0;
  #everRaised = 0;

  constructor({ cache, originals, isShared, note, arrows, stateOf }: PromotedParts) {
    this.#cache = cache;
    this.#originals = originals;
    this.#isShared = isShared;
    this.#note = note;
    this.#arrows = arrows;
    this.#stateOf = stateOf;
  }

  /** What promoted sides take more than in their low forms. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Sides that came back so far, those that went again included. */
  get everRaised(): number {
    return this.#everRaised;
  }

  get count(): number {
    return this.#sides.length;
  }

  /** The form that a side has for policies while it is promoted; null: it is not. */
  lowForm(layer: number, page: number, side: Side): FormatName | null {
    if (this.#sides.length === 0) return null;
    return this.#sides.find((it) => it.layer === layer && it.page === page && it.side === side)?.from ?? null;
  }

  /**
   * Of the pages that a question looked at, the first `most` of each layer that can come back, those first that come
   * first in their layer.
   */
  choose(asked: readonly (readonly AskedPage[])[], most: number): readonly AskedPage[] {
    if (this.#isShared()) return [];
    const chosen = asked.map((pages) => {
      const able: AskedPage[] = [];
      for (const page of pages) if (able.length < most && this.#sidesOf(page).length > 0) able.push(page);
      return able;
    });
    return Array.from({ length: most }, (_, place) => chosen.flatMap((pages) => pages[place] ?? [])).flat();
  }

  /**
   * Promotes pages, in their order, as far as they fit into so many bytes. → how many sides came back
   *
   * `question`: its tokens.
   */
  promote(pages: readonly AskedPage[], roomBytes: number, question: number): number {
    assert(this.#sides.length === 0, `${this.#sides.length} page sides are promoted while another question is asked`);
    const bytesBefore = this.#cache.usedBytes;
    const told: object[] = [];
    let left = roomBytes;
    for (const page of pages) {
      for (const side of this.#sidesOf(page)) {
        if (side.bytes > left || !this.#raise(side)) continue;
        left -= side.bytes;
        const { layer, page: of, side: half, from, to } = side;
        told.push({ layer, page: of, side: half, from, to, share: Math.round(page.share * PARTS) / PARTS });
      }
    }
    if (told.length > 0) {
      const bytes = { bytesBefore, bytesAfter: this.#cache.usedBytes };
      this.#note({ promoted: told, because: 'question-mass', question, ...bytes, tokens: this.#cache.length() });
    }
    return told.length;
  }

  /** A part of a page is about to be moved or tried: it is in its low form from now on. */
  release(layer: number, page: number, part: Part): void {
    if (this.#sides.length === 0) return;
    this.#return(({ layer: l, page: p, side }) => l === layer && p === page && sidesOf(part).includes(side));
  }

  /** Everything goes back. */
  giveBack(): void {
    if (this.#sides.length > 0) this.#return(() => true);
  }

  /** Pages behind the first `pages` are gone. */
  cut(pages: number): void {
    this.#keep(this.#sides.filter(({ page }) => page < pages));
  }

  #return(goes: (side: PromotedSide) => boolean): void {
    const going = this.#sides.filter(goes);
    if (going.length === 0) return;
    const bytesBefore = this.#cache.usedBytes;
    for (const { layer, page, side, from } of going) {
      this.#arrows.take('promoted', 'return', from);
      const low = this.#originals.readPresent(layer, page, side);
      // Where the low form is lost with all originals, it is made again of the promoted one.
      if (low?.format === from) this.#cache.exchangeSide(layer, page, side, low);
      else this.#cache.transcode(layer, page, side, from);
      this.#originals.forgetPresent(layer, page, side);
    }
    this.#keep(this.#sides.filter((side) => !going.includes(side)));
    const returned = going.map(({ layer, page, side, from, to }) => ({ layer, page, side, from: to, to: from }));
    this.#note({ returned, bytesBefore, bytesAfter: this.#cache.usedBytes, tokens: this.#cache.length() });
  }

  #keep(sides: readonly PromotedSide[]): void {
    this.#sides = sides;
    this.#bytes = sides.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** The sides of a page that have an original and are in fewer bits than they can come back in. */
  #sidesOf({ layer, page }: AskedPage): readonly PromotedSide[] {
    const cache = this.#cache;
    const table = cache.table(layer);
    if (page >= table.pages || firstToken(page) >= cache.length(layer) || table.kind[page] !== RESIDENT) return [];
    const { kvHeads, headDim } = cache.shape;
    const to = comesBackIn(this.#originals.terms);
    return SIDES.flatMap((side): PromotedSide[] => {
      // What a kept original is compared with stays as it is.
      if (!this.#originals.has(layer, page, side) || cache.originalFormat(layer, page, side) !== null) return [];
      const from = cache.format(layer, page, side);
      const bytes = pageBytes(to, kvHeads, headDim) - pageBytes(from, kvHeads, headDim);
      const isLower =
        FORMATS[from].rank > FORMATS[to].rank && this.#arrows.may(this.#stateOf(page, from), 'promote', to);
      return isLower && bytes > 0 ? [{ layer, page, side, from, to, bytes }] : [];
    });
  }

  #raise(side: PromotedSide): boolean {
    const { layer, page, side: of, from, to } = side;
    const originals = this.#originals;
    const original = originals.read(layer, page, of);
    // Without its low form in a safe place a side would not go back as it was.
    if (original === null || !originals.keepPresent(layer, page, of)) return false;
    this.#arrows.take(this.#stateOf(page, from), 'promote', to);
    this.#cache.exchangeSide(layer, page, of, originals.encoded(original, page, of, to));
    this.#keep([...this.#sides, side]);
    this.#everRaised++;
    return true;
  }
}
