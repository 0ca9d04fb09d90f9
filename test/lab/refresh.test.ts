// `npm run evaluate -- frontier refresh` on the reference model: what follows a session of a fixed pair is that
// session, reading again what is coded the same brings next to nothing, originals that are put back bring most of it,
// and what cannot be followed is refused.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseCache } from '../../engine/evaluate/evaluate.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { fixedCache } from '../../lab/evaluate/every-cache.ts';
import { frontier } from '../../lab/evaluate/frontier.ts';
import { frontierPage } from '../../lab/evaluate/frontier-page.ts';
import type { FrontierRow, QualityRow, RefreshRow } from '../../lab/evaluate/frontier-rows.ts';
import { frontierTable } from '../../lab/evaluate/frontier-table.ts';
import { CHRONICLE } from '../../lab/evaluate/passages.ts';
import { refreshed } from '../../lab/evaluate/refresh.ts';

const CONTEXT = 512;
const [EIGHT, TWO] = [fixedCache('q8', 'q8'), fixedCache('rot2', 'rot2')];
let rows: readonly FrontierRow[];
let runtime: Runtime;
beforeAll(async () => {
  rows = await frontier({
    models: ['reference'],
    contexts: [CONTEXT],
    caches: ['exact', EIGHT, TWO, 'price@35%'],
    parts: ['quality', 'refresh'],
    kinds: [CHRONICLE],
    passages: 1,
    documents: 1,
    chunks: 1,
    depths: [0.5],
    dense: 'auto',
    threads: 1,
    cacheDir: '',
    json: null,
    say: () => {},
  });
  runtime = await Runtime.open({ model: 'reference', threads: 1 });
});
afterAll(() => runtime.close());

const of = (cache: string): NonNullable<RefreshRow['refresh']>['stretches'][number] => {
  const row = rows.find((one): one is RefreshRow => one.part === 'refresh' && one.cache === cache);
  expect(row?.refresh, cache).toMatchObject({ from: CONTEXT / 2, stretches: [{ tokens: CONTEXT }] });
  return row!.refresh!.stretches[0]!;
};

it('is of every cache that loses anything', () => {
  const caches = rows.flatMap((row) => (row.part === 'refresh' ? [row.cache] : []));
  expect(caches).toEqual([EIGHT, TWO, 'price@35%']);
});

it('follows a fixed pair to the bit: its divergence is that of the session, whose quality is measured on the same tokens', () => {
  for (const cache of [EIGHT, TWO]) {
    const quality = rows.find((row): row is QualityRow => row.part === 'quality' && row.cache === cache);
    expect(of(cache).kept, cache).toBe(quality!.measured!.meanKld);
  }
});

it('changes nothing where nothing was moved, and takes back most by originals and next to nothing by the same codes of better rows', () => {
  const { kept, again, restored } = of(EIGHT);
  expect([again, restored]).toEqual([kept, kept]);
  expect(of(TWO).restored).toBeLessThan(of(TWO).kept / 2);
  expect(Math.abs(of(TWO).again / of(TWO).kept - 1)).toBeLessThan(0.1);
  const budget = of('price@35%');
  expect(budget.restored).toBeLessThan(budget.kept);
});

it('stands in the table and on the page', () => {
  expect(frontierTable(rows)).toContain(`refreshed in the middle of ${CONTEXT} tokens`);
  expect(frontierPage(rows)).toContain('originals put back');
});

it('refuses a window that is not in 8 bits', async () => {
  const ids = Array.from({ length: CONTEXT }, (_, at) => 5 + (at % 300));
  await expect(refreshed(runtime, ids, parseCache('exact').options)).rejects.toThrow(/window/);
});
