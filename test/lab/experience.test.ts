// What a model of which nobody calibrated a law gets from sessions: rows of sessions that know nothing, that were
// taught by other kinds of text, and that have the law of the package. Nothing shorter teaches: a session measures what
// errors in layers cost from 1,024 tokens on.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type ExperienceRow, experience, experienceTable } from '../../lab/evaluate/experience.ts';
import { TEXTS_DIR } from '../../lab/evaluate/texts.ts';
import { MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
const HAS_TEXTS = existsSync(TEXTS_DIR) || existsSync(join(import.meta.dirname, '..', '..', '..', 'shared', 'data'));

const row = (change: Partial<ExperienceRow>): ExperienceRow => ({
  model: 'm',
  text: 'wiki 1',
  tokens: 2048,
  budget: '25%',
  experience: 'none',
  kld: 4,
  decisionsChanged: null,
  decideShare: 0.5,
  ...change,
});

test('the table has means over the runs that both sides have', () => {
  const told = experienceTable([
    row({}),
    row({ experience: 'other3', kld: 2, decisionsChanged: 0.25, decideShare: 0.1 }),
    row({ experience: 'calibrated', kld: 1, decisionsChanged: 0.75 }),
    row({ text: 'wiki 2', experience: 'other3', kld: 8, decisionsChanged: 0.75, decideShare: 0.3 }),
    row({ text: 'wiki 3', kld: null }),
  ]).split('\n');
  expect(told.find((line) => line.includes('other3'))).toMatch(/m +other3 +2 +0\.500 +0\.50 +2\.000 +50\.0% +20\.0%/);
  expect(told.find((line) => line.includes('none'))).toMatch(/m +none +1 +1\.000 +1\.00 +4\.000 +50\.0%/);
});

test.skipIf(!HAS_TEXTS)('sessions on other kinds teach, and rows go on (needs public texts)', async () => {
  const request = {
    models: [MODEL],
    kinds: ['wiki'],
    passages: 1,
    budgets: ['25%'],
    tokens: 2048,
    sessions: [3],
    isApart: true,
    alike: 0,
    dense: 'auto',
    threads: 1,
    cacheDir: folder(),
    json: join(folder(), 'experience.json'),
  } as const;
  const told: string[] = [];
  const rows = await experience({ ...request, say: (line) => told.push(line) });
  const of = (known: string): ExperienceRow => rows.find((one) => one.experience === known)!;
  expect(rows.map((one) => one.experience)).toEqual([
    'none',
    'other3',
    'other3 course',
    'other3 coefficients',
    'calibrated',
  ]);
  // Each of the two changes what is decided.
  expect(new Set(rows.map(({ kld }) => kld)).size).toBe(5);
  expect(of('none').decisionsChanged).toBeNull();
  for (const known of ['other3', 'calibrated']) {
    expect(of(known).kld!, known).toBeLessThan(of('none').kld!);
    expect(of(known).decisionsChanged!, known).toBeGreaterThan(0.2);
  }
  const before = told.length;
  await experience({ ...request, say: (line) => told.push(line) });
  expect(told, 'nothing is computed twice').toHaveLength(before);
});

test.skipIf(!HAS_TEXTS)(
  'sessions that began alike are rows beside those with the law alone (needs public texts)',
  async () => {
    const request = {
      models: [MODEL],
      kinds: ['wiki', 'novel'],
      passages: 1,
      budgets: ['25%'],
      tokens: 1024,
      sessions: [],
      isApart: false,
      alike: 1,
      dense: 'auto',
      threads: 1,
      cacheDir: folder(),
      json: join(folder(), 'alike.json'),
      say: () => {},
    } as const;
    const rows = await experience(request);
    const begun = rows.filter(({ text }) => text === 'wiki and novel');
    expect(begun.map((one) => one.experience)).toEqual(['calibrated', 'prefix']);
    const [law, prefix] = begun as [ExperienceRow, ExperienceRow];
    expect(prefix.kld).not.toBe(law.kld);
    expect(prefix.decisionsChanged!).toBeGreaterThan(0);
    expect(prefix.decideShare).toBeGreaterThan(0);
    expect(await experience(request)).toEqual(rows);
    expect(experienceTable(rows)).toMatch(/prefix +1 +\d\.\d{3} +\d+\.\d%/);
  },
);
