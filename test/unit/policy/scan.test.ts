/** Tries the scan against a reference of one line per rule, and that a quiet scan costs nothing. */

import { expect, test } from 'vitest';
import { Scan } from '../../../policy/index.ts';
import { mulberry32 } from '../../random.ts';

const BANDS = [
  {
    steps: [
      { enter: 0.95, leave: 0.9 },
      { enter: 1, leave: 0.95 },
    ],
  },
  { steps: [{ enter: 3, leave: 2 }] },
];
const found = (scan: Scan): number[][] => {
  const count = scan.run();
  return Array.from({ length: count }, (_, i) => [...scan.crossings.subarray(3 * i, 3 * i + 3)]);
};

// Moves one signal by hand through its steps and back: events come at the bounds, in order, and not twice.
test('only crossings are reported, with hysteresis', () => {
  const scan = new Scan(3, BANDS);
  expect(found(scan)).toEqual([]);
  const at = 1;
  const steps: [number, number[][]][] = [
    [0.94, []],
    [0.95, [[0, 1, 1]]],
    [0.92, []],
    [1.2, [[0, 1, 2]]],
    [0.951, []],
    [0.94, [[0, 1, -2]]],
    [0.9, []],
    [0.5, [[0, 1, -1]]],
    [
      7,
      [
        [0, 1, 1],
        [0, 1, 2],
      ],
    ],
    [Number.NaN, []],
    [
      0,
      [
        [0, 1, -2],
        [0, 1, -1],
      ],
    ],
  ];
  for (const [value, events] of steps) {
    scan.signals[at] = value;
    expect(found(scan), String(value)).toEqual(events);
    expect(found(scan), `${value} again`).toEqual([]);
  }
});

// Random walks of all signals, compared with a plain reference that keeps one level per signal.
test('agrees with a plain reference on random walks', () => {
  const seed = 20_250;
  const next = mulberry32(seed);
  const layers = 5;
  const scan = new Scan(layers, BANDS);
  const levels = new Map<string, number>();
  for (let round = 0; round < 3000; round++) {
    const expected: number[][] = [];
    for (const [band, { steps }] of BANDS.entries()) {
      for (let layer = 0; layer < layers; layer++) {
        const value = (scan.signals[band * layers + layer]! + (next() - 0.5) * 0.3 + 4) % 4;
        scan.signals[band * layers + layer] = value;
        let level = levels.get(`${band} ${layer}`) ?? 0;
        for (; steps[level] !== undefined && value >= steps[level]!.enter; level++)
          expected.push([band, layer, level + 1]);
        for (; level > 0 && value < steps[level - 1]!.leave; level--) expected.push([band, layer, -level]);
        levels.set(`${band} ${layer}`, level);
      }
    }
    expect(found(scan), `seed ${seed} round ${round}`).toEqual(expected);
  }
});

// Two hundred thousand quiet runs must not grow the heap: whatever they allocated would show, since nothing is
// collected in between.
test('a scan without crossings allocates nothing', () => {
  const scan = new Scan(80, BANDS);
  for (let i = 0; i < 10_000; i++) scan.run();
  const before = process.memoryUsage().heapUsed;
  for (let i = 0; i < 200_000; i++) scan.run();
  // One object of the smallest size per run would be over 3 MB.
  expect(process.memoryUsage().heapUsed - before).toBeLessThan(1e6);
});
