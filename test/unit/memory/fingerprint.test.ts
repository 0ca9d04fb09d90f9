/** A fingerprint is finite, bounded and of one length whatever is measured, and near workloads are near. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { AXES, checkFingerprint, FINGERPRINT_DIM, fingerprint, type Measurements } from '../../../memory/index.ts';
import { KvError } from '../../../native/index.ts';

const smol: Measurements = { layers: 30, queryHeads: 9, kvHeads: 3, headDim: 64, tokens: 4096, pressure: 0.25 };
const distance = (a: readonly number[], b: readonly number[]): number =>
  a.reduce((sum, x, i) => sum + (x - b[i]!) ** 2, 0);

// Tries every number a measurement can be, NaN, infinities, zero and negative ones included, in every field at once.
test('is finite and within its axes for every input', () => {
  const any = fc.option(fc.double(), { nil: null });
  fc.assert(
    fc.property(
      fc.record({
        layers: fc.double(),
        queryHeads: fc.double(),
        kvHeads: fc.double(),
        headDim: fc.double(),
        tokens: fc.double(),
        keyValueRatio: any,
        keyOutlier: any,
        attentionEntropy: any,
        sinkMass: any,
        recencyMass: any,
        pressure: any,
      }),
      (m) => {
        const f = fingerprint(m);
        checkFingerprint(f);
        expect(f).toHaveLength(FINGERPRINT_DIM);
        f.forEach((x, i) => {
          expect(x).toBeGreaterThanOrEqual(0);
          expect(x).toBeLessThanOrEqual(AXES[i]!.weight);
        });
        expect(fingerprint(m)).toEqual(f);
        expect(JSON.parse(JSON.stringify(f))).toEqual(f);
      },
    ),
    { seed: 20251, numRuns: 500 },
  );
});

// Values worked out by hand from the table of axes.
test('places known numbers where the table says', () => {
  const f = fingerprint({ ...smol, layers: 16, headDim: 8, tokens: 128, pressure: 0.25, attentionEntropy: 0.8 });
  const at = (name: string): number => f[AXES.findIndex((a) => a.name === name)]!;
  expect(at('layers')).toBe(0.5);
  expect(at('headDim')).toBe(0);
  expect(at('tokens')).toBe(0);
  expect(at('pressure')).toBe(1); // half of the axis, weight 2
  expect(at('attentionEntropy')).toBe(0.4);
  expect(at('sinkMass')).toBe(0.15); // neutral .3, weight .5
});

test('a little more pressure is nearer than half the length, and no budget is the far end', () => {
  const here = fingerprint(smol);
  const near = fingerprint({ ...smol, pressure: 0.24 });
  const far = fingerprint({ ...smol, pressure: null });
  expect(distance(here, near)).toBeLessThan(distance(here, fingerprint({ ...smol, tokens: 2048 })));
  expect(distance(here, far)).toBeGreaterThan(0.9);
  expect(far).toEqual(fingerprint({ ...smol, pressure: 1 }));
});

test('checkFingerprint refuses what is none', () => {
  for (const bad of [[], [1, 2], new Array(FINGERPRINT_DIM).fill(Number.NaN), 'text' as unknown as number[]]) {
    expect(() => checkFingerprint(bad)).toThrow(KvError);
  }
});
