// The evaluation scripts on the reference model: results go on where they stopped and refuse rows of another model,
// tables in hindsight take the cheapest step first and keep their budget, a part that is left out is left out, and
// lessons share no text with what is scored.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { termsOf } from '../../engine/cache/terms.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { descent, type SideCost, tableWithin } from '../../lab/evaluate/hindsight.ts';
import { CHRONICLE } from '../../lab/evaluate/passages.ts';
import { conditionsOf, Results } from '../../lab/evaluate/results.ts';
import { shares, stated } from '../../lab/evaluate/stated.ts';
import { ABLATIONS, ablated, isKnown } from '../../lab/evaluate/variants.ts';
import { FORMAT_NAMES, SIDES, servesSide, TRIAL_CANDIDATES } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
let runtime: Runtime;

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());

it('results go on where they stopped', () => {
  const path = join(folder(), 'rows.json');
  const open = (kind = 'some') =>
    Results.open<{ name: string }>(path, conditionsOf(kind, runtime, 'auto'), ({ name }) => name);
  open().add({ name: 'first' });
  const again = open();
  expect(again.find('first')).toEqual({ name: 'first' });
  expect(again.find('second')).toBeUndefined();
  again.add({ name: 'second' });
  expect(JSON.parse(readFileSync(path, 'utf8'))).toMatchObject({
    model: runtime.model.name,
    dense: `${runtime.dense.name}, auto`,
    rows: [{ name: 'first' }, { name: 'second' }],
  });
  expect(() => open('other')).toThrow(/another kind/);
});

it('the table in hindsight spends divergence where it saves most', () => {
  const { layers } = runtime.shape;
  // Every format of layer 2 is a thousand times as dear as elsewhere.
  const costs = Array.from({ length: layers }, (_, layer) =>
    SIDES.flatMap((side) =>
      TRIAL_CANDIDATES.filter((format) => servesSide(format, side)).map(
        (format): SideCost => ({
          layer,
          side,
          format,
          kld: 1e-4 * 4 ** FORMAT_NAMES.indexOf(format) * (layer === 2 ? 1000 : 1),
        }),
      ),
    ),
  ).flat();
  const tables = descent(runtime, costs);
  expect(tables[0]!.every(({ k, v }) => k === 'q8' && v === 'q8')).toBe(true);
  const last = tables.at(-1)!;
  expect(
    last.every(({ k, v }) => k === last[0]!.k && v === last[0]!.v),
    'all as coarse as can be',
  ).toBe(true);
  const firstTouched = tables.findIndex((table) => table[2]!.k !== 'q8' || table[2]!.v !== 'q8');
  const others = tables[firstTouched - 1]!.filter((_, layer) => layer !== 2);
  expect(
    others.every(({ k, v }) => k !== 'q8' && v !== 'q8'),
    'layer 2 comes last',
  ).toBe(true);

  const options = tableWithin(runtime, tables, '35%', 1400)!;
  const planned = termsOf(runtime.shape, { ...options, tokensExpected: 1400 }, defaultThresholds(layers));
  expect(planned.policy.id).toBe('table');
  const index = tables.indexOf(options.cacheTypes as (typeof tables)[number]);
  expect(index, 'some steps, not all').toBeGreaterThan(0);
  const finer = { ...options, cacheTypes: tables[index - 1]!, tokensExpected: 1400 };
  expect(() => termsOf(runtime.shape, finer, defaultThresholds(layers)), 'one step finer').toThrow(/cannot hold/);
  expect(tableWithin(runtime, tables, '1%', 1400)).toBeNull();
});

it('a part that is left out is left out', () => {
  const whole = { options: { kvBudget: '25%' }, stateDir: 'taught' };
  const again = ablated(whole, ABLATIONS.find(({ without }) => without === 'repeated trials')!);
  const set = again.adjust!(defaultThresholds(6));
  expect(set.thresholds['trial.again']!.value).toBe(0);
  expect(again).toMatchObject(whole);
  expect(ablated(whole, ABLATIONS.find(({ without }) => without === 'retrieval')!).stateDir).toBeNull();
  expect(isKnown({ without: 'nothing', thresholds: { 'no.such': 0 } })).toBe(false);
});

it('a stated divergence is scored with what is read twice and without, in rows of their own', async () => {
  const json = join(folder(), 'stated.json');
  const said: string[] = [];
  const asked = {
    runtime,
    dense: 'auto',
    json,
    kinds: [CHRONICLE],
    lengths: [1024],
    asked: [2e-4],
    passages: 1,
  } as const;
  for (const reread of [0, 256, 256])
    await stated({ ...asked, stateDir: null, reread, doubled: false, say: (line) => void said.push(line) });
  const { rows } = JSON.parse(readFileSync(json, 'utf8')) as { rows: Record<string, number>[] };
  expect(rows.map((row) => row['reread'])).toEqual([undefined, 256]);
  expect(said).toHaveLength(2);
  for (const row of rows) for (const name of ['measured', 'predicted', 'readMs']) expect(row[name]).toBeGreaterThan(0);
  for (const row of rows) expect(typeof row['told']).toBe('boolean');
  // What is measured is decided by.
  expect(rows[1]!['predicted']).not.toBe(rows[0]!['predicted']);
});

it('shares count runs by what was asked, measured and predicted', () => {
  const row = { text: 'a', kind: 'a', tokens: 2048, asked: 0.01, bits: 4, code: null };
  const text = shares([
    { ...row, measured: 0.008, predicted: 0.01 },
    { ...row, measured: 0.012, predicted: 0.012, told: true },
    { ...row, measured: 0.002, predicted: 0.01 },
    { ...row, measured: 0.005, predicted: 0.01, told: true },
    { ...row, measured: null, predicted: null },
  ]);
  expect(text.split('\n')[0]).toMatch(
    /4 runs {2}measured\/asked in \[0\.5, 1\] +50% {2}above 1 +25% \(told 1\) {2}predicted within 30% +50%/,
  );
});
