/**
 * Rotary position embedding: frequencies under every scaling, and tables of cos and sin that the native `rope` kernel
 * reads. Angles are computed in float64 and stored as float32, so position 100,000 is as exact as position 1. Sources:
 * RoFormer (arXiv 2104.09864), position interpolation (2306.15595), NTK-aware scaling as in "dynamic" Hugging Face
 * configurations, Llama 3.1's frequency bands, YaRN (2309.00071), LongRoPE (2402.13753).
 */
import { assert, rope } from '../../native/index.ts';
import type { ModelConfig } from './types.ts';

export type RopeConfig = Pick<ModelConfig, 'rotaryDim' | 'ropeTheta' | 'ropeScaling'>;
export type RotaryConfig = RopeConfig & Pick<ModelConfig, 'headDim' | 'ropeInterleaved' | 'contextLength'>;

export interface RopeFrequencies {
  /** Radians per position of each rotated pair, [rotaryDim / 2]. */
  readonly radians: Float64Array;
  /** Factor on cos and sin (YaRN), else 1. */
  readonly amplitude: number;
}

/**
 * contextTokens: positions to plan for. Two scalings depend on it, and since keys are cached after rotation, one set of
 * frequencies must serve a whole session, namely the one for that length: the base of `ntk` grows with the sequence (up
 * to the original context it is plain RoPE), and `longrope` has one set of divisors up to the original context and
 * another beyond it.
 */
export function ropeFrequencies(config: RopeConfig, contextTokens: number): RopeFrequencies {
  const { rotaryDim, ropeTheta, ropeScaling: scaling } = config;
  assert(rotaryDim > 0 && rotaryDim % 2 === 0, `rotary size ${rotaryDim} is not a positive even number`);
  const plain = (theta: number): Float64Array =>
    Float64Array.from({ length: rotaryDim / 2 }, (_, pair) => theta ** ((-2 * pair) / rotaryDim));
  switch (scaling.kind) {
    case 'none':
      return { radians: plain(ropeTheta), amplitude: 1 };
    case 'linear':
      return { radians: plain(ropeTheta).map((frequency) => frequency / scaling.factor), amplitude: 1 };
    case 'ntk': {
      const { factor, originalContext } = scaling;
      const tokens = Math.max(contextTokens, originalContext);
      const growth = (factor * tokens) / originalContext - (factor - 1);
      return { radians: plain(ropeTheta * growth ** (rotaryDim / (rotaryDim - 2))), amplitude: 1 };
    }
    case 'llama3': {
      const { factor, lowFreqFactor, highFreqFactor, originalContext } = scaling;
      const radians = plain(ropeTheta).map((frequency) => {
        const turns = (originalContext * frequency) / (2 * Math.PI);
        const kept = clamp((turns - lowFreqFactor) / (highFreqFactor - lowFreqFactor));
        return frequency * (kept + (1 - kept) / factor);
      });
      return { radians, amplitude: 1 };
    }
    case 'yarn': {
      const { factor, attentionFactor } = scaling;
      const kept = yarnKeptShare(config, scaling);
      const radians = plain(ropeTheta).map((frequency, pair) => frequency * (kept[pair]! + (1 - kept[pair]!) / factor));
      return { radians, amplitude: attentionFactor ?? (factor > 1 ? 0.1 * Math.log(factor) + 1 : 1) };
    }
    case 'longrope': {
      const factors = contextTokens > scaling.originalContext ? scaling.longFactors : scaling.shortFactors;
      const radians = plain(ropeTheta).map((frequency, pair) => frequency / factors[pair]!);
      return { radians, amplitude: scaling.attentionFactor };
    }
  }
}

/**
 * Share of its unscaled frequency that each pair keeps: 1 above betaFast turns per original context, 0 below betaSlow,
 * a ramp between.
 */
function yarnKeptShare(
  { rotaryDim, ropeTheta }: RopeConfig,
  { betaFast, betaSlow, originalContext }: Extract<RopeConfig['ropeScaling'], { kind: 'yarn' }>,
): Float64Array {
  const pairWithTurns = (turns: number): number =>
    (rotaryDim * Math.log(originalContext / (turns * 2 * Math.PI))) / (2 * Math.log(ropeTheta));
  const low = Math.max(Math.floor(pairWithTurns(betaFast)), 0);
  const high = Math.min(Math.ceil(pairWithTurns(betaSlow)), rotaryDim - 1);
  // Equal ends would divide by zero; the reference implementation widens the ramp by the same amount.
  const width = high === low ? 0.001 : high - low;
  return Float64Array.from({ length: rotaryDim / 2 }, (_, pair) => 1 - clamp((pair - low) / width));
}

const clamp = (value: number): number => Math.min(1, Math.max(0, value));

export interface RopeRows {
  /** Both [tokens, rotaryDim / 2]; later calls do not change these views. */
  readonly cos: Float32Array;
  readonly sin: Float32Array;
}

/** The table grows by blocks of this many positions. */
const BLOCK_POSITIONS = 512;

/**
 * cos and sin by position, extended on demand: 512 positions take 128 KiB at d = 64. Sessions of equal context length
 * can share it.
 */
export class RopeTable {
  private readonly config: RotaryConfig;
  private readonly frequencies: RopeFrequencies;
  private positions = 0;
  private cos: Float32Array = new Float32Array(0);
  private sin: Float32Array = new Float32Array(0);

  constructor(config: RotaryConfig, contextTokens: number = config.contextLength) {
    this.config = config;
    this.frequencies = ropeFrequencies(config, contextTokens);
  }

  /** What tables that rotate alike have in common, and no others. */
  get plan(): string {
    const { radians, amplitude } = this.frequencies;
    return [amplitude, ...radians].join(' ');
  }

  /** Rotates x [tokens, heads, headDim] in place; its first token is at position `start`. */
  apply(x: Float32Array, tokens: number, heads: number, start: number): void {
    const { headDim, rotaryDim, ropeInterleaved } = this.config;
    const { cos, sin } = this.rows(start, tokens);
    rope(x, tokens, heads, headDim, rotaryDim, cos, sin, ropeInterleaved);
  }

  /** Rows of positions [start, start + tokens). */
  rows(start: number, tokens: number): RopeRows {
    assert(
      Number.isInteger(start) && start >= 0 && Number.isInteger(tokens) && tokens >= 0,
      `positions ${start} + ${tokens}`,
    );
    if (start + tokens > this.positions) this.grow(start + tokens);
    const pairs = this.frequencies.radians.length;
    return {
      cos: this.cos.subarray(start * pairs, (start + tokens) * pairs),
      sin: this.sin.subarray(start * pairs, (start + tokens) * pairs),
    };
  }

  /** At least doubles the table, so that growing token by token copies each row a bounded number of times. */
  private grow(needed: number): void {
    const { radians, amplitude } = this.frequencies;
    const pairs = radians.length;
    const positions = Math.ceil(Math.max(needed, 2 * this.positions) / BLOCK_POSITIONS) * BLOCK_POSITIONS;
    const cos = new Float32Array(positions * pairs);
    const sin = new Float32Array(positions * pairs);
    cos.set(this.cos);
    sin.set(this.sin);
    for (let position = this.positions; position < positions; position++) {
      for (let pair = 0; pair < pairs; pair++) {
        const angle = position * radians[pair]!;
        cos[position * pairs + pair] = amplitude * Math.cos(angle);
        sin[position * pairs + pair] = amplitude * Math.sin(angle);
      }
    }
    this.cos = cos;
    this.sin = sin;
    this.positions = positions;
  }
}
