// Activated LoRA: it adds from the last place of its invocation on. Rows before are those of the model without it, and
// so are their pages, for whoever reads the same text; and it stays so in forks, parked sessions and receipts.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Adapters } from '../../../../engine/adapters/adapters.ts';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { createEngine, type Engine, type SessionAdapter, type SessionOptions } from '../../../../engine/index.ts';
import { Session } from '../../../../engine/session/session.ts';
import { adaptedDense } from '../../../../engine/transformer/adapted-dense.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend, LayerInput } from '../../../../engine/transformer/types.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { familyTokens, ggufAdapterParts, hfFiles, readFamily } from '../../../model/family-files.ts';
import { logitsAt, nativeAttention, plainAttention } from '../../../model/forward.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';
import { gguf, temporaryFolder } from '../transformer/model-files.ts';
import { adaptable, lowRank, matricesOf, mergedWeights, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

/** Both tokens are nowhere in `ids()`, which begins at 10. */
const INVOCATION = [5, 7];

const distance = (a: Float32Array, b: Float32Array): number =>
  Math.hypot(...a.map((value, i) => value - b[i]!)) / Math.hypot(...b);

describe('on a small llama', () => {
  const TOKENS = 12;
  const SINCE = 7;
  const TEXT = familyTokens(TOKENS);
  const FACTORS = lowRank(adaptable('llama'), () => 4, 5, 0.3);
  const invocation = TEXT.slice(SINCE, SINCE + 2);
  const config = peftConfig({ r: 4, lora_alpha: 6, alora_invocation_tokens: invocation });
  let path: string;
  let adapter: string;
  beforeAll(() => {
    for (const [file, content] of Object.entries(hfFiles(readFamily('llama')))) folder.write(`llama/${file}`, content);
    path = join(folder.dir, 'llama');
    adapter = writePeft(folder, 'small', config, peftTensors(FACTORS));
  });

  /** Rows of a text that come from one dense half before a token, and from another one from it on. */
  function mixed(before: DenseBackend, after: DenseBackend, since: number, width: number): DenseBackend {
    const rows = (a: Float32Array, b: Float32Array, tokens: number): Float32Array => {
      const at = (a.length / tokens) * since;
      const out = a.slice();
      out.set(b.subarray(at), at);
      return out;
    };
    const inputs = (a: LayerInput, b: LayerInput): LayerInput => {
      const of = (name: 'q' | 'k' | 'v' | 'x') => rows(a[name], b[name], a.tokens);
      return { ...a, q: of('q'), k: of('k'), v: of('v'), x: of('x') };
    };
    return {
      ...adaptedDense(before, [{ adapter: 0, scale: 1 }]),
      first: async (x, tokens) => inputs(await before.first(x, tokens), await after.first(x, tokens)),
      next: async (layer, attention, x, tokens) =>
        inputs(await before.next(layer, attention, x, tokens), await after.next(layer, attention, x, tokens)),
      last: async (attention, x, tokens) => {
        const [a, b] = [await before.last(attention, x, tokens), await after.last(attention, x, tokens)];
        expect(a.length).toBe(tokens * width);
        return rows(a, b, tokens);
      },
      logits: (x, count) => before.logits(x, count),
    };
  }

  /** In float64: what the last token leaves where the model has the adapter in its weights from a token on. */
  async function expected(since: number, attentionOf = plainAttention): Promise<Float32Array> {
    const model = await loadModel(path);
    const of = (weights: typeof model.weights) =>
      createLoopBackend({ config: model.config, weights }, { precision: 'exact', threads: 1 });
    const plain = await of(model.weights);
    const adapted = await of(mergedWeights(model, FACTORS, () => 1.5));
    const attention = attentionOf(model.config);
    try {
      const dense = mixed(plain, adapted, since, model.config.hiddenSize);
      const rotary = new Rotary(model.config, TOKENS);
      const [found] = await logitsAt(dense, model.config, rotary, attention, TEXT, TOKENS, [TOKENS - 1]);
      return found!.slice();
    } finally {
      attention.close();
      await Promise.all([plain, adapted].map((dense) => dense.close()));
      model.weights.close();
    }
  }

  test('what it adds from a token on equals a model whose weights have it from there on', async () => {
    const model = await loadModel(path);
    const dense = await createLoopBackend(model, { precision: 'exact', threads: 1 });
    const attention = plainAttention(model.config);
    const held = [{ adapter: dense.addAdapter!(readAdapter(adapter, model).added), scale: 1, since: SINCE }];
    const adapted = adaptedDense(dense, held, { position: 0, tokens: TOKENS });
    const rotary = new Rotary(model.config, TOKENS);
    const [found] = await logitsAt(adapted, model.config, rotary, attention, TEXT, TOKENS, [TOKENS - 1]);
    expect(distance(found!, await expected(SINCE))).toBeLessThan(1e-5);
    for (const other of [0, SINCE - 1, SINCE + 1, TOKENS])
      expect(distance(found!, await expected(other)), `from ${other} on`).toBeGreaterThan(1e-3);
    attention.close();
    await dense.close();
    model.weights.close();
  });

  test('a session adds from the invocation on, however its tokens come', async () => {
    const runtime = await Runtime.open({ model: path, dense: 'exact', threads: 1, adapters: true });
    const adapters = new Adapters(runtime);
    adapters.add('late', adapter);
    const rightly = await expected(SINCE, nativeAttention);
    const { layers } = runtime.model.config;
    const read = async (...parts: readonly (readonly number[])[]): Promise<Float32Array> => {
      const adapterSet = adapters.set([{ name: 'late' }]);
      const thresholds = defaultThresholds(layers);
      const session = Session.open(runtime, { log: null, thresholds, exact: true, adapterSet });
      for (const part of parts) await session.read(part);
      const found = (await session.logits()).slice();
      session.close();
      return found;
    };
    try {
      const whole = await read(TEXT);
      expect(distance(whole, rightly)).toBeLessThan(1e-3);
      for (const other of [0, SINCE - 1, SINCE + 1, TOKENS])
        expect(distance(whole, await expected(other, nativeAttention)), `from ${other} on`).toBeGreaterThan(1e-3);
      // In pieces, cut before, within and behind the invocation.
      for (const cut of [1, SINCE, SINCE + 1, SINCE + 2, TOKENS - 1])
        expect(await read(TEXT.slice(0, cut), TEXT.slice(cut)), `cut at ${cut}`).toEqual(whole);
    } finally {
      await runtime.close();
    }
  });

  test('a GGUF file says the same, with the same digest, which another invocation changes', async () => {
    const parts = ggufAdapterParts(readFamily('llama'), FACTORS, 6);
    const other = (tokens: readonly number[]): string =>
      folder.write(
        'late.gguf',
        gguf({
          ...parts,
          metadata: [...parts.metadata, ['adapter.alora.invocation_tokens', { type: 'i32s', value: tokens }]],
        }),
      );
    const model = await loadModel(path);
    const digest = readAdapter(adapter, model).digest;
    expect(readAdapter(other(invocation), model)).toMatchObject({ digest, invocation });
    expect(readAdapter(other([1, 2]), model).digest).not.toBe(digest);
    model.weights.close();
  });
});

let engine: Engine;
/** Shares nothing. */
let isolated: Engine;
const STATE = join(folder.dir, 'state');
beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: STATE, adapters: {}, kvBudget: '256MiB' });
  isolated = await createEngine({ model: MODEL, threads: 1, stateDir: null, adapters: {}, prefixCaching: false });
  const matrices = matricesOf(engine.info.config);
  for (const [name, seed, more] of [
    ['late', 1, { alora_invocation_tokens: INVOCATION }],
    ['later', 2, { alora_invocation_tokens: INVOCATION }],
    ['always', 3, {}],
  ] as const) {
    const made = writePeft(folder, name, peftConfig(more), peftTensors(lowRank(matrices, () => 8, seed, 0.4)));
    for (const of of [engine, isolated]) await of.adapters.add(name, made);
  }
});
afterAll(async () => {
  await engine?.close();
  await isolated?.close();
});

const ANSWER = { maxTokens: 10, temperature: 1, seed: 5 } as const;
const OPTIONS = { cacheTypes: 'f16' } as const satisfies SessionOptions;
/** With a log; there is room for all of it. */
const LOGGED = { kvBudget: '64MiB', witness: true } as const satisfies SessionOptions;
const LATE = [{ name: 'late' }];
/** Two pages and a half, the invocation, and a few tokens. */
const text = (seed: number): number[] => [...ids(320, seed), ...INVOCATION, ...ids(20, seed + 1)];

async function answer(
  of: Engine,
  adapters: readonly SessionAdapter[],
  prompt: readonly number[],
  options: SessionOptions = OPTIONS,
): Promise<{ readonly tokens: string; readonly cached: number }> {
  const session = await of.openSession({ ...options, adapters });
  const { text: tokens, cachedTokens: cached } = await session.generate(prompt, ANSWER).result;
  await session.close();
  return { tokens, cached };
}
/** Answers of the other engine, each written once. */
const ALONE = new Map<string, Promise<string>>();
function alone(
  adapters: readonly SessionAdapter[],
  prompt: readonly number[],
  options?: SessionOptions,
): Promise<string> {
  const asked = JSON.stringify([adapters, prompt, options]);
  const known = ALONE.get(asked) ?? answer(isolated, adapters, prompt, options).then(({ tokens }) => tokens);
  ALONE.set(asked, known);
  return known;
}

test('without its invocation it is not there; with it, it is', async () => {
  const without = ids(200, 9);
  expect(await alone(LATE, without)).toBe(await alone([], without));
  const prompt = text(20);
  const [base, late] = [await alone([], prompt), await alone(LATE, prompt)];
  expect(late).not.toBe(base);
  expect(await alone([{ name: 'late', scale: 0 }], prompt)).toBe(base);
});

describe('pages', () => {
  const found = async (adapters: readonly SessionAdapter[], prompt: readonly number[], cached: number) => {
    const one = await answer(engine, adapters, prompt);
    expect(one.cached, JSON.stringify(adapters)).toBe(cached);
    expect(one.tokens).toBe(await alone(adapters, prompt));
  };

  test('before the invocation are those of the model, whoever read them', async () => {
    await found([], text(30), 0);
    await found(LATE, text(30), 256);
    await found([{ name: 'later' }, { name: 'late' }], text(30), 256);
    await found(LATE, text(40), 0);
    await found([], text(40), 256);
  });

  test('of a row that it adds to are its own', async () => {
    // The invocation is in the second page, and two more follow.
    const prompt = [...ids(200, 50), ...INVOCATION, ...ids(250, 51)];
    await found([], prompt, 0);
    await found(LATE, prompt, 128);
    await found([{ name: 'later' }], prompt, 128);
    await found([{ name: 'late', scale: 0.5 }], prompt, 128);
    for (const adapters of [[], LATE, [{ name: 'later' }], [{ name: 'late', scale: 0.5 }]])
      await found(adapters, prompt, 384);
    // A page that ends before it is also that of a text whose invocation comes elsewhere.
    await found(LATE, [...prompt.slice(0, 180), ...INVOCATION, ...ids(120, 52)], 128);
    // The same pages, activated from an earlier token on.
    const again = [...INVOCATION, ...ids(300, 53)];
    await found(LATE, again, 0);
    await found(LATE, again, 256);
    await found(LATE, [...again, ...INVOCATION], 0);
    await found([], [...again, ...INVOCATION], 256);
  });

  test('beside an adapter that adds to all rows are that one’s', async () => {
    const both = [{ name: 'always' }, { name: 'late' }];
    await found([{ name: 'always' }], text(60), 0);
    await found(both, text(60), 256);
    await found(LATE, text(60), 0);
    await found(both, text(61), 0);
    await found([{ name: 'always' }], text(61), 256);
  });
});

test('an invocation that comes again moves on where it begins: rows between are read again', async () => {
  const [first, second] = [text(70), [...ids(150, 72), ...INVOCATION, ...ids(9, 73)]];
  const session = await engine.openSession({ ...LOGGED, adapters: LATE });
  await session.generate(first, { ...ANSWER, maxTokens: 60 }).result;
  const { text: went, receipt } = await session.generate(second, { ...ANSWER, receipt: true }).result;
  const { tokens } = receipt!.request;
  expect(tokens).toHaveLength(first.length + 60 + second.length);
  expect(went).toBe(await alone(LATE, tokens, LOGGED));
  await session.close();
  const said = entriesOf(STATE, session.id, 'note').flatMap(({ body }) => body['activated'] ?? []);
  expect(said.map((one) => (one as { since: number }).since)).toEqual([320, first.length + 60 + 150]);
});

test('many at once answer as each does alone', async () => {
  const sets: (readonly SessionAdapter[])[] = [
    [],
    LATE,
    [{ name: 'always' }],
    [{ name: 'late', scale: -0.5 }, { name: 'always' }],
    [{ name: 'later' }, { name: 'late' }],
  ];
  const prompts = [text(80), text(81)];
  const asked = sets.flatMap((adapters) => prompts.map((prompt) => [adapters, prompt] as const));
  const answers = await Promise.all(asked.map(([adapters, prompt]) => answer(engine, adapters, prompt)));
  for (const [at, [adapters, prompt]] of asked.entries())
    expect(answers[at]!.tokens, JSON.stringify(adapters)).toBe(await alone(adapters, prompt));
});

test('a fork, a parked session and its receipt go on as it was', async () => {
  const prompt = text(90);
  const expected = await alone(LATE, prompt, LOGGED);
  const session = await engine.openSession({ ...LOGGED, adapters: LATE });
  await session.read(prompt);
  const fork = await session.fork();
  const parked = await session.park(join(folder.dir, 'late.parked'));
  const { text: forked, receipt } = await fork.generate(null, { ...ANSWER, receipt: true }).result;
  expect(forked).toBe(expected);
  await fork.close();
  const log = join(STATE, 'log');
  const given = { log, request: receipt!.request };
  expect((await engine.verifyReceipt(receipt!.receipt, given)).again.tokens).toBe(ANSWER.maxTokens);
  for (const [more, by] of [
    [{}, 'pages'],
    [{ policy: 'none' }, 'reading'],
  ] as const) {
    const back = await engine.resume(parked.path, more);
    expect(back.resumed!.by).toBe(by);
    expect(await back.generate(null, ANSWER).text()).toBe(expected);
    await back.close();
  }
});

test('an abort before the invocation is read leaves the session as it was', async () => {
  const prompt = ids(300, 100);
  const session = await engine.openSession({ ...OPTIONS, adapters: LATE });
  await session.read(prompt);
  const signal = AbortSignal.abort();
  await expect(session.read([...INVOCATION, ...ids(5, 3)], { signal })).rejects.toMatchObject({ code: 'aborted' });
  expect(await session.generate(null, ANSWER).text()).toBe(await alone([], prompt));
  await session.close();
});
