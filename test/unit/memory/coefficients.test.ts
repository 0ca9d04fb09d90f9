// What sessions found errors in single layers to cost becomes the coefficients of a law: layers are told apart though
// texts differ by more, what is known is changed less, and nothing is learned of what all have in common.
import { describe, expect, it } from 'vitest';
import { joinCosts } from '../../../memory/coefficients.ts';
import { defaultLaw, isUnsure, type LayerCost } from '../../../policy/index.ts';
import { seeded } from '../../random.ts';

const LAYERS = 8;
const sides = ['k', 'v'] as const;
const law = defaultLaw(LAYERS);

/** What layers really cost beside others, in ln. */
const truth = { k: [-1.2, -0.4, 0, 0.1, 0.3, 0.5, 0.3, 0.4], v: [-0.9, 0.6, 0, -0.2, 0.1, 0.3, -0.2, 0.3] };

/** Sessions that each measured a few layers of a text of its own, with chance. */
function sessions(count: number, each: number, seed: number): LayerCost[][] {
  const random = seeded(seed);
  const normal = (): number => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  let at = 0;
  return Array.from({ length: count }, () => {
    const text = normal();
    return Array.from({ length: each }, () => {
      const [layer, side] = [Math.floor(at / 2) % LAYERS, sides[at % 2]!];
      at += 3;
      return { layer, side, cost: Math.exp(0.7 + text + truth[side][layer]! + 0.4 * normal()), rows: 8 };
    });
  });
}

const found = (costs: readonly (readonly LayerCost[])[]): number[] => {
  const { coefficient } = joinCosts(law, costs);
  return sides.flatMap((side) =>
    coefficient[side].map(({ value }) => Math.log(value / law.coefficient[side][0]!.value)),
  );
};

const off = (ln: readonly number[]): number => {
  const wanted = sides.flatMap((side) => truth[side]);
  return Math.sqrt(ln.reduce((sum, one, at) => sum + (one - wanted[at]!) ** 2, 0) / ln.length);
};

describe('coefficients that sessions found', () => {
  it('come the nearer to what layers cost the more sessions there are', () => {
    const nothing = off(found([]));
    const few = off(found(sessions(6, 5, 1)));
    const many = off(found(sessions(60, 5, 1)));
    expect(nothing).toBeGreaterThan(0.4);
    expect(few).toBeLessThan(0.8 * nothing);
    expect(many).toBeLessThan(0.35 * nothing);
  });

  it('say nothing of what all layers of a side have in common', () => {
    const costs = sessions(10, 5, 2);
    const dearer = costs.map((session, at) => session.map((one) => ({ ...one, cost: one.cost * (at + 1) })));
    const [a, b] = [found(costs), found(dearer)];
    for (const from of [0, LAYERS])
      expect(b.slice(from, from + LAYERS).reduce((sum, one) => sum + one, 0)).toBeCloseTo(0, 3);
    // Texts that cost a factor more are told apart from layers, as far as few measurements of each allow.
    expect(off(b)).toBeLessThan(0.5);
    expect(a.some((one) => Math.abs(one) > 0.3)).toBe(true);
  });

  it('are surer with each session, until nothing is left to measure', () => {
    const sd = (count: number): number => joinCosts(law, sessions(count, 16, 3)).coefficient.k[3]!.sd;
    expect(sd(1)).toBeLessThan(law.coefficient.k[3]!.sd);
    expect(sd(2)).toBeLessThan(sd(1));
    expect(isUnsure(joinCosts(law, sessions(1, 16, 3)), 3, 'k')).toBe(true);
    expect(isUnsure(joinCosts(law, sessions(3, 16, 3)), 3, 'k')).toBe(false);
    expect(joinCosts(law, sessions(3, 16, 3)).coefficient.k[3]!.samples).toBe(3);
  });

  it('change what is known already by less', () => {
    const known = (sd: number) => {
      const side = law.coefficient.k.map((one) => ({ ...one, sd }));
      return joinCosts({ ...law, coefficient: { k: side, v: side } }, sessions(4, 16, 4)).coefficient.k[0]!.value;
    };
    expect(known(0.6)).toBeLessThan(known(0.2));
    expect(known(0.2)).toBeLessThan(known(0.02));
    expect(known(0.02)).toBeLessThan(1.5);
  });

  it('are the law itself where nobody found anything, or only of layers that it has not', () => {
    expect(joinCosts(law, [])).toBe(law);
    expect(joinCosts(law, [[{ layer: LAYERS, side: 'v', cost: 2, rows: 8 }]])).toBe(law);
  });

  it('are not led far by one measurement that is beyond all others', () => {
    const costs: LayerCost[][] = [...sessions(4, 16, 5), [{ layer: 2, side: 'k', cost: 1e9, rows: 8 }]];
    expect(Math.abs(found(costs)[2]! - found(sessions(4, 16, 5))[2]!)).toBeLessThan(0.6);
  });
});
