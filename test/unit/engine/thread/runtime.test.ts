// Several models in one thread: sessions of all of them share a budget, a schedule and a log, answer what they would
// answer in an engine of their own, take room from idle sessions of other models, and find no page of another model.
// Nothing shorter has two models at work beside each other.

import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  createEngine,
  createRuntime,
  type Engine,
  type EngineRuntime,
  type GenerateOptions,
  type RuntimeOptions,
} from '../../../../engine/index.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { Commons } from '../../../../engine/thread/commons.ts';
import { commonsOptions, modelOptions } from '../../../../engine/thread/engine-options.ts';
import { Host } from '../../../../engine/thread/host.ts';
import { readLog } from '../../../../witness/index.ts';
import { hfFiles, readFamily } from '../../../model/family-files.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { MODEL } from '../on-reference.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const folder = scratchFolders();
const models = temporaryFolder();
afterAll(() => models.remove());

/** Two small models of random weights and the same shape, so that a page of one would fit the other. */
const [OTHER, ALIKE] = ['llama', 'qwen3'].map((name) => {
  for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) models.write(`${name}/${file}`, content);
  return join(models.dir, name);
}) as [string, string];

/** Tokens that every model here has. */
const ids = (count: number, seed = 1): number[] =>
  Array.from({ length: count }, (_, i) => 3 + ((i * 7 + seed * i * i) % 20));
/** No answer comes to its end by itself. */
const ENDS = { 0: -100, 1: -100 };
const ANSWER: GenerateOptions = { maxTokens: 24, temperature: 1, seed: 4, logitBias: ENDS, logprobs: 1 };

let runtime: EngineRuntime;
afterEach(() => runtime.close());
const start = async (options: RuntimeOptions = {}): Promise<void> => {
  runtime = await createRuntime({ stateDir: null, ...options });
};
const open = (model: string): Promise<Engine> => runtime.openEngine({ model, threads: 1 });

async function tokensOf(engine: Engine, prompt: readonly number[]): Promise<readonly number[]> {
  const session = await engine.openSession();
  const { logprobs } = await session.generate(prompt, ANSWER).result;
  await session.close();
  return logprobs!.map(({ id }) => id);
}

describe('sessions of several models', () => {
  let alone: (readonly number[])[];
  beforeAll(async () => {
    alone = [];
    for (const model of [MODEL, OTHER]) {
      await using engine = await createEngine({ model, threads: 1, stateDir: null });
      for (const seed of [1, 2]) alone.push(await tokensOf(engine, ids(300, seed)));
    }
  });

  it('answer at once what they answer in engines of their own', async () => {
    await start();
    const engines = [await open(MODEL), await open(OTHER)];
    const asked = engines.flatMap((engine) => [1, 2].map((seed) => tokensOf(engine, ids(300, seed))));
    expect(await Promise.all(asked)).toEqual(alone);
  });

  it('take turns, so that none waits for the end of another', async () => {
    await start();
    const sessions = await Promise.all([MODEL, OTHER].map(async (model) => (await open(model)).openSession()));
    const most = 60;
    const answers = sessions.map((session) => session.generate(ids(20), { ...ANSWER, maxTokens: most }).result);
    await Promise.race(answers);
    for (const session of sessions) expect((await session.report()).tokens).toBeGreaterThan(20 + most / 2);
    await Promise.all(answers);
  });

  it('are in one log, each with the digest of its model', async () => {
    const stateDir = join(folder(), 'state');
    await start({ stateDir });
    const engines = [await open(MODEL), await open(OTHER)];
    for (const engine of engines) await tokensOf(engine, ids(40));
    const digests = engines.map(({ info }) => info.digest);
    await runtime.close();
    const opened = [...readLog(logDir(stateDir), { kinds: ['open'] })];
    expect(opened.map(({ body }) => (body as { model: { digest: string } }).model.digest)).toEqual(digests);
    expect(readdirSync(stateDir)).toContain('log');
  });
});

describe('one budget', () => {
  const BUDGET = 1.6 * 2 ** 20;

  it('is kept by all: who needs room has it from an idle session of another model, which comes back', async () => {
    const options = { ...commonsOptions({ stateDir: null, kvBudget: BUDGET }), masterKeys: [] };
    const commons = await Commons.open(options);
    const hosts: Host[] = [];
    for (const model of [MODEL, OTHER]) hosts.push(await Host.openIn(commons, modelOptions({ model, threads: 1 })));
    const [big, small] = hosts as [Host, Host];
    const session = async (host: Host): Promise<Session> => {
      const opened = await host.opening({ policy: 'none' }, (setup) => Session.open(host.runtime, setup));
      host.keep(opened);
      return opened;
    };
    const audited = (): void => {
      const { pool } = commons;
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      expect(pool.usedBytes).toBeLessThanOrEqual(BUDGET);
      const sum = [...commons.sessions].reduce((bytes, { cache }) => bytes + cache.usedBytes, 0);
      expect(sum).toBeLessThanOrEqual(pool.usedBytes);
    };
    try {
      const idle = await session(small);
      await idle.read(ids(1200));
      const idleBytes = idle.cache.usedBytes;
      expect(idleBytes).toBeGreaterThan(BUDGET / 3);
      audited();
      const asking = await session(big);
      await asking.read(ids(700));
      expect(idle.governed.away?.place).toBe('reread');
      audited();
      await big.closeSession(asking.id, 'done');
      await idle.read(ids(10));
      expect([idle.governed.away, idle.length]).toEqual([null, 1210]);
      audited();
    } finally {
      for (const host of hosts) await host.close();
      for (const end of commons.endings) await end();
    }
    await start();
  });

  it('promises floors for all models together', async () => {
    await start({ kvBudget: 2 ** 20 });
    const [first, second] = [await open(MODEL), await open(OTHER)];
    await first.openSession({ kvFloor: 700_000 });
    const { code, values } = await refused(second.openSession({ kvFloor: 400_000 }));
    expect(code).toBe('budget-exceeded');
    expect(values).toMatchObject({ kvFloor: 400_000, committedBytes: 700_000, budgetBytes: 2 ** 20 });
    await second.openSession({ kvFloor: 300_000 });
  });

  it('is that of a group as well, whichever models its sessions have', async () => {
    await start({ kvBudget: 2 ** 21 });
    const kvGroup = { name: 'team', kvBudget: 80_000 };
    for (const model of [MODEL, OTHER]) await (await open(model)).openSession({ kvGroup });
    const third = await (await open(ALIKE)).openSession({ kvGroup });
    const { values } = await refused(third.read(ids(2000)));
    expect(values).toMatchObject({ kvGroup: 'team', budgetBytes: 80_000 });
  });
});

describe('pages', () => {
  /** Tokens of a prompt that a session of an engine does not read, since pages of them are there. */
  async function cachedOf(engine: Engine): Promise<number> {
    const session = await engine.openSession();
    return (await session.generate(ids(600), ANSWER).result).cachedTokens;
  }

  it('are found by sessions of the same model, and by none of another of its shape', async () => {
    await start({ kvBudget: 2 ** 26 });
    const [one, other] = [await open(OTHER), await open(ALIKE)];
    expect(await cachedOf(one)).toBe(0);
    expect(await cachedOf(other)).toBe(0);
    expect(await cachedOf(one)).toBeGreaterThanOrEqual(512);
    expect(await cachedOf(other)).toBeGreaterThanOrEqual(512);
  });

  it('are found where the model is loaded once more, unless it rounds otherwise', async () => {
    await start({ kvBudget: 2 ** 26 });
    const exact = await runtime.openEngine({ model: OTHER, threads: 1, dense: 'exact' });
    expect(await cachedOf(await open(OTHER))).toBe(0);
    expect(await cachedOf(exact)).toBe(0);
    expect(await cachedOf(await open(OTHER))).toBeGreaterThanOrEqual(512);
  });
});

describe('engines of a runtime', () => {
  it('are closed one by one in any order, and the others go on', async () => {
    await start();
    const [first, second] = [await open(MODEL), await open(OTHER)];
    const [gone, stays] = [await first.openSession(), await second.openSession()];
    const reading = stays.read(ids(500));
    await first.close();
    await first.close();
    await expect(gone.read(ids(5))).rejects.toMatchObject({ code: 'closed' });
    await expect(first.openSession()).rejects.toMatchObject({ code: 'closed' });
    await reading;
    expect((await stays.report()).tokens).toBe(500);
    const third = await open(MODEL);
    await third.openSession();
    await runtime.close();
    for (const engine of [second, third]) await expect(engine.openSession()).rejects.toMatchObject({ code: 'closed' });
    await second.close();
    await expect(open(MODEL)).rejects.toMatchObject({ code: 'closed' });
  });

  it('that cannot be opened leave the others as they are, and tell how far they came', async () => {
    await start();
    const engine = await open(OTHER);
    await expect(open(join(folder(), 'none'))).rejects.toMatchObject({ code: 'not-found' });
    await expect(runtime.openEngine({ model: OTHER, kvBudget: 5 } as never)).rejects.toMatchObject({
      code: 'bad-argument',
    });
    const stages = new Set<string>();
    await runtime.openEngine({ model: ALIKE, threads: 1, onProgress: ({ stage }) => stages.add(stage) });
    expect(stages).toContain('load');
    const ending = new AbortController();
    const onProgress = (): void => ending.abort();
    const aborted = runtime.openEngine({ model: ALIKE, threads: 1, onProgress, signal: ending.signal });
    await expect(aborted).rejects.toMatchObject({ code: 'aborted' });
    const fault = new Error('the caller has enough');
    const thrown = runtime.openEngine({
      model: ALIKE,
      threads: 1,
      onProgress: () => {
        throw fault;
      },
    });
    await expect(thrown).rejects.toBe(fault);
    expect(await tokensOf(engine, ids(20))).toHaveLength(24);
  });

  it('refuse what is not theirs before anything is opened', async () => {
    await start();
    await expect(createRuntime({ model: MODEL } as never)).rejects.toMatchObject({ code: 'bad-argument' });
    await expect(createRuntime({ idleSessions: 'disk', stateDir: null })).rejects.toMatchObject({
      code: 'bad-argument',
    });
  });

  it('count together', async () => {
    await start({ kvBudget: 2 ** 22 });
    const [first, second] = [await open(MODEL), await open(OTHER)];
    for (const engine of [first, second]) await (await engine.openSession()).read(ids(200));
    const text = await runtime.metrics();
    expect(text).toMatch(/^palimpsest_sessions_open 2$/m);
    expect(await first.metrics()).toMatch(/^palimpsest_sessions_open 2$/m);
    expect(text).toMatch(/^palimpsest_kv_budget_bytes 4194304$/m);
  });
});
