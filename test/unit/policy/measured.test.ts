// What was measured of a divergence scales what is predicted, as far as it is sure: a little by one report, the more by
// many, and not at all without any. A stated divergence is then spent by what was measured: of texts that cost three
// times as much as predicted, or a third, the budget is used alike.
import { describe, expect, test } from 'vitest';
import { createPolicy, defaultThresholds, type Policy, type Situation, thresholdOf } from '../../../policy/index.ts';
import { Measured } from '../../../policy/measured.ts';
import { contextOf, type Result, simulate } from '../../suite/policy-simulation.ts';

const value = (id: 'seen' | 'sd' | 'spread' | 'aim' | 'doubled' | 'drift'): number =>
  thresholdOf(defaultThresholds(1), `reread.${id}`).value;
const bounds = {
  ...{ seen: value('seen'), doubled: value('doubled'), rereadSd: value('sd'), spread: value('spread') },
  drift: value('drift'),
};
/** Of sessions before the level was followed. */
const summed = { ...bounds, drift: 0 };
const reportOf = (meanKld: number) => ({ tokens: 256, rows: 32, meanKld, standardError: 0 });

/** As many reports of this factor between measured and predicted. */
function told(factor: number, reports: number, predicted = 1e-3): Measured {
  const measured = new Measured(summed);
  measured.expect(257, predicted);
  for (let n = 0; n < reports; n++) measured.learn(reportOf(bounds.seen * factor * predicted));
  return measured;
}

/** A report every 256 tokens, of these factors in turn. */
function following(factors: readonly number[], isDoubled = false): Measured {
  const measured = new Measured(bounds);
  for (const [n, factor] of factors.entries()) {
    const tokens = 256 * (n + 1);
    measured.expect(tokens + 1, 1e-3);
    const share = isDoubled ? bounds.doubled : bounds.seen;
    const report = { ...reportOf(share * factor * 1e-3), tokens };
    measured.learn(isDoubled ? { ...report, isDoubled } : report);
  }
  return measured;
}

describe('the level that is followed', () => {
  const mean = Math.exp(bounds.rereadSd ** 2 / 2);

  test('comes to what reports say, and as soon where that changes late', () => {
    expect(following([]).level).toEqual({ value: 1, sd: bounds.spread, samples: 0 });
    for (const factor of [3, 1 / 3]) {
      const long = following(new Array<number>(32).fill(factor)).level;
      expect(long.value / (factor * mean)).toBeCloseTo(1, 3);
      expect(long.samples).toBe(32);
      const early = following([...new Array<number>(4).fill(1), ...new Array<number>(4).fill(factor)]).level.value;
      const late = following([...new Array<number>(28).fill(1), ...new Array<number>(4).fill(factor)]).level.value;
      expect(late / early).toBeCloseTo(1, 1);
      expect(Math.abs(Math.log(late / mean))).toBeGreaterThan(0.75 * Math.log(3));
      // What is summed comes to it only slowly.
      expect(Math.abs(Math.log(told(1, 28).level.value))).toBeLessThan(0.01);
    }
  });

  test('follows no single report however large it is, and none of nothing', () => {
    const calm = new Array<number>(16).fill(1);
    const once = following([...calm, 1e6]).level.value / mean;
    expect(once).toBeGreaterThan(1.5);
    expect(once).toBeLessThan(4);
    expect(following([...calm, 1e9]).level).toEqual(following([...calm, 1e6]).level);
    expect(following([...calm, 0]).level).toEqual(following([...calm, 1e-9]).level);
  });

  test('is sure by how many reports there are, as far as it may have changed since', () => {
    const sds = [1, 2, 4, 64].map((count) => following(new Array<number>(count).fill(2)).level.sd);
    expect(sds.toSorted((a, b) => b - a)).toEqual(sds);
    const [p, q, r] = [sds.at(-1)! ** 2, bounds.drift ** 2 / 4, bounds.rereadSd ** 2];
    // Where nothing changes any more, what a report takes of the variance is what passes adds.
    expect(((p + q) * r) / (p + q + r)).toBeCloseTo(p, 9);
  });

  test('may be another by the time that what is decided now is paid for', () => {
    const measured = following([2, 2, 2, 2]);
    const { value, sd } = measured.level;
    expect(measured.levelAhead(0, 0)).toBe(value);
    expect(measured.levelAhead(0, 1)).toBeCloseTo(value * Math.exp(sd), 12);
    expect(measured.levelAhead(1024, 1)).toBeCloseTo(value * Math.exp(Math.hypot(sd, bounds.drift)), 12);
    expect(measured.levelAhead(-5, 1)).toBe(measured.levelAhead(0, 1));
    const before = told(2, 4);
    expect(before.levelAhead(4096, 1)).toBe(before.level.value);
  });

  test('is the same by doubled errors, which show another share of a divergence', () => {
    const factors = [2, 3, 4];
    expect(following(factors, true).told(0.01)).toEqual(following(factors).told(0.01));
  });
});

describe('the level that is summed', () => {
  test('is 1 without reports, and goes from there to what they say, by how sure they are', () => {
    expect(told(3, 0).level).toEqual({ value: 1, sd: bounds.spread, samples: 0 });
    expect(told(3, 0).told(0.01)).toBeUndefined();
    for (const factor of [3, 1 / 3]) {
      let before = 0;
      for (const reports of [1, 4, 16, 1000]) {
        const { value, sd, samples } = told(factor, reports).level;
        const kept = bounds.spread ** 2 / (bounds.spread ** 2 + bounds.rereadSd ** 2 / reports);
        expect(Math.log(value)).toBeCloseTo(kept * Math.log(factor), 9);
        expect(sd).toBeCloseTo(bounds.spread * Math.sqrt(1 - kept), 9);
        expect(samples).toBe(reports);
        expect(Math.abs(Math.log(value))).toBeGreaterThan(before);
        before = Math.abs(Math.log(value));
      }
    }
  });

  test('goes by reports of which much was predicted, and is bounded', () => {
    const measured = told(1, 8);
    const before = measured.level.value;
    measured.expect(400, 1e-9);
    measured.learn({ ...reportOf(1e-9), tokens: 300 });
    expect(measured.level.value).toBeCloseTo(before, 4);
    // No report counts as more than ten times what was predicted.
    expect(told(1e9, 100).level).toEqual(told(10 * (1 + 1e-9), 100).level);
    expect(told(9, 100).level.value).toBeLessThan(told(1e9, 100).level.value);
    expect(told(1e-9, 100).level.value).toBe(1 / 16);
    expect(told(0, 100).level.value).toBe(1);
  });

  test('is told with the tokens behind it, with what was not seen added', () => {
    const { tokens, meanKld, expectedKld, level } = told(2, 4).told(0.01)!;
    expect(tokens).toBe(128);
    expect(meanKld).toBeCloseTo(2e-3, 12);
    expect(expectedKld).toBeCloseTo(0.01 * level.value, 12);
  });
});

describe('a session of the price policy', () => {
  const context = contextOf({ layers: 8 });
  const kldBudget = 0.01;

  /** The policy with a report every 256 tokens, of so much times what it predicts. */
  function measuring(factor: number): Policy {
    const price = createPolicy('price');
    return {
      ...price,
      open: (given) => {
        const session = price.open(given);
        const decide = session.decide.bind(session);
        let next = 256;
        return Object.assign(session, {
          decide: (situation: Situation) => {
            const { predictedKld } = session.summary();
            if (situation.tokens < next || predictedKld === 0) return decide(situation);
            next = situation.tokens + 256;
            const reread = { ...reportOf(bounds.seen * factor * predictedKld), tokens: situation.tokens - 1 };
            return decide({ ...situation, reread });
          },
        });
      },
    };
  }
  const run = (policy: Policy): Result => simulate({ policy, context, tokens: 4096, kldBudget });

  test('aims by what was measured', () => {
    const spent = [3, 1, 1 / 3].map((factor) => {
      const { predictedKld, measured } = run(measuring(factor)).summary;
      expect(Math.abs(Math.log(measured!.level.value / factor))).toBeLessThan(0.5);
      // What is compared with the budget is what pages cost at the age at which they were moved, before that faded.
      expect(measured!.expectedKld).toBeGreaterThan(measured!.level.value * predictedKld);
      expect(measured!.expectedKld).toBeLessThan(value('aim') * kldBudget * 1.05);
      expect(measured!.tokens).toBeGreaterThan(32 * 8);
      return { really: factor * predictedKld, predictedKld };
    });
    for (const { really } of spent) {
      expect(really).toBeLessThanOrEqual(kldBudget);
      expect(really).toBeGreaterThan(0.3 * kldBudget);
    }
    expect(spent[2]!.predictedKld).toBeGreaterThan(3 * spent[0]!.predictedKld);
  });

  test('says nothing of measurements, and decides as ever, where there are none', () => {
    const { summary } = run(createPolicy('price'));
    expect(summary.measured).toBeUndefined();
    expect(Object.keys(summary)).not.toContain('measured');
  });
});
