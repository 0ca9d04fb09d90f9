/** Every bound has a source, and a set that contradicts itself is refused with the numbers. */
import { expect, test } from 'vitest';
import {
  checkThresholds,
  defaultThresholds,
  type Estimate,
  type Law,
  type ThresholdId,
  type ThresholdSet,
  thresholdOf,
} from '../../../policy/index.ts';

test('the defaults pass, and each of them says where it comes from', () => {
  const set = defaultThresholds(30);
  checkThresholds(set, 30);
  expect(set.c).toBe(4);
  expect(new Set([...set.gains.k, ...set.gains.v])).toEqual(new Set([1]));
  for (const [id, threshold] of Object.entries(set.thresholds)) {
    expect(threshold.id).toBe(id);
    expect(threshold.source.length, id).toBeGreaterThan(5);
    expect(threshold.unit.length, id).toBeGreaterThan(0);
    expect(threshold.origin).toBe('default');
  }
  expect(JSON.parse(JSON.stringify(set))).toEqual(set);
});

test('ids that a set leaves out have their default, ids that nobody knows pass', () => {
  const set: ThresholdSet = { ...defaultThresholds(2), thresholds: {} };
  checkThresholds(set, 2);
  expect(thresholdOf(set, 'pressure.enter').value).toBe(0.95);
  const more = { ...thresholdOf(set, 'price.start'), id: 'law.c', value: 1e9 };
  checkThresholds({ ...set, thresholds: { 'law.c': more } }, 2);
});

test.each<[string, (set: ThresholdSet) => unknown]>([
  ['a price below 0', (set) => withValue(set, 'price.start', -1)],
  ['not a number', (set) => withValue(set, 'price.slack', Number.NaN)],
  ['infinity', (set) => withValue(set, 'dwell.tokens', Number.POSITIVE_INFINITY)],
  ['a way out above the way in', (set) => withValue(set, 'pressure.leave', 0.96)],
  ['a way out at the way in', (set) => withValue(set, 'quality.watched.leave', 0.5)],
  [
    'degraded before watched',
    (set) => withValue(withValue(set, 'quality.degraded', 0.45), 'quality.degraded.leave', 0.41),
  ],
  ['too few gains', (set) => ({ ...set, gains: { ...set.gains, k: [1] } })],
  ['a gain of 0', (set) => ({ ...set, gains: { ...set.gains, v: [1, 0] } })],
  ['no c', (set) => ({ ...set, c: Number.NaN })],
  ['another version', (set) => ({ ...set, version: 2 })],
])('%s is refused', (_name, change) => {
  expect(() => checkThresholds(change(defaultThresholds(2)) as ThresholdSet, 2)).toThrow(
    expect.objectContaining({ code: 'bad-thresholds' }),
  );
});

const one: Estimate = { value: 1, sd: 0.5, samples: 0 };
const law: Law = {
  coefficient: { k: [one, one], v: [one, one] },
  text: one,
  offset: one,
  fade: one,
  epsilon: { k: [{ rot4: one }, {}], v: [] },
};

test('a law of as many layers passes, and survives as JSON', () => {
  const set = { ...defaultThresholds(2), law, ranges: [{ logId: 'a', from: 0, to: 9 }] };
  checkThresholds(set, 2);
  checkThresholds(JSON.parse(JSON.stringify(set)), 2);
});

test.each<[path: string, change: (law: Law) => unknown]>([
  ['law.coefficient.k has 1 entry for 2 layers', (l) => ({ ...l, coefficient: { ...l.coefficient, k: [one] } })],
  ['law.coefficient.v.1.sd', (l) => ({ ...l, coefficient: { ...l.coefficient, v: [one, { ...one, sd: -1 }] } })],
  ['law.coefficient.k is no list', (l) => ({ ...l, coefficient: undefined })],
  ['law.text.value', (l) => ({ ...l, text: { ...one, value: 0 } })],
  ['law.offset.value', (l) => ({ ...l, offset: undefined })],
  ['law.fade.samples', (l) => ({ ...l, fade: { ...one, samples: Number.NaN } })],
  ['law.epsilon.v has 1 entry', (l) => ({ ...l, epsilon: { k: [], v: [{}] } })],
  ['law.epsilon.k.0 names rot5', (l) => ({ ...l, epsilon: { k: [{ rot5: one }, {}], v: [] } })],
  ['law.epsilon.k.1.rot2.value', (l) => ({ ...l, epsilon: { k: [{}, { rot2: { ...one, value: 1e13 } }], v: [] } })],
  ['law.epsilon.k.1 is missing', (l) => ({ ...l, epsilon: { k: [{}, null], v: [] } })],
])('%s: a law that cannot be used is refused', (path, change) => {
  const set = { ...defaultThresholds(2), law: change(law) as Law };
  expect(() => checkThresholds(set, 2)).toThrow(
    expect.objectContaining({ code: 'bad-thresholds', message: expect.stringContaining(path) }),
  );
});

test('layer counts that cannot be are refused before anything is allocated', () => {
  for (const layers of [0, -1, 1.5, 1e9, Number.NaN])
    expect(() => defaultThresholds(layers)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
});

function withValue(set: ThresholdSet, id: ThresholdId, value: number): ThresholdSet {
  return { ...set, thresholds: { ...set.thresholds, [id]: { ...thresholdOf(set, id), value } } };
}
