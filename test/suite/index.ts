/**
 * The contract of a vector index, run over every implementation. A new one adds its line in index.test.ts and passes
 * this unchanged.
 */

import { describe, expect, test } from 'vitest';
import {
  createExactIndex,
  type Fields,
  type Filter,
  type Neighbour,
  type VectorEntry,
  type VectorIndex,
} from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { seeded } from '../random.ts';
import { clustered } from './index-data.ts';

/** The payload of the contract: a field of every kind, one of which may be null, and one that is not declared. */
export interface Thing {
  readonly name: string;
  readonly size: number;
  readonly weight: number | null;
  readonly isOdd: boolean;
  readonly nested?: unknown;
}
export const THING_FIELDS = {
  name: 'keyword',
  size: 'integer',
  weight: 'float',
  isOdd: 'bool',
} as const satisfies Fields;

/** An entry of log 'a' whose payload follows from its seq. */
export const entry = (seq: number, vector: readonly number[], change: Partial<Thing> = {}): VectorEntry<Thing> => ({
  id: { log: 'a', seq },
  vector,
  payload: { name: `p${seq}`, size: seq, weight: seq % 3 === 0 ? null : seq / 4, isOdd: seq % 2 === 1, ...change },
});

export type OpenIndex = (dim: number, fields: Fields) => Promise<VectorIndex<Thing>>;

export async function refusal(work: () => Promise<unknown>): Promise<KvError> {
  try {
    await work();
  } catch (error) {
    expect(error).toBeInstanceOf(KvError);
    return error as KvError;
  }
  throw new Error('it was not refused');
}

const seqsOf = (found: readonly Pick<Neighbour<Thing>, 'id'>[]): number[] => found.map(({ id }) => id.seq);

export function vectorIndexSuite(name: string, open: OpenIndex): void {
  const filled = async (dim: number, entries: readonly VectorEntry<Thing>[]) => {
    const index = await open(dim, THING_FIELDS);
    const exact = createExactIndex<Thing>(dim, THING_FIELDS);
    await index.add(entries);
    await exact.add(entries);
    return { index, exact };
  };

  describe(`vector index: ${name}`, () => {
    // Tries recall: the ten nearest of 3,000 clustered vectors against a scan of all of them, for 100 fresh queries.
    test('finds at least 95% of the true ten nearest, nearest first', async () => {
      const seed = 20_251;
      const { index, exact } = await filled(
        10,
        clustered(3000, 10, 20, seed).map((vector, seq) => entry(seq, vector)),
      );
      expect(await index.count()).toBe(3000);
      let hits = 0;
      for (const query of clustered(100, 10, 20, seed + 1)) {
        const truth = new Set(seqsOf(await exact.search(query, 10)));
        const found = await index.search(query, 10);
        expect(found).toHaveLength(10);
        for (let i = 1; i < 10; i++) expect(found[i]!.distance).toBeGreaterThanOrEqual(found[i - 1]!.distance);
        for (const n of found) expect(n.payload.name).toBe(`p${n.id.seq}`);
        hits += seqsOf(found).filter((seq) => truth.has(seq)).length;
      }
      expect(hits / 1000, `seed ${seed}`).toBeGreaterThanOrEqual(0.95);
      await index.close();
    });

    // Tries filters of every kind, among them one that a vector in a hundred passes and one that none does: the true
    // nearest of what passes.
    test('filters find the nearest of what passes', async () => {
      const entries = clustered(2000, 4, 10, 7).map((vector, seq) =>
        entry(seq, vector, { name: seq % 100 === 3 ? 'rare' : 'common' }),
      );
      const { index, exact } = await filled(4, entries);
      const rare = { field: 'name', equals: 'rare' } as const;
      const filters: readonly Filter[] = [
        { must: [rare] },
        { mustNot: [{ field: 'name', equals: 'common' }] },
        { must: [rare], mustNot: [{ field: 'size', range: { min: 1000 } }] },
        { must: [{ field: 'size', oneOf: [5, 17, 1999, 77_777] }] },
        {
          must: [
            { field: 'name', oneOf: ['rare', 'nobody'] },
            { field: 'isOdd', equals: true },
          ],
        },
        { must: [{ field: 'weight', range: { min: 10.25, max: 20.5 } }] },
        { mustNot: [{ field: 'weight', range: { min: -1e9 } }] },
        {
          must: [
            { field: 'seq', range: { max: 9 } },
            { field: 'log', equals: 'a' },
          ],
        },
        { mustNot: [{ field: 'log', equals: 'a' }] },
        { must: [{ field: 'name', equals: 'nobody' }] },
      ];
      for (const filter of filters) {
        const truth = await exact.search([0.5, 0.5, 0.5, 0.5], 15, { filter });
        expect(seqsOf(await index.search([0.5, 0.5, 0.5, 0.5], 15, { filter })), JSON.stringify(filter)).toEqual(
          seqsOf(truth),
        );
        expect(await index.count({ filter }), JSON.stringify(filter)).toBe(await exact.count({ filter }));
      }
      expect(await index.count({ filter: filters[0]! })).toBe(20);
      await index.close();
    });

    // Tries 300 random filters of one to three conditions: whatever they are, count and list agree with the reference.
    test('counts and lists what passes, page by page', async () => {
      const seed = 99;
      const next = seeded(seed);
      const { index, exact } = await filled(
        2,
        Array.from({ length: 500 }, (_, seq) => entry(seq, [next(), next()], { name: `n${seq % 7}` })),
      );
      const whole = (most: number): number => Math.floor(next() * most);
      const condition = () =>
        [
          { field: 'name', equals: `n${whole(9)}` },
          { field: 'size', range: { min: whole(400), max: 100 + whole(400) } },
          { field: 'weight', range: { max: whole(150) + 0.5 } },
          { field: 'isOdd', equals: whole(2) === 1 },
          { field: 'size', oneOf: [whole(500), whole(500), whole(500)] },
        ][whole(5)]!;
      for (let i = 0; i < 60; i++) {
        const filter: Filter = { must: [condition()], mustNot: whole(2) === 1 ? [condition(), condition()] : [] };
        const truth = (await exact.list({ filter, limit: 1000 })).items;
        expect(await index.count({ filter }), `seed ${seed}, filter ${i}`).toBe(truth.length);
        const listed: VectorEntry<Thing>[] = [];
        for (let after: string | null = null; ; ) {
          const page: Awaited<ReturnType<typeof index.list>> = await index.list({ filter, after, limit: 97 });
          expect(page.items.length).toBeLessThanOrEqual(97);
          listed.push(...page.items);
          if (page.next === null) break;
          after = page.next;
        }
        expect(listed.sort((a, b) => a.id.seq - b.id.seq)).toEqual(truth);
      }
      await index.close();
    });

    // Tries adding an id again, and the same seq of another log: the first replaces, the second does not.
    test('an entry added again replaces, one of another log does not', async () => {
      const index = await open(2, THING_FIELDS);
      await index.add([entry(5, [0, 0], { name: 'old' }), entry(6, [1, 1])]);
      await index.add([entry(5, [9, 9], { name: 'new', nested: { list: [1, 'two', null] } })]);
      expect(await index.count()).toBe(2);
      const [nearest] = await index.search([9, 9], 1);
      expect(nearest).toEqual({ ...entry(5, [9, 9]), vector: undefined, distance: 0, payload: nearest!.payload });
      expect(nearest!.payload).toEqual(entry(5, [], { name: 'new', nested: { list: [1, 'two', null] } }).payload);
      expect(seqsOf(await index.search([0, 0], 1))).toEqual([6]);
      await index.add([{ ...entry(5, [0, 0]), id: { log: 'b', seq: 5 } }]);
      expect(await index.search([0, 0], 10)).toHaveLength(3);
      expect((await index.search([0, 0], 1))[0]!.id).toEqual({ log: 'b', seq: 5 });
      const far = { log: 'a', seq: 2 ** 52 + 1 };
      await index.add([{ ...entry(1, [4, 4]), id: far }]);
      expect((await index.search([4, 4], 1))[0]!.id).toEqual(far);
      await index.close();
    });

    // Tries everything that a core would take silently or die of.
    test('bad vectors, ids, k and filters are refused and change nothing', async () => {
      const index = await open(2, THING_FIELDS);
      await index.add([entry(1, [1, 2])]);
      expect((await refusal(() => index.add([entry(2, [1, 2]), entry(3, [1])]))).code).toBe('bad-shape');
      expect((await refusal(() => index.add([entry(2, [1, 2, 3])]))).code).toBe('bad-shape');
      for (const bad of [
        Number.NaN,
        Infinity,
        -Infinity,
        1e300,
        '1' as unknown as number,
        undefined as unknown as number,
      ]) {
        expect((await refusal(() => index.add([entry(2, [1, bad])]))).code).toBe('bad-value');
        expect((await refusal(() => index.search([1, bad], 1))).code).toBe('bad-value');
      }
      for (const seq of [-1, 1.5, Number.NaN, 2 ** 53, '7' as unknown as number])
        expect((await refusal(() => index.add([entry(seq, [1, 2])]))).code).toBe('bad-argument');
      const unnamed = { ...entry(2, [1, 2]), id: { log: 'x'.repeat(201), seq: 2 } };
      expect((await refusal(() => index.add([unnamed]))).code).toBe('bad-argument');
      for (const k of [0, -1, 1.5, Number.NaN, 1e9])
        expect((await refusal(() => index.search([1, 2], k))).code).toBe('bad-argument');
      expect((await refusal(() => index.search([1], 1))).code).toBe('bad-shape');
      for (const condition of [
        { field: 'colour', equals: 'red' },
        { field: 'name', equals: 7 },
        { field: 'name', range: { min: 1 } },
        { field: 'weight', equals: 1 },
        { field: 'size', oneOf: [] },
        { field: 'size', oneOf: [1.5] },
        { field: 'size', range: {} },
        { field: 'size', range: { min: Number.NaN } },
        { field: 'size', range: { min: 1, least: 2 } },
        { field: 'size' },
        { field: '__proto__', equals: 'x' },
      ]) {
        const filter = { must: [condition] } as unknown as Filter;
        expect((await refusal(() => index.search([1, 2], 1, { filter }))).code, JSON.stringify(condition)).toBe(
          'bad-argument',
        );
        expect((await refusal(() => index.count({ filter }))).code).toBe('bad-argument');
        expect((await refusal(() => index.remove(filter))).code).toBe('bad-argument');
      }
      expect((await refusal(() => index.count({ filter: { should: [] } as unknown as Filter }))).code).toBe(
        'bad-argument',
      );
      expect(await index.count()).toBe(1);
      expect(seqsOf(await index.search([1, 2], 3))).toEqual([1]);
      await index.close();
    });

    // Tries to remove some and then all: what is left is found as before, and new entries are taken.
    test('forgets what a filter names', async () => {
      const { index, exact } = await filled(
        3,
        clustered(600, 3, 5, 3).map((vector, seq) => entry(seq, vector)),
      );
      const odd: Filter = { must: [{ field: 'isOdd', equals: true }] };
      for (const one of [index, exact]) await one.remove(odd);
      expect(await index.count()).toBe(300);
      expect(seqsOf(await index.search([0.5, 0.5, 0.5], 20))).toEqual(seqsOf(await exact.search([0.5, 0.5, 0.5], 20)));
      await index.remove({});
      expect([await index.count(), await index.search([0, 0, 0], 3)]).toEqual([0, []]);
      await index.add([entry(1, [2, 0, 0])]);
      expect(await index.search([0, 0, 0], 3)).toMatchObject([{ id: { log: 'a', seq: 1 }, distance: 4 }]);
      await index.close();
    });

    test('limits end a call, and the index goes on', async () => {
      const index = await open(2, THING_FIELDS);
      await index.add([entry(1, [0, 0])]);
      const over = { signal: AbortSignal.abort(new Error('enough')) };
      for (const limits of [over, { deadlineMs: 0 }]) {
        expect((await refusal(() => index.search([0, 0], 1, limits))).code).toBe('aborted');
        expect((await refusal(() => index.count(limits))).code).toBe('aborted');
        expect((await refusal(() => index.list(limits))).code).toBe('aborted');
        expect((await refusal(() => index.add([entry(2, [1, 1])], limits))).code).toBe('aborted');
        expect((await refusal(() => index.remove({}, limits))).code).toBe('aborted');
      }
      expect((await refusal(() => index.count({ deadlineMs: Number.NaN }))).code).toBe('bad-argument');
      expect(await index.count({ deadlineMs: 10_000, signal: new AbortController().signal })).toBe(1);
      await index.close();
    });

    test('an empty and a closed index', async () => {
      const index = await open(2, THING_FIELDS);
      expect(await index.search([0, 0], 3)).toEqual([]);
      expect(await index.list()).toEqual({ items: [], next: null });
      await index.add([]);
      expect(await index.count()).toBe(0);
      await index.save();
      await index.close();
      await index.close();
      expect((await refusal(() => index.search([0, 0], 1))).code).toBe('closed');
      expect((await refusal(() => index.add([entry(1, [0, 0])]))).code).toBe('closed');
      expect((await refusal(() => index.save())).code).toBe('closed');
    });

    test('declared fields must be names of a kind', async () => {
      for (const fields of [{ seq: 'integer' }, { 'a.b': 'keyword' }, { x: 'text' }, { '': 'keyword' }])
        expect((await refusal(() => open(2, fields as unknown as Fields))).code).toBe('bad-argument');
      for (const dim of [0, 1.5, 4097]) expect((await refusal(() => open(dim, {}))).code).toBe('bad-argument');
    });
  });
}
