/** Which pages stay by the rules that let pages go, and how many of each layer. */
import { expect, test } from 'vitest';
import { createPolicy } from '../../../policy/index.ts';
import { pyramid } from '../../../policy/policies/snapkv.ts';
import { contextOf, f16Bytes, simulate } from '../../suite/policy-simulation.ts';

const context = contextOf({ layers: 2 });
const TOKENS = 24 * 128;

/** Pages of a layer that are there at the end; `mass`: attention that each page receives. */
function staying(policy: string, mass: (page: number, tokens: number) => number, layer = 0, tokens = TOKENS): number[] {
  const budgetBytes = Math.floor(0.3 * f16Bytes(context, TOKENS));
  const { formats } = simulate({
    policy: createPolicy(policy),
    context,
    tokens,
    budgetBytes,
    mass: (_layer, page, at) => mass(page, at),
  });
  return [...formats.keys()]
    .filter((key) => key.startsWith(`${layer}/`) && key.endsWith('/k'))
    .map((key) => Number(key.split('/')[1]))
    .sort((a, b) => a - b);
}

const rising = (page: number): number => 1 + page;

test('streaming-pages keeps the newest', () => {
  const pages = staying('streaming-pages', () => 1);
  expect(pages.length).toBeGreaterThan(6);
  expect(pages).toEqual(pages.map((_, i) => pages.at(-1)! - pages.length + 1 + i));
});

test('h2o-pages keeps what attention went to in sum, and the newest for half of the places', () => {
  const pages = staying('h2o-pages', (page) => (page === 2 || page === 5 ? 50 : 1));
  expect(pages).toEqual(expect.arrayContaining([2, 5]));
  // What page 0 receives is that of the sinks.
  expect(staying('h2o-pages', (page) => (page === 0 ? 50 : 1))).not.toContain(0);
  const recent = pages.slice(-4);
  expect(recent).toEqual(recent.map((_, i) => recent[0]! + i));
});

test('snapkv-pages goes by the newest queries, whatever earlier ones looked at', () => {
  const turned = (page: number, tokens: number): number => (page === (tokens < 2000 ? 2 : 6) ? 50 : rising(page));
  expect(staying('snapkv-pages', turned)).toContain(6);
  expect(staying('h2o-pages', turned)).toContain(2);
  expect(staying('snapkv-pages', (page) => (page === 2 ? 50 : rising(page)))).toContain(2);
});

test('pyramidkv-pages gives lower layers more places', () => {
  const [low, high] = [0, 1].map((layer) => staying('pyramidkv-pages', rising, layer).length);
  expect(low).toBeGreaterThan(high! + 2);
  expect(pyramid(40, 4, 100)).toEqual([19, 13, 7, 1]);
  for (const [places, layers, pages] of [
    [40, 4, 100],
    [41, 4, 12],
    [7, 30, 3],
    [0, 3, 9],
    [9, 1, 4],
  ] as const) {
    const shares = pyramid(places, layers, pages);
    expect(shares).toHaveLength(layers);
    const sum = shares.reduce((all, one) => all + one, 0);
    expect(sum).toBeLessThanOrEqual(places);
    expect(sum).toBeGreaterThanOrEqual(places - 1);
    expect(shares.every((one) => Number.isInteger(one) && one >= 0)).toBe(true);
  }
});

test('scissorhands-pages clears half of the places, and keeps what was important most often', () => {
  const keeps = (page: number): number => (page === 3 || page === 7 ? 50 : 1);
  const pages = staying('scissorhands-pages', keeps);
  expect(pages).toEqual(expect.arrayContaining([3, 7]));
  const counts = (policy: string): number[] =>
    Array.from({ length: 8 }, (_, i) => staying(policy, keeps, 0, TOKENS - i * 128).length);
  expect(Math.min(...counts('streaming-pages'))).toBe(Math.max(...counts('streaming-pages')));
  expect(Math.min(...counts('scissorhands-pages'))).toBe(Math.ceil(Math.max(...counts('scissorhands-pages')) / 2));
});
