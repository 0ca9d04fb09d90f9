// A cache of a program with a runtime of its own, taken back, begun again, saved and loaded: what is loaded attends
// with the same bits and goes on deciding; a file of another model, of another shape, cut off or changed anywhere is
// one KvError, and nothing is left behind.

import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { loadCache, type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import type { KvError } from '../../../../native/index.ts';
import { readLog, replaySession, verifyLog } from '../../../../witness/index.ts';
import { normals, relativeError, uniform } from '../../../native/dense.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = SHAPE.kvHeads * SHAPE.headDim;
const QUERY = SHAPE.queryHeads * SHAPE.headDim;
const BUDGET = { kvBudget: '40%', tokensExpected: 1024 } as const;

/** One step of `tokens` tokens through all layers. → what the layers gave. */
function step(cache: PolicyCache, random: () => number, tokens: number): Float32Array[] {
  return Array.from({ length: cache.shape.layers }, (_, layer) => {
    cache.append(layer, normals(random, tokens * ROW), normals(random, tokens * ROW));
    return cache.attention(layer, normals(random, tokens * QUERY));
  });
}

async function filled(options: Partial<OpenCacheOptions>, tokens: number, atOnce = 100): Promise<PolicyCache> {
  const cache = await openCache({ ...SHAPE, ...options });
  const random = uniform(3);
  for (let left = tokens; left > 0; left -= atOnce) step(cache, random, Math.min(atOnce, left));
  return cache;
}

const refusal = (work: () => unknown): Promise<KvError> => refused((async () => work())());

describe('save and load', () => {
  it.each<[string, Partial<OpenCacheOptions>, number]>([
    ['nothing', {}, 0],
    ['an open page', {}, 90],
    ['pages in 8 bits', {}, 300],
    ['pages under a budget', BUDGET, 900],
    ['a page that was just filled', BUDGET, 512],
    ['pages of a fixed pair', { cacheTypes: 'rot3:rot2' }, 300],
    ['f16', { policy: 'none', cacheTypes: 'f16:f16' }, 300],
  ])('%s: the same bits', async (_, options, tokens) => {
    const path = join(folder(), 'saved.cache');
    const cache = await filled(options, tokens);
    cache.save(path);
    expect(readdirSync(join(path, '..'))).toEqual(['saved.cache']);
    expect(statSync(path).mode & 0o077).toBe(0);
    const loaded = await loadCache(path, options);
    expect(loaded.length).toBe(tokens);
    const [one, other] = [uniform(8), uniform(8)];
    for (const count of [1, 20]) expect(step(loaded, other, count), `${count}`).toEqual(step(cache, one, count));
    await cache.close();
    await loaded.close();
  });

  // Rows of the open page are decoded and appended again. In 8 bits the largest decode to 65532, which nothing takes
  // that is appended.
  it.each(['f16', 'q8'] as const)(
    'of the largest rows that there are, open page in %s: the same bits',
    async (openFormat) => {
      const path = join(folder(), 'saved.cache');
      const cache = await openCache({ ...SHAPE, openFormat });
      const random = uniform(6);
      const largest = (count: number): Float32Array =>
        normals(random, count, 30_000).map((x) => Math.max(-65504, Math.min(65504, x)));
      for (const tokens of [100, 100, 90])
        for (let layer = 0; layer < SHAPE.layers; layer++) {
          cache.append(layer, largest(tokens * ROW), largest(tokens * ROW));
          cache.attention(layer, normals(random, tokens * QUERY, 1e-5));
        }
      cache.save(path);
      const loaded = await loadCache(path, { openFormat });
      const [one, other] = [uniform(8), uniform(8)];
      for (const count of [1, 20]) expect(step(loaded, other, count), `${count}`).toEqual(step(cache, one, count));
      cache.truncate(280);
      cache.truncate(200);
      expect([cache.length, step(cache, one, 1).every((out) => out.every(Number.isFinite))]).toEqual([200, true]);
      await cache.close();
      await loaded.close();
    },
  );

  it('in the log: it goes on from the other, and its decisions can be replayed', async () => {
    const dir = folder();
    const [stateDir, path] = [join(dir, 'state'), join(dir, 'saved.cache')];
    const options = { ...BUDGET, stateDir, modelDigest: 'a' };
    const cache = await filled(options, 700);
    cache.save(path);
    const { session } = cache;
    await cache.close();
    const loaded = await loadCache(path, options);
    const random = uniform(5);
    for (let t = 0; t < 4; t++) step(loaded, random, 80);
    const goesOn = loaded.session;
    expect(loaded.qualityMetrics().decisions).toBeGreaterThan(0);
    await loaded.close();
    expect(verifyLog(logDir(stateDir)).ok).toBe(true);
    const [opened] = [...readLog(logDir(stateDir), { session: goesOn, kinds: ['open'] })];
    expect(opened!.body).toMatchObject({ effective: { resumedFrom: session, tokens: 700 } });
    expect(replaySession(readLog(logDir(stateDir), { session: goesOn }))).toMatchObject({
      equal: true,
      complete: true,
    });
  });

  it('another model, shape, policy or window is refused', async () => {
    const path = join(folder(), 'saved.cache');
    const cache = await filled({ ...BUDGET, modelDigest: 'a' }, 300);
    cache.save(path);
    await cache.close();
    expect((await refusal(() => loadCache(path, { ...BUDGET, modelDigest: 'b' }))).code).toBe('model-mismatch');
    expect((await refusal(() => loadCache(path, { ...BUDGET, headDim: 80 }))).code).toBe('model-mismatch');
    const policy = await refusal(() => loadCache(path, { ...BUDGET, policy: 'uniform' }));
    expect(policy).toMatchObject({ code: 'bad-argument', hint: "give policy: 'price'" });
    expect((await refusal(() => loadCache(path, { ...BUDGET, openFormat: 'f16' }))).code).toBe('bad-argument');
    expect((await refusal(() => loadCache(path, { kvBudget: '64KiB' }))).code).toMatch(/^budget-/);
    expect((await refusal(() => loadCache(join(folder(), 'none')))).code).toBe('not-found');
    expect((await refusal(() => loadCache(path, { ...BUDGET, layer: 3 } as never))).hint).toContain('layers');
    const again = await loadCache(path, { ...BUDGET, modelDigest: 'a' });
    expect(again.length).toBe(300);
    await again.close();
  });

  it('a file that was cut off or changed anywhere is refused, and bytes are not believed before they are counted', async () => {
    const path = join(folder(), 'saved.cache');
    const cache = await filled(BUDGET, 300);
    cache.save(path);
    await cache.close();
    const sound = readFileSync(path);
    const codes = new Set<string>();
    for (let at = 0; at < sound.length; at = at < 64 ? at + 1 : at + 997) {
      const broken = Buffer.from(sound);
      broken[at]! ^= 0x41;
      writeFileSync(path, broken);
      codes.add((await refusal(() => loadCache(path, BUDGET))).code);
      writeFileSync(path, sound.subarray(0, at));
      codes.add((await refusal(() => loadCache(path, BUDGET))).code);
    }
    expect([...codes].sort()).toEqual(['bad-file', 'checksum-mismatch', 'unsupported']);
  });

  it('is not done half-way through a step, with latents, or where nothing can be written', async () => {
    const cache = await filled({}, 10);
    cache.append(0, new Float32Array(ROW), new Float32Array(ROW));
    expect((await refusal(() => cache.save(join(folder(), 'a')))).code).toBe('busy');
    expect((await refusal(() => cache.truncate(3))).code).toBe('busy');
    await cache.close();
    const other = await filled({}, 10);
    writeFileSync(join(folder(), 'file'), '');
    expect((await refusal(() => other.save(''))).code).toBe('bad-argument');
    expect((await refusal(() => other.save('/dev/null/a'))).code).toBe('io');
    await other.close();
    expect((await refusal(() => other.save(join(folder(), 'a')))).code).toBe('closed');
  });
});

describe('truncate and reset', () => {
  it('take back what is in the open page, with the same bits afterwards', async () => {
    const [cache, plain] = [await filled(BUDGET, 300), await filled(BUDGET, 300)];
    step(cache, uniform(1), 40);
    cache.truncate(300);
    expect(cache.length).toBe(300);
    expect(step(cache, uniform(2), 3)).toEqual(step(plain, uniform(2), 3));
    for (const tokens of [-1, 304, 1.5, Number.NaN, undefined])
      expect((await refusal(() => cache.truncate(tokens as number))).code).toBe('bad-argument');
    await cache.close();
    await plain.close();
  });

  it('open a sealed page of the window again, and nothing that was moved or is shared', async () => {
    for (const tokens of [100, 128, 200, 256]) {
      const [cache, plain] = [await filled({}, 300, 4), await filled({}, tokens, 4)];
      cache.truncate(tokens);
      expect(cache.length).toBe(tokens);
      const [outs, exact] = [step(cache, uniform(2), 150), step(plain, uniform(2), 150)];
      for (const [layer, out] of outs.entries()) expect(relativeError(out, exact[layer]!)).toBeLessThan(1e-2);
      await cache.close();
      await plain.close();
    }
    const moved = await filled({ cacheTypes: 'rot3:rot2' }, 300);
    const error = await refusal(() => moved.truncate(100));
    expect(error).toMatchObject({ code: 'unsupported', hint: expect.stringContaining('fork()') });
    expect(moved.length).toBe(300);
    moved.truncate(0);
    expect([moved.length, moved.memoryUsage().totalBytes]).toEqual([0, 0]);
    await moved.close();
    const shared = await filled({}, 300);
    const fork = shared.fork();
    expect((await refusal(() => shared.truncate(100))).code).toBe('unsupported');
    await fork.close();
    shared.truncate(100);
    await shared.close();
  });

  it('begin again, as another session, with all memory given back', async () => {
    const stateDir = join(folder(), 'state');
    const cache = await filled({ ...BUDGET, stateDir }, 700);
    const before = cache.session;
    await cache.reset();
    expect([cache.length, cache.session === before]).toEqual([0, false]);
    const fresh = await openCache({ ...SHAPE, ...BUDGET });
    const [one, other] = [uniform(4), uniform(4)];
    for (const tokens of [100, 100, 1]) expect(step(cache, one, tokens)).toEqual(step(fresh, other, tokens));
    const last = cache.session;
    await cache.close();
    await fresh.close();
    expect([...readLog(logDir(stateDir), { kinds: ['close'] })].map(({ session }) => session)).toEqual([before, last]);
  });

  it('write attention into an array that is given', async () => {
    const cache = await filled({}, 100);
    const out = new Float32Array(QUERY);
    cache.append(0, new Float32Array(ROW).fill(1), new Float32Array(ROW).fill(2));
    expect(cache.attention(0, new Float32Array(QUERY).fill(0.5), out)).toBe(out);
    expect(out.some((value) => value !== 0)).toBe(true);
    expect((await refusal(() => cache.attention(0, new Float32Array(QUERY), new Float32Array(3)))).code).toBe(
      'bad-shape',
    );
    await cache.close();
  });
});

describe('trials that make no sense', () => {
  type Trials = Record<'found' | 'waiting' | 'foundAgain' | 'waitingAgain', Record<string, unknown>[]> & {
    admitted: number;
    due: number;
  };

  /** The file of a cache under a budget, with other trials and the checksum of that. */
  async function forged(change: (trials: Trials) => void): Promise<string> {
    const path = join(folder(), 'saved.cache');
    const cache = await filled(BUDGET, 600);
    cache.save(path);
    await cache.close();
    const file = readFileSync(path);
    const headBytes = file.readUInt32LE(8);
    const head = JSON.parse(file.toString('utf8', 24, 24 + headBytes)) as { trials: Trials };
    change(head.trials);
    const json = Buffer.from(JSON.stringify(head));
    const fixed = Buffer.from(file.subarray(0, 24));
    fixed.writeUInt32LE(json.length, 8);
    const body = Buffer.concat([fixed, json, file.subarray(24 + headBytes, -32)]);
    writeFileSync(path, Buffer.concat([body, createHash('sha256').update(body).digest()]));
    return path;
  }

  it.each<[string, (trials: Trials) => void]>([
    ['a page that waits twice', ({ waiting }) => waiting.push({ layer: 0, page: 0 }, { layer: 0, page: 0 })],
    ['a page that waits and was reported', ({ waiting }) => waiting.push({ layer: 1, page: 1 })],
    ['a report twice', ({ found }) => found.push(structuredClone(found[0]!))],
    ['a side without its report', ({ found }) => found.pop()],
    ['no report at all', (trials) => Object.assign(trials, { found: [], waiting: [] })],
    ['fewer pages than were reported', (trials) => Object.assign(trials, { admitted: 1 })],
    ['more pages than there are', (trials) => Object.assign(trials, { admitted: 1000 })],
    ['the open page', ({ waitingAgain }) => waitingAgain.push({ layer: 0, page: 4 })],
    ['a layer that is not there', ({ foundAgain, found }) => foundAgain.push({ ...found[0]!, layer: 2 })],
    ['less than none due', (trials) => Object.assign(trials, { due: -1 })],
    ['endlessly many due', (trials) => Object.assign(trials, { due: 1e300 })],
  ])('%s: refused when it is loaded, not at every step', async (_, change) => {
    const path = await forged(change);
    const error = await refusal(() => loadCache(path, BUDGET));
    expect(error).toMatchObject({ code: 'bad-file', message: expect.stringContaining(path) });
  });

  it('what is left unchanged loads', async () => {
    const cache = await loadCache(await forged(() => {}), BUDGET);
    for (let i = 0; i < 3; i++) step(cache, uniform(4), 100);
    await cache.close();
  });
});
