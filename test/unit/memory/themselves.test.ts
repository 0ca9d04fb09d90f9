// Every vector of an index finds itself, or one that is equal: among 2,000 of which many are equal and many were
// removed and added again, in the index as it grew and as it is loaded from its files.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import type { VectorIndex } from '../../../memory/index.ts';
import { openVectorIndex } from '../../../memory/open-index.ts';
import { seeded } from '../../random.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-themselves-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const COUNT = 2000;
const DIM = 10;
interface Numbered {
  readonly n: number;
}

it('equal, removed and added again: each is found first, by no name twice', { timeout: 120_000 }, async () => {
  const next = seeded(31);
  // One in three is equal to one of fifty, as sessions of one kind of text are.
  const kinds = Array.from({ length: 50 }, () => Array.from({ length: DIM }, () => Math.fround(next())));
  const vectors = Array.from({ length: COUNT }, (_, n) =>
    n % 3 === 0 ? kinds[n % 50]! : Array.from({ length: DIM }, () => Math.fround(next())),
  );
  const entryOf = (n: number) => ({ id: { log: 'a', seq: n }, vector: vectors[n]!, payload: { n } });
  const options = { dim: DIM, fields: { n: 'integer' }, dir: root, origin: 'test' } as const;
  const open = async (): Promise<VectorIndex<Numbered>> =>
    (await openVectorIndex<Numbered>({ ...options, readOnly: false, check: (one) => one }, async () => {})).index;
  const grown = await open();
  await grown.add(vectors.map((_, n) => entryOf(n)));
  for (let round = 0; round < 3; round++) {
    const gone = vectors.map((_, n) => n).filter((n) => n % 4 === round);
    for (let at = 0; at < gone.length; at += 100)
      await grown.remove({ must: [{ field: 'seq', oneOf: gone.slice(at, at + 100) }] });
    await grown.add(gone.map(entryOf));
  }
  await grown.save();
  const loaded = await open();
  for (const index of [grown, loaded]) {
    expect(await index.count()).toBe(COUNT);
    const lost: number[] = [];
    for (const [n, vector] of vectors.entries()) {
      const found = await index.search(vector, 10);
      const seqs = found.map(({ id }) => id.seq);
      if (found[0]?.distance !== 0 || new Set(seqs).size !== seqs.length) lost.push(n);
    }
    expect(lost).toEqual([]);
  }
  await loaded.close();
  await grown.close();
});
