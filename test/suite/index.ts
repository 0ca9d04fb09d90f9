/**
 * The contract of a vector index, run over every implementation. A new one adds its line in index.test.ts and passes
 * this unchanged.
 */
import { describe, expect, test } from 'vitest';
import { createExactIndex, type VectorIndex } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { clustered } from './index-data.ts';

export type OpenIndex = (dim: number) => Promise<VectorIndex<{ name: string }>>;

export async function refusal(work: () => Promise<unknown>): Promise<KvError> {
  try {
    await work();
  } catch (error) {
    expect(error).toBeInstanceOf(KvError);
    return error as KvError;
  }
  throw new Error('it was not refused');
}

export function vectorIndexSuite(name: string, open: OpenIndex): void {
  describe(`vector index: ${name}`, () => {
    // Tries recall: the ten nearest of 3,000 clustered vectors against a scan of all of them, for 100 fresh queries.
    test('finds at least 95% of the true ten nearest, nearest first', async () => {
      const seed = 20_251;
      const dim = 10;
      const index = await open(dim);
      const exact = createExactIndex<{ name: string }>(dim);
      for (const [label, vector] of clustered(3000, dim, 20, seed).entries()) {
        await index.add(label, vector, { name: `p${label}` });
        await exact.add(label, vector, { name: `p${label}` });
      }
      expect(index.count).toBe(3000);
      let hits = 0;
      for (const query of clustered(100, dim, 20, seed + 1)) {
        const truth = new Set((await exact.search(query, 10)).map((n) => n.label));
        const found = await index.search(query, 10);
        expect(found).toHaveLength(10);
        for (let i = 1; i < 10; i++) expect(found[i]!.distance).toBeGreaterThanOrEqual(found[i - 1]!.distance);
        for (const n of found) expect(n.payload.name).toBe(`p${n.label}`);
        hits += found.filter((n) => truth.has(n.label)).length;
      }
      expect(hits / 1000, `seed ${seed}`).toBeGreaterThanOrEqual(0.95);
    });

    // Tries a filter that one vector in a hundred passes: still the true nearest among those, and as many as asked for.
    test('a rare filter finds what passes it', async () => {
      const index = await open(4);
      const exact = createExactIndex<{ name: string }>(4);
      for (const [label, vector] of clustered(2000, 4, 10, 7).entries()) {
        for (const i of [index, exact]) await i.add(label, vector, { name: label % 100 === 3 ? 'rare' : 'common' });
      }
      const isRare = (p: { name: string }): boolean => p.name === 'rare';
      const found = await index.search([0.5, 0.5, 0.5, 0.5], 15, isRare);
      const truth = await exact.search([0.5, 0.5, 0.5, 0.5], 15, isRare);
      expect(found.map((n) => n.label)).toEqual(truth.map((n) => n.label));
      expect(await index.search([0, 0, 0, 0], 5, () => false)).toEqual([]);
    });

    // Tries adding a label again: the old place is forgotten, the count stays.
    test('a label added again replaces', async () => {
      const index = await open(2);
      await index.add(5, [0, 0], { name: 'old' });
      await index.add(6, [1, 1], { name: 'other' });
      await index.add(5, [9, 9], { name: 'new' });
      expect(index.count).toBe(2);
      const [nearest] = await index.search([9, 9], 1);
      expect(nearest).toEqual({ label: 5, distance: 0, payload: { name: 'new' } });
      expect((await index.search([0, 0], 1))[0]!.label).toBe(6);
      expect(await index.search([0, 0], 10)).toHaveLength(2);
    });

    // Tries everything the C++ core would take silently or die of.
    test('bad vectors, labels and k are refused and change nothing', async () => {
      const index = await open(2);
      await index.add(2 ** 32 - 1, [1, 2], { name: 'last label' });
      expect((await refusal(() => index.add(1, [1], { name: 'x' }))).code).toBe('bad-shape');
      expect((await refusal(() => index.add(1, [1, 2, 3], { name: 'x' }))).code).toBe('bad-shape');
      for (const bad of [
        Number.NaN,
        Infinity,
        -Infinity,
        1e300,
        '1' as unknown as number,
        undefined as unknown as number,
      ]) {
        expect((await refusal(() => index.add(1, [1, bad], { name: 'x' }))).code).toBe('bad-value');
        expect((await refusal(() => index.search([1, bad], 1))).code).toBe('bad-value');
      }
      for (const label of [-1, 2 ** 32, 2 ** 33 + 5, 1.5, Number.NaN]) {
        expect((await refusal(() => index.add(label, [1, 2], { name: 'x' }))).code).toBe('bad-argument');
      }
      for (const k of [0, -1, 1.5, Number.NaN, 1e9]) {
        expect((await refusal(() => index.search([1, 2], k))).code).toBe('bad-argument');
      }
      expect((await refusal(() => index.search([1], 1))).code).toBe('bad-shape');
      expect(index.count).toBe(1);
      expect((await index.search([1, 2], 3)).map((n) => n.label)).toEqual([2 ** 32 - 1]);
    });

    // Tries a filter that throws: an exception of the caller's, and the index goes on.
    test('a throwing filter is the caller’s error', async () => {
      const index = await open(2);
      for (let i = 0; i < 600; i++) await index.add(i, [i, -i], { name: `${i}` });
      const error = await refusal(() =>
        index.search([3, -3], 2, () => {
          throw new Error('my filter is broken');
        }),
      );
      expect(error.code).toBe('bad-argument');
      expect(error.message).toContain('my filter is broken');
      expect((await index.search([3, -3], 1))[0]!.label).toBe(3);
    });

    test('an empty, a cleared and a closed index', async () => {
      const index = await open(2);
      expect(await index.search([0, 0], 3)).toEqual([]);
      await index.add(1, [0, 0], { name: 'x' });
      await index.clear();
      expect(index.count).toBe(0);
      expect(await index.search([0, 0], 3)).toEqual([]);
      await index.add(1, [2, 0], { name: 'y' });
      expect((await index.search([0, 0], 3))[0]).toEqual({ label: 1, distance: 4, payload: { name: 'y' } });
      await index.close();
      await index.close();
      expect((await refusal(() => index.search([0, 0], 1))).code).toBe('closed');
      expect((await refusal(() => index.add(1, [0, 0], { name: 'x' }))).code).toBe('closed');
    });
  });
}
