// Yardsticks in a build that computes them: a session has one only where its cache types name it, then `fixed` takes
// pages to it and `price` tries it; a session that names none knows of none, and its decisions replay without them.
import { expect, it } from 'vitest';
import { termsOf } from '../../engine/cache/terms.ts';
import { openCache } from '../../engine/index.ts';
import { logDir } from '../../engine/state/folder.ts';
import { FORMATS, type FormatName, isAutomatic, KvError } from '../../native/index.ts';
import { createPolicy, defaultThresholds } from '../../policy/index.ts';
import { type DecisionBody, readLog, replaySession } from '../../witness/index.ts';
import { normals, uniform } from '../native/dense.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 };
const PAGES = 5;
const folder = scratchFolders();
const terms = (request: Parameters<typeof termsOf>[1]) => termsOf(SHAPE, request, defaultThresholds(SHAPE.layers));
const knows = (request: Parameters<typeof termsOf>[1]): string[] =>
  Object.keys(terms(request).context.pageBytes).filter((name) => !isAutomatic(name as FormatName));

it('are known to sessions that name them, and to no others', () => {
  // For keys with outlier channels; test/unit/policy/outlier-keys.test.ts asks where they are used.
  expect(knows({ kvBudget: '50%', tokensExpected: 1024 })).toEqual(createPolicy('price').outlierKeys);
  expect(knows({ kvBudget: '50%', tokensExpected: 1024, policy: 'uniform' })).toEqual([]);
  expect(knows({ cacheTypes: 'rot4:rot2' })).toEqual([]);
  expect(knows({ cacheTypes: 'turbo4:turbo2' })).toEqual(['turbo4', 'turbo2']);
  expect(knows({ cacheTypes: ['rot4', 'higgs4'], policy: 'table' })).toEqual(['higgs4']);
  expect(terms({ kvBudget: '50%', tokensExpected: 1024, cacheTypes: 'turbo4:turbo2' }).context.floor).toEqual({
    k: 'turbo4',
    v: 'turbo2',
  });
});

it('are refused where a policy aims at one that its session does not know', () => {
  const { context } = terms({ cacheTypes: 'rot4' });
  expect(() => createPolicy('fixed', { k: 'turbo4', v: 'turbo4' }).open(context)).toThrow(KvError);
});

it.each([
  ['fixed', {}],
  ['price', { kvBudget: '40%', tokensExpected: PAGES * 128 }],
] as const)('are where %s takes pages, and the log replays', async (policy, budget) => {
  const dir = folder();
  const random = uniform(5);
  const cache = await openCache({ ...SHAPE, policy, ...budget, cacheTypes: 'turbo4:turbo2', stateDir: dir });
  const rows = 128 * SHAPE.kvHeads * SHAPE.headDim;
  for (let page = 0; page < PAGES; page++) {
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      cache.append(layer, normals(random, rows), normals(random, rows));
      cache.attention(layer, normals(random, 128 * SHAPE.queryHeads * SHAPE.headDim));
    }
  }
  const { decisions } = cache.report();
  await cache.close();
  const entries = [...readLog(logDir(dir), { session: cache.session })];
  expect(replaySession(entries)).toMatchObject({ equal: true, complete: true, decisions });
  const formats = entries.flatMap(({ kind, body }) =>
    kind === 'decision' ? [(body as DecisionBody).decision.to] : [],
  );
  expect(formats.length).toBeGreaterThan(0);
  const others = formats.filter((format) => format !== 'turbo4' && format !== 'turbo2');
  if (policy === 'fixed') expect(others).toEqual([]);
  else expect(formats.every((format) => FORMATS[format as 'rot4'].tier !== 'exact')).toBe(true);
});
