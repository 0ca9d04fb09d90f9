/** Tries the heap of offers against sorting: random adds and removals, keys with many ties. */

import { expect, test } from 'vitest';
import { SlotHeap } from '../../../policy/heap.ts';
import { mulberry32 } from '../../random.ts';

test('the first slot is always the least of those inside', () => {
  const seed = 5;
  const next = mulberry32(seed);
  const keys = Array.from({ length: 500 }, () => Math.floor(next() * 40));
  const before = (a: number, b: number): boolean => (keys[a]! - keys[b]! || a - b) < 0;
  const heap = new SlotHeap(before);
  const inside = new Set<number>();
  for (let round = 0; round < 5000; round++) {
    const slot = Math.floor(next() * keys.length);
    if (next() < 0.55) {
      heap.add(slot);
      inside.add(slot);
    } else {
      heap.remove(slot);
      inside.delete(slot);
    }
    const least = [...inside].reduce((best, one) => (best < 0 || before(one, best) ? one : best), -1);
    expect(heap.first, `seed ${seed} round ${round}`).toBe(least);
    expect(heap.size).toBe(inside.size);
    expect(heap.has(slot)).toBe(inside.has(slot));
  }
});
