// A cache that keeps the inputs of its layers (openCache's `latents`): pages that the policy brought down come back by
// restore(), attention is nearer to the exact one afterwards, the budget holds with the latents in it, the session goes
// on and its log replays; x without latents serves trials alone; and everything that can be got wrong is one KvError,
// after which the cache goes on as if nothing had been.
import { describe, expect, it } from 'vitest';
import { type LatentOptions, type OpenCacheOptions, openCache, type PolicyCache } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { type FormatName, KvError, latentBytes, pageBytes } from '../../../../native/index.ts';
import {
  type ChangeBody,
  type DecisionBody,
  explain,
  readLog,
  replaySession,
  type SituationBody,
} from '../../../../witness/index.ts';
import { denseAttention, normals, relativeError, uniform } from '../../../native/dense.ts';
import { inputs, type Model, model, POSITIONS, QUERY, ROW, SHAPE, WIDTH } from '../../../native/latent-model.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const PAGE = 128;
type Given = { readonly k: number[]; readonly v: number[] }[];
const nothing = (): Given => Array.from({ length: SHAPE.layers }, () => ({ k: [], v: [] }));

/** One step of all layers; what they were given is added to `given`. */
function step(cache: PolicyCache, of: Model, random: () => number, tokens: number, given: Given): void {
  const first = given[0]!.k.length / ROW;
  for (let layer = 0; layer < SHAPE.layers; layer++) {
    const x = inputs(random, tokens);
    const { k, v } = of.project(layer, x, first);
    cache.append(layer, k, v, x);
    cache.attention(layer, normals(random, tokens * QUERY));
    given[layer]!.k.push(...k);
    given[layer]!.v.push(...v);
  }
}

/** The code of the KvError that `work` must end in. */
async function codeOf(work: () => unknown): Promise<string> {
  try {
    await work();
  } catch (error) {
    if (error instanceof KvError) return error.code;
    throw error;
  }
  return 'no error';
}

describe.each(['xq8', 'xq4'] as const)('%s', (format) => {
  it('gives back what the policy took: attention is nearer to the exact one', async () => {
    const of = model(format, 1);
    const random = uniform(2);
    const cache = await openCache({ ...SHAPE, cacheTypes: { k: 'rot2', v: 'rot2' }, latents: of.latents });
    const given = nothing();
    for (const tokens of [1, 130, 128, 60, 127, 3]) step(cache, of, random, tokens, given);
    const q = normals(random, 3 * QUERY);
    const errors = (): number[] =>
      given.map(({ k, v }, layer) =>
        relativeError(
          cache.attention(layer, q),
          denseAttention(SHAPE, q, Float32Array.from(k), Float32Array.from(v)).out,
        ),
      );
    const coarse = errors();
    const before = cache.memoryUsage();
    const grown = 2 * (pageBytes('q8', SHAPE.kvHeads, SHAPE.headDim) - pageBytes('rot2', SHAPE.kvHeads, SHAPE.headDim));
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      for (const page of [0, 1]) expect(cache.restore(layer, page)).toBe(grown);
      expect(cache.restore(layer, 2)).toBe(0); // still in the window
    }
    const fine = errors();
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      expect(coarse[layer]).toBeGreaterThan(0.02);
      expect(fine[layer]).toBeLessThan((format === 'xq8' ? 0.1 : 0.5) * coarse[layer]!);
    }
    const after = cache.memoryUsage();
    expect(after.totalBytes - before.totalBytes).toBe(2 * SHAPE.layers * grown);
    expect(after.latentBytes).toBe(3 * SHAPE.layers * latentBytes(format, WIDTH));
    await cache.close();
  });

  it('counts against the budget; a restored page moves on, and the log replays', async () => {
    const of = model(format, 3);
    const random = uniform(4);
    const dir = folder();
    const perPage = latentBytes(format, WIDTH);
    const options: OpenCacheOptions = {
      ...SHAPE,
      kvBudget: 420_000 + 8 * SHAPE.layers * perPage,
      tokensExpected: 1100,
      stateDir: dir,
      latents: of.latents,
    };
    const cache = await openCache(options);
    const given = nothing();
    let restored = 0;
    for (let tokens = 50; tokens <= 1100; tokens += 50) {
      step(cache, of, random, 50, given);
      const { totalBytes, peakBytes, latentBytes: kept, scratchBytes, pageBytes: pages } = cache.memoryUsage();
      const sealed = Math.ceil(tokens / PAGE) - 1;
      expect(kept).toBe(sealed * SHAPE.layers * perPage);
      expect(pages).toBeGreaterThanOrEqual(kept);
      expect(totalBytes).toBeLessThanOrEqual(peakBytes);
      expect(peakBytes).toBeLessThanOrEqual(options.kvBudget as number);
      expect(scratchBytes).toBeGreaterThan(SHAPE.layers * PAGE * WIDTH * 4);
      // Whatever there is room for comes back.
      for (let layer = 0; tokens > 600 && layer < SHAPE.layers; layer++) {
        const room = (options.kvBudget as number) - cache.memoryUsage().totalBytes;
        const code = await codeOf(() => {
          const grew = cache.restore(layer, (tokens / 50) % 3, 'q8');
          expect(grew).toBeLessThanOrEqual(room);
          restored += grew > 0 ? 1 : 0;
        });
        expect(['no error', 'budget-exceeded']).toContain(code);
      }
    }
    expect(restored).toBeGreaterThan(0);
    expect(cache.qualityMetrics().decisions).toBeGreaterThan(5);
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    // What was restored and given back is in the log, and the policy was told.
    const changes = entries.flatMap(({ kind, body }) => (kind === 'change' ? [body as ChangeBody] : []));
    expect(changes.filter(({ cause }) => cause === 'restore')).toHaveLength(restored);
    expect(changes.some(({ cause }) => cause === 'give-back')).toBe(true);
    for (const { bytesBefore, bytesAfter, cause } of changes)
      expect(Math.sign(bytesAfter - bytesBefore)).toBe(cause === 'restore' ? 1 : -1);
    const told = entries.flatMap(({ kind, body }) =>
      kind === 'situation' ? ((body as SituationBody).situation.changes ?? []) : [],
    );
    expect(told.length).toBeGreaterThan(restored);
  });
});

describe('pages that may become latents', () => {
  const budget = 300_000;

  it('become latents where that is better; bytes are counted, what was taken back comes again, and the log replays', async () => {
    const of = model('xq4', 9, 'move');
    const random = uniform(10);
    const dir = folder();
    const options = {
      ...SHAPE,
      kvBudget: budget,
      tokensExpected: 1100,
      stateDir: dir,
      latents: { ...of.latents, denseOperations: 1e9 },
    };
    const cache = await openCache(options);
    const given = nothing();
    const held = (): number[] => cache.report().layers.map(({ kPages }) => (kPages.xq4 ?? 0) + (kPages.xq3 ?? 0));
    for (let tokens = 50; tokens <= 1000; tokens += 50) {
      step(cache, of, random, 50, given);
      const { totalBytes, peakBytes, latentBytes: kept } = cache.memoryUsage();
      expect(peakBytes).toBeLessThanOrEqual(budget);
      expect(kept).toBeLessThan(totalBytes);
    }
    const shares = held();
    for (const pages of shares) expect(pages).toBeGreaterThan(2);
    expect(cache.report().layers[0]!.effectiveBits).toBeLessThan(8);
    // A caller may still have keys and values: they are of the latent, which goes.
    await cache.flush();
    const entriesBefore = [...readLog(logDir(dir), { session: cache.session })];
    const told = entriesBefore.flatMap(({ kind, body }) =>
      kind === 'decision' ? [(body as DecisionBody).decision] : [],
    );
    const one = told.find(({ side, to }) => side === 'kv' && to.startsWith('xq'))!;
    expect(await codeOf(() => cache.restore(one.layer, one.page, 'rot2'))).toBe('no error');
    expect(held()[one.layer]).toBe(shares[one.layer]! - 1);
    step(cache, of, random, 60, given);
    await cache.close();
    const entries = [...readLog(logDir(dir), { session: cache.session })];
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    const changes = entries.flatMap(({ kind, body }) => (kind === 'change' ? (body as ChangeBody).changes : []));
    expect(changes).toContainEqual({ layer: one.layer, page: one.page, side: 'kv', from: one.to, to: 'rot2' });
    const said = explain(logDir(dir), entries.find(({ body }) => (body as DecisionBody).decision?.side === 'kv')!.seq);
    expect(said.sentences[0]!.text).toMatch(/the keys and values of page \d+ .* went from q8 to xq/);
    expect(said.trial?.candidates.map(({ format }) => format)).toEqual(['xq4', 'xq3']);
  });

  it('are shared with forks, which go on without latents of their own', async () => {
    const of = model('xq4', 11, 'move');
    const random = uniform(12);
    const dir = folder();
    const cache = await openCache({
      ...SHAPE,
      kvBudget: 2 * budget,
      stateDir: dir,
      latents: { ...of.latents, denseOperations: 1e9 },
    });
    const given = nothing();
    for (let tokens = 0; tokens < 640; tokens += 128) step(cache, of, random, 128, given);
    const fork = cache.fork();
    const rows = structuredClone(given);
    for (let tokens = 0; tokens < 512; tokens += 128) {
      step(cache, of, random, 128, given);
      step(fork, of, random, 128, rows);
    }
    const ids = [cache.session, fork.session];
    await fork.close();
    await cache.close();
    for (const session of ids)
      expect(replaySession(readLog(logDir(dir), { session }))).toMatchObject({ equal: true, complete: true });
  });

  it('stay as they were where computing them again may take nothing, or where the policy makes no latents', async () => {
    for (const more of [{ policy: 'price-1' }, { latents: { denseOperations: 1 } }]) {
      const of = model('xq4', 13, 'move');
      const random = uniform(14);
      const latents = { ...of.latents, ...('latents' in more ? more.latents : {}) };
      const policy = 'policy' in more ? { policy: more.policy as string } : {};
      const cache = await openCache({ ...SHAPE, kvBudget: 420_000, tokensExpected: 900, ...policy, latents });
      const given = nothing();
      for (let tokens = 0; tokens < 896; tokens += 128) step(cache, of, random, 128, given);
      const { layers } = cache.report();
      expect(layers.flatMap(({ kPages }) => Object.keys(kPages)).filter((name) => name.startsWith('xq'))).toEqual([]);
      await cache.close();
    }
  });
});

it('x without latents serves trials alone: nothing of it is kept, any width will do', async () => {
  const random = uniform(5);
  const [cache, twin] = [await openCache(SHAPE), await openCache(SHAPE)];
  for (let layer = 0; layer < SHAPE.layers; layer++) {
    const [k, v, q] = [normals(random, 300 * ROW), normals(random, 300 * ROW), normals(random, QUERY)];
    cache.append(layer, k, v, normals(random, 300 * 17));
    twin.append(layer, k, v);
    for (const one of [cache, twin]) one.attention(layer, q);
  }
  expect(cache.memoryUsage()).toEqual(twin.memoryUsage());
  expect(cache.memoryUsage().latentBytes).toBe(0);
  expect(await codeOf(() => cache.restore(0, 0))).toBe('unsupported');
  await cache.close();
  await twin.close();
});

describe('misuse', () => {
  it('of the options is one KvError', async () => {
    const { latents } = model('xq8', 6);
    const [first, second] = latents.layers;
    const bad: [string, unknown][] = [
      ['bad-argument', null],
      ['bad-argument', 7],
      ['unsupported', {}],
      ['unsupported', { ...latents, format: 'rot4' }],
      ['unsupported', { ...latents, width: 100 }],
      ['unsupported', { ...latents, width: Number.NaN }],
      ['bad-argument', { ...latents, layers: undefined }],
      ['bad-shape', { ...latents, layers: [first] }],
      ['bad-argument', { ...latents, layers: [first, null] }],
      ['bad-argument', { ...latents, layers: [first, {}] }],
      ['bad-shape', { ...latents, layers: [first, { ...second, wv: new Float32Array(5) }] }],
      ['bad-value', { ...latents, layers: [first, { ...second, wk: second!.wk.with(3, Number.NaN) }] }],
      ['bad-shape', { ...latents, layers: [first, { ...second, kBias: new Float32Array(1) }] }],
      ['bad-argument', { ...latents, layers: [first, { ...second, norm: { gains: [1], epsilon: 0 } }] }],
      ['bad-shape', { ...latents, layers: [first, { ...second, norm: { gains: new Float32Array(1), epsilon: 0 } }] }],
      [
        'bad-argument',
        { ...latents, layers: [first, { ...second, norm: { gains: new Float32Array(WIDTH), epsilon: -1 } }] },
      ],
      ['bad-shape', { ...latents, rotary: { ...latents.rotary, sin: new Float32Array(3) } }],
      ['bad-argument', { ...latents, rotary: { ...latents.rotary, rotaryDim: 7 } }],
    ];
    for (const [code, given] of bad)
      expect(
        await codeOf(() => openCache({ ...SHAPE, latents: given as LatentOptions })),
        JSON.stringify(Object.keys(given ?? {})),
      ).toBe(code);
    // Enough for keys and values, not for the latents of 1,000 tokens.
    const kvBudget = 300_000;
    await (await openCache({ ...SHAPE, kvBudget, tokensExpected: 1000 })).close();
    await expect(openCache({ ...SHAPE, kvBudget, tokensExpected: 1000, latents })).rejects.toMatchObject({
      code: 'budget-too-small',
      values: { budgetBytes: kvBudget, latentBytes: 7 * SHAPE.layers * latentBytes('xq8', WIDTH) },
    });
  });

  it('of a cache is one KvError, and the cache goes on as if nothing had been', async () => {
    const of = model('xq8', 7);
    const [cache, twin] = [
      await openCache({ ...SHAPE, latents: of.latents }),
      await openCache({ ...SHAPE, latents: of.latents }),
    ];
    const given = [nothing(), nothing()];
    const random = [uniform(8), uniform(8)];
    const f = (length: number, value = 0.5): Float32Array => new Float32Array(length).fill(value);
    for (let round = 0; round < 3; round++) {
      // One more than the rotary table has left.
      const beyond = POSITIONS - round * 130 + 1;
      const bad: [string, () => unknown][] = [
        ['bad-argument', () => cache.append(0, f(ROW), f(ROW))],
        ['bad-shape', () => cache.append(0, f(ROW), f(ROW), f(WIDTH - 1))],
        ['bad-shape', () => cache.append(0, f(2 * ROW), f(2 * ROW), f(WIDTH))],
        ['bad-shape', () => cache.append(0, f(ROW), f(ROW), [1] as never)],
        ['bad-value', () => cache.append(0, f(ROW), f(ROW), f(WIDTH, Number.NaN))],
        ['bad-value', () => cache.append(0, f(ROW), f(ROW), f(WIDTH).with(4, Number.POSITIVE_INFINITY))],
        ['bad-value', () => cache.append(0, f(ROW, Number.NaN), f(ROW), f(WIDTH))],
        ['bad-argument', () => cache.append(1, f(ROW), f(ROW), f(WIDTH))],
        ['bad-argument', () => cache.append(0, f(beyond * ROW), f(beyond * ROW), f(beyond * WIDTH))],
        ['bad-argument', () => cache.restore(2, 0)],
        ['bad-argument', () => cache.restore(0, 9)],
        ['bad-argument', () => cache.restore(0, -1)],
        ['bad-argument', () => cache.restore(Number.NaN, 0)],
      ];
      // Without a sealed page there is none to restore.
      if (round === 0) bad.push(['bad-argument', () => cache.restore(0, 0)]);
      else {
        bad.push(['unsupported', () => cache.restore(0, 0, 'xq8' as FormatName)]);
        bad.push(['unsupported', () => cache.restore(0, 0, 'rot4')]); // it is in q8
      }
      for (const [code, work] of bad) expect(await codeOf(work), `round ${round}: ${String(work)}`).toBe(code);
      step(cache, of, random[0]!, 130, given[0]!);
      step(twin, of, random[1]!, 130, given[1]!);
      expect(cache.memoryUsage()).toEqual(twin.memoryUsage());
    }
    await cache.close();
    expect(await codeOf(() => cache.restore(0, 0))).toBe('closed');
    await twin.close();
  });
});
