/**
 * What was measured of the divergence of a session beside what was predicted of it. Tokens that are read twice are few,
 * and their divergences spread over decades, so measurements do not take the place of the prediction: they scale it, by
 * as much as they are sure.
 */
import { PAGE_TOKENS } from '../native/index.ts';
import { type Estimate, observed } from './law.ts';
import type { MeasuredKld, RereadReport } from './types.ts';

/** However little was measured, more than this part of what is predicted is expected. Chosen. */
const LEVEL_LEAST = 1 / 16;

/** Predictions that are remembered: reports come a page later at most, and situations at most with every token. */
const EXPECTED_MAX = 2 * PAGE_TOKENS;

interface MeasuredBounds {
  /** The share of a divergence that reading twice over originals sees: the threshold 'reread.seen'. */
  readonly seen: number;
  /** What doubled errors show of it: 'reread.doubled'. */
  readonly doubled: number;
  /** What one measurement says, in logarithms: 'reread.sd'. */
  readonly rereadSd: number;
  /** How far predictions are off, likewise: 'reread.spread'. */
  readonly spread: number;
  /** By how much that changes within `DRIFT_TOKENS`: 'reread.drift'; 0: not at all, in sessions of earlier versions. */
  readonly drift: number;
}

/** Measured over predicted divergence, by reports in the order of their tokens. */
interface Level {
  /** `nats` were measured where `predicted` were predicted. */
  learn(tokens: number, nats: number, predicted: number): void;
  /** The mean to be expected; 1 until there is a report. */
  readonly value: Estimate;
}

/**
 * A report counts as so much of what was predicted then at most: a single token can have a thousand times the
 * divergence of others. On the reference model the level is then off by e^±0.24, without it by e^±0.36 (48 sessions).
 */
const COUNTED_MAX = 10;

/** The sum of what was measured over that of what was predicted: what little was predicted says little. */
class SummedLevel implements Level {
  readonly #bounds: MeasuredBounds;
  #measured = 0;
  #predicted = 0;
  #squares = 0;
  #reports = 0;

  constructor(bounds: MeasuredBounds) {
    this.#bounds = bounds;
  }

  learn(_tokens: number, nats: number, predicted: number): void {
    this.#measured += Math.min(nats, COUNTED_MAX * predicted);
    this.#predicted += predicted;
    this.#squares += predicted * predicted;
    this.#reports++;
  }

  get value(): Estimate {
    const { spread, rereadSd } = this.#bounds;
    const assumed: Estimate = { value: 1, sd: spread, samples: 0 };
    if (!(this.#measured > 0 && this.#squares > 0)) return assumed;
    const ratio = this.#measured / this.#predicted;
    const count = (this.#predicted * this.#predicted) / this.#squares;
    return { ...observed(assumed, ratio, rereadSd / Math.sqrt(count)), samples: this.#reports };
  }
}

/** Tokens in which a level changes by the threshold 'reread.drift'. */
const DRIFT_TOKENS = 1024;
/** A report moves what is believed as if it were no further away than so many standard deviations. */
const WILD = 3;
/** As little as this of what was predicted is as good as nothing, of which there is no logarithm. */
const FOUND_LEAST = 1e-3;

/**
 * Follows a level that changes with the length, in logarithms, where what single tokens show spreads evenly: a Kalman
 * filter of a random walk. Beyond the lengths that a model was trained for its level rises tenfold within 1,024 tokens,
 * and sums of all that was measured tell so too late.
 */
class FollowedLevel implements Level {
  readonly #bounds: MeasuredBounds;
  /** ln of the level, and the variance of what is believed of it. */
  #log = 0;
  #variance: number;
  /** Tokens before the last report. */
  #tokens: number | null = null;
  #reports = 0;

  constructor(bounds: MeasuredBounds) {
    this.#bounds = bounds;
    this.#variance = bounds.spread ** 2;
  }

  learn(tokens: number, nats: number, predicted: number): void {
    if (!(predicted > 0)) return;
    const { drift, rereadSd } = this.#bounds;
    this.#variance += (drift ** 2 * Math.max(0, tokens - (this.#tokens ?? tokens))) / DRIFT_TOKENS;
    this.#tokens = tokens;
    const expected = this.#variance + rereadSd ** 2;
    const most = WILD * Math.sqrt(expected);
    const away = Math.log(Math.max(nats / predicted, FOUND_LEAST)) - this.#log;
    const gain = this.#variance / expected;
    this.#log += gain * Math.max(-most, Math.min(most, away));
    this.#variance *= 1 - gain;
    this.#reports++;
  }

  get value(): Estimate {
    const { spread, rereadSd } = this.#bounds;
    if (this.#reports === 0) return { value: 1, sd: spread, samples: 0 };
    // Most reports are below the mean of all, by half of their variance.
    const value = Math.exp(this.#log + rereadSd ** 2 / 2);
    return { value, sd: Math.sqrt(this.#variance), samples: this.#reports };
  }
}

export class Measured {
  readonly #bounds: MeasuredBounds;
  /** The newest predictions, oldest first. */
  #expected: { readonly tokens: number; readonly predictedKld: number }[] = [];
  #tokens = 0;
  /** Σ of divergences of single tokens. */
  #nats = 0;
  readonly #level: Level;

  constructor(bounds: MeasuredBounds) {
    this.#bounds = bounds;
    this.#level = bounds.drift > 0 ? new FollowedLevel(bounds) : new SummedLevel(bounds);
  }

  /** What is predicted of all moves that were planned before so many tokens. */
  expect(tokens: number, predictedKld: number): void {
    if (tokens < (this.#expected.at(-1)?.tokens ?? 0)) this.#expected = [];
    this.#expected.push({ tokens, predictedKld });
    if (this.#expected.length > EXPECTED_MAX) this.#expected.shift();
  }

  /** A report came. What is planned before a token is read is made by then, and is counted at the next situation. */
  learn({ tokens, rows, meanKld, isDoubled = false }: RereadReport): void {
    const predicted = this.#expected.find((one) => one.tokens > tokens)?.predictedKld;
    if (predicted === undefined) return;
    const nats = meanKld / (isDoubled ? this.#bounds.doubled : this.#bounds.seen);
    this.#tokens += rows;
    this.#nats += rows * nats;
    this.#level.learn(tokens, nats, predicted);
  }

  get isKnown(): boolean {
    return this.#tokens > 0;
  }

  /** Measured over predicted divergence. */
  get level(): Estimate {
    const { value } = this.#level;
    return { ...value, value: Math.max(LEVEL_LEAST, value.value) };
  }

  /**
   * Measured over predicted divergence when so many tokens more are read, so many standard deviations above what is
   * expected: what is decided now is paid for then, and until then the level may change.
   */
  levelAhead(tokensLeft: number, cautious: number): number {
    const { value, sd } = this.level;
    const { drift } = this.#bounds;
    if (drift === 0) return value;
    const variance = sd ** 2 + (drift ** 2 * Math.max(0, tokensLeft)) / DRIFT_TOKENS;
    return value * Math.exp(cautious * Math.sqrt(variance));
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
