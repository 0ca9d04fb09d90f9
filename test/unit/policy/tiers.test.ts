/**
 * The policy of three tiers, in pages that a person can count: how many places each tier has, who gets them, what gives
 * way under a budget, and which options are refused.
 */
import { describe, expect, test } from 'vitest';
import { createPolicy, type TiersOptions, tiersAsked } from '../../../policy/index.ts';
import { refusal } from '../../refusal.ts';
import { pairsOf } from '../../suite/policy.ts';
import { contextOf, f16Bytes, simulate } from '../../suite/policy-simulation.ts';

const LAYERS = 2;
const context = contextOf({ layers: LAYERS });
/** Of 22 pages 20 have left the window at the end, and the last but one is in it. */
const TOKENS = 22 * 128;
const tiersOf = (options: TiersOptions, more: Partial<Parameters<typeof simulate>[0]> = {}) => {
  const result = simulate({
    policy: createPolicy('tiers', { ...options }),
    context,
    tokens: TOKENS,
    budgetBytes: null,
    ...more,
  });
  return { ...result, layers: pairsOf(result, LAYERS).map((pairs) => pairs.slice(0, 21)) };
};
const SIZES = { hot: { size: 4 * 128 }, warm: { size: '6 pages' } } as const;

describe('tiers', () => {
  test('by age, the newest pages are hot, those before them warm, and all others cold', () => {
    const { layers } = tiersOf({ ...SIZES, importance: 0 });
    for (const pairs of layers)
      expect(pairs).toEqual([
        ...new Array(11).fill('trellis3:trellis1'),
        ...new Array(6).fill('trellis4:trellis4'),
        ...new Array(4).fill('q8:q8'),
      ]);
  });

  // Half of four hot places are for the two pages that attention goes to most; pages that are down stay down.
  test('pages with most attention stay hot, and page 0 is not one of them for the sake of the sinks', () => {
    const looked = [0, 2, 5];
    const { layers } = tiersOf(SIZES, { mass: (_layer, page) => (looked.includes(page) ? 50 : 1) });
    for (const pairs of layers) {
      expect(pairs.flatMap((pair, page) => (pair === 'q8:q8' ? [page] : []))).toEqual([2, 5, 19, 20]);
      expect(pairs[0]).toBe('trellis3:trellis1');
    }
  });

  // Attention moves from page 2 to page 3 and back: page 2 has been given up by then, and stays where it is.
  test('a page never comes back to a higher tier', () => {
    const at = (tokens: number) => (tokens < 8 * 128 || tokens > 16 * 128 ? 2 : 3);
    const options = { hot: { size: '1 page' }, warm: { size: '1 page' }, importance: 1, decay: 0 } as const;
    const { layers } = tiersOf(options, { mass: (_layer, page, tokens) => (page === at(tokens) ? 50 : 1) });
    for (const pairs of layers) expect(pairs[2]).not.toBe('q8:q8');
  });

  test('anchors stay hot before all others, and more of them than there are hot places', () => {
    const { layers } = tiersOf({ hot: { size: '1 page' }, warm: { size: 0 }, anchors: [3, 0, 3] });
    for (const pairs of layers) expect(pairs.flatMap((pair, page) => (pair === 'q8:q8' ? [page] : []))).toEqual([0, 3]);
  });

  // Asks for more hot and warm pages than a budget holds: hot gives way, then warm, and every byte is used but a unit.
  test.each([
    [0.4, ['q8:q8', 'trellis4:trellis4']],
    [0.27, ['trellis3:trellis1', 'trellis4:trellis4']],
  ])('under %d of f16 there are %j', (share, expected) => {
    const budgetBytes = Math.floor(share * f16Bytes(context, TOKENS));
    const { layers } = tiersOf({ hot: { size: '9 pages' }, warm: { size: '20 pages' } }, { budgetBytes });
    expect([...new Set(layers.flatMap((pairs) => pairs.slice(0, 20)))].sort()).toEqual(expected);
  });

  test('a share of the budget is so many bytes of pages', () => {
    const budgetBytes = Math.floor(0.5 * f16Bytes(context, TOKENS));
    const { layers } = tiersOf({ hot: { size: '20%' }, warm: { size: '0%' }, importance: 0 }, { budgetBytes });
    const hot = layers.flat().filter((pair) => pair === 'q8:q8').length - LAYERS;
    const bytes = 2 * context.pageBytes.q8;
    expect(hot).toBeGreaterThanOrEqual(Math.floor((0.2 * budgetBytes) / bytes) - LAYERS);
    expect(hot * bytes).toBeLessThanOrEqual(0.2 * budgetBytes);
  });

  test('a reason names the place, the places, and whether the budget or an option set them', () => {
    const { entries } = tiersOf({ ...SIZES, importance: 0 });
    const because = entries.flatMap(({ decisions }) => decisions.map((one) => one.because));
    expect(because[0]).toEqual({
      ...{ threshold: 'tiers.hot', measured: 5, bound: 4, unit: 'places', origin: 'option', rule: 'tier-warm' },
    });
    expect(because.find(({ rule }) => rule === 'tier-cold')).toMatchObject({
      threshold: 'tiers.warm',
      measured: 7,
      bound: 6,
      rule: 'tier-cold',
    });
  });

  test('formats of a tier that is hot and coded are told as the hot tier', () => {
    const { entries } = tiersOf({ hot: { size: 512, types: 'trellis4' }, importance: 0 });
    expect(entries.flatMap(({ decisions }) => decisions)[0]!.because).toMatchObject({ rule: 'tier-hot', measured: 1 });
  });
});

describe('options of tiers', () => {
  test('made explicit, they are what made them', () => {
    const asked = tiersAsked({ hot: { size: '10%' }, cold: { types: 'rot2' }, anchors: [2, 0, 2], group: 64 });
    expect(asked).toEqual({
      hot: { size: '10%', types: { k: 'q8', v: 'q8' } },
      warm: { size: 4096, types: { k: 'trellis4', v: 'trellis4' } },
      cold: { types: { k: 'rot2', v: 'rot2' } },
      ...{ importance: 0.5, decay: 0.5, anchors: [0, 2], group: 64 },
    });
    expect(tiersAsked(JSON.parse(JSON.stringify(asked)))).toEqual(asked);
  });

  test.each<[unknown, string, RegExp]>([
    [{ hto: {} }, 'bad-argument', /no field 'hto'/],
    [{ hot: { sizes: 1 } }, 'bad-argument', /tiers.hot has no field 'sizes'/],
    [{ hot: 512 }, 'bad-argument', /tiers.hot must be a table/],
    [{ cold: { size: 4 } }, 'bad-argument', /tiers.cold has no field 'size'/],
    [{ hot: { size: -1 } }, 'bad-argument', /tiers.hot.size must be/],
    [{ hot: { size: 1.5 } }, 'bad-argument', /tiers.hot.size must be/],
    [{ hot: { size: '101%' } }, 'bad-argument', /at most 100%/],
    [{ hot: { size: '3 books' } }, 'bad-argument', /tiers.hot.size must be/],
    [{ warm: { types: 'rot5' } }, 'unsupported', /unknown cache type 'rot5'/],
    [{ warm: { types: { k: 'rot4' } } }, 'bad-argument', /tiers.warm.types must be/],
    [{ warm: { types: 'trellis2:trellis4' } }, 'unsupported', /is not served/],
    [{ cold: { types: 'trellis1' } }, 'unsupported', /is not served/],
    [
      { warm: { types: 'trellis2' }, cold: { types: 'trellis3' } },
      'unsupported',
      /cannot go from trellis2 to trellis3/,
    ],
    [{ importance: 2 }, 'bad-argument', /tiers.importance must be/],
    [{ decay: '1' }, 'bad-argument', /tiers.decay must be/],
    [{ anchors: [-1] }, 'bad-argument', /tiers.anchors must be/],
    [{ group: 0 }, 'bad-argument', /tiers.group must be/],
    [[], 'bad-argument', /tiers must be a table/],
  ])('%j: %s', (options, code, message) => {
    expect(refusal(() => tiersAsked(options))).toMatchObject({ code, message: expect.stringMatching(message) });
  });

  test('a group is the one that the formats have, or refused with those that have it', () => {
    const open = (options: TiersOptions) => createPolicy('tiers', { ...options }).open(context);
    expect(() => open({ group: 64 })).not.toThrow();
    const kivi = { warm: { types: 'kivi4' }, cold: { types: 'kivi2' } } as const;
    expect(() => open({ ...kivi, group: 32 })).not.toThrow();
    expect(refusal(() => open({ group: 32 }))).toMatchObject({
      code: 'unsupported',
      values: { path: 'warm.types', side: 'k', format: 'trellis4', group: 64, asked: 32 },
      hint: expect.stringContaining('kivi4'),
    });
    expect(refusal(() => open({ group: 7 }))).toMatchObject({ hint: expect.stringContaining('no format') });
  });
});
