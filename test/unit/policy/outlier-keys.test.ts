// Layers whose keys have outlier channels: by hand, what trials say of a layer and what the price policy makes of it;
// and on the reference model with and without such channels, that formats with a scale per channel are used where they
// help and nowhere else.
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { withOutliers } from '../../../lab/evaluate/outliers.ts';
import { CHRONICLE, passagesOf } from '../../../lab/evaluate/passages.ts';
import { type Comparison, Scorer } from '../../../lab/evaluate/score.ts';
import { withThresholds } from '../../../lab/evaluate/variants.ts';
import type { FormatName } from '../../../native/index.ts';
import { OUTLIER_KEYS } from '../../../policy/decisions.gen.ts';
import { defaultThresholds, OutlierKeys, type PolicyContext, type TrialReport } from '../../../policy/index.ts';
import { contextOf } from '../../suite/policy-simulation.ts';
import { MODEL } from '../engine/on-reference.ts';
import { Hand, report } from './hand.ts';

const outlierKeys: readonly FormatName[] = ['kivi4', 'kivi2'];
/** Errors of keys in layers with and without outlier channels: the bound is a ratio of 0.45 between kivi2 and rot2. */
const WITH = { rot4: 0.02, rot3: 0.04, rot2: 0.1, kivi4: 0.004, kivi2: 0.02 };
const WITHOUT = { rot4: 0.004, rot3: 0.01, rot2: 0.02, kivi4: 0.003, kivi2: 0.018 };
const VALUES = { rot4: 0.001, rot3: 0.002, rot2: 0.005, rot1: 0.02 };

const contextWith = (layers: number, more: Partial<PolicyContext> = { outlierKeys }): PolicyContext => ({
  ...contextOf({ layers }),
  ...more,
});

describe('what trials say of a layer', () => {
  test('two pages at least, and the mean of all of them', () => {
    const keys = new OutlierKeys(contextWith(2));
    const learn = (layer: number, page: number, ratio: number): void =>
      keys.learn(report(layer, page, 'k', { rot2: 0.1, kivi2: 0.1 * ratio }));
    learn(0, 0, 0.1);
    expect(keys.has(0)).toBe(false);
    learn(0, 1, 0.9);
    // √(0.1·0.9) = 0.3
    expect(keys.has(0)).toBe(true);
    // ∛(0.09·1.2) = 0.48
    learn(0, 2, 1.2);
    expect(keys.has(0)).toBe(false);
    expect(keys.has(1)).toBe(false);
  });

  test('later pages are tried only where the first ones have shown it', () => {
    const keys = new OutlierKeys(contextWith(2));
    const wanted = (page: number, format: FormatName = 'kivi2') =>
      [0, 1].map((layer) => keys.wants({ side: 'k', format }, { layer, page }));
    for (let page = 0; page < 4; page++) {
      expect(wanted(page)).toEqual([true, true]);
      expect(wanted(page, 'rot2')).toEqual([true, true]);
      keys.learn(report(0, page, 'k', WITH));
      keys.learn(report(1, page, 'k', WITHOUT));
    }
    expect(wanted(4)).toEqual([true, false]);
    expect(wanted(4, 'rot2')).toEqual([true, null]);
  });

  test('what they do not depend on, they do not ask for', () => {
    const [keys, without] = [new OutlierKeys(contextWith(1)), new OutlierKeys(contextWith(1, {}))];
    const place = { layer: 0, page: 0 };
    expect(keys.wants({ side: 'k', format: 'trellis2' }, place)).toBe(null);
    expect(keys.wants({ side: 'v', format: 'rot2' }, place)).toBe(null);
    expect(keys.wants({ side: 'v', format: 'kivi2' }, place)).toBe(false);
    expect(without.wants({ side: 'k', format: 'rot2' }, place)).toBe(null);
    expect(without.wants({ side: 'k', format: 'kivi2' }, place)).toBe(null);
  });

  test('values, other formats and sessions without such formats say nothing', () => {
    const [keys, without] = [new OutlierKeys(contextWith(1)), new OutlierKeys(contextWith(1, {}))];
    for (let page = 0; page < 3; page++) {
      keys.learn(report(0, page, 'v', WITH));
      keys.learn(report(0, page, 'k', { rot2: 0.1 }));
      keys.learn(report(0, page, 'k', { rot2: 0.1, kivi2: 0 }));
      without.learn(report(0, page, 'k', WITH));
    }
    expect(keys.has(0)).toBe(false);
    expect(without.has(0)).toBe(false);
  });
});

describe('the price policy', () => {
  const PAGES = 6;
  const trials = (layer: number, keys: TrialReport['epsilon']): TrialReport[] =>
    Array.from({ length: PAGES }, (_, page) => [
      report(layer, page, 'k', keys),
      report(layer, page, 'v', VALUES),
    ]).flat();

  /** The formats of keys that are planned while the budget shrinks by the bytes of four moves at a time, by layer. */
  function planned(context: PolicyContext): Set<string>[] {
    const hand = new Hand(context);
    const reports = [...trials(0, WITH), ...trials(1, WITHOUT)].sort((a, b) => a.page - b.page);
    const seen = [new Set<string>(), new Set<string>()];
    let bytes = context.fixedBytes + reports.length * context.pageBytes.q8;
    for (let turn = 0; turn < 6; turn++) {
      const budgetBytes = bytes - 4 * (context.pageBytes.q8 - context.pageBytes.rot4);
      const tokens = (PAGES + 2 + turn) * 128;
      const trials = turn === 0 ? reports : [];
      for (const decision of hand.decide({ tokens, bytes, budgetBytes, urgent: true, trials })) {
        if (decision.side === 'k') seen[decision.layer]!.add(decision.to);
        bytes -= decision.bytesFreed;
        hand.settle(decision, true);
      }
    }
    return seen;
  }

  test('takes formats with a scale per channel for keys with outlier channels, and for no others', () => {
    const [first, second] = planned(contextWith(2));
    expect([...first!].some((format) => format.startsWith('kivi'))).toBe(true);
    expect([...second!].filter((format) => format.startsWith('kivi'))).toEqual([]);
    expect(second!.size).toBeGreaterThan(0);
  });

  test('takes none where the threshold rules them out', () => {
    const thresholds = withThresholds(defaultThresholds(2), { 'keys.outliers': 0 });
    for (const formats of planned(contextWith(2, { outlierKeys, thresholds })))
      expect([...formats].filter((format) => format.startsWith('kivi'))).toEqual([]);
  });
});

describe('sessions of the reference model', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1 });
  });
  afterAll(() => runtime.close());

  async function read(of: Runtime, bound?: number): Promise<Comparison> {
    const [passage] = passagesOf(of.model.tokenizer, CHRONICLE, 1, 1536);
    return new Scorer(of).compare(passage!, {
      options: { kvBudget: '25%' },
      stateDir: null,
      ...(bound === undefined ? {} : { adjust: (set) => withThresholds(set, { 'keys.outliers': bound }) }),
    });
  }
  const areOffered = (pages: Readonly<Record<string, number>>): boolean =>
    OUTLIER_KEYS.some((format) => (pages[format] ?? 0) > 0);

  it('use them for keys with outlier channels, and diverge less at the same budget', async () => {
    const outliers = withOutliers(runtime);
    const [whole, without] = [await read(outliers), await read(outliers, 0)];
    expect(whole.report!.layers.some(({ kPages }) => areOffered(kPages))).toBe(true);
    for (const { vPages } of whole.report!.layers) expect(areOffered(vPages)).toBe(false);
    for (const { kPages } of without.report!.layers) expect(areOffered(kPages)).toBe(false);
    // Measured: 0.5 to 1.1 of the divergence.
    expect(whole.compared!.meanKld).toBeLessThan(without.compared!.meanKld);
  });

  it('do not use them without', async () => {
    const plain = await read(runtime);
    for (const { kPages } of plain.report!.layers) expect(areOffered(kPages)).toBe(false);
  });
});
