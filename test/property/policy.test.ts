/**
 * Random sessions of every policy that steers: shapes, budgets, floors, errors, drifts and step sizes by fast-check.
 * The simulation checks every move; a budget that cannot be kept must end in the one error that says so.
 */

import fc from 'fast-check';
import { expect, test } from 'vitest';
import { KvError } from '../../native/index.ts';
import { createPolicy, defaultThresholds, thresholdOf } from '../../policy/index.ts';
import { mulberry32 } from '../random.ts';
import { contextOf, epsilonOf, f16Bytes, simulate } from '../suite/policy-simulation.ts';

const session = fc.record({
  id: fc.constantFrom('price', 'price', 'price', 'uniform', 'age'),
  seed: fc.integer({ min: 0, max: 1e6 }),
  layers: fc.integer({ min: 1, max: 6 }),
  kvHeads: fc.integer({ min: 1, max: 4 }),
  headDim: fc.constantFrom(64, 128),
  windowFormat: fc.constantFrom('q8' as const, 'f16' as const),
  pages: fc.integer({ min: 2, max: 16 }),
  chunk: fc.constantFrom(1, 32, 128),
  share: fc.double({ min: 0.15, max: 0.7, noNaN: true }),
  foretold: fc.constantFrom('right', 'short', 'not'),
  floor: fc.constantFrom(null, { k: 'rot4' as const, v: 'rot2' as const }, { k: 'rot2' as const, v: 'rot4' as const }),
  start: fc.constantFrom(0, 1e-9, 1e-7),
  keysCheap: fc.boolean(),
});

test('no policy plans an unsafe move, leaves its budget, or decides differently the second time', () => {
  let kept = 0;
  fc.assert(
    fc.property(session, (s) => {
      const set = defaultThresholds(s.layers);
      const thresholds = { ...set.thresholds, 'price.start': { ...thresholdOf(set, 'price.start'), value: s.start } };
      const context = contextOf({
        layers: s.layers,
        kvHeads: s.kvHeads,
        headDim: s.headDim,
        windowFormat: s.windowFormat,
        floor: s.floor,
        thresholds: { thresholds },
        skipLayers: s.layers > 2 ? [1] : [],
      });
      const tokens = s.pages * 128;
      const table = epsilonOf(s.seed);
      const run = () => {
        const noise = mulberry32(s.seed);
        return simulate({
          policy: createPolicy(s.id),
          context,
          tokens,
          chunk: s.chunk,
          tokensExpected: s.foretold === 'right' ? tokens : s.foretold === 'short' ? tokens / 2 : null,
          budgetBytes: context.fixedBytes + Math.floor(s.share * f16Bytes(context, tokens)),
          epsilon: s.keysCheap ? (layer, page, side) => table(layer, page, side === 'k' ? 'v' : 'k') : table,
          drift: () => (noise() < 0.1 ? null : 0.2 + 2 * noise()),
        });
      };
      try {
        const first = run();
        expect(JSON.stringify(run().entries)).toBe(JSON.stringify(first.entries));
        kept++;
      } catch (error) {
        if (!(error instanceof KvError)) throw error;
        expect(error.code).toBe('budget-too-small');
      }
    }),
    // A failure prints its seed and path.
    { numRuns: 120, seed: 4711 },
  );
  expect(kept, 'sessions that kept their budget').toBeGreaterThan(40);
});
