// Which matrices take activations of 8 bits: what a choice promises is what its matrices cost, it never promises more
// than it may, and no matrix that is left out would have been a better bargain than one that is taken.
import { describe, expect, it } from 'vitest';
import { DENSE_SLOTS, type DenseSlot, KvError } from '../../../native/index.ts';
import {
  ACTIVATION_NATS_MOST,
  type ActivationCosts,
  checkActivationCosts,
  chooseActivations,
  type Estimate,
  isEightBit,
  matricesOf,
} from '../../../policy/index.ts';
import { seeded } from '../../random.ts';
import { activations } from '../memory/threshold-data.ts';

const LAYERS = 12;
const estimate = (value: number): Estimate => ({ value, sd: 0.3, samples: 4 });
const products = (layer: number, slot: DenseSlot): number =>
  layer === LAYERS ? 28e6 : { q: 3e5, k: 1e5, v: 1e5, o: 3e5, gate: 9e5, up: 9e5, down: 9e5 }[slot];

/** Costs spread over two decades, as those of a model are. */
function costsOf(seed: number): ActivationCosts {
  const random = seeded(seed);
  const one = (): Estimate => estimate(1e-6 * 100 ** random());
  const lists = DENSE_SLOTS.map((slot) => [slot, Array.from({ length: LAYERS }, one)]);
  return {
    matrices: Object.fromEntries(lists) as ActivationCosts['matrices'],
    output: estimate(9e-4),
    together: estimate(0.9 + 0.4 * random()),
  };
}

const natsOf = ({ matrices, output, together }: ActivationCosts, layer: number, slot: DenseSlot): number =>
  (layer === LAYERS ? output : matrices[slot][layer]!).value * together.value;

describe('a choice', () => {
  it('promises what its matrices cost together, at most what it may, and their share of the products', () => {
    for (let seed = 1; seed <= 200; seed++) {
      const costs = costsOf(seed);
      const most = seed % 2 === 0 ? ACTIVATION_NATS_MOST : 1e-5 * seed;
      const choice = chooseActivations(costs, products, most);
      const all = [...matricesOf(LAYERS)];
      const taken = all.filter(({ layer, slot }) => isEightBit(choice, layer, slot));
      const left = all.filter(({ layer, slot }) => !isEightBit(choice, layer, slot));
      const sum = (of: typeof all, what: (layer: number, slot: DenseSlot) => number): number =>
        of.reduce((total, { layer, slot }) => total + what(layer, slot), 0);
      const nats = (layer: number, slot: DenseSlot): number => natsOf(costs, layer, slot);
      expect(choice.expectedNats).toBeLessThanOrEqual(most);
      expect(choice.expectedNats).toBeCloseTo(sum(taken, nats), 12);
      expect(choice.share).toBeCloseTo(sum(taken, products) / sum(all, products), 12);
      expect(choice.eightBit).toHaveLength(LAYERS + 1);
      // Nothing that is left out would still fit, and who saves more for a nat than the worst that is taken does not.
      for (const { layer, slot } of left) expect(choice.expectedNats + nats(layer, slot)).toBeGreaterThan(most);
    }
  });

  it('takes all matrices where that is cheap enough, and none where the cheapest is too dear', () => {
    const costs = costsOf(1);
    const all = chooseActivations(costs, products, 1);
    expect(all.share).toBe(1);
    expect(all.eightBit).toEqual([...new Array<number>(LAYERS).fill(127), 1]);
    expect(chooseActivations(costs, products, 1e-7)).toEqual({
      eightBit: new Array<number>(LAYERS + 1).fill(0),
      expectedNats: 0,
      share: 0,
    });
  });

  it('takes what saves most for a nat first', () => {
    const costs = costsOf(3);
    let before = chooseActivations(costs, products, 0);
    for (let most = 1e-6; most < 1e-2; most *= 1.3) {
      const choice = chooseActivations(costs, products, most);
      expect(choice.share).toBeGreaterThanOrEqual(before.share);
      before = choice;
    }
    const bargain = (layer: number, slot: DenseSlot): number => products(layer, slot) / natsOf(costs, layer, slot);
    const best = [...matricesOf(LAYERS)].sort((a, b) => bargain(b.layer, b.slot) - bargain(a.layer, a.slot))[0]!;
    const least = chooseActivations(costs, products, natsOf(costs, best.layer, best.slot));
    expect(isEightBit(least, best.layer, best.slot)).toBe(true);
  });
});

describe('costs', () => {
  it('are refused where a list is of other layers or a number is none', () => {
    checkActivationCosts(activations(), 2);
    const code = (costs: unknown, layers = 2): string => {
      try {
        checkActivationCosts(costs as ActivationCosts, layers);
        return 'taken';
      } catch (error) {
        return error instanceof KvError ? error.code : String(error);
      }
    };
    const good = activations();
    expect(code(good, 3)).toBe('bad-thresholds');
    expect(code({ ...good, matrices: undefined })).toBe('bad-thresholds');
    expect(code({ ...good, matrices: { ...good.matrices, up: [estimate(1)] } })).toBe('bad-thresholds');
    expect(code({ ...good, matrices: { ...good.matrices, up: [estimate(1), null] } })).toBe('bad-thresholds');
    expect(code({ ...good, output: estimate(Number.NaN) })).toBe('bad-thresholds');
    expect(code({ ...good, together: undefined })).toBe('bad-thresholds');
  });
});
