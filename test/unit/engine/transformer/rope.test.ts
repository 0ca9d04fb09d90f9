// Tries every RoPE scaling against formulas written down once more here, growth of the tables against tables made at
// once, and the native rotation in both layouts against rotation of complex numbers.
import { describe, expect, test } from 'vitest';
import { RopeTable, type RotaryConfig, ropeFrequencies } from '../../../../engine/transformer/rope.ts';
import type { RopeScaling } from '../../../../engine/transformer/types.ts';
import { rope } from '../../../../native/index.ts';
import { Rng } from './rng.ts';

const D = 64;
const THETA = 10000;
const config = (ropeScaling: RopeScaling, more: Partial<RotaryConfig> = {}): RotaryConfig => {
  return {
    rotaryDim: D,
    headDim: D,
    ropeTheta: THETA,
    ropeScaling,
    ropeInterleaved: false,
    contextLength: 4096,
    ...more,
  };
};
const pairs = Array.from({ length: D / 2 }, (_, i) => i);
const plain = (theta = THETA): number[] => pairs.map((i) => 1 / theta ** ((2 * i) / D));

function expectClose(actual: Float64Array, expected: readonly number[]): void {
  expect(actual.length).toBe(expected.length);
  // Ten roundings of float64 at most on either side.
  for (const [i, value] of expected.entries()) expect(Math.abs(actual[i]! / value - 1)).toBeLessThan(20 * 2 ** -53);
}

const yarn = (attentionFactor: number | null) =>
  ({ kind: 'yarn', factor: 4, originalContext: 2048, betaFast: 32, betaSlow: 1, attentionFactor }) as const;

describe('frequencies', () => {
  test('none: 1 at the first pair, theta^(2/d − 1) at the last', () => {
    const { radians, amplitude } = ropeFrequencies(config({ kind: 'none' }), 100);
    expectClose(radians, plain());
    expect(radians[0]).toBe(1);
    expect(amplitude).toBe(1);
  });

  test('linear divides every position', () => {
    expectClose(
      ropeFrequencies(config({ kind: 'linear', factor: 4 }), 100).radians,
      plain().map((f) => f / 4),
    );
  });

  test('ntk: plain up to the original context, then a larger base that keeps the first pair', () => {
    const scaling: RopeScaling = { kind: 'ntk', factor: 2, originalContext: 1024 };
    expectClose(ropeFrequencies(config(scaling), 1024).radians, plain());
    const grown = ropeFrequencies(config(scaling), 4096).radians;
    expectClose(grown, plain(THETA * ((2 * 4096) / 1024 - 1) ** (D / (D - 2))));
    // What the exponent d/(d−2) is for: the last pair turns slower by exactly the growth.
    expect(grown[D / 2 - 1]! * 7).toBeCloseTo(plain()[D / 2 - 1]!, 12);
  });

  test('llama3: short waves kept, long ones divided, a ramp between', () => {
    const scaling: RopeScaling = {
      kind: 'llama3',
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalContext: 8192,
    };
    const { radians } = ropeFrequencies(config(scaling, { ropeTheta: 500000 }), 100);
    const expected = plain(500000).map((frequency) => {
      const wave = (2 * Math.PI) / frequency;
      if (wave < 8192 / 4) return frequency;
      if (wave > 8192 / 1) return frequency / 8;
      const smooth = (8192 / wave - 1) / (4 - 1);
      return ((1 - smooth) * frequency) / 8 + smooth * frequency;
    });
    expectClose(radians, expected);
    const between = expected.filter((f, i) => f < plain(500000)[i]! && f > plain(500000)[i]! / 8);
    expect(between.length).toBeGreaterThan(0);
  });

  test('yarn: a ramp over pairs, and a factor on cos and sin', () => {
    const scaling = yarn(null);
    const { radians, amplitude } = ropeFrequencies(config(scaling), 100);
    // Pair i makes 2048·theta^(−2i/d)/2π turns: 32 turns at pair 8.06, 1 turn at pair 20.1.
    const expected = plain().map((frequency, i) => {
      const ramp = Math.min(1, Math.max(0, (i - 8) / (21 - 8)));
      return (frequency / 4) * ramp + frequency * (1 - ramp);
    });
    expectClose(radians, expected);
    expect(amplitude).toBeCloseTo(0.1 * Math.log(4) + 1, 15);
    expect(ropeFrequencies(config({ ...scaling, attentionFactor: 1.5 }), 100).amplitude).toBe(1.5);
    expect(ropeFrequencies(config({ ...scaling, factor: 1 }), 100).amplitude).toBe(1);
  });
});

describe('tables', () => {
  test('rows are the same however the table grew, and earlier views keep their numbers', () => {
    const grown = new RopeTable(config({ kind: 'none' }));
    const early = grown.rows(3, 2);
    const before = [...early.cos, ...early.sin];
    for (const start of [510, 511, 512, 1100]) grown.rows(start, 5);
    const whole = new RopeTable(config({ kind: 'none' })).rows(0, 1105);
    const again = grown.rows(0, 1105);
    expect(Buffer.from(again.cos.slice().buffer).equals(Buffer.from(whole.cos.slice().buffer))).toBe(true);
    expect(Buffer.from(again.sin.slice().buffer).equals(Buffer.from(whole.sin.slice().buffer))).toBe(true);
    expect([...early.cos, ...early.sin]).toEqual(before);
    expect(before).toEqual([...whole.cos.slice(3 * 32, 5 * 32), ...whole.sin.slice(3 * 32, 5 * 32)]);
  });

  test('cos and sin are rounded once, also far out; yarn scales both', () => {
    const scaling = yarn(1.25);
    const { radians } = ropeFrequencies(config(scaling), 0);
    const { cos, sin } = new RopeTable(config(scaling)).rows(100000, 1);
    for (const i of pairs) {
      expect(cos[i]).toBe(Math.fround(1.25 * Math.cos(100000 * radians[i]!)));
      expect(sin[i]).toBe(Math.fround(1.25 * Math.sin(100000 * radians[i]!)));
    }
  });
});

describe.each([
  { layout: 'halves', interleaved: false },
  { layout: 'interleaved pairs', interleaved: true },
])('rotation of $layout', ({ interleaved }) => {
  const random = new Rng(11);

  test.each([
    { headDim: 64, rotaryDim: 64 },
    { headDim: 8, rotaryDim: 8 },
    { headDim: 80, rotaryDim: 32 },
  ])('native = complex numbers, d = $headDim, rotated $rotaryDim', ({ headDim, rotaryDim }) => {
    const [tokens, heads, start] = [5, 3, 700];
    const shape = config({ kind: 'none' }, { headDim, rotaryDim, ropeInterleaved: interleaved });
    const table = new RopeTable(shape);
    const x = random.normal(tokens * heads * headDim);
    const rows = table.rows(start, tokens);
    const native = x.slice();
    rope(native, tokens, heads, headDim, rotaryDim, rows.cos, rows.sin, interleaved);
    const applied = x.slice();
    table.apply(applied, tokens, heads, start);
    expect(applied).toEqual(native);
    // One element is two products and a sum in float32 of numbers whose magnitudes add to at most √2·|pair|.
    const bound = (at: number, other: number): number => 4 * 2 ** -24 * Math.hypot(x[at]!, x[other]!) + 1e-30;
    for (let t = 0; t < tokens; t++) {
      for (let h = 0; h < heads; h++) {
        const base = (t * heads + h) * headDim;
        for (let i = 0; i < rotaryDim / 2; i++) {
          const [re, im] = interleaved ? [base + 2 * i, base + 2 * i + 1] : [base + i, base + i + rotaryDim / 2];
          const angle = (start + t) * THETA ** ((-2 * i) / rotaryDim);
          const size = Math.hypot(x[re]!, x[im]!);
          const turned = Math.atan2(x[im]!, x[re]!) + angle;
          expect(Math.abs(native[re]! - size * Math.cos(turned))).toBeLessThanOrEqual(bound(re, im));
          expect(Math.abs(native[im]! - size * Math.sin(turned))).toBeLessThanOrEqual(bound(re, im));
        }
        expect(native.subarray(base + rotaryDim, base + headDim)).toEqual(x.subarray(base + rotaryDim, base + headDim));
      }
    }
  });
});
