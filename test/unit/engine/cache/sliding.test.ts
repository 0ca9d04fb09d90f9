/**
 * Pages that the sliding windows of their layers have left behind: freed in the step after which nobody sees them, a
 * page later than that, so that what answers take back is there. Attention has the bits that it has without; budgets
 * count what comes back; no policy moves what is gone; the log says when each page went, and is decided again alike.
 * Forks, files, latents and ways back keep what they see.
 */
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { loadCache, type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { freedPages, type KvCache, openKvCache, openPool } from '../../../../native/index.ts';
import { type Entry, explain, readLog, replaySession, timeline, verifyLog, whyNot } from '../../../../witness/index.ts';
import { normals, sameBits, uniform } from '../../../native/dense.ts';
import { codeOf, refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 3, queryHeads: 4, kvHeads: 2, headDim: 64 };
const WINDOWS = [300, null, 40] as const;
const OPTIONS = { ...SHAPE, slidingWindow: WINDOWS } satisfies OpenCacheOptions;
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const QUERY = SHAPE.queryHeads * SHAPE.headDim;
const F16_BYTES_PER_TOKEN = SHAPE.layers * ROW * 4;

interface Given {
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly q: Float32Array;
  readonly out: Float32Array;
}

function step(cache: PolicyCache, random: () => number, tokens: number): Given[] {
  return Array.from({ length: SHAPE.layers }, (_, layer) => {
    const [k, v, q] = [normals(random, tokens * ROW), normals(random, tokens * ROW), normals(random, tokens * QUERY)];
    cache.append(layer, k, v);
    return { k, v, q, out: cache.attention(layer, q) };
  });
}

/** Appends until there are so many tokens, `chunk` at a time. */
function fill(cache: PolicyCache, to: number, chunk: number, seed = 3): void {
  const random = uniform(seed);
  while (cache.length < to) step(cache, random, Math.min(chunk, to - cache.length));
}

/** A native cache that never frees anything. */
const plain = (): KvCache => openKvCache({ shape: SHAPE, pool: openPool(2 ** 30), slidingWindow: WINDOWS });

function follow(twin: KvCache, given: readonly Given[]): void {
  for (const [layer, { k, v, q, out }] of given.entries()) {
    twin.append(layer, k, v);
    const alone = new Float32Array(out.length);
    twin.attend(layer, q, alone);
    if (!sameBits(alone, out)) expect.fail(`layer ${layer} at ${twin.length(layer)} tokens attends differently`);
  }
}

/** Freed pages by layer, as the log tells them. */
function freedIn(entries: Iterable<Entry>): number[][] {
  const freed: number[][] = WINDOWS.map(() => []);
  for (const entry of entries)
    if (entry.kind === 'change')
      for (const { layer, page, side, to } of (entry as Entry<'change'>).body.changes)
        if (to === 'freed' && side === 'k') freed[layer]!.push(page);
  return freed;
}

const upTo = (pages: number): number[] => Array.from({ length: pages }, (_, page) => page);
const freedAt = (tokens: number): number[][] => WINDOWS.map((window) => upTo(freedPages(tokens, window)));

describe('pages that sliding windows have left behind', () => {
  it.each([1, 60, 128])('are freed, and attention has the same bits (%i tokens at a time)', async (chunk) => {
    const dir = folder();
    const cache = await openCache({ ...OPTIONS, stateDir: dir });
    const twin = plain();
    const random = uniform(1);
    for (let tokens = 0; tokens < 1400; tokens += chunk)
      follow(twin, step(cache, random, Math.min(chunk, 1400 - tokens)));
    const freed = freedAt(1400).flat().length;
    expect(freed).toBeGreaterThan(10);
    expect(cache.memoryUsage().pageBytes).toBe(twin.memory().pageBytes - freed * twin.sealBytes);
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    expect(freedIn(entries)).toEqual(freedAt(1400));
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    expect(verifyLog(logDir(dir)).problem).toBeNull();
  });

  it.each([
    [{ policy: 'price' }, 128],
    [{ policy: 'price' }, 1],
    [{ policy: 'uniform' }, 60],
    [{ policy: 'age' }, 128],
    [{ policy: 'tiers' }, 100],
    [{ cacheTypes: 'trellis4:trellis2' }, 128],
    [{ policy: 'price', kldBudget: 0.01 }, 128],
  ] as const)('are not moved any more under %o (%i tokens at a time)', async (asked, chunk) => {
    const dir = folder();
    const kvBudget = Math.floor(0.2 * 1500 * F16_BYTES_PER_TOKEN);
    const cache = await openCache({ ...OPTIONS, ...asked, kvBudget, tokensExpected: 1500, stateDir: dir });
    const random = uniform(5);
    for (let tokens = 0; tokens < 1500; tokens += chunk) {
      step(cache, random, Math.min(chunk, 1500 - tokens));
      expect(cache.memoryUsage().totalBytes).toBeLessThanOrEqual(kvBudget);
    }
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    expect(freedIn(entries)).toEqual(freedAt(1500));
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    const gone = new Set<string>();
    let decisions = 0;
    for (const { kind, body } of entries as Entry[]) {
      if (kind === 'change')
        for (const { layer, page, to } of (body as Entry<'change'>['body']).changes)
          if (to === 'freed') gone.add(`${layer} ${page}`);
      if (kind !== 'decision') continue;
      const { layer, page } = (body as Entry<'decision'>['body']).decision;
      expect(gone.has(`${layer} ${page}`)).toBe(false);
      decisions++;
    }
    expect(decisions).toBeGreaterThan(10);
  });

  it('stay with forks that are shorter', async () => {
    const cache = await openCache({ ...OPTIONS, stateDir: folder() });
    const twin = plain();
    const random = uniform(1);
    for (let tokens = 0; tokens < 700; tokens += 100) follow(twin, step(cache, random, 100));
    const fork = cache.fork();
    fill(cache, 1500, 128);
    const together = cache.memoryUsage().totalBytes;
    // What the fork sees is there, and what it reads frees it in turn.
    for (let tokens = 700; tokens < 1300; tokens += 60) follow(twin, step(fork, random, 60));
    expect(fork.memoryUsage().pageBytes).toBe(twin.memory().pageBytes - freedAt(1300).flat().length * twin.sealBytes);
    expect(cache.memoryUsage().totalBytes).toBe(together);
    await fork.close();
    await cache.close();
  });

  it('are in files as nothing, and what comes back goes on alike', async () => {
    const dir = folder();
    // Rows that are watched do not go into files.
    const thresholdValues = { 'canary.share': 0 };
    const options = { ...OPTIONS, kvBudget: 400_000, tokensExpected: 1600, stateDir: dir, thresholdValues };
    const cache = await openCache(options);
    fill(cache, 1100, 100);
    const file = join(dir, 'cache.kv');
    cache.save(file);
    const { slidingWindow: _, ...without } = options;
    expect((await refused(loadCache(file, { ...without, stateDir: folder(), kvBudget: 800_000 }))).message).toMatch(
      /pages that it would see have been freed/,
    );
    const loaded = await loadCache(file, options);
    expect(loaded.memoryUsage().totalBytes).toBe(cache.memoryUsage().totalBytes);
    const [a, b] = [uniform(8), uniform(8)];
    for (let tokens = 1100; tokens < 1600; tokens += 100) {
      const [one, other] = [step(cache, a, 100), step(loaded, b, 100)];
      for (const layer of [0, 1, 2])
        if (tokens === 1100) expect(sameBits(one[layer]!.out, other[layer]!.out)).toBe(true);
    }
    loaded.save(file);
    await (await loadCache(file, options)).close();
    await cache.close();
    await loaded.close();
    const freed = freedIn(readLog(logDir(dir), { session: loaded.session }));
    expect(freed).toEqual(WINDOWS.map((w) => upTo(freedPages(1600, w)).slice(freedPages(1100, w))));
  });

  it('are there for what is taken back by up to a page, and refuse what leads further', async () => {
    const cache = await openCache({ ...OPTIONS, stateDir: folder() });
    const twin = plain();
    const random = uniform(1);
    for (let tokens = 0; tokens < 1100; tokens += 100) follow(twin, step(cache, random, 100));
    for (const tokens of [1030, 1024]) {
      cache.truncate(tokens);
      twin.truncate(tokens);
      follow(twin, step(cache, random, 1));
    }
    fill(cache, 1300, 64);
    expect(codeOf(() => cache.truncate(1024))).toBe('unsupported');
    expect(cache.length).toBe(1300);
    cache.truncate(0);
    expect(cache.memoryUsage().totalBytes).toBe(0);
    const anew = plain();
    for (let tokens = 0; tokens < 900; tokens += 100) follow(anew, step(cache, random, 100));
    expect(cache.memoryUsage().pageBytes).toBe(anew.memory().pageBytes - freedAt(900).flat().length * anew.sealBytes);
    await cache.close();
  });

  it('are told by the log: when they went, and why nothing moved them since', async () => {
    const dir = folder();
    const kvBudget = Math.floor(0.2 * 1300 * F16_BYTES_PER_TOKEN);
    const asked = { kvBudget, tokensExpected: 1300, policy: 'uniform' };
    const cache = await openCache({ ...OPTIONS, ...asked, stateDir: dir });
    fill(cache, 1300, 128);
    await cache.close();
    const log = logDir(dir);
    const told = timeline(log, cache.session)
      .map(({ text }) => text)
      .join('\n');
    expect(told).toMatch(/left behind by the sliding window of their layer and freed without a decision: /);
    const [keys] = whyNot(log, cache.session, { layer: 0, page: 0 });
    expect(keys!.form).toBe('freed');
    expect(keys!.answers.map(({ reason }) => reason)).toContain('freed');
    const [seen] = whyNot(log, cache.session, { layer: 1, page: 0 });
    expect(seen!.answers.map(({ reason }) => reason)).not.toContain('freed');
    const moved = [...readLog(log, { session: cache.session })].find(
      ({ kind, body }) => kind === 'decision' && (body as Entry<'decision'>['body']).decision.layer === 0,
    );
    const { freed, sentences } = explain(log, moved!.seq);
    expect(freed!.tokens).toBeGreaterThan(0);
    expect(sentences.find(({ title }) => title === 'freed')!.text).toMatch(
      /had left the page behind, and it was freed/,
    );
  });
});
