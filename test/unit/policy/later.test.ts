// What others know of the pages of a beginning: it counts by how many answers it rests on, within bounds, and changes
// which pages move.
import { expect, test } from 'vitest';
import { Later } from '../../../policy/later.ts';

const report = (answers: number, epsilon2: number) => ({ page: 3, answers, k: [epsilon2, 0], v: [epsilon2, epsilon2] });
const expectedOf = (answers: number, epsilon2: number): number => {
  const later = new Later();
  later.know(report(answers, epsilon2));
  return later.expected(0, 3, 0, 1e-4);
};

test('what is told counts more with every answer, and never more than half', () => {
  const told = [1, 5, 20, 1000].map((answers) => expectedOf(answers, 1.65e-3));
  expect(told).toEqual([...told].sort((a, b) => a - b));
  expect(told[1]).toBeCloseTo((1e-3 + 1e-4) / 2, 10);
  expect(told[3]).toBeCloseTo((1e-3 + 1e-4) / 2, 10);
});

test('a page, layer or side that nobody measured is expected as the session itself does', () => {
  const later = new Later();
  expect(later.isEmpty).toBe(true);
  later.know(report(5, 1e-3));
  expect(later.isEmpty).toBe(false);
  expect(later.expected(1, 3, 0, 1e-4)).toBe(1e-4);
  expect(later.expected(0, 2, 0, 1e-4)).toBe(1e-4);
  expect(later.expected(7, 3, 1, 1e-4)).toBe(1e-4);
});

test('that little was asked so far makes nothing cheaper', () => {
  expect(expectedOf(1000, 1e-6)).toBeCloseTo(1e-4, 12);
});

test('whoever tells nonsense raises a price by a bounded factor', () => {
  expect(expectedOf(1e9, 1e9)).toBeCloseTo((1e-2 + 1e-4) / 2, 10);
  expect(expectedOf(5, Number.NaN)).toBe(1e-4);
});
