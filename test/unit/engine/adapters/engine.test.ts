// Adapters in an engine: every session answers as one that is alone with its adapters, whatever others do at the same
// time, and no page that was computed with some is used with others.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineSession,
  type SessionAdapter,
  type SessionOptions,
} from '../../../../engine/index.ts';
import { seeded } from '../../../random.ts';
import { refused } from '../../../refusal.ts';
import { volume } from '../../../tier.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';
import { temporaryFolder } from '../transformer/model-files.ts';
import { lowRank, matricesOf, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());
const STATE = join(folder.dir, 'state');

const NAMES = ['one', 'two', 'three', 'four', 'five', 'six'] as const;
const RANKS = [1, 4, 8, 16, 32, 64] as const;
const PATHS: Record<string, string> = {};
let engine: Engine;
/** Without a state folder and without shared beginnings: what each session answers by itself. */
let isolated: Engine;

beforeAll(async () => {
  const bare = await createEngine({ model: MODEL, threads: 1, stateDir: null });
  const all = matricesOf(bare.info.config);
  await bare.close();
  for (const [i, name] of NAMES.entries()) {
    const r = RANKS[i]!;
    const matrices = i === 5 ? all.filter(([module]) => /(q|o)_proj$/.test(module)) : all;
    const factors = lowRank(matrices, () => r, 40 + i, 0.4);
    PATHS[name] = writePeft(folder, name, peftConfig({ r, lora_alpha: r }), peftTensors(factors));
  }
  const more = { model: MODEL, threads: 1, adapters: PATHS } as const;
  engine = await createEngine({ ...more, stateDir: STATE, kvBudget: '256MiB' });
  isolated = await createEngine({ ...more, stateDir: null, prefixCaching: false });
});
afterAll(async () => {
  await engine?.close();
  await isolated?.close();
});

const PROMPT = ids(300);
const ANSWER = { maxTokens: 10, temperature: 1, seed: 5 } as const;

async function answer(
  of: Engine,
  adapters: readonly SessionAdapter[],
  prompt: readonly number[] = PROMPT,
  options: SessionOptions = {},
): Promise<{ readonly id: string; readonly tokens: string; readonly cachedTokens: number }> {
  const session = await of.openSession({ exact: true, witness: of === engine, ...options, adapters });
  const { text, cachedTokens } = await session.generate(prompt, ANSWER).result;
  await session.close();
  return { id: session.id, tokens: text, cachedTokens };
}

const alone = async (adapters: readonly SessionAdapter[], prompt?: readonly number[]): Promise<string> =>
  (await answer(isolated, adapters, prompt)).tokens;

test('adapters change answers; a scale of 0 and none do not', async () => {
  const texts = new Map<string, string>();
  for (const name of NAMES) texts.set(name, await alone([{ name }]));
  const base = await alone([]);
  expect(new Set([...texts.values(), base]).size).toBe(NAMES.length + 1);
  expect(await alone([{ name: 'one', scale: 0 }])).toBe(base);
  expect(
    await alone([
      { name: 'two', scale: 0 },
      { name: 'three', scale: 1 },
    ]),
  ).toBe(texts.get('three'));
  const both: SessionAdapter[] = [
    { name: 'one', scale: 0.5 },
    { name: 'two', scale: 0.5 },
  ];
  expect(await alone(both)).toBe(await alone([...both].reverse()));
  expect(await alone(both)).not.toBe(await alone(both.slice(1)));
});

describe('pages', () => {
  const NO_BUDGET = { exact: false, cacheTypes: 'f16', witness: true } as const satisfies SessionOptions;
  const prompt = ids(300, 77);
  const shared = (adapters: readonly SessionAdapter[]) => answer(engine, adapters, prompt, NO_BUDGET);

  // The digest of adapters is in the key of pages: without it the second of these begins with pages of the first.
  test('of one set of adapters are not begun with by another', async () => {
    const sets: (readonly SessionAdapter[])[] = [
      [],
      [{ name: 'two' }],
      [{ name: 'two', scale: 0.5 }],
      [{ name: 'three' }],
      [{ name: 'two' }, { name: 'three' }],
    ];
    for (const adapters of sets) {
      const { cachedTokens, tokens } = await shared(adapters);
      expect(cachedTokens, JSON.stringify(adapters)).toBe(0);
      expect(tokens).toBe(await alone(adapters, prompt));
    }
    for (const adapters of sets) {
      const { cachedTokens, tokens } = await shared(adapters);
      expect(cachedTokens, JSON.stringify(adapters)).toBe(256);
      expect(tokens).toBe(await alone(adapters, prompt));
    }
    // What adds nothing is nothing, and an order is none.
    expect((await shared([{ name: 'four', scale: 0 }])).cachedTokens).toBe(256);
    expect((await shared([{ name: 'three' }, { name: 'two' }])).cachedTokens).toBe(256);
  });

  test('are found again by what is added, whatever it is called', async () => {
    await engine.adapters.add('two-again', PATHS['two']!);
    expect((await shared([{ name: 'two-again' }])).cachedTokens).toBe(256);
    expect(await engine.adapters.remove('two-again')).toBe(0);
  });

  test('of a parked session come back to the same adapters alone', async () => {
    const adapters = [{ name: 'three', scale: 0.5 }] as const;
    const park = async (): Promise<string> => {
      const session = await engine.openSession({ ...NO_BUDGET, adapters });
      await session.read(prompt);
      return (await session.park(join(folder.dir, 'a.parked'))).path;
    };
    const go = async (more: SessionOptions): Promise<{ by: string; why: string | null; text: string }> => {
      const session = await engine.resume(await park(), more);
      const { by, why } = session.resumed!;
      const text = await session.generate(null, ANSWER).text();
      await session.close();
      return { by, why, text };
    };
    const expected = await alone(adapters, prompt);
    expect(await go({})).toEqual({ by: 'pages', why: null, text: expected });
    const other = await go({ adapters: [{ name: 'three' }] });
    expect(other).toMatchObject({ by: 'reading', text: await alone([{ name: 'three' }], prompt) });
    expect(other.why).toContain('adapters');
    expect(await go({ adapters: [] })).toMatchObject({ by: 'reading', text: await alone([], prompt) });
  });

  test('of a fork go on with the adapters of the first', async () => {
    const adapters = [{ name: 'four' }] as const;
    const session = await engine.openSession({ ...NO_BUDGET, adapters });
    await session.read(prompt);
    const fork = await session.fork();
    await session.close();
    expect(await fork.generate(null, ANSWER).text()).toBe(await alone(adapters, prompt));
    await fork.close();
  });
});

test('a name that stands for another adapter: open sessions keep what they have', async () => {
  const path = PATHS['five']!;
  await engine.adapters.add('style', path);
  const [before] = (await engine.adapters.list()).filter(({ name }) => name === 'style');
  const first = await engine.openSession({ exact: true, adapters: [{ name: 'style' }] });
  await first.read(PROMPT);
  const after = await engine.adapters.add('style', PATHS['six']!);
  expect(after.digest).not.toBe(before!.digest);
  const second = await answer(engine, [{ name: 'style' }]);
  expect(second.tokens).toBe(await alone([{ name: 'six' }]));
  expect(await first.generate(null, ANSWER).text()).toBe(await alone([{ name: 'five' }]));
  await first.close();
  expect(await engine.adapters.remove('style')).toBe(0);
  expect((await refused(engine.openSession({ adapters: [{ name: 'style' }] }))).code).toBe('not-found');
});

test('a removed adapter stays as long as a session has it, and its memory goes then', async () => {
  const own = await createEngine({ model: MODEL, threads: 1, stateDir: null, adapters: { x: PATHS['one']! } });
  const session = await own.openSession({ exact: true, adapters: [{ name: 'x' }] });
  await session.read(PROMPT);
  expect(await own.adapters.list()).toMatchObject([{ name: 'x', format: 'PEFT', sessions: 1, ranks: [1, 1] }]);
  expect(await own.adapters.remove('x')).toBe(1);
  expect(await own.adapters.list()).toEqual([]);
  expect(await session.generate(null, ANSWER).text()).toBe(await alone([{ name: 'one' }]));
  await session.close();
  expect((await refused(own.adapters.remove('x'))).code).toBe('not-found');
  await own.close();
});

test('the log says what was added, also of a fork', async () => {
  const governed = { kvBudget: '16MiB' } as const;
  const adapters = [
    { name: 'two', scale: 0.25 },
    { name: 'one', scale: 0 },
  ];
  const session = await engine.openSession({ ...governed, adapters });
  await session.read(PROMPT);
  const fork = await session.fork();
  const plain = await engine.openSession(governed);
  await plain.read(PROMPT);
  for (const one of [session, fork, plain]) await one.close();
  const [two] = (await engine.adapters.list()).filter(({ name }) => name === 'two');
  const said = (id: string) => entriesOf(STATE, id, 'open').map(({ body }) => body.adapters);
  for (const { id } of [session, fork]) expect(said(id)).toEqual([[{ digest: two!.digest, scale: 0.25 }]]);
  expect(said(plain.id)).toEqual([undefined]);
});

test('an answer with adapters is run again from its receipt, where they are', async () => {
  const options = { kvBudget: '16MiB', adapters: [{ name: 'three', scale: 0.5 }] } as const;
  const session = await engine.openSession(options);
  const { receipt: given } = await session.generate(ids(200, 8), { ...ANSWER, receipt: true }).result;
  await session.close();
  const { receipt, request } = given!;
  const log = join(STATE, 'log');
  expect((await engine.verifyReceipt(receipt, { log, request })).again.tokens).toBe(ANSWER.maxTokens);
  const without = await createEngine({ model: MODEL, threads: 1, stateDir: null, adapters: { one: PATHS['one']! } });
  expect(await refused(without.verifyReceipt(receipt, { log, request }))).toMatchObject({ code: 'not-found' });
  await without.close();
});

test('latents are kept where keys and values are as they were', async () => {
  const latents = { latents: 'xq8', kvBudget: '16MiB' } as const;
  const session = await engine.openSession({ ...latents, adapters: [{ name: 'six' }] });
  await session.read(ids(200, 8));
  await session.close();
});

test('what cannot be is refused', async () => {
  const open = (options: SessionOptions) => refused(engine.openSession(options));
  expect((await open({ adapters: [{ name: 'nobody' }] })).code).toBe('not-found');
  for (const adapters of [
    [{ name: 'one' }, { name: 'one', scale: 2 }],
    [{ name: 'one', scale: 101 }],
    [{ name: 'one', scale: Number.NaN }],
    [{ name: '' }],
    NAMES.slice(0, 5).map((name) => ({ name })),
    [{ name: 'one', weight: 2 }],
    'one',
  ])
    expect((await open({ adapters: adapters as never })).code).toBe('bad-argument');
  const latents = await open({ adapters: [{ name: 'one' }], latents: 'xq8', kvBudget: '50%', tokensExpected: 400 });
  expect(latents).toMatchObject({ code: 'unsupported' });
  expect(latents.message).toContain('latents');
  expect((await refused(engine.adapters.add('', PATHS['one']!))).code).toBe('bad-argument');
  expect((await refused(engine.adapters.add('a', folder.dir))).code).toBe('not-found');
  const created = createEngine({ model: MODEL, stateDir: null, adapters: { a: join(folder.dir, 'nothing') } });
  expect((await refused(created)).code).toBe('not-found');
});

/** What a session goes through before it answers. */
const WAYS = ['answers', 'answers', 'parks', 'forks', 'aborts', 'follows a name'] as const;
type Way = (typeof WAYS)[number];

interface Asked {
  readonly adapters: readonly SessionAdapter[];
  readonly prompt: readonly number[];
  readonly way: Way;
  /** For a name that comes to stand for another adapter. */
  readonly moved: (typeof NAMES)[number];
}

/** The answer of a session among others; null: it was aborted. → also the adapters that it had */
async function lived(
  { adapters, prompt, way, moved }: Asked,
  at: number,
): Promise<{ readonly tokens: string; readonly adapters: readonly SessionAdapter[] } | null> {
  const options = { cacheTypes: 'f16', witness: true } as const satisfies SessionOptions;
  const follows = way === 'follows a name';
  let session = await (follows ? followed(moved, options) : engine.openSession({ ...options, adapters }));
  if (way === 'aborts') {
    const aborted = new AbortController();
    const answering = session.generate(prompt, { ...ANSWER, signal: aborted.signal });
    // In the middle of it: when the first text has come.
    for await (const _ of answering) aborted.abort();
    await answering.result.catch(() => {});
    await session.close('aborted');
    return null;
  }
  if (way === 'parks') {
    await session.read(prompt);
    session = await engine.resume((await session.park(join(folder.dir, `${at}.parked`))).path, {});
  } else if (way === 'forks') {
    await session.read(prompt);
    const fork = await session.fork();
    await session.close();
    session = fork;
  }
  const isRead = way === 'parks' || way === 'forks';
  const tokens = await session.generate(isRead ? null : prompt, ANSWER).text();
  await session.close();
  return { tokens, adapters: follows ? [{ name: moved }] : adapters };
}

/** Gives a name to an adapter and opens a session with it, before anybody else gives it to another. */
function followed(moved: string, options: SessionOptions): Promise<EngineSession> {
  const opened = moving.then(async () => {
    await engine.adapters.add('moving', PATHS[moved]!);
    return engine.openSession({ ...options, adapters: [{ name: 'moving' }] });
  });
  moving = opened.catch(() => {});
  return opened;
}
let moving: Promise<unknown> = Promise.resolve();

test('many at once answer as each does alone, whatever else they go through', async () => {
  const random = seeded(11);
  const pick = (count: number): number => Math.floor(random() * count);
  const prompts = [ids(260, 3), ids(260, 3).concat(ids(30, 4)), ids(140, 5)];
  const cases = Array.from({ length: volume('adapter sessions') }, (): Asked => {
    const adapters = [...NAMES]
      .sort(() => random() - 0.5)
      .slice(0, pick(3))
      .map((name) => ({ name, scale: [1, 0.5, -0.25, 0][pick(4)]! }));
    return {
      ...{ adapters, prompt: prompts[pick(prompts.length)]! },
      ...{ way: WAYS[pick(WAYS.length)]!, moved: NAMES[pick(NAMES.length)]! },
    };
  });
  const expected = new Map<string, Promise<string>>();
  for (let at = 0; at < cases.length; at += 6)
    await Promise.all(
      cases.slice(at, at + 6).map(async (one, i) => {
        const found = await lived(one, at + i);
        if (found === null) return;
        const { adapters, tokens } = found;
        const key = JSON.stringify([adapters, prompts.indexOf(one.prompt as number[])]);
        if (!expected.has(key)) expected.set(key, alone(adapters, one.prompt));
        expect(tokens, `${one.way}: ${key}`).toBe(await expected.get(key));
      }),
    );
  await engine.adapters.remove('moving').catch(() => {});
});
