// Evidence on made-up measurements: the same input comes to rest, noise about a bound hardly moves a layer, promises
// that break are told soon and forgotten when they hold again, and older pages that are needed less than before are a
// change of topic.
import { describe, expect, it } from 'vitest';
import { believable, Evidence } from '../../../policy/evidence.ts';
import { Scan } from '../../../policy/scan.ts';
import { defaultThresholds } from '../../../policy/thresholds.ts';
import { normals, uniform } from '../../native/dense.ts';

const LAYERS = 30;
const SIDES = 2;
const AGES = [3, 4, 5, 6, 7, 8];

/**
 * Runs page boundaries in which every page of these ages is tried again; `ln` says ln(measured / promised). → crossings
 * of watched (1, back at 0.8)
 */
function boundaries(
  evidence: Evidence,
  scan: Scan,
  count: number,
  ln: (layer: number, age: number) => number,
  bound = 0.9,
  from = 0,
): number {
  let crossings = 0;
  for (let boundary = 0; boundary < count; boundary++) {
    evidence.fade();
    for (let layer = 0; layer < LAYERS; layer++)
      for (const age of AGES)
        for (let side = 0; side < SIDES; side++)
          evidence.again(layer, age, { measured: Math.exp(ln(layer, age)), promised: 1, tries: age === 3 ? 1 : age });
    evidence.settle(from + 128 * (boundary + 1), bound);
    for (let layer = 0; layer < LAYERS; layer++) scan.signals[layer] = evidence.ratio(layer);
    crossings += scan.run();
  }
  return crossings;
}

const watched = (): Scan => new Scan(LAYERS, [{ steps: [{ enter: 1, leave: 0.8 }] }]);

describe('evidence', () => {
  it.each([-1.5, -0.2, -0.05, 0.3, 2])('of the same measurements again and again (%d) comes to rest', (ln) => {
    const [evidence, scan] = [new Evidence(LAYERS), watched()];
    expect(boundaries(evidence, scan, 64, () => ln)).toBe(ln > 0 ? LAYERS : 0);
    const before = evidence.ratio(0);
    expect(boundaries(evidence, scan, 64, () => ln)).toBe(0);
    expect(Math.abs(evidence.ratio(0) / before - 1)).toBeLessThan(0.01);
  });

  it('of noise that lies on the bound moves a layer once in 8,000 tokens at most', () => {
    const values = normals(uniform(3), 64 * LAYERS * AGES.length * SIDES);
    let at = 0;
    const crossings = boundaries(new Evidence(LAYERS), watched(), 64, () => 0.9 * values[at++]!);
    expect(crossings).toBeLessThanOrEqual(LAYERS);
  });

  it('of one layer whose promises break is told within two pages, and forgotten when they hold again', () => {
    const [evidence, scan] = [new Evidence(LAYERS), watched()];
    const values = normals(uniform(4), 400 * LAYERS * AGES.length * SIDES);
    let at = 0;
    const healthy = (): number => -1 + 0.6 * values[at++]!;
    boundaries(evidence, scan, 12, healthy);
    expect([...scan.levels]).toEqual(new Array(LAYERS).fill(0));
    const bad = (layer: number, age: number): number => healthy() + (layer === 7 && age === 3 ? 3 : 0);
    boundaries(evidence, scan, 2, bad);
    expect([...scan.levels].flatMap((level, layer) => (level > 0 ? [layer] : []))).toEqual([7]);
    boundaries(evidence, scan, 16, healthy);
    expect([...scan.levels]).toEqual(new Array(LAYERS).fill(0));
  });

  it('of kept rows is told where many of a layer err by far more than was promised, and not of what they usually say', () => {
    const rows = (evidence: Evidence, scan: Scan, count: number, ln: (layer: number) => number): number[] => {
      for (let boundary = 0; boundary < count; boundary++) {
        evidence.fade();
        for (let layer = 0; layer < LAYERS; layer++)
          for (const side of ['k', 'v'] as const)
            evidence.canary({
              ...{ layer, page: boundary, side, from: 'q8', to: 'rot2', age: 256, rows: 4 },
              ...{ epsilonPromised: 1e-3, epsilonNow: 1e-3 * Math.exp(ln(layer)) },
            });
        evidence.settle(128 * (boundary + 1), 0.9);
        for (let layer = 0; layer < LAYERS; layer++) scan.signals[layer] = evidence.ratio(layer);
        scan.run();
      }
      return [...scan.levels].flatMap((level, layer) => (level > 0 ? [layer] : []));
    };
    const values = normals(uniform(5), 2 * 60 * LAYERS);
    let at = 0;
    const usual = (): number => 1.1 * values[at++]!;
    const [evidence, scan] = [new Evidence(LAYERS), watched()];
    expect(rows(evidence, scan, 30, usual)).toEqual([]);
    expect(rows(evidence, scan, 2, (layer) => usual() + (layer === 7 ? 5 : 0))).toEqual([7]);
    expect(rows(evidence, scan, 16, usual)).toEqual([]);
  });

  it('of damaged codes is remembered for 512 tokens, of their layer alone', () => {
    const evidence = new Evidence(LAYERS);
    evidence.damaged(4, 1000);
    expect([1000, 1511, 1512].map((tokens) => evidence.isDamaged(4, tokens))).toEqual([true, true, false]);
    expect(evidence.isDamaged(5, 1000)).toBe(false);
  });

  it('of gains that are not believed: the median stands in their place, or the least where a log knows no better', () => {
    const set = defaultThresholds(5);
    const wrong = { ...set, gains: { k: [1, 0.01, 2, 3, 0.5], v: [1, 1, 1, 1, 1] } };
    const { thresholds, doubted } = believable(wrong);
    expect([thresholds.gains.k, [...doubted]]).toEqual([[1, 1, 2, 3, 0.5], [1]]);
    const { 'gain.doubted': _, ...before } = set.thresholds;
    expect(believable({ ...wrong, thresholds: before }).thresholds.gains.k).toEqual([1, 1 / 30, 2, 3, 0.5]);
  });

  it('of older pages that are needed less than before is a change of topic, for 512 tokens', () => {
    const [evidence, scan] = [new Evidence(LAYERS), watched()];
    boundaries(evidence, scan, 12, (_layer, age) => -0.2 * age);
    expect(evidence.hasShifted(12 * 128)).toBe(false);
    boundaries(evidence, scan, 1, (_layer, age) => -0.2 * age - 1, 0.9, 12 * 128);
    expect([13, 16, 17].map((page) => evidence.hasShifted(page * 128))).toEqual([true, true, false]);
  });
});
