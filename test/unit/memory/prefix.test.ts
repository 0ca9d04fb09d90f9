// Beginnings that texts have in common: digests say which pages are alike and nothing else, what was measured of them
// survives as text, and sessions are joined page by page by their answers.
import { expect, test } from 'vitest';
import { joinPrefixes, laterText, type Prefix, pageDigests } from '../../../memory/prefix.ts';
import { seeded } from '../../random.ts';

const key = new Uint8Array(32).fill(7);
const random = seeded(1);
const text = Array.from({ length: 400 }, () => Math.floor(random() * 5000));
const LAYERS = 2;

test('a page has a digest of itself and all before it, under a key and a model', () => {
  const digests = pageDigests(key, 'model', text);
  expect(digests).toHaveLength(3);
  expect(new Set(digests).size).toBe(3);
  expect(pageDigests(key, 'model', text.slice(0, 260))).toEqual(digests.slice(0, 2));
  const other = pageDigests(key, 'model', text.with(200, text[200]! + 1));
  expect(other[0]).toBe(digests[0]);
  expect(other.slice(1)).not.toEqual(digests.slice(1));
  expect(other[2]).not.toBe(digests[2]);
  expect(pageDigests(new Uint8Array(32), 'model', text)[0]).not.toBe(digests[0]);
  expect(pageDigests(key, 'another', text)[0]).not.toBe(digests[0]);
  expect(pageDigests(key, 'model', text.slice(0, 127))).toEqual([]);
  expect(pageDigests(key, 'model', new Array<number>(10_000).fill(1))).toHaveLength(64);
});

const prefix = (pages: readonly string[], epsilon2: number, answers: number): Prefix => ({
  pages,
  later: laterText(new Float64Array(pages.length * LAYERS * 2).fill(epsilon2)),
  answers,
});

test('the mean of sessions counts answers, over the pages that each has in common', () => {
  const [a, b, c] = pageDigests(key, 'model', text) as [string, string, string];
  const joined = joinPrefixes(
    [prefix([a, b], 4e-4, 3), prefix([a], 8e-4, 1), prefix([b], 1, 9), prefix(['x'.repeat(22)], 1, 9)],
    [a, b, c],
    LAYERS,
  )!;
  expect(joined.answers).toEqual([4, 3]);
  expect(joined.epsilon2).toHaveLength(2 * LAYERS * 2);
  expect(joined.epsilon2[0]! / 5e-4).toBeCloseTo(1, 1);
  expect(joined.epsilon2[4]! / 4e-4).toBeCloseTo(1, 1);
});

test('what nobody measured stays unknown, and what has not the shape of the model is passed over', () => {
  const [a] = pageDigests(key, 'model', text) as [string];
  const some: Prefix = { pages: [a], later: laterText(Float64Array.of(1e-3, Number.NaN, 0, 1e-30)), answers: 1 };
  const { epsilon2 } = joinPrefixes([some], [a], LAYERS)!;
  expect(epsilon2[0]! / 1e-3).toBeCloseTo(1, 1);
  expect([epsilon2[1], epsilon2[2]]).toEqual([Number.NaN, Number.NaN]);
  expect(epsilon2[3]).toBeGreaterThan(0);
  expect(epsilon2[3]).toBeLessThan(1e-13);
  expect(joinPrefixes([some], [a], 3)).toBeNull();
  expect(joinPrefixes([], [a], LAYERS)).toBeNull();
});
