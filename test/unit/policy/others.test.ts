/**
 * The policies to compare with, and the names by which policies are made: what each rule asks for, in pages a person
 * can count.
 */
import { describe, expect, test } from 'vitest';
import { FORMAT_NAMES, FORMATS, type FormatName, isAutomatic } from '../../../native/index.ts';
import { createPolicy, isUselessPair, type PolicyContext, policies } from '../../../policy/index.ts';
import { pairsOf } from '../../suite/policy.ts';
import { contextOf, f16Bytes, simulate } from '../../suite/policy-simulation.ts';

const LAYERS = 4;
const context = contextOf({ layers: LAYERS });
const run = (id: string, share: number, tokens = 42 * 128, more = {}) =>
  simulate({
    policy: createPolicy(id),
    context,
    tokens,
    budgetBytes: Math.floor(share * f16Bytes(context, tokens)),
    ...more,
  });
function count(values: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const value of values) counts[value] = (counts[value] ?? 0) + 1;
  return counts;
}

describe('uniform', () => {
  // Budgets from wide to tight: two neighbouring steps of the ladder at most, and hardly a page side less than the
  // budget allows.
  test.each([
    [0.7, ['q8:q8']],
    [0.45, ['q8:q8', 'trellis4:trellis4']],
    [0.26, ['trellis4:trellis4', 'trellis4:trellis2']],
    [0.225, ['trellis4:trellis2', 'trellis3:trellis2']],
    [0.19, ['trellis3:trellis2', 'trellis3:trellis1']],
    [0.155, ['trellis3:trellis1', 'trellis2:trellis1']],
  ])('%d of f16: %j', (share, steps) => {
    const result = run('uniform', share);
    const counts = count(pairsOf(result, LAYERS).flatMap((pairs) => pairs.slice(0, 40)));
    expect(Object.keys(counts).sort()).toEqual([...steps].sort());
    if (steps.length < 2) return;
    // Bytes at the last seal, when pages 0..39 were asked for and page 40 stood in the window: within one unit of the
    // budget.
    const [fine, coarse] = steps.map((pair) =>
      pair.split(':').reduce((sum, format) => sum + context.pageBytes[format as FormatName], 0),
    ) as [number, number];
    const bytes =
      context.fixedBytes + LAYERS * 2 * context.pageBytes.q8 + counts[steps[0]!]! * fine + counts[steps[1]!]! * coarse;
    const budgetBytes = Math.floor(share * f16Bytes(context, 42 * 128));
    expect(bytes).toBeLessThanOrEqual(budgetBytes);
    expect(bytes).toBeGreaterThan(budgetBytes - (fine - coarse));
  });

  test('the pages of the next step are spread evenly: no stretch has many more than another', () => {
    const pairs = pairsOf(run('uniform', 0.26), LAYERS);
    const units = Array.from(
      { length: 160 },
      (_, unit) => pairs[unit % LAYERS]![Math.floor(unit / LAYERS)] === 'trellis4:trellis2',
    );
    const stretches = Array.from({ length: 4 }, (_, i) => units.slice(40 * i, 40 * i + 40).filter(Boolean).length);
    expect(Math.max(...stretches) - Math.min(...stretches)).toBeLessThanOrEqual(4);
    expect(Math.min(...stretches)).toBeGreaterThan(0);
  });
});

test('age: the oldest units are 2:2, the youngest 4:4, with one boundary', () => {
  const pairs = pairsOf(run('age', 0.24), LAYERS);
  const units = Array.from({ length: 160 }, (_, unit) => pairs[unit % LAYERS]![Math.floor(unit / LAYERS)]!);
  const boundary = units.indexOf('trellis4:trellis4');
  expect(boundary).toBeGreaterThan(0);
  expect(new Set(units.slice(0, boundary))).toEqual(new Set(['trellis2:trellis2']));
  expect(new Set(units.slice(boundary))).toEqual(new Set(['trellis4:trellis4']));
});

test('a divergence budget is refused by rules that measure nothing', () => {
  for (const id of ['uniform', 'age'])
    expect(() => run(id, 0.3, 1024, { kldBudget: 0.1 })).toThrow(expect.objectContaining({ code: 'unsupported' }));
});

test('fixed and table: each page that has left the window has its pair, the window keeps its own', () => {
  const fixed = simulate({ policy: createPolicy('fixed', { k: 'rot4', v: 'rot2' }), context, tokens: 10 * 128 });
  // The tenth page is open, and nine are sealed: at a full page all of them have left the window.
  for (const pairs of pairsOf(fixed, LAYERS)) expect(count(pairs)).toEqual({ 'rot4:rot2': 9 });
  const rows = [
    { k: 'rot4', v: 'rot4' },
    { k: 'q8', v: 'q8' },
    { k: 'rot3', v: 'rot2' },
    { k: 'q8', v: 'rot3' },
  ];
  const table = simulate({ policy: createPolicy('table', { layers: rows }), context, tokens: 1000, chunk: 1 });
  for (const [layer, pairs] of pairsOf(table, LAYERS).entries()) {
    expect(pairs).toEqual([...new Array(6).fill(`${rows[layer]!.k}:${rows[layer]!.v}`), 'q8:q8']);
  }
  expect(
    simulate({ policy: createPolicy('none'), context, tokens: 1280 }).entries.flatMap(({ decisions }) => decisions),
  ).toEqual([]);
});

test('formats finer than the window are refused by name, not approximated', () => {
  expect(() => createPolicy('fixed', { k: 'f16', v: 'rot4' }).open(context)).toThrow(
    expect.objectContaining({ code: 'unsupported' }),
  );
  createPolicy('fixed', { k: 'f16', v: 'rot4' }).open(contextOf({ layers: 2, windowFormat: 'f16' }));
  expect(() => createPolicy('table', { layers: [{ k: 'rot4', v: 'rot4' }] }).open(context)).toThrow(
    expect.objectContaining({ code: 'bad-config' }),
  );
});

test.each<[string, string, Record<string, unknown>, string]>([
  ['an unknown name', 'prize', {}, 'unsupported'],
  ['a name of every object', 'constructor', {}, 'unsupported'],
  ['options where there are none', 'price', { speed: 1 }, 'bad-config'],
  ['fixed without formats', 'fixed', {}, 'bad-config'],
  ['fixed with an unknown format', 'fixed', { k: 'rot4', v: 'rot5' }, 'bad-config'],
  ['fixed with more than it takes', 'fixed', { k: 'rot4', v: 'rot4', x: 1 }, 'bad-config'],
  ['2-bit keys beside 4-bit values', 'fixed', { k: 'rot2', v: 'rot4' }, 'unsupported'],
  ['1-bit keys', 'fixed', { k: 'rot1', v: 'rot1' }, 'unsupported'],
  ['a table without rows', 'table', { layers: [] }, 'bad-config'],
  ['a table of nothing', 'table', { layers: [null] }, 'bad-config'],
  ['a table with 2-bit keys beside 8-bit values', 'table', { layers: [{ k: 'rot2', v: 'q8' }] }, 'unsupported'],
])('%s is refused', (_name, id, options, code) => {
  expect(() => createPolicy(id, options)).toThrow(expect.objectContaining({ code }));
});

test('useless pairs are exactly keys of 2 bits or fewer beside values of 4 bits or more', () => {
  const names = FORMAT_NAMES.filter(isAutomatic);
  const useless = names.flatMap((k) => names.filter((v) => isUselessPair(k, v)).map((v) => `${k}:${v}`));
  // Bits of a number as it is stored.
  const bits = (name: FormatName): number =>
    FORMATS[name].parts.flatMap(({ fields }) => fields).reduce((sum, { elementBits = 0 }) => sum + elementBits, 0);
  const values = names.filter((name) => bits(name) >= 4);
  expect(values).toEqual(expect.arrayContaining(['f16', 'q8', 'trellis4', 'rot4']));
  const keys = names.filter((name) => bits(name) <= 2);
  expect(keys).toEqual(expect.arrayContaining(['trellis2', 'rot2', 'trellis1', 'rot1']));
  expect(useless).toEqual(keys.flatMap((k) => values.map((v) => `${k}:${v}`)));
});

// Logs of the time before rot1 do not name it: what they hold is decided again as it was.
test.each<[string, number?]>([['price'], ['uniform', 1], ['age', 1]])(
  '%s does not use a format that its context does not name',
  (id, version) => {
    const { rot1: _unknown, ...pageBytes } = context.pageBytes;
    const tokens = 42 * 128;
    const session = {
      policy: createPolicy(id, {}, version),
      tokens,
      budgetBytes: Math.floor(0.185 * f16Bytes(context, tokens)),
    };
    const old = simulate({ ...session, context: { ...context, pageBytes: pageBytes as PolicyContext['pageBytes'] } });
    const today = simulate({ ...session, context: { ...context, floor: { k: 'rot2', v: 'rot2' } } });
    expect(old.entries.some(({ decisions }) => decisions.some(({ to }) => to === 'rot2'))).toBe(true);
    expect(old.entries.map(({ decisions }) => decisions)).toEqual(today.entries.map(({ decisions }) => decisions));
  },
);

test('price takes values to one bit where the budget asks for it, and never keys', () => {
  const { formats } = run('price', 0.16);
  const sides = [...formats].filter(([, format]) => format === 'rot1').map(([key]) => key.at(-1));
  expect(new Set(sides)).toEqual(new Set(['v']));
});

// What a user gets who asks for nothing or for a budget: the first policy of the list, and neither the age rule nor the
// fixed steps.
test('what is never a default is none', () => {
  expect(Object.keys(policies)[0]).toBe('price');
  const pairs = pairsOf(
    simulate({
      policy: createPolicy(Object.keys(policies)[0]!),
      context,
      tokens: 5376,
      budgetBytes: Math.floor(0.18 * f16Bytes(context, 5376)),
    }),
    LAYERS,
  );
  const keys = pairs.map((row) => row.filter((pair) => pair.startsWith('rot2')).length);
  expect(new Set(keys).size, 'layers have 2-bit keys as they tolerate them').toBeGreaterThan(1);
});
