/**
 * Policies that let whole pages go (StreamingLLM, H2O, SnapKV, PyramidKV, Scissorhands by pages): a budget that no
 * formats could keep is kept, attention is what it is over the pages that stay, the log tells who went and why and is
 * decided again alike, and forks, files and ways back go on from what is there.
 */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { loadCache, type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { policies } from '../../../../policy/index.ts';
import { type Entry, explain, readLog, replaySession, timeline, verifyLog, whyNot } from '../../../../witness/index.ts';
import { denseAttention, normals, relativeError, sameBits, uniform } from '../../../native/dense.ts';
import { codeOf, refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 4, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const QUERY = SHAPE.queryHeads * SHAPE.headDim;
const F16_BYTES_PER_TOKEN = SHAPE.layers * ROW * 4;
const TOKENS = 2000;
/** Of f16: 2 bits for all would take more. */
const BUDGET = Math.floor(0.15 * TOKENS * F16_BYTES_PER_TOKEN);
const EVICTING = Object.keys(policies).filter(
  (id) => ['table', 'fixed'].includes(id) === false && policies[id]!({}).evicts,
);

function step(cache: PolicyCache, random: () => number, tokens: number): Float32Array[] {
  return Array.from({ length: SHAPE.layers }, (_, layer) => {
    cache.append(layer, normals(random, tokens * ROW), normals(random, tokens * ROW));
    return cache.attention(layer, normals(random, tokens * QUERY, 2));
  });
}

/** Appends until there are so many tokens, `chunk` at a time. */
function fill(cache: PolicyCache, to: number, chunk: number, seed = 3): void {
  const random = uniform(seed);
  while (cache.length < to) step(cache, random, Math.min(chunk, to - cache.length));
}

const open = (policy: string, more: Partial<OpenCacheOptions> = {}): Promise<PolicyCache> =>
  openCache({ ...SHAPE, policy, kvBudget: BUDGET, stateDir: folder(), ...more });

/** Pages of each layer that were let go, by the decisions of a log. */
function goneIn(entries: readonly Entry[]): Set<number>[] {
  const gone = Array.from({ length: SHAPE.layers }, () => new Set<number>());
  for (const { kind, body } of entries) {
    if (kind !== 'decision') continue;
    const { layer, page, side, to } = (body as Entry<'decision'>['body']).decision;
    expect([side, to, gone[layer]!.has(page)]).toEqual(['kv', 'freed', false]);
    gone[layer]!.add(page);
  }
  return gone;
}

it('there are five of them', () => {
  expect(EVICTING).toEqual(['streaming-pages', 'h2o-pages', 'snapkv-pages', 'pyramidkv-pages', 'scissorhands-pages']);
});

describe.each(EVICTING)('policy %s', (policy) => {
  it.each([
    [128, TOKENS],
    [100, null],
    [1, TOKENS],
  ] as const)(
    'keeps a budget that formats cannot, and its log is decided again (%i at a time)',
    async (chunk, length) => {
      const dir = folder();
      const tokens = chunk === 1 ? 1200 : TOKENS;
      const kvBudget = Math.floor((BUDGET * tokens) / TOKENS) + (chunk === 1 ? 150_000 : 0);
      const cache = await open(policy, {
        stateDir: dir,
        kvBudget,
        ...(length === null ? {} : { tokensExpected: tokens }),
      });
      const random = uniform(5);
      while (cache.length < tokens) {
        step(cache, random, Math.min(chunk, tokens - cache.length));
        expect(cache.memoryUsage().totalBytes).toBeLessThanOrEqual(kvBudget);
      }
      const { layers } = cache.report();
      await cache.close();
      const entries = [...readLog(logDir(dir), { session: cache.session })];
      const gone = goneIn(entries);
      expect(layers.map(({ kPages }) => kPages['freed'] ?? 0)).toEqual(gone.map(({ size }) => size));
      expect(gone.every(({ size }) => size > 2)).toBe(true);
      expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
      expect(verifyLog(logDir(dir)).problem).toBeNull();
    },
  );

  it('tells who went and why', async () => {
    const dir = folder();
    const cache = await open(policy, { stateDir: dir });
    fill(cache, TOKENS, 128);
    await cache.close();
    const log = logDir(dir);
    const entries = [...readLog(log, { session: cache.session })];
    const { seq, body } = entries.find(({ kind }) => kind === 'decision')! as Entry<'decision'>;
    const { layer, page, bytesFreed } = body.decision;
    expect(body.bytesBefore - body.bytesAfter).toBe(bytesFreed);
    const told = explain(log, seq).sentences.map(({ text }) => text);
    expect(told.join('\n')).toMatch(new RegExp(`went from q8 to freed.*rule '${policy}'.*'${policy}.places'`, 's'));
    const [keys] = whyNot(log, cache.session, { layer, page });
    expect(keys!.form).toBe('freed');
    expect(keys!.answers.find(({ reason }) => reason === 'freed')!.text).toMatch(`policy '${policy}' let it go`);
    expect(timeline(log, cache.session).length).toBeGreaterThan(1);
  });

  it('goes on with forks, files and what is taken back', async () => {
    const dir = folder();
    const cache = await open(policy, { stateDir: dir, kvBudget: 2 * BUDGET });
    fill(cache, 1500, 100);
    const fork = cache.fork();
    fill(fork, 1700, 100, 8);
    expect(fork.memoryUsage().totalBytes).toBeLessThanOrEqual(2 * BUDGET);
    await fork.close();
    cache.truncate(1490);
    cache.truncate(1280);
    fill(cache, 1600, 60, 9);
    const file = join(dir, 'cache.kv');
    cache.save(file);
    const loaded = await loadCache(file, { ...SHAPE, policy, kvBudget: 2 * BUDGET, stateDir: dir });
    expect(loaded.memoryUsage().totalBytes).toBe(cache.memoryUsage().totalBytes);
    const [one, other] = [step(cache, uniform(4), 10), step(loaded, uniform(4), 10)];
    for (const [layer, out] of one.entries()) expect(sameBits(out, other[layer]!)).toBe(true);
    fill(loaded, TOKENS, 100, 7);
    expect(loaded.memoryUsage().totalBytes).toBeLessThanOrEqual(2 * BUDGET);
    const sessions = [cache, fork, loaded].map(({ session }) => session);
    for (const one of [cache, loaded]) await one.close();
    for (const session of sessions)
      expect(replaySession([...readLog(logDir(dir), { session })])).toMatchObject({ equal: true });
  });

  it('leaves layers alone that are to stay, and those that a sliding window has left behind', async () => {
    const dir = folder();
    const slidingWindow = [null, 300, null, null];
    const cache = await open(policy, { stateDir: dir, kvBudget: 3 * BUDGET, skipLayers: [2], slidingWindow });
    fill(cache, TOKENS, 128);
    await cache.close();
    const gone = goneIn([...readLog(logDir(dir), { session: cache.session })]);
    expect(gone[2]!.size).toBe(0);
    expect(gone[3]!.size).toBeGreaterThan(0);
  });

  it('refuses what it cannot keep to', async () => {
    expect((await refused(open(policy, { cacheTypes: 'rot4:rot4' }))).code).toBe('unsupported');
    expect((await refused(open(policy, { kldBudget: 0.01 }))).code).toBe('unsupported');
    expect((await refused(open(policy, { kvBudget: 100_000 }))).code).toBe('budget-too-small');
    const { kvHeads: _, ...plain } = SHAPE;
    const weights = Array.from({ length: 4 }, () => ({
      wk: new Float32Array(256 * 64),
      wv: new Float32Array(256 * 64),
    }));
    const latents = { format: 'xq8', width: 64, layers: weights } as const;
    const asked = openCache({ ...plain, kvHeads: 4, policy, kvBudget: BUDGET, latents, stateDir: folder() });
    expect((await refused(asked)).code).toBe('unsupported');
    const cache = await open(policy, { kvBudget: 300_000, skipLayers: [0, 1, 2] });
    expect(codeOf(() => fill(cache, TOKENS, 128))).toBe('budget-too-small');
    await cache.close();
  });
});

it('attention is that over the pages that stayed, the sinks and the window', async () => {
  const dir = folder();
  const cache = await open('streaming-pages', { stateDir: dir, openFormat: 'f16' });
  const random = uniform(2);
  const rows: { k: Float32Array; v: Float32Array }[] = [];
  for (let tokens = 0; tokens < 1950; tokens += 50) {
    const [k, v] = [normals(random, 50 * ROW), normals(random, 50 * ROW)];
    rows.push({ k, v });
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      cache.append(layer, k, v);
      cache.attention(layer, normals(random, 50 * QUERY));
    }
  }
  const q = normals(random, QUERY);
  const out = cache.attention(0, q);
  await cache.close();
  const [gone] = goneIn([...readLog(logDir(dir), { session: cache.session })]);
  const all = (side: 'k' | 'v'): Float32Array => Float32Array.from(rows.flatMap((one) => [...one[side]]));
  const skips = (at: number): boolean => at >= 4 && gone!.has(Math.floor(at / 128));
  // Pages that stay are in 8 bits.
  expect(relativeError(out, denseAttention(SHAPE, q, all('k'), all('v'), { skips }).out)).toBeLessThan(0.02);
  expect(gone!.has(0)).toBe(true);
});

it('a policy that does not say that it lets pages go may not', async () => {
  const dir = folder();
  const { evicts: _, ...silent } = policies['streaming-pages']!({});
  const cache = await openCache({ ...SHAPE, policy: { ...silent, id: 'silent' }, kvBudget: 2 * BUDGET, stateDir: dir });
  expect(codeOf(() => fill(cache, TOKENS, 128))).toBe('budget-too-small');
  await cache.close();
  const entries = [...readLog(logDir(dir), { session: cache.session })];
  const verdicts = entries.flatMap(({ kind, body }) =>
    kind === 'decision' ? [(body as Entry<'decision'>['body']).verdict] : [],
  );
  expect(verdicts.length).toBeGreaterThan(0);
  expect([...new Set(verdicts.map(({ because }) => because.rule))]).toEqual(['unsafe-eviction']);
});
