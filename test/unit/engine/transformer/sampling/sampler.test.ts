// Tries the sampler against probabilities computed here and, with all its options, against the definitions in
// reference.ts: counts of many draws (chi-square), the exact sets, order of equals, repeatability, and refusal of what
// is no number.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  checkSampling,
  SAMPLING_DEFAULTS,
  type SamplingOptions,
} from '../../../../../engine/transformer/sampling/options.ts';
import { greedy, Sampler } from '../../../../../engine/transformer/sampling/sampler.ts';
import { KvError } from '../../../../../native/index.ts';
import { Rng } from '../rng.ts';
import { plainVocabulary, vocabularyOf } from './pieces.ts';
import { distribution } from './reference.ts';

/** Nothing narrowed down. */
const OPEN: SamplingOptions = { topK: 0, topP: 1, minP: 0 };

/** Tokens at the positions 0, 1, 2, … */
const draw = (logits: Float32Array, count: number, options: SamplingOptions): number[] => {
  const sampler = new Sampler({ ...OPEN, ...options }, plainVocabulary(logits.length));
  const history: number[] = [];
  return Array.from({ length: count }, () => {
    const id = sampler.next(logits, history);
    history.push(0);
    return id;
  });
};

function softmax(logits: Float32Array, temperature: number): number[] {
  const weights = Array.from(logits, (logit) => Math.exp(logit / temperature));
  const total = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / total);
}

/**
 * Draws and probabilities agree: chi-square under its mean plus six standard deviations (chance of a false alarm under
 * 1e-6; the seed is fixed anyway).
 */
function expectDistribution(draws: readonly number[], probabilities: readonly number[]): void {
  let chi = 0;
  let freedom = -1;
  for (const [id, p] of probabilities.entries()) {
    const seen = draws.filter((drawn) => drawn === id).length;
    if (p === 0) {
      expect(seen).toBe(0);
      continue;
    }
    chi += (seen - p * draws.length) ** 2 / (p * draws.length);
    freedom++;
  }
  expect(chi).toBeLessThan(freedom + 6 * Math.sqrt(2 * freedom));
}

describe('greedy', () => {
  test('takes the largest, the lowest id among equals, and passes over −inf', () => {
    expect(greedy(Float32Array.of(-1, 3, 2, 3))).toBe(1);
    expect(greedy(Float32Array.of(-Infinity, -5, -Infinity))).toBe(1);
    expect(draw(Float32Array.of(0, 7, 7), 5, { temperature: 0, topP: 0.1, seed: 3 })).toEqual([1, 1, 1, 1, 1]);
  });

  test.each([
    ['NaN', Float32Array.of(1, NaN, 2)],
    ['NaN after the largest', Float32Array.of(1, 5, NaN)],
    ['+inf', Float32Array.of(1, Infinity)],
    ['only −inf', Float32Array.of(-Infinity, -Infinity)],
    ['nothing', new Float32Array(0)],
  ])('%s is refused, greedy or drawn', (_, logits) => {
    for (const temperature of [0, 1]) {
      const sampler = new Sampler({ temperature, seed: 1 }, plainVocabulary(logits.length));
      expect(() => sampler.next(logits, [])).toThrow(expect.objectContaining({ name: 'KvError', code: 'bad-value' }));
    }
  });
});

describe('temperature', () => {
  const logits = new Rng(5).normal(12, 1.5);

  test.each([0.5, 1, 2])('%f gives the softmax of logits divided by it', (temperature) => {
    expectDistribution(draw(logits, 20000, { temperature, topP: 1, seed: 17 }), softmax(logits, temperature));
  });

  test('does not overflow on large logits and never draws the impossible', () => {
    const large = Float32Array.of(3e38, -Infinity, 3e38, -3e38);
    expectDistribution(draw(large, 4000, { temperature: 0.01, topP: 1, seed: 4 }), [0.5, 0, 0.5, 0]);
  });
});

describe('top-p', () => {
  test('draws from the smallest set that reaches it, in proportion', () => {
    const logits = Float32Array.from([0.1, 0.4, 0.05, 0.25, 0.2], Math.log);
    // 0.4 + 0.25 = 0.65 < 0.7 ≤ 0.85.
    const kept = [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85];
    expectDistribution(draw(logits, 20000, { temperature: 1, topP: 0.7, seed: 9 }), kept);
    expect(new Set(draw(logits, 200, { temperature: 1, topP: 0.39, seed: 9 }))).toEqual(new Set([1]));
  });

  test('equals enter by lowest id', () => {
    const flat = new Float32Array(10).fill(2);
    expect(new Set(draw(flat, 500, { temperature: 1, topP: 0.25, seed: 2 }))).toEqual(new Set([0, 1, 2]));
  });

  test('comes before the temperature, as in llama.cpp', () => {
    const logits = Float32Array.from([0.5, 0.3, 0.2], Math.log);
    // Two tokens reach 0.75; at a temperature of 100 these are about equally likely.
    expectDistribution(draw(logits, 20000, { temperature: 100, topP: 0.75, seed: 3 }), [0.5, 0.5, 0]);
  });
});

describe('all samplers together', () => {
  const PIECES = ['a', ' b', 'c', ':', ' d', '\n', 'e', ' f', 'g', '"', 'h', 'i'];
  const V = PIECES.length;
  const history = [0, 1, 2, 5, 0, 1, 2, 4, 0, 1, 2, 4, 6, 1, 2];

  test.each<SamplingOptions>([
    {},
    { temperature: 0.7, ...OPEN },
    { temperature: 1.5, topK: 5 },
    { temperature: 1, ...OPEN, typicalP: 0.6 },
    { temperature: 1, ...OPEN, repeatPenalty: 1.4, frequencyPenalty: 0.3, presencePenalty: 0.5, repeatLastN: 6 },
    { temperature: 2, topK: 8, dryMultiplier: 0.8, dryPenaltyLastN: -1 },
    { temperature: 1.2, ...OPEN, logitBias: { 3: 2.5, 7: -1, 0: -Infinity } },
    {
      ...{ temperature: 2, topK: 10, typicalP: 0.98, topP: 0.97, minP: 0.02, repeatPenalty: 1.2, dryMultiplier: 1 },
      ...{ frequencyPenalty: -0.2, dryAllowedLength: 1, drySequenceBreakers: ['\n'], logitBias: { 11: 1 } },
    },
  ])('%j: draws over many seeds have the probabilities of the definitions', (given) => {
    const options = { ...SAMPLING_DEFAULTS, temperature: 1, ...given };
    const logits = new Rng(21).normal(V, 1.5);
    const expected = distribution(logits, history, options, PIECES);
    const draws = Array.from({ length: 8000 }, (_, seed) =>
      new Sampler({ ...options, seed }, vocabularyOf(PIECES)).next(logits, history),
    );
    expectDistribution(
      draws,
      PIECES.map((_, id) => expected.get(id) ?? 0),
    );
  });

  test('of any options and logits a token comes that the definitions can draw, and at temperature 0 the one', () => {
    const options = fc.record({
      temperature: fc.constantFrom(0, 0.5, 1, 3),
      topK: fc.nat(V + 2),
      typicalP: fc.constantFrom(1, 0.71),
      topP: fc.constantFrom(1, 0.37, 0.93),
      minP: fc.constantFrom(0, 0.013, 0.21),
      repeatPenalty: fc.constantFrom(1, 1.3),
      presencePenalty: fc.constantFrom(0, 0.6),
      repeatLastN: fc.integer({ min: -1, max: 20 }),
      dryMultiplier: fc.constantFrom(0, 1.1),
      dryPenaltyLastN: fc.integer({ min: -1, max: 20 }),
      logitBias: fc.constantFrom({}, { 2: 3 }, { 1: -Infinity }),
      seed: fc.nat(),
    });
    fc.assert(
      fc.property(options, fc.nat(1000), fc.array(fc.nat(V - 1), { maxLength: 30 }), (given, data, tokens) => {
        const logits = new Rng(data).normal(V, 2);
        const sampler = new Sampler(given, vocabularyOf(PIECES));
        // The same sampler at every place of the text, as it is used.
        for (let length = 0; length <= tokens.length; length++) {
          const part = tokens.slice(0, length);
          const id = sampler.next(logits, part);
          expect([...distribution(logits, part, { ...SAMPLING_DEFAULTS, ...given }, PIECES).keys()]).toContain(id);
        }
      }),
      { numRuns: 300 },
    );
  });
});

describe('repeatability and options', () => {
  test('one seed, one sequence; another seed, another', () => {
    const logits = new Rng(3).normal(100);
    const options = { temperature: 1, topP: 0.95, seed: 77 };
    expect(draw(logits, 50, options)).toEqual(draw(logits, 50, options));
    expect(draw(logits, 50, options)).not.toEqual(draw(logits, 50, { ...options, seed: 78 }));
  });

  test('the defaults draw from the 40 most likely tokens, the nucleus of 0.95, and nothing below 0.05 of the likeliest', () => {
    expect(SAMPLING_DEFAULTS).toMatchObject({ temperature: 0, topK: 40, topP: 0.95, minP: 0.05, typicalP: 1 });
    const logits = new Rng(5).normal(3000, 1);
    const drawn = new Set(draw(logits, 500, { ...SAMPLING_DEFAULTS, temperature: 1 }));
    const possible = distribution(logits, [], { ...SAMPLING_DEFAULTS, temperature: 1 }, []);
    expect([...drawn].filter((id) => !possible.has(id))).toEqual([]);
    expect(possible.size).toBeLessThanOrEqual(40);
  });

  test('a text that is cut in two goes on as it would have', () => {
    const logits = new Rng(3).normal(100);
    const options = { temperature: 1, ...OPEN, dryMultiplier: 1, repeatPenalty: 1.1, seed: 5 };
    const write = (history: number[], count: number): number[] => {
      const sampler = new Sampler(options, plainVocabulary(100));
      for (let i = 0; i < count; i++) history.push(sampler.next(logits, history));
      return history;
    };
    expect(write(write([1, 2, 3], 20), 30)).toEqual(write([1, 2, 3], 50));
  });

  test('nothing as large as the vocabulary is made for a token', () => {
    const V = 49152;
    const logits = new Rng(3).normal(V);
    const sampler = new Sampler(
      { temperature: 1, topK: 0, typicalP: 0.9, dryMultiplier: 1, repeatPenalty: 1.1 },
      plainVocabulary(V),
    );
    const history = [1, 2, 3];
    const heap = (): number => process.memoryUsage().heapUsed + process.memoryUsage().arrayBuffers;
    sampler.next(logits, history);
    const before = heap();
    for (let i = 0; i < 20; i++) sampler.next(logits, history);
    expect(heap() - before).toBeLessThan(20 * V);
  });

  test('a bias that leaves no token is refused', () => {
    const sampler = new Sampler({ logitBias: { 0: -Infinity, 2: -Infinity } }, plainVocabulary(3));
    expect(() => sampler.next(Float32Array.of(1, -Infinity, 2), [])).toThrow(
      expect.objectContaining({ code: 'bad-argument', hint: expect.stringContaining('bans') }),
    );
  });

  test.each<[string, unknown]>([
    ...[-1, NaN, Infinity, '1'].map((value): [string, unknown] => ['temperature', value]),
    ...[-1, 0.5, NaN, null].map((value): [string, unknown] => ['topK', value]),
    ...['typicalP', 'topP'].flatMap((name) => [0, 1.01, NaN, -1].map((value): [string, unknown] => [name, value])),
    ...[-0.1, 1.1, NaN].map((value): [string, unknown] => ['minP', value]),
    ...[0, -1, Infinity, NaN].map((value): [string, unknown] => ['repeatPenalty', value]),
    ...['frequencyPenalty', 'presencePenalty'].flatMap((name) =>
      [1001, NaN].map((value): [string, unknown] => [name, value]),
    ),
    ...['repeatLastN', 'dryPenaltyLastN'].flatMap((name) => [-2, 1.5].map((value): [string, unknown] => [name, value])),
    ...[-1, NaN].map((value): [string, unknown] => ['dryMultiplier', value]),
    ...[0.9, NaN].map((value): [string, unknown] => ['dryBase', value]),
    ...[-1, 2.5].map((value): [string, unknown] => ['dryAllowedLength', value]),
    ...['\n', [''], [1], null].map((value): [string, unknown] => ['drySequenceBreakers', value]),
    ...[{ 10: 1 }, { '-1': 1 }, { a: 1 }, { 1: NaN }, { 1: Infinity }, { 1: 1001 }, { '01': 1 }, [1], null, 'x'].map(
      (value): [string, unknown] => ['logitBias', value],
    ),
    ...[-1, 0.5, 2 ** 53].map((value): [string, unknown] => ['seed', value]),
  ])('%s of %j is refused, with the value and what to do', (name, value) => {
    const making = (): unknown => new Sampler({ [name]: value } as SamplingOptions, plainVocabulary(10));
    expect(making).toThrow(KvError);
    expect(making).toThrow(expect.objectContaining({ code: 'bad-argument', hint: expect.stringMatching(/./) }));
    try {
      making();
    } catch (error) {
      expect(Object.keys((error as KvError).values).length).toBeGreaterThan(0);
      expect((error as KvError).message).toContain(name);
    }
  });

  test('an option that is undefined has its default', () => {
    expect(checkSampling({ topK: undefined } as unknown as SamplingOptions, 10)).toEqual(SAMPLING_DEFAULTS);
  });
});
