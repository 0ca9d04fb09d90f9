// The examples of decoding over a cache of one's own: speculation writes the tokens of plain decoding in fewer runs of
// the model, with an exact cache, in 8 bits and across the ends of pages; beams that share pages score their texts as a
// model that reads each text by itself.
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { openCache } from 'palimpsest';
import { expect, it } from 'vitest';
import { beamSearch } from '../../examples/beams.ts';
import { draftOf, generate } from '../../examples/speculation.ts';
import { likeliest, logSoftmax, TOY_SHAPE, ToyModel } from '../../examples/toy-runtime.ts';

const root = join(import.meta.dirname, '..', '..');

const PROMPT = Array.from({ length: 50 }, (_, i) => (i * 7) % 5);

it('a draft is what followed the same two tokens before', () => {
  expect(draftOf([1, 2, 3, 4, 1, 2], 2)).toEqual([3, 4]);
  expect(draftOf([1, 2, 3, 4, 1, 2], 9)).toEqual([3, 4, 1, 2]);
  expect(draftOf([1, 2, 3], 4)).toEqual([]);
});

it.each([
  ['f16', { cacheTypes: 'f16:f16' }],
  ['8 bits', { cacheTypes: 'q8:q8' }],
] as const)('speculation writes what plain decoding writes, in %s', async (_, options) => {
  const model = new ToyModel(3);
  const written = [];
  for (const draftTokens of [0, 5]) {
    const cache = await openCache({ ...TOY_SHAPE, ...options });
    written.push(generate(model, cache, PROMPT, 400, draftTokens));
    // The newest token is not read.
    expect(cache.length).toBe(PROMPT.length + 399);
    await cache.close();
  }
  const [plain, fast] = written;
  // A text that repeated one token would be guessed right by anything.
  expect(new Set(plain!.tokens).size).toBeGreaterThan(5);
  expect(plain!.passes).toBe(400);
  expect(fast!.tokens).toEqual(plain!.tokens);
  expect(fast!.passes).toBeLessThan(300);
});

it('beams share pages, are given back, and score as texts that are read alone', async () => {
  const model = new ToyModel(5);
  const prompt = Array.from({ length: 300 }, (_, i) => (i * 11) % 24);
  const cache = await openCache({ ...TOY_SHAPE, cacheTypes: 'f16:f16' });
  const beams = await beamSearch(model, cache, prompt, 6, 4);
  expect(beams.map(({ score }) => score)).toEqual(beams.map(({ score }) => score).sort((a, b) => b - a));
  expect(new Set(beams.map(({ tokens }) => tokens.join())).size).toBe(4);
  for (const { tokens, score } of beams) {
    const alone = await openCache({ ...TOY_SHAPE, cacheTypes: 'f16:f16' });
    const logits = [model.read(alone, prompt).at(-1)!, ...model.read(alone, tokens)];
    const total = tokens.reduce((sum, token, i) => sum + logSoftmax(logits[i]!)[token]!, 0);
    expect(Math.abs(total - score)).toBeLessThan(1e-2);
    await alone.close();
  }
  const greedy = await openCache({ ...TOY_SHAPE, cacheTypes: 'f16:f16' });
  const first = likeliest(model.read(greedy, prompt).at(-1)!);
  await greedy.close();
  const one = await openCache({ ...TOY_SHAPE, cacheTypes: 'f16:f16' });
  expect((await beamSearch(model, one, prompt, 1, 1))[0]!.tokens).toEqual([first]);
});

it.each([
  ['speculation', /drafts of 0: 400 tokens in 400 runs, …(.*)\ndrafts of 5: 400 tokens in [12]\d\d runs, …\1\n/],
  ['beams', /^(-\d+\.\d{3} {2}\d+( \d+){5}\n){4}$/],
] as const)('%s runs as it is', (name, said) => {
  const run = ['--import', 'tsx', join('examples', `${name}.ts`)];
  expect(execFileSync(process.execPath, run, { cwd: root, encoding: 'utf8' })).toMatch(said);
});
