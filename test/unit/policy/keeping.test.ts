// What is kept goes by idle time × bytes ÷ what it takes to have it again.
import { expect, test } from 'vitest';
import { gainOf, goesFirst, type KeptThing } from '../../../policy/index.ts';

const thing = (id: string, more: Partial<KeptThing> = {}): KeptThing => ({
  ...{ id, idleMs: 1000, bytes: 1000, restoreMs: 10 },
  ...more,
});

test('what is idle for longer, larger or faster to have again goes first; of equals the first by name', () => {
  const usual = thing('b');
  expect(goesFirst([usual, thing('c', { idleMs: 1001 })])!.id).toBe('c');
  expect(goesFirst([usual, thing('c', { bytes: 1001 })])!.id).toBe('c');
  expect(goesFirst([usual, thing('c', { restoreMs: 9 })])!.id).toBe('c');
  for (const others of [
    [thing('a'), usual],
    [usual, thing('a')],
  ])
    expect(goesFirst(others)!.id).toBe('a');
  expect(goesFirst([])).toBeUndefined();
});

test('a factor on one is a factor on what is gained, and what takes no time is worth no more than a hundredth of a ms', () => {
  const { idleMs, bytes, restoreMs } = thing('a');
  expect(gainOf(thing('a'))).toBe((idleMs * bytes) / restoreMs);
  expect(gainOf(thing('a', { restoreMs: 0 }))).toBe(gainOf(thing('a', { restoreMs: 0.01 })));
});
