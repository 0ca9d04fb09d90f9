/**
 * The gain probe of a session: while a prompt is read, a few of its tokens are run a second time over pages in lower formats. What that does to
 * the output, beside the errors that trials measure of the same change, tells how much an error costs in this text, which differs by a factor of three.
 */
import { type FormatName, isPageFull, movablePages, SIDES } from '../../native/index.ts';
import { type ProbeReport, thresholdOf } from '../../policy/index.ts';
import type { Governed } from '../cache/governed.ts';
import { lowerFormat } from '../cache/trials.ts';
import type { Probe, ProbeMove } from './probe.ts';

/** The first probe comes here, the next ones where the length has doubled. */
const FIRST_TOKENS = 512;
/** More rows say little more, since tokens next to each other are alike. */
const ROWS_MAX = 64;
/** Fewer say too little. */
const ROWS_MIN = 16;
/** Older pages add little to what errors cost, and as much to what a probe takes. */
const PAGES_MAX = 4;

export class GainProbe {
  readonly #cache: Governed;
  readonly #share: number;
  #next = FIRST_TOKENS;

  constructor(cache: Governed) {
    const { policy, context, kldBudget, exact } = cache.plan;
    this.#cache = cache;
    const share = thresholdOf(context.thresholds, kldBudget === null ? 'probe.share' : 'probe.share.kld').value;
    this.#share =
      policy.probes === true && !exact && cache.latents === null && context.latents === undefined ? share : 0;
  }

  /** The number of tokens from here on that are to be probed, 0 where no probe is due. `left`: tokens that remain to be read. */
  rowsDue(left: number): number {
    const { length: tokens } = this.#cache;
    const rows = Math.min(ROWS_MAX, Math.floor(this.#share * tokens));
    return tokens >= this.#next && isPageFull(tokens) && rows >= ROWS_MIN && left >= rows ? rows : 0;
  }

  /** Runs a probe that `open` makes over the tokens that `read` reads, for which there is room, and leaves what it found for the next situation. */
  async run(open: (layers: readonly number[]) => Probe, read: () => Promise<void>): Promise<void> {
    const { length: tokens, spent } = this.#cache;
    this.#next = 2 * tokens;
    const start = performance.now();
    const moves = this.#moves(tokens);
    if (moves.length === 0) return read();
    const probe = open([Math.min(...moves.map(({ layer }) => layer))]);
    try {
      const epsilon2 = this.#errors(moves);
      spent.trialMs += performance.now() - start;
      await read();
      const again = performance.now();
      this.#cache.found = {
        ...this.#cache.found,
        probe: reportOf(tokens, await probe.divergence(moves, { last: true }), epsilon2),
      };
      spent.trialMs += performance.now() - again;
    } finally {
      probe.close();
    }
  }

  /** The newest pages that may move, one step down. */
  #moves(tokens: number): ProbeMove[] {
    const { kv, shape, plan } = this.#cache;
    const movable = movablePages(tokens, plan.context.windowTokens);
    const moves: ProbeMove[] = [];
    for (let layer = 0; layer < shape.layers; layer++) {
      if (plan.context.skipLayers.includes(layer)) continue;
      for (const side of SIDES) {
        const byFormat = new Map<FormatName, number[]>();
        for (let page = Math.max(0, movable - PAGES_MAX); page < movable; page++) {
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
    const { kv, shape } = this.#cache;
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
