/**
 * The gain probe of a session: while a prompt is read, a few of its tokens are run a second time over pages in lower
 * formats. What that does to the output, beside the errors that trials measure of the same change, tells how much an
 * error costs in this text, which differs by a factor of three.
 */
import { type FormatName, isPageFull, movablePages, SIDES } from '../../native/index.ts';
import { type ProbeReport, thresholdOf } from '../../policy/index.ts';
import { makeRoom } from '../cache/step.ts';
import { lowerFormat } from '../cache/trials.ts';
import type { ProbeMove } from './probe.ts';
import { canProbe, readProbed } from './probed-read.ts';
import type { Reader } from './reader.ts';

/** The first probe comes here, the next ones where the length has doubled. */
const FIRST_TOKENS = 512;
/** More rows say little more, since tokens next to each other are alike. */
const ROWS_MAX = 64;
/** Fewer say too little. */
const ROWS_MIN = 16;
/** Older pages add little to what errors cost, and as much to what a probe takes. */
const PAGES_MAX = 4;

export class TextProbe {
  readonly #reader: Reader;
  readonly #share: number;
  #next = FIRST_TOKENS;

  constructor(reader: Reader) {
    const { context, kldBudget } = reader.governed.terms;
    this.#reader = reader;
    const share = thresholdOf(context.thresholds, kldBudget === null ? 'probe.share' : 'probe.share.kld').value;
    this.#share = canProbe(reader.governed) ? share : 0;
  }

  /**
   * The number of tokens from here on that are to be probed, 0 where no probe is due. `left`: tokens that remain to be
   * read.
   */
  rowsDue(left: number): number {
    const { length: tokens } = this.#reader.governed;
    const rows = Math.min(ROWS_MAX, Math.floor(this.#share * tokens));
    return tokens >= this.#next && isPageFull(tokens) && rows >= ROWS_MIN && left >= rows ? rows : 0;
  }

  /**
   * Reads tokens, which is what `step` does, and probes them; what that finds counts from the next situation on. Room
   * for them is made first, so that the probe sees the pages that they see. Throws 'aborted' while it probes; the next
   * read is probed then.
   */
  async read(ids: readonly number[], step: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    const reader = this.#reader;
    const { governed } = reader;
    makeRoom(governed, ids.length);
    const { length: tokens, tally } = governed;
    const due = this.#next;
    this.#next = 2 * tokens;
    const start = performance.now();
    const moves = this.#moves(tokens);
    if (moves.length === 0) {
      await step();
      return;
    }
    const epsilon2 = this.#errors(moves);
    tally.trialsTook(performance.now() - start);
    const lowest = Math.min(...moves.map(({ layer }) => layer));
    try {
      const read = { layers: [lowest], step, signal };
      const klds = await readProbed(reader, read, (probe) => probe.divergence(moves, { last: true }));
      governed.heard({ probe: reportOf(tokens, klds, epsilon2) });
    } catch (error) {
      if (signal?.aborted === true) this.#next = due;
      throw error;
    }
  }

  /** The newest pages that may move, one step down. */
  #moves(tokens: number): ProbeMove[] {
    const { kv, shape, terms } = this.#reader.governed;
    const movable = movablePages(tokens, terms.context.windowTokens);
    const moves: ProbeMove[] = [];
    for (let layer = 0; layer < shape.layers; layer++) {
      if (terms.context.skipLayers.includes(layer)) continue;
      for (const side of SIDES) {
        const byFormat = new Map<FormatName, number[]>();
        for (let page = Math.max(0, movable - PAGES_MAX); page < movable; page++) {
          if (this.#reader.governed.sliding.isFreed(layer, page)) continue;
          const format = lowerFormat(side, kv.format(layer, page, side));
          if (format !== undefined) byFormat.set(format, [...(byFormat.get(format) ?? []), page]);
        }
        for (const [format, pages] of byFormat) moves.push({ layer, side, format, pages });
      }
    }
    return moves;
  }

  /** Σ ε² of these moves by layer, with the present queries. */
  #errors(moves: readonly ProbeMove[]): ProbeReport['epsilon2'] {
    const { kv, shape } = this.#reader.governed;
    const sums = { k: new Array<number>(shape.layers).fill(0), v: new Array<number>(shape.layers).fill(0) };
    for (const { layer, side, format, pages } of moves)
      for (const page of pages) {
        const epsilon = kv.trial(layer, page, [{ side, format }])[0]!;
        if (Number.isFinite(epsilon)) sums[side][layer]! += epsilon * epsilon;
      }
    return sums;
  }
}

function reportOf(tokens: number, klds: readonly number[], epsilon2: ProbeReport['epsilon2']): ProbeReport {
  const mean = klds.reduce((sum, kld) => sum + kld, 0) / klds.length;
  const variance = klds.reduce((sum, kld) => sum + (kld - mean) ** 2, 0) / Math.max(1, klds.length - 1);
  return { tokens, rows: klds.length, meanKld: mean, standardError: Math.sqrt(variance / klds.length), epsilon2 };
}
