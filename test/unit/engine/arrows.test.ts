// Arrows of the machine that real caches take when memory becomes short and is there again; canaries.test.ts has those
// of quality.
import { expect, test } from 'vitest';
import { openCache } from '../../../engine/index.ts';
import { Arrows, createPolicy, type Policy } from '../../../policy/index.ts';

const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const CHUNK = 64;

/** The price policy, with the arrows of its sessions counted. */
function watched(arrows: Arrows): Policy {
  const policy = createPolicy('price');
  return {
    ...policy,
    open: (context) => {
      const session = policy.open(context);
      const decide = session.decide.bind(session);
      return Object.assign(session, {
        decide: (situation: Parameters<typeof decide>[0]) => {
          const decisions = decide(situation);
          arrows.see(session.summary().layerStates);
          return decisions;
        },
      });
    },
  };
}

/** Numbers from −1 to 1 that follow from a seed. */
function numbers(count: number, seed: number): Float32Array {
  let state = seed >>> 0;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  });
}

test('a cache that fills its budget, is asked for memory and then for less of it takes every arrow of pressure and of open tiers', async () => {
  const arrows = new Arrows();
  const cache = await openCache({ ...SHAPE, kvBudget: '45%', tokensExpected: 1536, policy: watched(arrows) });
  const { layers, queryHeads, kvHeads, headDim } = SHAPE;
  let seed = 1;
  const step = (tokens: number): void => {
    for (let layer = 0; layer < layers; layer++) {
      const [k, v] = [numbers(tokens * kvHeads * headDim, seed++), numbers(tokens * kvHeads * headDim, seed++)];
      cache.append(layer, k, v);
      cache.attention(layer, numbers(tokens * queryHeads * headDim, seed++));
    }
  };
  try {
    for (let tokens = 0; tokens < 1408; tokens += CHUNK) step(CHUNK);
    cache.lowMemory = true;
    for (let tokens = 0; tokens < 256; tokens++) step(1);
    cache.lowMemory = false;
    for (let tokens = 0; tokens < 64; tokens++) step(1);
    const taken = [...arrows.counts].flatMap(([arrow, count]) => (count > 0 ? [arrow] : []));
    expect(taken).toEqual(
      expect.arrayContaining([
        'storage: exact → warm',
        'storage: warm → archive',
        'storage: archive → warm',
        'storage: warm → exact',
        'pressure: relaxed → elevated',
        'pressure: elevated → critical',
        'pressure: critical → elevated',
        'pressure: elevated → relaxed',
      ]),
    );
  } finally {
    await cache.close();
  }
});
