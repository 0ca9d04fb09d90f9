// Thousands of sessions on one budget without a model, by the policies of the pool that engines have: after no step do
// all together take a byte more than the budget, whoever gives up bytes and whatever becomes of those that wait.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { LONGEST, POOL_POLICIES, type PoolPolicy, RETURNING } from '../../policy/index.ts';
import { Ladder, Pages } from '../../scripts/market/pages.ts';
import { CLAIRVOYANT, type Parking, type Simulated, Simulation } from '../../scripts/market/simulation.ts';
import { type Conversation, recordedTrace, syntheticTrace } from '../../scripts/market/traces.ts';
import { isForHome, seedFrom, TIER, volume } from '../tier.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const SMOLLM2 = { layers: 30, queryHeads: 9, kvHeads: 3, headDim: 64 };
const LLAMA_8B = { layers: 32, queryHeads: 32, kvHeads: 8, headDim: 128 };
const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? seedFrom(20261127));
const STEPS = TIER === 'home' ? 5000 : volume('market steps');
const folder = scratchFolders();

const EVEN = POOL_POLICIES.find(({ id }) => id === 'even')!;
const told = (given: Partial<Simulated> = {}): Simulated => ({
  ...{ ladder: new Ladder(SMOLLM2), budgetBytes: 2 ** 30, policy: EVEN, parking: LONGEST, idle: 'keep' },
  ...{ readsPerSecond: 2000, writesPerSecond: 1000, lifeMs: 600_000, stepsMax: 5000 },
  ...given,
});
const trace = (seed = SEED, contextTokens = 8192): Iterable<Conversation> =>
  syntheticTrace({ seed, conversations: Number.POSITIVE_INFINITY, arrivalsPerSecond: 0.5, contextTokens });

describe(`sessions on one budget, seed ${SEED}`, () => {
  it(`never take a byte more than it in ${STEPS} steps`, { timeout: 1_200_000 }, () => {
    const row = new Simulation(told({ stepsMax: STEPS }), trace()).run();
    console.log(JSON.stringify(row));
    expect(row).toMatchObject({ steps: STEPS, overBudget: 0 });
    // It was short all the time, and nearly all of it was used.
    expect(row.peakBytes / row.budgetBytes).toBeGreaterThan(0.999);
    expect(row.turns).toBeGreaterThan(row.askings);
    expect(row.askings).toBeGreaterThan(STEPS / 10);
  });

  it.each(
    POOL_POLICIES.flatMap((policy) => (['disk', 'reread', 'keep'] as const).map((idle) => ({ policy, idle }))).filter(
      (_, at) => isForHome(at, 4),
    ),
  )(
    'nor by $policy.id where those that wait go to $idle',
    ({ policy, idle }: { policy: PoolPolicy; idle: Simulated['idle'] }) => {
      const row = new Simulation(told({ policy, idle, budgetBytes: 2 ** 28 }), trace()).run();
      expect(row).toMatchObject({ steps: 5000, overBudget: 0, policy: policy.id, idle });
      expect([row.parked > 0, row.cameBack > 0, row.secondsLost > 0]).toEqual(Array(3).fill(idle !== 'keep'));
      expect(row.rereadTokens > 0).toBe(idle === 'reread');
    },
  );

  it('come back least to bytes that went where it is known when they do', () => {
    const run = (parking: Parking) => {
      const told8 = told({ idle: 'disk', parking, budgetBytes: 2 ** 29, lifeMs: 1_800_000, stepsMax: 20_000 });
      return new Simulation(told8, trace(1)).run();
    };
    const [lru, returning, clairvoyant] = [LONGEST, RETURNING, CLAIRVOYANT].map(run);
    expect(lru!.otherChoices).toBe(0);
    expect(returning!.otherChoices).toBeGreaterThan(0);
    expect(returning!.refaultedBytes).toBeLessThan(1.1 * lru!.refaultedBytes);
    expect(clairvoyant!.refaultedBytes).toBeLessThan(0.7 * lru!.refaultedBytes);
  });

  it('are the same again for the same seed, and those of an 8B model within 64 GiB', () => {
    const run = () => new Simulation(told({ idle: 'reread' }), trace()).run();
    expect(run()).toEqual(run());
    const large = told({ ladder: new Ladder(LLAMA_8B), budgetBytes: 2 ** 36, stepsMax: 20_000 });
    const row = new Simulation(large, trace(SEED, 32_768)).run();
    expect(row).toMatchObject({ overBudget: 0, refused: 0 });
    expect(row.openMost).toBeGreaterThan(200);
  });

  it('write at the bits that their pages have: all of the window where there is room, the lowest where there is not', () => {
    const ladder = new Ladder(SMOLLM2);
    const [highest, lowest] = [ladder.bits[0]!, ladder.bits.at(-1)!];
    const roomy = new Simulation(told({ budgetBytes: 2 ** 40 }), trace()).run();
    expect([roomy.meanBits, roomy.worstBits, roomy.askings]).toEqual([
      expect.closeTo(highest, 9),
      expect.closeTo(highest, 9),
      0,
    ]);
    const pages = new Pages(ladder);
    for (let n = 0; n < 80; n++) pages.append(128);
    const before = pages.bytes;
    expect(pages.giveUp(Number.POSITIVE_INFINITY)).toBe(before - pages.bytes);
    expect(pages.price).toBeNull();
    expect(pages.giveUp(1)).toBe(0);
    expect(pages.bytes).toBeLessThanOrEqual(ladder.leastBytes(80 * 128));
    expect(pages.bits).toBeCloseTo((lowest * 78 + highest * 2) / 80, 0);
  });
});

describe('a recorded trace', () => {
  it('is what was written, and refused where it is none', () => {
    const path = join(folder(), 'trace.jsonl');
    const some: Conversation[] = [];
    for (const one of syntheticTrace({ seed: 3, conversations: 40, arrivalsPerSecond: 1, contextTokens: 4096 }))
      some.push(one);
    writeFileSync(path, some.map((one) => `${JSON.stringify(one)}\n`).join(''));
    expect(recordedTrace(path)).toEqual(some);
    const row = new Simulation(told({ stepsMax: 1e9 }), recordedTrace(path)).run();
    const written = some.flatMap(({ turns }) => turns.map(({ answerTokens }) => answerTokens));
    expect(row).toMatchObject({ sessions: 40, refused: 0, overBudget: 0 });
    expect(written.reduce((sum, tokens) => sum + tokens, 0)).toBeGreaterThan(10_000);
    writeFileSync(path, '{"arriveMs":5,"turns":[]}\n');
    expect(() => recordedTrace(path)).toThrow(/^line 1 of .* is no conversation/);
    const [first] = some;
    writeFileSync(path, [9, 4].map((arriveMs) => JSON.stringify({ ...first, arriveMs })).join('\n'));
    expect(() => recordedTrace(path)).toThrow(/^line 2 of .* came before/);
  });
});
