// One spelling per fact: order of construction, absent fields and odd keys make no difference, and spelling what was
// parsed gives the same bytes again. What a decode step writes is spelled by hand, and random bodies of it must come
// out as canonical as all others.
import { expect, it } from 'vitest';
import { seeded } from '../../../engine/evaluate/recall.ts';
import { FORMAT_NAMES, type FormatName, type Side } from '../../../native/index.ts';
import type { Because, Outcome, Situation, TrialReport } from '../../../policy/index.ts';
import { canonicalJson, isInOrder } from '../../../witness/canonical.ts';
import { spellBody } from '../../../witness/spell.ts';
import type { DecisionBody } from '../../../witness/types.ts';

it('spells the same data in the same way', () => {
  expect(canonicalJson({ b: 1, a: { d: [1, 2.5, -0], c: undefined } })).toBe('{"a":{"d":[1,2.5,0]},"b":1}');
  expect(canonicalJson({ 10: 'x', 9: 'y', a: null })).toBe('{"10":"x","9":"y","a":null}');
  expect(canonicalJson([1e21, 1e-7, 123456789012345680000, 5e-324, 0.1 + 0.2])).toBe(
    '[1e+21,1e-7,123456789012345680000,5e-324,0.30000000000000004]',
  );
  expect(canonicalJson('\ud800 \u2028 "\\')).toBe('"\\ud800 \u2028 \\"\\\\"');
});

it('spells what it spelled', () => {
  const text = canonicalJson({ z: [true, false, null, 'ü'], __x: { 2: 1, 10: 2, 'a"b': {} }, '': [] });
  expect(canonicalJson(JSON.parse(text))).toBe(text);
  // An own key of this name, which only a parser makes, is data like any other.
  const odd = '{"__proto__":{"a":1},"b":2}';
  expect(canonicalJson(JSON.parse(odd))).toBe(odd);
});

it('is what JSON.stringify prints wherever the keys are in order', () => {
  for (const [text, inOrder] of [
    ['{"a":[1,{"b":-0,"c":"\\ud800"}],"d":{"__proto__":1}}', true],
    ['{"a":{"c":1,"b":2}}', false],
    ['[{"9":1,"10":2}]', false],
    [`${'['.repeat(40)}${']'.repeat(40)}`, false],
  ] as const) {
    const value: unknown = JSON.parse(text);
    expect(isInOrder(value), text).toBe(inOrder);
    if (inOrder) expect(JSON.stringify(value)).toBe(canonicalJson(value));
  }
});

it('refuses what two readers could read differently', () => {
  for (const value of [
    Number.NaN,
    Number.POSITIVE_INFINITY,
    1n,
    undefined,
    () => 1,
    Symbol('x'),
    new Date(0),
    new Float32Array(1),
    [undefined],
  ]) {
    expect(() => canonicalJson({ list: [value] })).toThrowError(expect.objectContaining({ name: 'KvError' }));
  }
});

/**
 * Bodies of every shape that a session makes: fields at their limits, lists of any length, errors of any set of
 * formats.
 */
function someBodies(random: () => number): { kind: 'situation' | 'decision'; body: never }[] {
  const pick = <T>(...of: T[]): T => of[Math.floor(random() * of.length)]!;
  const number = (): number =>
    pick(0, -0, 1, random(), random() * 1e-9, 5e-324, 1e21, Math.floor(random() * 1e9), -random());
  const nullable = (): number | null => pick(null, number());
  const format = (): FormatName => pick(...FORMAT_NAMES);
  const side = (): Side => pick('k', 'v');
  const place = () => ({ page: number(), side: side(), layer: number() });
  const because = (): Because => ({
    unit: pick('KLD/byte', 'share', 'ü "quoted"'),
    threshold: pick('price.slack', 'pressure.critical', 'a\nb'),
    rule: pick('price', 'deficit', ''),
    origin: pick('default', 'learned', 'file', 'option', 'controller'),
    measured: number(),
    bound: number(),
  });
  const moved = () => ({ ...place(), from: format(), to: format(), bytesFreed: number() });
  const outcome = (): Outcome => ({ ...moved(), accepted: random() < 0.5, epsilonNow: nullable() });
  const trial = (): TrialReport => ({
    ...place(),
    from: format(),
    epsilon: Object.fromEntries(FORMAT_NAMES.filter(() => random() < 0.5).map((name) => [name, number()])),
  });
  const many = <T>(make: () => T): T[] => Array.from({ length: Math.floor(random() * 4) }, make);
  const decision: DecisionBody = {
    tokens: number(),
    situation: number(),
    order: number(),
    decision: {
      ...moved(),
      epsilonFrom: nullable(),
      epsilonTo: nullable(),
      price: nullable(),
      retry: random() < 0.5,
      because: because(),
    },
    epsilonNow: nullable(),
    verdict: { accepted: random() < 0.5, because: because() },
    bytesBefore: number(),
    bytesAfter: number(),
  };
  const situation: Situation = {
    index: number(),
    tokens: number(),
    bytes: number(),
    sealBytes: number(),
    budgetBytes: nullable(),
    kldBudget: nullable(),
    tokensExpected: nullable(),
    movesMax: number(),
    urgent: random() < 0.5,
    lowMemory: random() < 0.5,
    stepLatencyMsP95: number(),
    stepLatencyBudgetMs: nullable(),
    trials: many(trial),
    outcomes: many(outcome),
  };
  return [
    { kind: 'decision', body: decision as never },
    { kind: 'situation', body: { situation } as never },
  ];
}

it('spells what is written while decoding as everything else (seed 7)', () => {
  const random = seeded(7);
  for (let round = 0; round < 500; round++) {
    for (const { kind, body } of someBodies(random)) expect(spellBody(kind, body)).toBe(canonicalJson(body));
  }
});

it('refuses numbers that are none in whatever field they stand (seed 8)', () => {
  const random = seeded(8);
  const spoil = (value: unknown): boolean => {
    for (const [key, field] of Object.entries(value as Record<string, unknown>)) {
      if (typeof field === 'object' && field !== null && random() < 0.7) {
        if (spoil(field)) return true;
      } else if (typeof field === 'number' && random() < 0.3) {
        (value as Record<string, unknown>)[key] = random() < 0.5 ? Number.NaN : Number.POSITIVE_INFINITY;
        return true;
      }
    }
    return false;
  };
  for (let round = 0; round < 200; round++) {
    for (const { kind, body } of someBodies(random)) {
      if (!spoil(body)) continue;
      expect(() => canonicalJson(body)).toThrowError(expect.objectContaining({ code: 'bad-value' }));
      expect(() => spellBody(kind, body)).toThrowError(expect.objectContaining({ code: 'bad-value' }));
    }
  }
});
