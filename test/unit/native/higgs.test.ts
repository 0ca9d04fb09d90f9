// HIGGS by its definition: every point of a grid is the mean of its cell, the grids err as much as they should, codes
// are nearest points, and pairs are worth more than single channels at equal bits (T10).
import { describe, expect, test } from 'vitest';
import { PAGE_TOKENS } from '../../../native/format.ts';
import { CODECS, type ReferenceCodec } from '../../../native/reference/index.ts';
import { GRIDS } from '../../../native/reference/tables.gen.ts';
import { relativeError } from '../../native/dense.ts';
import { gaussianRows } from '../../native/rows.ts';

/**
 * Cells of a grid under N(0, I): mass, mean, and the mean squared error of one coordinate, by a lattice of midpoints.
 */
function cellsOf({ divisor, points }: (typeof GRIDS)[16]) {
  const [reach, steps] = [5.5, 440];
  const h = (2 * reach) / steps;
  const cells = points.map(() => ({ mass: 0, x: 0, y: 0 }));
  let [total, error] = [0, 0];
  for (let i = 0; i < steps; i++) {
    for (let j = 0; j < steps; j++) {
      const [x, y] = [-reach + (i + 0.5) * h, -reach + (j + 0.5) * h];
      const mass = Math.exp(-(x * x + y * y) / 2);
      let [best, at] = [Number.POSITIVE_INFINITY, 0];
      for (const [k, [p, q]] of points.entries()) {
        const away = (x - p / divisor) ** 2 + (y - q / divisor) ** 2;
        if (away < best) [best, at] = [away, k];
      }
      cells[at]!.mass += mass;
      cells[at]!.x += mass * x;
      cells[at]!.y += mass * y;
      total += mass;
      error += (mass * best) / 2;
    }
  }
  return { cells, error: error / total };
}

// What one channel errs at as many bits: 0.0095, 0.0345 and 0.1175 (Lloyd and Max).
describe.each([
  [256, 0.00797, 0.0095],
  [64, 0.0299, 0.03455],
  [16, 0.1077, 0.1175],
] as const)('the grid of %i pairs', (count, expected, single) => {
  const grid = GRIDS[count];
  const { cells, error } = cellsOf(grid);

  test('has its points at the means of their cells', () => {
    expect(grid.points).toHaveLength(count);
    for (const [k, { mass, x, y }] of cells.entries()) {
      // Integers are off by half a unit at most, which moves the cells of the neighbours a little as well.
      expect(Math.abs(x / mass - grid.points[k]![0] / grid.divisor)).toBeLessThan(1.5 / grid.divisor);
      expect(Math.abs(y / mass - grid.points[k]![1] / grid.divisor)).toBeLessThan(1.5 / grid.divisor);
    }
  });

  test('errs as much as it should, less than single channels do', () => {
    expect(Math.abs(error / expected - 1)).toBeLessThan(0.01);
    expect(error).toBeLessThan(single);
    expect(error).toBeGreaterThan(1 / count); // what information theory allows
  });
});

test.each([
  ['higgs4', 'turbo4', 256],
  ['higgs3', 'turbo3', 64],
  ['higgs2', 'turbo2', 16],
] as const)('%s errs less than %s, on Gaussian rows', (pairs, single, count) => {
  const rows = gaussianRows(64, 21);
  const error = (format: typeof pairs | typeof single): number => {
    const codec = CODECS[format] as unknown as ReferenceCodec;
    return relativeError(codec.decode(codec.encode(rows, 64)), rows);
  };
  expect(error(pairs)).toBeLessThan(error(single));
  const { codes } = CODECS[pairs].encode(rows, 64);
  expect(codes).toHaveLength((PAGE_TOKENS * 64) / 2);
  expect(Math.max(...codes)).toBeLessThan(count);
});
