/**
 * What becomes of errors that have accumulated. Behind a part of a text the cache of a session holds two kinds of
 * error: its pages are coded, and their rows were made from hidden states that had attended to coded pages. Three
 * caches without a policy read the same text beside a session, and take over its formats whenever all have read a page:
 *
 *   kept      from the first page on: under a fixed pair the same bits as the session. Under a budget moves also make
 *   room before a page is read, and
 *             here they are made behind it, in all three
 *   again     read the first part in 8 bits and only then take over the formats: the same bytes, but rows of
 *   undisturbed states. This is what a session
 *             gets that is read again, as a parked one is where its file does not fit
 *   restored  as the first, and its pages then get their originals back, as those of canaries do: rows as they were
 *   made, in 8 bits
 *
 * From there on all of them read the rest and code new pages alike.
 */

import type { SessionOptions } from '../../engine/options/types.ts';
import { addDivergence, emptySums, NO_TARGET } from '../../engine/session/divergence.ts';
import type { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { FORMAT_NAMES, FORMATS, KvError, PAGE_TOKENS, pageStart, SIDES } from '../../native/index.ts';
import { openShipped, STRETCH } from './courses.ts';
import type { RefreshRow } from './frontier-rows.ts';
import { comparedBy } from './score.ts';

/** Reads with a cache that takes the formats of another one's pages, but for those that were put back. */
class Follower {
  readonly session: Session;
  readonly #keepsOriginals: boolean;
  #firstPage = 0;

  constructor(session: Session, keepsOriginals: boolean) {
    this.session = session;
    this.#keepsOriginals = keepsOriginals;
  }

  /** Takes over formats that are lower than its own. Throws 'unsupported' for pages that the other holds as latents. */
  follow(other: Session): void {
    const { cache } = this.session;
    for (let layer = 0; layer < cache.shape.layers; layer++) {
      const theirs = other.cache.table(layer);
      const own = cache.table(layer);
      for (let page = this.#firstPage; page < own.pages; page++)
        for (const side of SIDES) {
          const [to, from] = [theirs, own].map((table) => FORMAT_NAMES[table[`${side}Format`][page]!]);
          if (to === undefined || from === undefined)
            throw new KvError('unsupported', 'pages that are held as latents cannot be followed', {});
          if (FORMATS[to].rank <= FORMATS[from].rank) continue;
          if (this.#keepsOriginals && cache.originalFormat(layer, page, side) === null)
            cache.keepOriginal(layer, page, side);
          cache.transcode(layer, page, side, to);
        }
    }
  }

  /** Puts all originals back. Pages that there are now keep what they have. */
  restore(): void {
    const { cache } = this.session;
    for (let layer = 0; layer < cache.shape.layers; layer++) {
      const { pages } = cache.table(layer);
      for (let page = 0; page < pages; page++)
        for (const side of SIDES)
          if (cache.originalFormat(layer, page, side) !== null) cache.restoreOriginal(layer, page, side);
      this.#firstPage = Math.max(this.#firstPage, pages);
    }
  }
}

/**
 * Reads `ids` with a session and its followers, two of which are refreshed in the middle, and compares these with the
 * exact cache behind it.
 */
export async function refreshed(
  runtime: Runtime,
  ids: readonly number[],
  options: SessionOptions,
): Promise<NonNullable<RefreshRow['refresh']>> {
  const from = pageStart(ids.length / 2);
  const sessions: Session[] = [];
  const open = async (asked: SessionOptions): Promise<Session> => {
    const compareTokens = ids.length - from;
    const session = await openShipped(runtime, { ...asked, tokensExpected: ids.length, compareTokens });
    sessions.push(session);
    return session;
  };
  try {
    const governed = await open(options);
    const { openFormat = 'f16', windowFormat } = governed.governed.terms.context;
    if (windowFormat !== 'q8') throw new KvError('unsupported', 'the window of what is refreshed is in 8 bits', {});
    const follower = async (keepsOriginals: boolean): Promise<Follower> =>
      new Follower(await open({ openFormat }), keepsOriginals);
    const kept = await follower(false);
    const again = await follower(false);
    const restored = await follower(true);
    for (let start = 0; start < ids.length; start += PAGE_TOKENS) {
      if (start === from) {
        again.follow(governed);
        restored.restore();
      }
      const page = ids.slice(start, start + PAGE_TOKENS);
      for (const session of [governed, kept.session, again.session, restored.session]) await session.read(page);
      for (const one of start < from ? [kept, restored] : [kept, again, restored]) one.follow(governed);
    }
    const exact = await open({ exact: true });
    await exact.read(ids);
    const compare = divergences(runtime, exact.hiddenRows());
    const [asItIs, readAgain, putBack] = [
      await compare(kept.session.hiddenRows()),
      await compare(again.session.hiddenRows()),
      await compare(restored.session.hiddenRows()),
    ] as const;
    const stretches = asItIs.map((kld, at) => ({
      tokens: Math.min(ids.length, from + (at + 1) * STRETCH),
      kept: kld,
      again: readAgain[at]!,
      restored: putBack[at]!,
    }));
    return { from, stretches };
  } finally {
    for (const session of sessions) session.close();
  }
}

/** → mean KLDs of the stretches of other rows than the exact ones, [tokens, m] */
const divergences =
  (runtime: Runtime, exact: Float32Array) =>
  async (ours: Float32Array): Promise<number[]> => {
    const { hiddenSize } = runtime.model.config;
    const means: number[] = [];
    for (let start = 0; start < exact.length; start += STRETCH * hiddenSize) {
      const [theirs, own] = [exact, ours].map((rows) => rows.subarray(start, start + STRETCH * hiddenSize)) as [
        Float32Array,
        Float32Array,
      ];
      const sums = emptySums();
      const targets = new Int32Array(own.length / hiddenSize).fill(NO_TARGET);
      await addDivergence(sums, runtime.dense, theirs, own, targets, hiddenSize);
      means.push(comparedBy(sums).meanKld);
    }
    return means;
  };
