// Sessions of a model of which little is known measure what errors in single layers cost, and leave it to later ones:
// these begin with other coefficients, which say from where they are. Where a law is known well nothing is measured.
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { logDir, memoryDir } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { importThresholds, toThresholdFile } from '../../../../memory/index.ts';
import { createPolicy, defaultLaw, defaultThresholds } from '../../../../policy/index.ts';
import { explain, readLog, replaySession } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL, openEngine, withEngine } from '../on-reference.ts';

const TOKENS = 1800;
const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

async function read(by: Engine, seed: number, options: object = {}): Promise<string> {
  const session = await by.openSession({ kvBudget: '25%', tokensExpected: TOKENS, ...options });
  await session.generate(ids(TOKENS - 1, seed), { maxTokens: 1 }).result;
  await session.close();
  return session.id;
}

/** A state folder in which nothing is known of the model but what is assumed of any. */
async function unknownModel(): Promise<string> {
  const dir = folder();
  const runtime = await Runtime.open({ model: MODEL, threads: 1 });
  const target = { modelDigest: runtime.model.digest, shape: runtime.shape };
  const { layers } = runtime.shape;
  await runtime.close();
  const assumed = { ...defaultThresholds(layers), law: defaultLaw(layers) };
  importThresholds(memoryDir(dir), toThresholdFile(assumed, target, null), target);
  return dir;
}

it('a session of a model with a law of its own measures nothing', async () => {
  const id = await read(engine, 1);
  expect(entriesOf(state, id, 'close')[0]!.body.costs).toBeUndefined();
});

it('others leave what they found, and the next one begins with it, says so and is replayed', async () => {
  const dir = await unknownModel();
  const learner = await openEngine(dir);
  try {
    const [first, second, third] = [await read(learner, 1), await read(learner, 2), await read(learner, 3)];
    const costs = entriesOf(dir, first, 'close')[0]!.body.costs!;
    expect(costs.length).toBeGreaterThan(5);
    const places = costs.map(({ layer, side }) => `${layer}${side}`);
    expect(new Set(places).size).toBe(places.length);
    for (const { cost, rows } of costs) {
      expect(cost).toBeGreaterThan(1e-3);
      expect(cost).toBeLessThan(1e3);
      expect(rows).toBeGreaterThanOrEqual(4);
    }
    const begun = (id: string) => entriesOf(dir, id, 'open')[0]!.body.context.thresholds;
    expect(begun(first).law!.coefficient).toEqual(defaultLaw(6).coefficient);
    const { law, sources } = begun(third);
    expect(new Set(law!.coefficient.k.map(({ value }) => value)).size).toBeGreaterThan(1);
    expect(sources!.law).toMatchObject({ origin: 'learned', samples: 2 });
    expect(sources!.law!.evidence).toHaveLength(2);
    const [decision] = entriesOf(dir, third, 'decision');
    const { knownBefore } = explain(logDir(dir), decision!.seq);
    expect(knownBefore.find(({ what }) => what === 'learned')).toMatchObject({
      source: 'what 2 sessions found errors in single layers to cost',
    });
    for (const id of [first, second, third])
      expect(replaySession([...readLog(logDir(dir), { session: id })], createPolicy)).toMatchObject({ equal: true });
  } finally {
    await learner.close();
  }
});

it('those of which least is known come first, and no share of time means none', async () => {
  const dir = await unknownModel();
  const learner = await openEngine(dir);
  try {
    const share = (value: number) => ({ thresholdValues: { 'probe.layers': value } });
    const none = await read(learner, 1, share(0));
    expect(entriesOf(dir, none, 'close')[0]!.body.costs).toBeUndefined();
    const places = async (seed: number): Promise<string[]> => {
      const costs = entriesOf(dir, await read(learner, seed, share(0.02)), 'close')[0]!.body.costs!;
      return costs.map(({ layer, side }) => `${layer}${side}`);
    };
    const [first, second] = [await places(2), await places(3)];
    expect(first.length).toBeGreaterThan(0);
    expect(first.length).toBeLessThan(12);
    expect(second.filter((place) => first.includes(place))).toEqual([]);
  } finally {
    await learner.close();
  }
});
