// Products of matrices through the binding: the sums of doubles in order, rounded once.
import { expect, test } from 'vitest';
import { matmulF64 } from '../../../native/index.ts';
import { seeded } from '../../random.ts';
import { refusal } from '../../refusal.ts';

test.each([
  [1, 1, 1],
  [3, 5, 7],
  [32, 17, 65],
])('%i x %i and %i columns', (rows, inner, columns) => {
  const random = seeded(rows + inner + columns);
  const drawn = (count: number): Float32Array => Float32Array.from({ length: count }, () => random() - 0.5);
  const [x, m] = [drawn(rows * inner), drawn(inner * columns)];
  const expected = Float32Array.from({ length: rows * columns }, (_, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    let sum = 0;
    for (let i = 0; i < inner; i++) sum += x[row * inner + i]! * m[i * columns + column]!;
    return sum;
  });
  expect(matmulF64(x, rows, m, columns)).toEqual(expected);
});

test.each([
  [0, 2 ** 30, 2 ** 30],
  [0, 2 ** 16, 2 ** 15],
  [1, 2 ** 16, 2 ** 15],
])('with rows of %i numbers, %i x %i are refused, which no array holds', (inner, rows, columns) => {
  const [x, m] = [new Float32Array(inner * rows), new Float32Array(inner * columns)];
  expect(refusal(() => matmulF64(x, rows, m, columns))).toMatchObject({ code: 'bad-argument' });
});
