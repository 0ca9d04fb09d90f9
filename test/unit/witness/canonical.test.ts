// One spelling per fact: order of construction, absent fields and odd keys make no difference, and spelling what was parsed
// gives the same bytes again.
import { expect, it } from 'vitest';
import { canonicalJson } from '../../../witness/canonical.ts';

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
