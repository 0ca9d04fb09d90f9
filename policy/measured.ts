/**
 * What was measured of the divergence of a session beside what was predicted of it. Tokens that are read twice are few,
 * and their divergences spread over decades, so measurements do not take the place of the prediction: they scale it, by
 * as much as they are sure.
 */
import { PAGE_TOKENS } from '../native/index.ts';
import { type Estimate, observed } from './law.ts';
import type { MeasuredKld, RereadReport } from './types.ts';

/**
 * A report counts as so much of what was predicted then at most: a single token can have a thousand times the
 * divergence of others. On the reference model the level is then off by e^±0.24, without it by e^±0.36 (48 sessions).
 */
const COUNTED_MAX = 10;
/** However little was measured, more than this part of what is predicted is expected. Chosen. */
const LEVEL_LEAST = 1 / 16;

/** Predictions that are remembered: reports come a page later at most, and situations at most with every token. */
const EXPECTED_MAX = 2 * PAGE_TOKENS;

interface MeasuredBounds {
  /** The share of a divergence that reading twice sees: the threshold 'reread.seen'. */
  readonly seen: number;
  /** What one measurement says, in logarithms: 'reread.sd'. */
  readonly rereadSd: number;
  /** How far predictions are off, likewise: 'reread.spread'. */
  readonly spread: number;
}

export class Measured {
  readonly #bounds: MeasuredBounds;
  /** The newest predictions, oldest first. */
  #expected: { readonly tokens: number; readonly predictedKld: number }[] = [];
  #tokens = 0;
  /** Σ of divergences of single tokens. */
  #nats = 0;
  /** By report: Σ of what was measured, of what was predicted then, and of the squares of that. */
  #measured = 0;
  #predicted = 0;
  #squares = 0;
  #reports = 0;

  constructor(bounds: MeasuredBounds) {
    this.#bounds = bounds;
  }

  /** What is predicted of all moves that were planned before so many tokens. */
  expect(tokens: number, predictedKld: number): void {
    if (tokens < (this.#expected.at(-1)?.tokens ?? 0)) this.#expected = [];
    this.#expected.push({ tokens, predictedKld });
    if (this.#expected.length > EXPECTED_MAX) this.#expected.shift();
  }

  /** A report came. What is planned before a token is read is made by then, and is counted at the next situation. */
  learn({ tokens, rows, meanKld }: RereadReport): void {
    const predicted = this.#expected.find((one) => one.tokens > tokens)?.predictedKld;
    if (predicted === undefined) return;
    const nats = meanKld / this.#bounds.seen;
    this.#tokens += rows;
    this.#nats += rows * nats;
    this.#measured += Math.min(nats, COUNTED_MAX * predicted);
    this.#predicted += predicted;
    this.#squares += predicted * predicted;
    this.#reports++;
  }

  get isKnown(): boolean {
    return this.#tokens > 0;
  }

  /**
   * Measured over predicted divergence. What little was predicted says little, so reports count by that; 1 until there
   * is one.
   */
  get level(): Estimate {
    const { spread, rereadSd } = this.#bounds;
    const assumed: Estimate = { value: 1, sd: spread, samples: 0 };
    if (!(this.#measured > 0 && this.#squares > 0)) return assumed;
    const ratio = this.#measured / this.#predicted;
    const count = (this.#predicted * this.#predicted) / this.#squares;
    const level = observed(assumed, ratio, rereadSd / Math.sqrt(count));
    return { ...level, value: Math.max(LEVEL_LEAST, level.value), samples: this.#reports };
  }

  /** With what is predicted now; undefined where nothing was measured. */
  told(predictedKld: number): MeasuredKld | undefined {
    if (!this.isKnown) return undefined;
    const { level } = this;
    return {
      tokens: this.#tokens,
      meanKld: this.#nats / this.#tokens,
      level,
      expectedKld: level.value * predictedKld,
    };
  }
}
