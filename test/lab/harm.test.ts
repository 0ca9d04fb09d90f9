// Whether measuring does harm: the price policy beside `uniform`, which measures nothing, on the reference model as
// it is and with outlier channels in its keys, at equal bytes. Nothing shorter proves it: one text says nothing, since
// what both diverge by differs from text to text by more than the two differ.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type HarmRow, harm, ratios } from '../../lab/evaluate/harm.ts';
import { TEXTS_DIR } from '../../lab/evaluate/texts.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
const HAS_TEXTS = existsSync(TEXTS_DIR) || existsSync(join(import.meta.dirname, '..', '..', '..', 'shared', 'data'));

const row = (change: Partial<HarmRow>): HarmRow => ({
  model: 'm',
  text: 'wiki 1',
  tokens: 2048,
  budget: '25%',
  price: 1,
  uniform: 1,
  ...change,
});

test('ratios are by model and budget, and leave out what was refused', () => {
  const table = ratios([
    row({ price: 1, uniform: 4 }),
    row({ text: 'wiki 2', price: 1, uniform: 1 }),
    row({ text: 'wiki 3', price: null }),
    row({ budget: '30%', uniform: null }),
    row({ model: 'n', price: 3, uniform: 2 }),
  ]);
  expect(table).toBe(
    'model  budget  texts  geometric mean  worst text\nm  25%  2  0.50  1.00\nn  25%  1  1.50  1.50\n',
  );
});

test.skipIf(!HAS_TEXTS)('no harm in the mean of texts of four kinds, and rows go on (needs public texts)', async () => {
  const request = {
    models: [MODEL, `${MODEL}+outliers`],
    kinds: ['wiki', 'novel', 'german', 'code'],
    passages: 1,
    budgets: ['25%'],
    tokens: 2048,
    dense: 'auto',
    threads: 1,
    cacheDir: folder(),
    json: join(folder(), 'harm.json'),
  } as const;
  const told: string[] = [];
  const rows = await harm({ ...request, say: (line) => told.push(line) });
  expect(told).toHaveLength(8);
  for (const model of request.models) {
    const found = rows.filter((one) => one.model === model).map(({ price, uniform }) => Math.log(price! / uniform!));
    expect(found).toHaveLength(4);
    expect(found.reduce((sum, one) => sum + one, 0) / 4, model).toBeLessThan(0);
  }
  await harm({ ...request, say: (line) => told.push(line) });
  expect(told, 'nothing is computed twice').toHaveLength(8);
});
