// A store in PostgreSQL without the package that it takes: what is said is of a store, not of the tables of a log.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import { openStore } from '../../../../engine/store/open.ts';
import { missingPackages } from '../../../../witness/sql/missing.ts';

vi.mock('../../../../witness/index.ts', async (original) => ({
  ...(await original<object>()),
  openServerTables: () => Promise.reject(missingPackages(new Error('not found'))),
}));

test('says which package a store takes, in the version that goes with this one', async () => {
  const about = readFileSync(join(import.meta.dirname, '../../../../package.json'), 'utf8');
  const { peerDependencies } = JSON.parse(about) as { peerDependencies: Record<string, string> };
  await expect(openStore('postgres://nobody@127.0.0.1:1/none')).rejects.toMatchObject({
    code: 'missing-dependency',
    message: expect.stringMatching(/^a store in PostgreSQL/),
    hint: expect.stringContaining(`npm install drizzle-orm@${peerDependencies['drizzle-orm']},`),
  });
});
