// The two faces of the one governed cache, a session of an engine and openCache, can do the same: what the state folder
// remembers starts both, and a session keeps latents, takes feedback and counts its memory as a cache does. Real logs,
// the reference model, random keys and values.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Engine, type OpenCacheOptions, openCache } from '../../../engine/index.ts';
import type { SessionOptions } from '../../../engine/options/types.ts';
import { Session } from '../../../engine/session/session.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import { normals, relativeError, uniform } from '../../native/dense.ts';
import { scratchFolders } from '../witness/folder.ts';
import { codeOf, entriesOf, ids, MODEL, openEngine, PROMPT_TOKENS } from './on-reference.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };

/** Opens a cache, fills it with random rows and closes it. → its session */
async function used(options: Partial<OpenCacheOptions>): Promise<string> {
  const cache = await openCache({
    ...SHAPE,
    kvBudget: 700_000,
    tokensExpected: 800,
    openFormat: 'f16',
    windowTokens: 128,
    ...options,
  });
  const random = uniform(6);
  for (let i = 0; i < 8; i++) {
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      cache.append(layer, normals(random, 100 * 128), normals(random, 100 * 128), normals(random, 100 * 32));
      cache.attention(layer, normals(random, 100 * 256));
    }
  }
  expect(cache.qualityMetrics().decisions).toBeGreaterThan(0);
  await cache.close();
  return cache.session;
}

describe('a cache of one’s own runtime', () => {
  // Before, only sessions of an engine learned.
  it('starts with what caches of the same model taught, and with nothing of another', async () => {
    const stateDir = join(folder(), 'state');
    const sessions: string[] = [];
    for (const modelDigest of ['one', 'one', 'two']) sessions.push(await used({ stateDir, modelDigest }));
    sessions.push(await used({ stateDir }));
    const starts = sessions.map(
      (session) => entriesOf(stateDir, session, 'open')[0]!.body.context.thresholds.thresholds['price.start']!,
    );
    expect(starts.map(({ origin }) => origin)).toEqual(['default', 'learned', 'default', 'default']);
    const neighbours = sessions.map((session) =>
      entriesOf(stateDir, session, 'evidence').map(({ body }) => body.neighbours),
    );
    expect(neighbours).toMatchObject([[[]], [[{ session: sessions[0] }]], [[]], []]);
    const [close] = entriesOf(stateDir, sessions[0]!, 'close');
    expect(starts[1]!.evidence).toEqual([close!.seq]);
    expect(starts[1]!.value).toBeGreaterThan(0);
    expect(starts[1]!.value).toBeLessThanOrEqual(close!.body.priceThreshold);
  });

  it('takes a threshold file by its path, as a session does, instead of what was learned', async () => {
    const stateDir = join(folder(), 'state');
    await used({ stateDir, modelDigest: 'one' });
    const path = join(stateDir, 'thresholds.json');
    const cache = await openCache({ ...SHAPE, modelDigest: 'one' });
    await cache.saveThresholds(path);
    await cache.close();
    const session = await used({ stateDir, modelDigest: 'one', thresholdsPath: path });
    expect(entriesOf(stateDir, session, 'evidence')).toEqual([]);
    expect(await codeOf(openCache({ ...SHAPE, modelDigest: 'two', thresholdsPath: path }))).toBe('model-mismatch');
    expect(await codeOf(openCache({ ...SHAPE, thresholdsPath: '' }))).toBe('bad-argument');
  });
});

describe('a session of an engine', () => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await openEngine(null);
  });
  afterAll(() => engine.close());

  it('takes feedback, and another starts with what it was told', async () => {
    const session = await engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS + 20 });
    await session.generate(ids(PROMPT_TOKENS), { maxTokens: 10, temperature: 1 }).result;
    const { summary } = await session.report();
    const before = await session.adaptThresholds({ meanKld: summary.predictedKld });
    const after = await session.adaptThresholds({ meanKld: 4 * summary.predictedKld });
    expect(after.c).toBeCloseTo(2 * before.c, 6);
    for (const meanKld of [-1, Number.NaN, '1' as never])
      expect(await codeOf(session.adaptThresholds({ meanKld }))).toBe('bad-value');
    await session.close();
    const other = await engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS + 20, thresholds: after });
    await other.generate(ids(PROMPT_TOKENS), { maxTokens: 10, temperature: 1 }).result;
    // The law's sum is the same for the same moves: with twice the constant it predicts more.
    expect((await other.report()).summary.predictedKld).toBeGreaterThan(1.5 * summary.predictedKld);
    await other.close();
    expect(
      await codeOf(engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS, thresholds: 7 as never })),
    ).toBe('bad-thresholds');
  });

  it('counts its memory', async () => {
    const session = await engine.openSession({ kvBudget: '30%', tokensExpected: PROMPT_TOKENS + 20 });
    await session.generate(ids(PROMPT_TOKENS), { maxTokens: 2, temperature: 1 }).result;
    const [usage, report] = [await session.memoryUsage(), await session.report()];
    expect(usage).toMatchObject({
      totalBytes: report.kvBytesNow,
      peakBytes: report.kvBytes,
      budgetBytes: report.budgetBytes,
      reservedBytes: report.reservedBytes,
      f16Bytes: report.kvBytesF16,
      latentBytes: 0,
    });
    await session.close();
  });

  it('keeps latents under its budget, and makes pages of them again', async () => {
    const options = { kvBudget: '60%', tokensExpected: PROMPT_TOKENS + 20, cacheTypes: 'rot2' } as const;
    const [plain, session] = [
      await engine.openSession(options),
      await engine.openSession({ ...options, kldBudget: 5, latents: 'xq4' }),
    ];
    for (const one of [plain, session]) await one.generate(ids(PROMPT_TOKENS), { maxTokens: 2, temperature: 1 }).result;
    const before = await session.memoryUsage();
    expect(before.latentBytes).toBeGreaterThan(0);
    expect(before.totalBytes).toBeLessThanOrEqual(before.budgetBytes!);
    expect(await codeOf(plain.restore(0, 0))).toBe('unsupported');
    expect(await codeOf(session.restore(0, 99))).toBe('bad-argument');
    const grown = await session.restore(0, 0);
    expect((await session.memoryUsage()).totalBytes).toBe(before.totalBytes + grown);
    const running = session.generate(ids(100, 2), { maxTokens: 4 });
    expect(await codeOf(session.restore(0, 1))).toBe('busy');
    await running.result;
    for (const one of [plain, session]) await one.close();
    expect(await codeOf(engine.openSession({ latents: 'xq5' as never }))).toBe('unsupported');
    expect(await codeOf(engine.openSession({ ...options, kvBudget: '15%', latents: 'xq8' }))).toBe('budget-too-small');
  });
});

describe('latents of a model', () => {
  it('give its own keys and values back, also after an aborted prompt', async () => {
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const open = (options: SessionOptions): Session =>
      Session.open(runtime, { ...options, log: null, thresholds: defaultThresholds(runtime.shape.layers) });
    const [exact, session] = [open({ exact: true }), open({ latents: 'xq8', cacheTypes: 'rot2' })];
    const before = session.governed.memoryUsage().latentBytes;
    await session.read(ids(300));
    const abort = new AbortController();
    const onProgress = ({ tokens }: { tokens: number }): void => void (tokens > 200 && abort.abort());
    expect(await codeOf(session.read(ids(600, 2), { signal: abort.signal, onProgress }))).toBe('aborted');
    expect(session.governed.memoryUsage().latentBytes).toBe(
      before + 2 * runtime.shape.layers * pageLatentBytes(session),
    );
    await session.read(ids(500, 3));
    await exact.read([...ids(300), ...ids(500, 3)]);
    const errorOf = (page: number, side: 'k' | 'v'): number =>
      relativeError(session.cache.decode(0, page, side), exact.cache.decode(0, page, side));
    for (const page of [0, 1, 2, 3]) {
      const lost = [errorOf(page, 'k'), errorOf(page, 'v')];
      session.restore(0, page);
      for (const [i, side] of (['k', 'v'] as const).entries()) {
        expect(lost[i]).toBeGreaterThan(0.1);
        expect(errorOf(page, side), `page ${page} ${side}`).toBeLessThan(0.03);
      }
    }
    session.close();
    exact.close();
    await runtime.close();
  });
});

/** Bytes of one latent. */
function pageLatentBytes(session: Session): number {
  const { latent } = session.cache.table(0);
  const pages = latent.reduce((sum, kept) => sum + (kept === 0 ? 0 : 1), 0);
  return session.governed.memoryUsage().latentBytes / (pages * session.governed.shape.layers);
}
