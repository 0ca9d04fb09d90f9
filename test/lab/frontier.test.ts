// `npm run evaluate -- frontier` on the reference model (T26): what is measured is finite, valid and in the order that
// bits demand, a run that was killed goes on with the row it lost, outliers and an eviction rule that may hold
// everything change nothing, and every format is a method.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, fixedCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { type FrontierRequest, frontier } from '../../lab/evaluate/frontier.ts';
import { frontierPage } from '../../lab/evaluate/frontier-page.ts';
import {
  type CourseRow,
  frontierFile,
  type LatencyRow,
  pointsOf,
  type QualityRow,
} from '../../lab/evaluate/frontier-rows.ts';
import { frontierTable } from '../../lab/evaluate/frontier-table.ts';
import { OUTLIERS, withOutliers } from '../../lab/evaluate/outliers.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import { Scorer } from '../../lab/evaluate/score.ts';
import { evicted } from '../../lab/methods/evict.ts';
import { FORMAT_NAMES, KvError } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
const CONTEXT = 512;
const LADDER = ['exact', ...['q8', 'rot4', 'rot2'].map((name) => fixedCache(name, name))];

describe('a run over the reference model with and without outliers', () => {
  let path: string;
  let said: string[];
  const request = (): FrontierRequest => ({
    models: ['reference', `reference${OUTLIERS}`],
    contexts: [CONTEXT, 2 ** 20],
    caches: [...LADDER, 'price@35%', 'uniform@1%', 'h2o@50%', 'snapkv@50%', 'xquant4', 'rot2:rot2+w0'],
    parts: ['quality'],
    kinds: [CHRONICLE],
    passages: 1,
    documents: 1,
    chunks: 6,
    depths: [0.3, 0.7],
    dense: 'auto',
    threads: 1,
    cacheDir: '',
    json: path,
    say: (line) => said.push(line),
  });

  beforeAll(async () => {
    path = join(folder(), 'frontier.json');
    said = [];
    await frontier(request());
    // The other parts, with fewer caches and one model.
    await frontier({ ...request(), models: ['reference'], caches: LADDER, parts: ['short', 'course', 'latency'] });
    await frontier({ ...request(), models: ['reference'], caches: ['price@35%', 'xquant4'], parts: ['recall'] });
  });

  it('writes valid rows, in which better formats diverge less', () => {
    const { rows, protocol } = frontierFile.parse(JSON.parse(readFileSync(path, 'utf8')));
    expect(protocol).toMatchObject({ dense: 'auto', stride: 128 });
    const models = [...new Set(rows.flatMap((row) => (row.part === 'quality' ? [row.model] : [])))];
    expect(models).toEqual(['reference', `reference${OUTLIERS}`]);
    for (const model of models) {
      const points = pointsOf(rows, model, CONTEXT);
      const kld = LADDER.map((cache) => points.find((point) => point.cache === cache)!.meanKld);
      expect(kld[0]).toBe(0);
      for (let i = 1; i < kld.length; i++) expect(kld[i], `${model} ${LADDER[i]}`).toBeGreaterThan(kld[i - 1]!);
      const bits = LADDER.map((cache) => points.find((point) => point.cache === cache)!.bits);
      for (let i = 1; i < bits.length; i++) expect(bits[i]).toBeLessThan(bits[i - 1]!);
      const [windowed, without] = [LADDER[3]!, 'rot2:rot2+w0'].map(
        (name) => points.find(({ cache }) => cache === name)!,
      ) as [(typeof points)[number], (typeof points)[number]];
      expect(without.bitsAtRest, 'no window').toBeLessThan(windowed.bitsAtRest);
      expect(without.bitsAtRest, 'while a page is filled, it is there in f16').toBeLessThan(without.bits - 1);
      expect(without.meanKld, 'not even the page of a token is exact').toBeGreaterThan(windowed.meanKld);
      for (const { cache, medianKld, kld99, kld999 } of points)
        expect(medianKld <= kld99 && kld99 <= kld999, cache).toBe(true);
      expect(kld[3], 'the mean of what is told by percentiles').toBeLessThan(windowed.kld999);
      const { recall } = points.find(({ cache }) => cache === 'price@35%')!;
      expect(recall.many).toHaveLength(model === 'reference' ? 2 : 0);
    }
    const refused = rows.filter((row): row is QualityRow => row.part === 'quality' && row.code !== null);
    expect(new Set(refused.map(({ cache, code }) => `${cache} ${code}`))).toEqual(
      new Set(['uniform@1% budget-too-small', 'snapkv@50% budget-too-small']),
    );
    const short = rows.filter((row) => row.part === 'short').slice(0, 3);
    for (let i = 1; i < short.length; i++) {
      expect(short[i]!.measured!.meanKld, short[i]!.cache).toBeGreaterThan(short[i - 1]!.measured!.meanKld);
      expect(short[i]!.measured!.bits).toBeLessThan(short[i - 1]!.measured!.bits);
    }
    expect(short[0], 'of 6 chunks, all 64 tokens').toMatchObject({ chunks: 6, measured: { scored: 384 } });
    const course = rows.find((row) => row.part === 'course' && row.cache === LADDER[2]) as CourseRow;
    expect(course.course!.map(({ tokens }) => tokens)).toEqual([CONTEXT]);
    expect(course.course![0]!.meanKld).toBeGreaterThan(0);
    const { steps } = rows.find((row) => row.part === 'latency' && row.cache === 'exact') as LatencyRow;
    expect(steps!.p50Ms <= steps!.p95Ms && steps!.p95Ms <= steps!.p99Ms && steps!.p99Ms <= steps!.mostMs).toBe(true);
    expect(
      said.some((line) => line.includes('1048576 are left out')),
      'a context that the model cannot read',
    ).toBe(true);
  });

  it('goes on where it was killed, and refuses another protocol', async () => {
    const file = JSON.parse(readFileSync(path, 'utf8'));
    const { rows } = file;
    writeFileSync(path, JSON.stringify({ ...file, rows: [...rows.slice(0, 3), ...rows.slice(4)] }));
    said = [];
    const again = await frontier(request());
    expect(said.filter((line) => !line.includes('left out'))).toHaveLength(1);
    const lost = again.at(-1) as QualityRow;
    expect(lost).toEqual({ ...rows[3], commit: lost.commit });
    expect(again).toHaveLength(rows.length);
    await expect(frontier({ ...request(), dense: 'exact' })).rejects.toThrow(/another protocol/);
    await expect(frontier({ ...request(), caches: ['rot9'] })).rejects.toBeInstanceOf(KvError);
    await expect(frontier({ ...request(), caches: ['prize@25%'] })).rejects.toBeInstanceOf(KvError);
  });

  it('draws all of it in a page that fetches nothing', () => {
    const { rows } = frontierFile.parse(JSON.parse(readFileSync(path, 'utf8')));
    const page = frontierPage(rows);
    // Beside the two of the frontier: chunks, two of a course, and decode steps.
    expect(page.match(/<section>/g)).toHaveLength(2 + 4);
    // The exact cache has no place on a logarithmic axis.
    const signs = page.match(/<path transform/g)!.length;
    expect(signs).toBe(2 * (LADDER.length - 1 + 4));
    expect(page).not.toMatch(/NaN|undefined|https?:|<script/);
    expect(frontierTable(rows)).toContain('| **rot2:rot2** |');
    expect(frontierTable(rows)).toContain('| cache | bits | at rest | KLD | median | 99% | 99.9% |');
  });
});

describe('models', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1 });
  });
  afterAll(() => runtime.close());

  it('with outliers compute the same function, and quantized keys suffer', async () => {
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, CONTEXT);
    const options = { compareTokens: CONTEXT / 2 };
    const hidden = async (of: Runtime, exact: boolean): Promise<Float32Array> => {
      let rows = new Float32Array(0);
      await new Scorer(of).compare(passage!, {
        options: { ...options, ...(exact ? { exact } : { policy: 'fixed', cacheTypes: 'rot4:rot4' }) },
        stateDir: null,
        look: async (session) => {
          rows = session.hiddenRows() as Float32Array<ArrayBuffer>;
        },
      });
      return rows;
    };
    const outlying = withOutliers(runtime);
    expect(await hidden(outlying, true)).toEqual(await hidden(runtime, true));
    const scorer = new Scorer(runtime);
    const plain = await scorer.against(passage!, await hidden(runtime, false));
    const worse = await scorer.against(passage!, await hidden(outlying, false));
    expect(worse.meanKld).toBeGreaterThan(1.2 * plain.meanKld);
  });

  it('under an eviction rule are exact while it may hold everything, and keep its share otherwise', async () => {
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, CONTEXT / 2);
    const scorer = new Scorer(runtime);
    for (const id of ['h2o', 'streaming', 'scissorhands']) {
      const all = await evicted(
        runtime,
        { id, budgetTokens: (tokens) => tokens },
        { ids: passage!.ids, scored: CONTEXT / 4 },
      );
      expect((await scorer.against(passage!, all.hidden)).meanKld, id).toBeLessThan(1e-6);
      const half = await evicted(
        runtime,
        { id, budgetTokens: (tokens) => tokens / 2 },
        { ids: passage!.ids, scored: CONTEXT / 4 },
      );
      expect((await scorer.against(passage!, half.hidden)).meanKld, id).toBeGreaterThan(1e-4);
      // A position and at most a score for each token of 256 bytes come on top.
      expect(half.bytes / half.bytesF16).toBeLessThanOrEqual(0.5 * (264 / 256));
    }
  });
});

it('every format is a method, and so are policies and eviction rules', () => {
  const caches = everyCache();
  const coded = FORMAT_NAMES.filter((name) => name !== 'f16');
  for (const name of coded)
    expect(
      caches.some((cache) => cache.split(/[:+]/).slice(0, 2).includes(name)),
      name,
    ).toBe(true);
  expect(new Set(caches).size).toBe(caches.length);
  for (const method of [
    'price',
    'uniform',
    'age',
    'h2o',
    'streaming',
    'snapkv',
    'pyramidkv',
    'scissorhands',
    'rot',
    'oscar',
    'xquant',
  ])
    expect(caches.map(kindOf)).toContain(method);
});
