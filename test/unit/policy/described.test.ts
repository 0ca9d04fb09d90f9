/**
 * Policies know formats by their descriptions alone: a format that is described here and nowhere else becomes a rung of
 * the ladder, is taken by the policies that go down it, and is tried again where it is the lowest. What the formats of
 * today say gives the decisions of the versions that logs name.
 */
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { FORMAT_NAMES, FORMATS, type FormatName, isAutomatic, SIDES } from '../../../native/index.ts';
import { RUNGS, STEPS, usefulPair } from '../../../policy/index.ts';
import { contextOf } from '../../suite/policy-simulation.ts';

describe('the ladder of today', () => {
  // Another ladder is another version of both policies, and the present one keeps these steps for its logs.
  test('has the steps of uniform 2 and age 2', () => {
    expect(STEPS.map(({ k, v }) => `${k}:${v}`)).toEqual([
      'q8:q8',
      'trellis4:trellis4',
      'trellis4:trellis2',
      'trellis3:trellis2',
      'trellis3:trellis1',
      'trellis2:trellis1',
    ]);
  });

  test('saves bytes with every step, in formats that every session may use', () => {
    const { pageBytes } = contextOf({ layers: 1 });
    const bytes = STEPS.map(({ k, v }) => pageBytes[k] + pageBytes[v]);
    for (const [i, one] of bytes.entries()) if (i > 0) expect(one).toBeLessThan(bytes[i - 1]!);
    for (const side of SIDES) {
      expect(RUNGS[side].every(isAutomatic)).toBe(true);
      const ranks = RUNGS[side].map((name) => FORMATS[name].rank);
      expect(ranks).toEqual([...ranks].sort((a, b) => a - b));
    }
  });

  test('each kind of gauge of outlier channels is one format, of as many bits as the other', () => {
    const gauges = FORMAT_NAMES.filter((name) => FORMATS[name].outlierGauge !== undefined);
    expect(gauges.map((name) => [name, FORMATS[name].outlierGauge, FORMATS[name].codeBits])).toEqual([
      ['kivi2', 'per channel', 2],
      ['rot2', 'rotated', 2],
    ]);
  });

  test('keys that are useless beside their values become those of three bits that logs have', () => {
    for (const k of FORMAT_NAMES.filter((name) => FORMATS[name].codeBits <= 2))
      expect(usefulPair({ k, v: 'q8' }), k).toEqual({ k: k.startsWith('trellis') ? 'trellis3' : 'rot3', v: 'q8' });
  });
});

describe('with three more formats that are described and nothing else', () => {
  const MORE = [
    { name: 'mid3', id: 60, rank: 28, codeBits: 3, rungs: { v: 15 } },
    { name: 'least1', id: 61, rank: 60, codeBits: 1, sides: ['v'], rungs: { v: 60 } },
    { name: 'keys3', id: 62, rank: 29, codeBits: 3, forOutlierKeys: true },
  ].map((own) => ({
    tier: 'archive',
    from: 'better',
    window: false,
    nested: false,
    headDims: 'any',
    rope: 'post',
    rotated: false,
    // A little less than trellis1 has, whose bits a page of least1 has as well.
    parts: [{ fields: [{ name: 'codes', elementBits: own.codeBits }] }],
    source: 'this test',
    layoutVersion: 1,
    ...own,
  }));
  const SOURCE = `export const formats = ${JSON.stringify(MORE)}; export const codecs = {};`;

  type Policies = typeof import('../../../policy/index.ts');
  type Simulation = typeof import('../../suite/policy-simulation.ts');
  type Trials = typeof import('../../../engine/cache/trials.ts');
  let policies: Policies;
  let simulation: Simulation;
  let trials: Trials;

  beforeAll(async () => {
    vi.resetModules();
    const { registerFormats } = await import('../../../native/formats/registry.ts');
    await registerFormats(`data:text/javascript,${encodeURIComponent(SOURCE)}`);
    policies = await import('../../../policy/index.ts');
    simulation = await import('../../suite/policy-simulation.ts');
    trials = await import('../../../engine/cache/trials.ts');
  });
  afterAll(() => vi.resetModules());

  test('the ladder has a step more where each of them says', () => {
    expect(policies.STEPS.map(({ k, v }) => `${k}:${v}`)).toEqual([
      'q8:q8',
      'trellis4:trellis4',
      'trellis4:mid3',
      'trellis4:trellis2',
      'trellis3:trellis2',
      'trellis3:trellis1',
      'trellis2:trellis1',
      'trellis2:least1',
    ]);
  });

  test.each([
    [0.255, 'mid3'],
    [0.135, 'least1'],
  ])('uniform goes there where %d of f16 asks for it', (share, name) => {
    const context = simulation.contextOf({ layers: 2 });
    const tokens = 42 * 128;
    const { formats } = simulation.simulate({
      policy: policies.createPolicy('uniform'),
      context,
      tokens,
      budgetBytes: Math.floor(share * simulation.f16Bytes(context, tokens)),
    });
    expect([...formats].filter(([, format]) => format === name).length).toBeGreaterThan(0);
  });

  test('pages are tried in what policies choose, and again in the lowest rungs', () => {
    const tried = trials.firstTrial({ skipsReplaced: true }).map(({ side, format }) => `${side} ${format}`);
    expect(tried).toEqual(expect.arrayContaining(['k mid3', 'v mid3', 'v least1']));
    expect(tried).not.toContain('k least1');
    expect(tried).not.toContain('k keys3');
    expect(trials.lowerFormat('v', 'trellis2')).toBe('trellis1');
    expect(trials.lowerFormat('v', 'trellis1')).toBe('least1');
    expect(trials.lowerFormat('k', 'trellis3')).toBe('trellis2');
  });

  test('a move that is not for them is unsafe, as for every other format', () => {
    const move = { side: 'k', from: 'q8', to: 'least1' as FormatName, partner: 'q8', movable: true } as const;
    expect(policies.unsafe(move)?.id).toBe('other-side');
    expect(policies.unsafe({ ...move, to: 'mid3' as FormatName })).toBeNull();
  });
});
