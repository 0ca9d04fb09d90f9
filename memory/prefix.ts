/**
 * Beginnings that texts have in common: a system prompt, documents that are asked about again and again. A session
 * leaves what errors in each page of its beginning cost the tokens that were read last, and the next one that begins
 * alike knows from its first token on what will be asked of which page. Pages are told apart by a chain of keyed
 * digests (HMAC-SHA-256), each over the tokens of a page and all before it: so they tell nobody the text.
 */
import { createHmac } from 'node:crypto';
import { PAGE_TOKENS, pageOf } from '../native/index.ts';

/** Pages of a beginning that are remembered: 8,192 tokens. */
export const PREFIX_PAGES_MAX = 64;
/** Bytes of a digest. */
const DIGEST_BYTES = 16;
/** A logarithm is told in eighths, so ε² to within 6%; 0: nothing is known, 255: as little as can be told. */
const STEP = 1 / 8;
const LEAST = 255;
/** Layers and sides of a model. */
const SIDE_COUNT = 2;

/** What a session knows of its beginning when it ends. */
export interface Prefix {
  /** Digest of each page and all before it, from the first page on. */
  readonly pages: readonly string[];
  /** What `laterText` makes of ε² by page, layer and side. */
  readonly later: string;
  /** Answers that were measured. */
  readonly answers: number;
}

/** What earlier sessions with the same beginning know of it together. */
export interface KnownPrefix {
  /** ε² by page, layer and side, [pages, layers × 2]; NaN where nobody measured it. */
  readonly epsilon2: Float64Array;
  /** Answers that each page rests on, [pages]. */
  readonly answers: readonly number[];
}

/** A digest of each full page of a text and all before it. */
export class PageChain {
  readonly digests: string[] = [];
  readonly #key: Uint8Array;
  /** Whole, before each page. */
  readonly #before: Buffer[];

  readonly #besideOf: (page: number) => string | null;

  /**
   * `model`: what the same tokens mean the same to, with its adapters. besideOf: what else the key of a page has, as do
   * the keys of those behind it; null: nothing.
   */
  constructor(key: Uint8Array, model: string, besideOf: (page: number) => string | null = () => null) {
    this.#key = key;
    this.#besideOf = besideOf;
    this.#before = [createHmac('sha256', key).update(model).digest()];
  }

  /** Goes on to the full pages of these tokens, at most `most`, which begin with those that it has seen. */
  extend(tokens: readonly number[], most = Number.POSITIVE_INFINITY): void {
    const pages = Math.min(most, pageOf(tokens.length));
    for (let page = this.digests.length; page < pages; page++) {
      const bytes = Buffer.alloc(4 * PAGE_TOKENS);
      for (let at = 0; at < PAGE_TOKENS; at++) bytes.writeInt32LE(tokens[page * PAGE_TOKENS + at]!, 4 * at);
      const hash = createHmac('sha256', this.#key).update(this.#before[page]!).update(bytes);
      const beside = this.#besideOf(page);
      const digest = (beside === null ? hash : hash.update(beside)).digest();
      this.#before.push(digest);
      this.digests.push(digest.subarray(0, DIGEST_BYTES).toString('base64url'));
    }
  }

  /** Tokens were taken back: so many pages are as they were. */
  cut(pages: number): void {
    this.digests.length = Math.min(this.digests.length, pages);
    this.#before.length = this.digests.length + 1;
  }
}

/**
 * Digests of the full pages that tokens begin with, at most PREFIX_PAGES_MAX. `model`: what the same tokens mean the
 * same to, with its adapters.
 */
export function pageDigests(key: Uint8Array, model: string, tokens: readonly number[]): string[] {
  const chain = new PageChain(key, model);
  chain.extend(tokens, PREFIX_PAGES_MAX);
  return chain.digests;
}

/** ε² as text, one byte each. What is no number above 0 is not known. */
export const laterText = (epsilon2: Float64Array): string =>
  Buffer.from(
    Array.from(epsilon2, (one) =>
      one > 0 ? Math.max(1, Math.min(LEAST, 1 + Math.round(-Math.log(Math.min(1, one)) / STEP))) : 0,
    ),
  ).toString('base64');

/** What such a text says; NaN where nothing is known. */
const laterOf = (text: string): Float64Array =>
  Float64Array.from(Buffer.from(text, 'base64'), (byte) => (byte === 0 ? Number.NaN : Math.exp(-(byte - 1) * STEP)));

/**
 * What sessions of a model of `layers` layers know together of a text that begins with these pages: the mean of ε²,
 * each session by its answers. null: none of them begins like it.
 */
export function joinPrefixes(given: readonly Prefix[], digests: readonly string[], layers: number): KnownPrefix | null {
  const places = layers * SIDE_COUNT;
  const sums = new Float64Array(digests.length * places);
  const weights = new Float64Array(digests.length * places);
  const answers = new Array<number>(digests.length).fill(0);
  for (const prefix of given) {
    const pages = alike(prefix.pages, digests);
    const later = laterOf(prefix.later);
    // What has not a number for each page, layer and side is of another model.
    if (later.length !== prefix.pages.length * places) continue;
    for (let page = 0; page < pages; page++) answers[page]! += prefix.answers;
    for (const [at, epsilon2] of later.subarray(0, pages * places).entries()) {
      if (Number.isNaN(epsilon2)) continue;
      sums[at]! += prefix.answers * epsilon2;
      weights[at]! += prefix.answers;
    }
  }
  const known = answers.findLastIndex((count) => count > 0) + 1;
  if (known === 0) return null;
  return {
    epsilon2: sums.subarray(0, known * places).map((sum, at) => sum / weights[at]!),
    answers: answers.slice(0, known),
  };
}

function alike(a: readonly string[], b: readonly string[]): number {
  let pages = 0;
  while (pages < Math.min(a.length, b.length) && a[pages] === b[pages]) pages++;
  return pages;
}
