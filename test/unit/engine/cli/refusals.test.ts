// What cannot be done is refused by the engine with one KvError that says what would do, before any work, and the
// session goes on.

import { existsSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { describe, expect, it } from 'vitest';
import { createEngine, type Engine, openCache } from '../../../../engine/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, ids, MODEL, openEngine, withEngine } from '../on-reference.ts';
import { answered, expectRefused } from './command.ts';

const folder = scratchFolders();
let engine: Engine;

withEngine(folder, (opened) => {
  engine = opened;
});

describe('what cannot be done is refused', () => {
  it('a text longer than the context, before any work, with the numbers', async () => {
    const session = await engine.openSession({ witness: false });
    const { contextLength } = engine.info.config;
    const error = await refused(session.generate(ids(contextLength - 10), { maxTokens: 11 }).result);
    expect(error.code).toBe('context-too-long');
    expect(error.values).toMatchObject({ cached: 0, prompt: contextLength - 10, maxTokens: 11, contextLength });
    expect((await session.report()).tokens).toBe(0);
    await session.close();
  });

  it('a budget that cannot hold what is planned, with what it would take', async () => {
    const error = await refused(engine.openSession({ kvBudget: '200KiB', tokensExpected: 2000 }));
    expect(error.code).toBe('budget-too-small');
    expect(error.values['neededBytes']).toBeGreaterThan(200 * 1024);
    // Both what the numbers say and what the hint says is enough.
    const hinted = /[0-9.]+MiB/.exec(error.hint!)![0];
    for (const kvBudget of [error.values['neededBytes'] as number, hinted]) {
      const session = await engine.openSession({ kvBudget, tokensExpected: 2000 });
      await session.generate(ids(1990), { maxTokens: 10 }).result;
      await session.close();
    }
  });

  it('options that make no sense', async () => {
    const bad: unknown[] = [
      null,
      'price',
      { kldBudget: Number.NaN },
      { kldBudget: -1 },
      { kldBudget: '0.1' },
      { kvBudget: {} },
      { kvBudget: 'much' },
      { kvBudget: -5 },
      { kvBudget: '25%' },
      { kvBudget: '25%', tokensExpected: -4 },
      { tokensExpected: Number.NaN },
      { tokensExpected: 2.5 },
      { skipLayers: [6] },
      { skipLayers: [Number.NaN] },
      { skipLayers: 'all' },
      { cacheTypes: { k: 'rot5', v: 'rot2' } },
      { cacheTypes: 4 },
      { policy: 7 },
      { compareTokens: -1 },
      { compareTokens: Number.POSITIVE_INFINITY },
      { exact: 'yes' },
      { exact: true, kvBudget: '64MiB' },
      { exact: true, originals: 'memory' },
      { promote: 4 },
      { originals: 'memory', originalsDir: 'somewhere' },
      { cacheTypes: { k: 'f16', v: 'f16' }, kvBudget: '64MiB' },
      { thresholdsPath: 9 },
      { policy: () => 'price' },
    ];
    for (const options of bad) {
      const what = inspect(options);
      expect(await codeOf(engine.openSession(options as never), what), what).toBe('bad-argument');
    }
    expect(await codeOf(engine.openSession({ policy: 'best' }))).toBe('unsupported');
    for (const cacheTypes of ['rot5', 'rot4:rot2:q8', ''])
      expect(await codeOf(engine.openSession({ cacheTypes }), cacheTypes)).toBe('unsupported');
    expect(await codeOf(engine.openSession({ policy: 'uniform', kldBudget: 0.1 }))).toBe('unsupported');
    expect(await codeOf(engine.openSession({ thresholdsPath: join(folder(), 'none.json') }))).toBe('not-found');
  });

  it('values that cannot be made a text of, whatever the option', async () => {
    const session = await engine.openSession({ witness: false });
    const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
    for (const value of [Object.create(null), { toString: null }, Symbol('a'), [Symbol('b')], () => 1]) {
      const what = inspect(value);
      for (const name of ['model', 'stateDir', 'threads', 'dense', 'kvBudget', 'idleSessions'])
        expect(await codeOf(createEngine({ model: MODEL, [name]: value }), `${name} ${what}`)).toMatch(
          /^bad-|^unsupported$/,
        );
      for (const name of [
        'policy',
        'cacheTypes',
        'kvBudget',
        'kldBudget',
        'tokensExpected',
        'skipLayers',
        'thresholdsPath',
      ])
        expect(await codeOf(engine.openSession({ [name]: value }), `${name} ${what}`)).toMatch(/^bad-|^unsupported$/);
      for (const name of ['maxTokens', 'stop', 'temperature', 'topK', 'seed', 'logprobs', 'n'])
        expect(await codeOf(session.generate('a', { [name]: value }).result, `${name} ${what}`)).toMatch(
          /^bad-|^unsupported$/,
        );
      for (const name of ['layers', 'kvBudget', 'cacheTypes', 'thresholdsPath', 'stateDir', 'latents'])
        expect(await codeOf(openCache({ ...shape, [name]: value } as never), `${name} ${what}`)).toMatch(
          /^bad-|^unsupported$/,
        );
    }
    await session.close();
  });

  it('options that do not exist, with the one that was meant', async () => {
    const unknown = async (promise: Promise<unknown>, hint: string): Promise<void> => {
      const error = await refused(promise);
      expect([error.code, error.hint]).toEqual(['bad-argument', `did you mean ${hint}?`]);
    };
    await unknown(createEngine({ model: MODEL, stateDri: null } as never), 'stateDir');
    await unknown(engine.openSession({ kvBugdt: '1MiB' } as never), 'kvBudget');
    const session = await engine.openSession({ witness: false });
    await unknown(session.generate('a', { tempreature: 1 } as never).result, 'temperature');
    await unknown(session.compare({ onprogres: () => {} } as never), 'onProgress');
    await session.close();
    const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
    await unknown(openCache({ ...shape, kvBudgt: '1MiB' } as never), 'kvBudget');
    await unknown(openCache({ ...shape, latents: { fromat: 'xq8' } } as never), 'format');
  });

  it('prompts and sampling that make no sense', async () => {
    const session = await engine.openSession({ witness: false });
    const bad: [unknown, object][] = [
      [[-1], {}],
      [[4096], {}],
      [[1.5], {}],
      [['a'], {}],
      [[null], {}],
      [[{ role: 'user' }], {}],
      [{}, {}],
      [7, {}],
      [null, {}],
      ['', {}],
      [[], {}],
      ['a', { maxTokens: 0 }],
      ['a', { maxTokens: Number.NaN }],
      ['a', { temperature: -1 }],
      ['a', { temperature: Number.NaN }],
      ['a', { topP: 2 }],
      ['a', { seed: 0.5 }],
      ['a', { stop: 'x' }],
      ['a', { stop: [1] }],
    ];
    for (const [prompt, options] of bad) {
      const what = inspect([prompt, options]);
      expect(await codeOf(session.generate(prompt as never, options).result, what), what).toMatch(
        /^bad-|^unsupported$/,
      );
    }
    expect((await session.report()).tokens).toBe(0);
    await session.generate('a', { maxTokens: 1 }).result;
    expect(await codeOf(session.saveThresholds(7 as never))).toBe('bad-argument');
    expect(await codeOf(session.saveThresholds(join(folder(), 'no', 'folder.json')))).toBe('io');
    expect(await codeOf(session.compare())).toBe('bad-argument');
    expect(await codeOf(session.close('tired' as never))).toBe('bad-argument');
    await session.close();
    for (const tokens of [0, -1, 1.5, Number.NaN, '8'])
      expect(await codeOf(engine.forecast(tokens as never))).toBe('bad-argument');
    for (const prompt of [undefined, 7, {}])
      expect(await codeOf(engine.tokenize(prompt as never))).toBe('bad-argument');
  });

  it('a second call while one runs', async () => {
    const session = await engine.openSession({ witness: false });
    const running = session.generate(ids(300), { maxTokens: 20 });
    expect(await codeOf(session.generate(ids(5)).result)).toBe('busy');
    expect(await codeOf(session.fork())).toBe('busy');
    const text = await running.text();
    await session.close();
    const alone = await engine.openSession({ witness: false });
    expect(await alone.generate(ids(300), { maxTokens: 20 }).text()).toBe(text);
    await alone.close();
  });

  it('anything after close, but closing twice does nothing', async () => {
    const session = await engine.openSession({ witness: false });
    await session.close();
    expect(await codeOf(session.generate('a').result)).toBe('closed');
    expect(await codeOf(session.report())).toBe('closed');
    expect(await codeOf(session.fork())).toBe('closed');
    await session.close();
    const other = await openEngine(null);
    const left = await other.openSession();
    await other.close();
    await other.close();
    await left.close();
    await left[Symbol.asyncDispose]();
    const cache = await openCache({ layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 });
    for (let time = 0; time < 2; time++) await cache.close();
    await cache[Symbol.asyncDispose]();
  });

  it('a model that does not exist, and engines that make no sense', async () => {
    const dir = folder();
    expect(await codeOf(createEngine({ model: join(dir, 'nothing.gguf'), stateDir: join(dir, 'state') }))).toBe(
      'not-found',
    );
    for (const options of [
      null,
      {},
      { model: 7 },
      { model: MODEL, stateDir: 7 },
      { model: MODEL, stateDir: null, threads: -1 },
      { model: MODEL, stateDir: null, dense: 'big' },
      { model: MODEL, stateDir: null, isa: 'mmx' },
    ]) {
      expect(['bad-argument', 'unsupported']).toContain(await codeOf(createEngine(options as never), inspect(options)));
    }
  });
});

it.skipIf(process.platform === 'win32')(
  'a state folder of links that lead to each other, and the parts of one (needs links)',
  async () => {
    const dir = folder();
    symlinkSync(join(dir, 'b'), join(dir, 'a'));
    symlinkSync(join(dir, 'a'), join(dir, 'b'));
    for (const stateDir of [join(dir, 'a'), join(dir, 'b', 'state')]) {
      const cache = openCache({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64, stateDir });
      expect(await refused(cache)).toMatchObject({ code: 'io', message: expect.stringContaining('state folder') });
      expect(await codeOf(openEngine(stateDir))).toBe('io');
    }
  },
);

describe('on the command line', () => {
  const file = (name: string, content: string): string => {
    const path = join(folder(), name);
    writeFileSync(path, content);
    return path;
  };

  it('a schema and a conversation that are lists of numbers are told as what they are not', async () => {
    const list = file('list.json', '[1]');
    const run = ['run', '-m', 'reference', '-p', file('prompt.txt', 'Once'), '--state', join(folder(), 'state')];
    expectRefused(await answered([...run, '--json-schema', list]), 'bad-argument', /schema is an object/);
    expectRefused(await answered(['inspect', 'reference', '--chat', list]), 'bad-argument', /list of messages/);
  });

  it.each([
    ['originals of which none are kept', ['--promote', '4'], 'bad-argument', /promote needs originals/],
    ['a policy and a module', ['--policy', 'price', '--policy-module', 'x.mjs'], 'bad-argument', /one policy/],
    ['a module without a name', ['--policy-module', ''], 'bad-argument', /no name/],
    [
      'a policy file that is none',
      ['--policy-file', () => file('policy.toml', 'policy = 7')],
      'bad-config',
      /policyVersion/,
    ],
  ] as const)('%s are refused before a model is looked for', async (_, flags, code, says) => {
    const state = join(folder(), 'state');
    const prompt = file('prompt.txt', 'Once upon a time');
    const more = flags.map((flag) => (typeof flag === 'function' ? flag() : flag));
    for (const words of [['run', '-p', prompt], ['sessions', 'park', '-p', prompt], ['start']])
      expectRefused(await answered([...words, '-m', '/no/model', '--state', state, ...more]), code, says);
    expect(existsSync(state)).toBe(false);
  });
});
