// The door between palimpsest and packages of methods: what a name means, that a registered method is scored on the
// same tokens as sessions are, by divergence and by recall, and that the list by which an error tells where a method is
// agrees with the methods that the lab has.
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type EvaluateRow, evaluate } from '../../engine/evaluate/evaluate.ts';
import { findCaches, findSimulated } from '../../engine/evaluate/find-caches.ts';
import { askForLab, type CacheMethod, registerLab, registerMethods } from '../../engine/evaluate/methods.ts';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache } from '../../lab/evaluate/every-cache.ts';
import { methodCaches, methodOf, methods } from '../../lab/methods/methods.ts';
import { readPaged } from '../../lab/methods/paged.ts';
import { yardsticks } from '../../lab/rules/index.ts';
import { isFormatName, isServed, KvError } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());

/** Pages as they are: what the exact cache has. */
const asTheyAre: CacheMethod = (of, reading) =>
  readPaged(of, () => ({ code: () => {}, heldBytes: (pages, tokens) => 1000 * (128 * pages + tokens) }), reading);

async function codeOf(work: () => unknown): Promise<string> {
  try {
    await work();
  } catch (error) {
    return error instanceof KvError ? error.code : String(error);
  }
  return 'none';
}

it('names of the lab are told apart from all others', () => {
  const own = new Set(methodCaches());
  expect(own.size).toBeGreaterThan(60);
  for (const cache of own) {
    expect(methodOf(cache), cache).not.toBeNull();
    expect(() => askForLab(cache), cache).toThrow(/npm|palimpsest-lab, which is not installed/);
  }
  for (const id of yardsticks.keys()) expect(() => askForLab(`${id}@25%`), id).toThrow(/palimpsest-lab/);
  const others = [...everyCache().filter((cache) => !own.has(cache)), 'price@25%+f16', 'q8+64', 'rot2+xq4', 'kvarm3'];
  const isFormatOfLab = (cache: string): boolean =>
    cache.split(/[:@+]/).some((part) => isFormatName(part) && !isServed(part));
  expect(others.filter(isFormatOfLab).length).toBeGreaterThan(20);
  expect(others.length).toBeGreaterThan(60);
  for (const cache of [...others, 'price@25%@turbo4:turbo2', 'TURBO3']) {
    expect(methodOf(cache), cache).toBeNull();
    if (isFormatOfLab(cache.toLowerCase())) expect(() => askForLab(cache), cache).toThrow(/palimpsest-lab/);
    else expect(() => askForLab(cache), cache).not.toThrow();
  }
});

it('a name is a registered method, a cache of sessions, or asks for the lab', async () => {
  // In the checkout the lab is not installed beside the product, so nothing but its door knows it.
  expect(await registerLab('palimpsest-lab-that-is-nowhere')).toBe(false);
  expect(await codeOf(() => findCaches(['q8', 'kvarn3']))).toBe('missing-dependency');
  expect(await codeOf(() => findCaches(['rot2+ema']))).toBe('missing-dependency');
  expect(await codeOf(() => findCaches(['price@25%', 'turbo3']))).toBe('missing-dependency');
  expect(await codeOf(() => findCaches(['q8', 'kvarm3']))).toBe('unsupported');
  registerMethods({ from: 'own', find: (cache) => (cache === 'q8' || cache === 'own@1' ? asTheyAre : null) });
  const found = await findCaches(['own@1', 'price@25%+f16', 'q8']);
  expect(found.map((cache) => ['method' in cache, cache.name])).toEqual([
    [true, 'own@1'],
    [false, 'price@25%+f16'],
    [true, 'q8'],
  ]);
  registerMethods({ from: 'own', find: () => null });
  expect((await findCaches(['q8'])).map((cache) => 'method' in cache)).toEqual([false]);
});

it('a yardstick of a simulation is one of the lab, once that is registered', async () => {
  expect(await codeOf(() => findSimulated(['price@25%', 'coded-h2o@25%']))).toBe('missing-dependency');
  // The simulator says which policies there are.
  expect((await findSimulated(['nothing@25%'])).map(({ name }) => name)).toEqual(['nothing@25%']);
  registerMethods(methods);
  const specs = await findSimulated(['price@25%', 'coded-h2o@25%']);
  expect(specs.map(({ options }) => options.policy)).toEqual(['price', 'coded-h2o']);
});

it('a method is scored as sessions are, and asked for codes', async () => {
  const request = { texts: [{ name: 'own', content: ownText(8000) }], tokens: 400, windows: 1, seed: 3 };
  const asked: EvaluateRow[] = await evaluate(runtime, {
    ...request,
    caches: [
      { name: 'as they are', method: asTheyAre },
      { name: 'exact', options: { exact: true } },
    ],
    recallDocuments: 1,
  });
  const [coarse] = await evaluate(runtime, {
    ...request,
    caches: [{ name: 'coarse', method: methodOf('kvarn2')! }],
    recallDocuments: 0,
  });
  const [same, exact] = asked;
  // Four sinks of 128 numbers in keys and values of six layers lie beside the pages, in f16.
  const kvBytes = 1000 * 400 + 6 * 4 * 2 * 2 * 128;
  expect(same).toMatchObject({ tokens: 400, windows: 1, scored: 400, kvBytes, asked: 5, decisions: 0 });
  expect(same!.recalled).toBe(exact!.recalled);
  expect(same!.meanKld).toBeLessThan(1e-5);
  expect(same!.kvBytesF16).toBe(exact!.kvBytesF16);
  expect(same!.perplexity).toBeCloseTo(exact!.perplexity, 2);
  expect(coarse!.meanKld).toBeGreaterThan(100 * same!.meanKld);
  expect(coarse!.effectiveBits).toBeLessThan(16);
});

it('a method that is aborted says so', async () => {
  const signal = AbortSignal.abort();
  for (const cache of ['kvarn2', 'h2o@50%'])
    expect(await codeOf(() => methodOf(cache)!(runtime, { ids: [1, 2, 3, 4], scored: 2, signal }))).toBe(
      cache === 'kvarn2' ? 'aborted' : 'budget-too-small',
    );
});
