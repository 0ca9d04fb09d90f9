// Tries sampling where it is used, on the reference model behind its thread: an answer that is cut in two, parked,
// resumed or forked goes on with the tokens that it would have had; continuations are those of forks; log
// probabilities, biases and penalties reach the caller; a model whose numbers overflow is refused; nonsense is refused
// before anything is read.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine, type Generated, type GenerateOptions } from '../../../../../engine/index.ts';
import { seeded } from '../../../../random.ts';
import { refused } from '../../../../refusal.ts';
import { ids, openEngine } from '../../on-reference.ts';
import { floats, safetensors, TINY, tinyHfConfig, tinyTokenizerJson, tinyWeights, tinyWords } from '../model-files.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-sampling-'));
let engine: Engine;
beforeAll(async () => {
  engine = await openEngine(join(dir, 'state'));
});
afterAll(async () => {
  await engine.close();
  rmSync(dir, { recursive: true, force: true });
});

/** The token that ends what the reference model writes. */
const END = 0;
const TEXT = 'Once upon a time there was a keeper of bees, and ';
const DRAWN: GenerateOptions = {
  temperature: 1.3,
  seed: 11,
  repeatPenalty: 1.1,
  dryMultiplier: 0.8,
  dryPenaltyLastN: -1,
};

const idsOf = ({ logprobs }: Generated): number[] => logprobs!.map(({ id }) => id);

async function answer(options: GenerateOptions, prompt = TEXT): Promise<Generated> {
  const session = await engine.openSession();
  try {
    return await session.generate(prompt, { maxTokens: 24, logprobs: 0, ...options }).result;
  } finally {
    await session.close();
  }
}

describe('an answer that is drawn', () => {
  it('is the same for the same seed, and another for another', async () => {
    const first = await answer(DRAWN);
    expect(idsOf(await answer(DRAWN))).toEqual(idsOf(first));
    expect(idsOf(await answer({ ...DRAWN, seed: 12 }))).not.toEqual(idsOf(first));
  });

  it('goes on as it would have when it is cut in two, forked, or parked and resumed', async () => {
    const whole = idsOf(await answer(DRAWN));
    expect(whole.length).toBe(24);
    const session = await engine.openSession();
    const half = await session.generate(TEXT, { ...DRAWN, maxTokens: 9, logprobs: 0 }).result;
    expect(idsOf(half)).toEqual(whole.slice(0, 9));
    const rest = { ...DRAWN, maxTokens: 15, logprobs: 0 };
    const fork = await session.fork();
    expect(idsOf(await fork.generate(null, rest).result), 'forked').toEqual(whole.slice(9));
    await fork.close();
    const { path } = await session.park(join(dir, 'half.parked'));
    const back = await engine.resume(path);
    expect(back.resumed?.by).toBe('pages');
    expect(idsOf(await back.generate(null, rest).result), 'parked').toEqual(whole.slice(9));
    await back.close();
  });
});

describe('continuations', () => {
  it('are those of forks with one seed after the other, and leave the session with the prompt', async () => {
    const options = { ...DRAWN, maxTokens: 12, logprobs: 1 };
    const session = await engine.openSession();
    const all = await session.continuations(TEXT, { ...options, n: 3 });
    expect(all.map(({ tokens, promptTokens }) => ({ tokens, promptTokens }))).toEqual(
      new Array(3).fill({ tokens: 12, promptTokens: (await engine.tokenize(TEXT)).length }),
    );
    expect(new Set(all.map(({ text }) => text)).size).toBe(3);
    for (const [i, one] of all.entries())
      expect(idsOf(one)).toEqual(idsOf(await answer({ ...options, seed: options.seed! + i })));
    expect((await session.report()).tokens).toBe((await engine.tokenize(TEXT)).length);
    const after = await session.generate(null, options).result;
    expect(idsOf(after)).toEqual(idsOf(all[0]!));
    await session.close();
  });

  it('share the pages of a long prompt under a budget', async () => {
    const session = await engine.openSession({ kvBudget: '50%', tokensExpected: 1460 });
    const all = await session.continuations(ids(1400), { n: 2, temperature: 1, maxTokens: 20 });
    expect(all.map(({ tokens }) => tokens)).toEqual([20, 20]);
    const { kvBytes, budgetBytes } = await session.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    await session.close();
  });

  it('that are aborted say so, and the session can go on', async () => {
    const session = await engine.openSession();
    const abort = new AbortController();
    // Whatever is drawn, neither answer ends by itself.
    const logitBias = { [END]: -100 };
    const running = session.continuations(TEXT, {
      n: 2,
      temperature: 1,
      maxTokens: 2000,
      logitBias,
      signal: abort.signal,
    });
    setTimeout(() => abort.abort(), 300);
    expect((await running).at(-1)!.finish).toBe('aborted');
    expect((await session.generate(null, { maxTokens: 2 }).result).tokens).toBe(2);
    await session.close();
  });
});

describe('log probabilities', () => {
  it('are asked for: one for each token, and the greedy one is the first of the most likely', async () => {
    const greedy = await answer({ logprobs: 3 });
    expect(greedy.logprobs).toHaveLength(24);
    expect(greedy.logprobs!.map(({ text }) => text).join('')).toBe(greedy.text);
    for (const { id, logprob, top } of greedy.logprobs!) {
      expect(top).toHaveLength(3);
      expect(top[0]).toMatchObject({ id, logprob });
      expect(top[0]!.logprob).toBeGreaterThanOrEqual(top[1]!.logprob);
      expect(top.reduce((sum, token) => sum + Math.exp(token.logprob), 0)).toBeLessThanOrEqual(1 + 1e-9);
    }
    expect((await answer({ logprobs: undefined as never })).logprobs).toBeNull();
  });

  it('are of the distribution of the model, whatever is drawn from', async () => {
    const greedy = await answer({ logprobs: 5, maxTokens: 1 });
    const other = await answer({ ...DRAWN, temperature: 5, logprobs: 5, maxTokens: 1, logitBias: { 20: 3 } });
    expect(other.logprobs![0]!.top).toEqual(greedy.logprobs![0]!.top);
  });
});

describe('biases and penalties', () => {
  it('decide also where nothing is drawn', async () => {
    const [first] = idsOf(await answer({ maxTokens: 1 }));
    expect(idsOf(await answer({ maxTokens: 24, logitBias: { [first!]: -Infinity } }))).not.toContain(first);
    expect(new Set(idsOf(await answer({ maxTokens: 6, logitBias: { 300: 1000 } })))).toEqual(new Set([300]));
    const penalized = idsOf(await answer({ maxTokens: 20, presencePenalty: 1000, repeatLastN: -1 }));
    expect(new Set(penalized).size).toBe(20);
  });
});

describe('a model whose numbers are beyond float32', () => {
  const random = seeded(4);
  const shape = { ...TINY, headDim: 8, vocab: tinyWords.length };
  const model = (name: string, factors: Readonly<Record<string, number>>): string => {
    const folder = join(dir, name);
    mkdirSync(folder);
    const weights = [...tinyWeights(random, shape)].map(([key, { shape, values }]) => {
      const [, factor = 1] = Object.entries(factors).find(([part]) => key.includes(part)) ?? [];
      return [key, { dtype: 'F32', shape, bytes: floats(values.map((value) => value * factor)) }] as const;
    });
    const config = { ...tinyHfConfig, head_dim: shape.headDim, vocab_size: shape.vocab };
    writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
    writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(tinyTokenizerJson));
    writeFileSync(join(folder, 'model.safetensors'), safetensors(Object.fromEntries(weights)));
    return folder;
  };
  const first = async (path: string): Promise<Generated> => {
    const own = await createEngine({ model: path, threads: 1, stateDir: null });
    try {
      return await (await own.openSession()).generate([3, 4, 5], { maxTokens: 1, logprobs: 0 }).result;
    } finally {
      await own.close();
    }
  };

  // Weights are from -1/2 to 1/2 without these factors.
  it('answers while they are not, though their squares may be', async () => {
    const [plain] = (await first(model('plain', {}))).logprobs!;
    expect(plain!.logprob).toBeLessThan(-0.1);
    const [large] = (await first(model('large', { down_proj: 1e30 }))).logprobs!;
    // Of 21 zeros each would have the logarithm of 1/21.
    expect(large!.logprob).toBeGreaterThan(-Math.log(tinyWords.length) + 0.1);
  });

  it('ends with what the sampler says, and not with the first token', async () => {
    const path = model('infinite', { gate_proj: 1e3, up_proj: 1e3, down_proj: 6e38 });
    expect(await refused(first(path))).toMatchObject({
      code: 'bad-value',
      message: expect.stringContaining('not numbers to choose from'),
    });
  });
});

describe('what cannot be', () => {
  it('is refused with the code and the values, before the prompt is read', async () => {
    const session = await engine.openSession();
    const cases: [GenerateOptions, string][] = [
      [{ topK: -1 }, 'topK'],
      [{ minP: 2 }, 'minP'],
      [{ typicalP: 0 }, 'typicalP'],
      [{ logitBias: { 999999999: 1 } }, 'logitBias'],
      [{ drySequenceBreakers: [''] }, 'drySequenceBreakers'],
      [{ logprobs: 21 }, 'logprobs'],
    ];
    for (const [options, name] of cases) {
      const error = await refused(session.generate(TEXT, options).result, name);
      expect(error).toMatchObject({ code: 'bad-argument', message: expect.stringContaining(name) });
    }
    for (const options of [{ n: 0 }, { n: 1.5 }, { n: 257 }, { n: 2 }, { n: 2, temperature: 1, seed: 2 ** 53 - 1 }]) {
      const error = await refused(session.continuations(TEXT, options), JSON.stringify(options));
      expect(error).toMatchObject({ code: 'bad-argument', hint: expect.stringMatching(/./) });
    }
    expect((await refused(session.generate(TEXT, { topKay: 3 } as never).result)).message).toContain('topKay');
    expect((await session.report()).tokens).toBe(0);
    await session.close();
  });
});
