/**
 * Sessions of small models with sliding windows (Mistral: in every layer; Gemma 3: in two of three): they answer as one
 * whose pages all stay, and take fewer bytes. What is edited far back is read again, a prompt that is aborted leaves
 * everything that it would see, parked sessions come back, and whatever else looks at pages passes over freed ones.
 */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { parseParked } from '../../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { freedPages, isFreed } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { familyTokens, hfFiles, readFamily } from '../../../model/family-files.ts';
import { logitsAt, nativeAttention } from '../../../model/forward.ts';
import { sameBits } from '../../../native/dense.ts';
import { codeOf, refused } from '../../../refusal.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const models = temporaryFolder();
afterAll(() => models.remove());
const text = familyTokens(1200);

describe.each(['mistral', 'gemma3'])('a session of %s', (name) => {
  let runtime: Runtime;
  beforeAll(async () => {
    for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) models.write(`${name}/${file}`, content);
    runtime = await Runtime.open({ model: join(models.dir, name), threads: 1 });
  });
  afterAll(() => runtime.close());
  const setup = (options: SessionOptions) => ({
    ...options,
    log: null,
    thresholds: defaultThresholds(runtime.shape.layers),
  });
  const open = (options: SessionOptions = {}): Session => Session.open(runtime, setup(options));
  const freedIn = ({ cache, governed }: Session): number[] =>
    Array.from({ length: governed.shape.layers }, (_, layer) => {
      const table = cache.table(layer);
      return Array.from({ length: table.pages }, (_page, page) => isFreed(table, page)).filter(Boolean).length;
    });
  const freedAt = (tokens: number): number[] =>
    runtime.model.config.slidingWindow.map((window) => freedPages(tokens, window));

  async function greedy(
    session: Session,
    maxTokens: number,
    prompt: readonly number[] | null = null,
  ): Promise<number[]> {
    const before = session.length;
    for await (const _ of session.generate(prompt, { maxTokens, temperature: 0 }));
    return session.tokens.slice(before + (prompt?.length ?? 0));
  }

  it('has the logits of a cache that keeps every page, and fewer bytes', async () => {
    const { model } = runtime;
    const session = open({ exact: true });
    const whole = nativeAttention(model.config);
    const positions = [255, 511, 999];
    const expected = await logitsAt(runtime.dense, model.config, new Rotary(model.config), whole, text, 128, positions);
    for (const [i, position] of positions.entries()) {
      await session.read(text.slice(session.length, position + 1));
      expect(sameBits(await session.logits(), expected[i]!)).toBe(true);
    }
    expect(freedIn(session)).toEqual(freedAt(1000));
    expect(session.cache.usedBytes).toBeLessThan(0.7 * 1000 * 2 * runtime.shape.layers * 128 * 2);
    whole.close();
    session.close();
  });

  it('reads again what was edited further back than its pages are there', async () => {
    const session = open();
    await session.read(text.slice(0, 1030));
    expect(codeOf(() => session.rewind(640))).toBe('unsupported');
    const near = [...text.slice(0, 1000), 7, 8, 9];
    expect(session.keeps(near)).toBe(896);
    await session.follow(near);
    const far = [...text.slice(0, 300), ...text.slice(400, 1100)];
    expect(session.keeps(far)).toBe(0);
    expect(await session.follow(far)).toBe(0);
    const fresh = open();
    await fresh.read(far);
    expect(sameBits(await session.logits(), await fresh.logits())).toBe(true);
    expect(freedIn(session)).toEqual(freedAt(1000));
    for (const one of [session, fresh]) one.close();
  });

  it('is as it was after a long prompt that is aborted', async () => {
    const [session, twin] = [open(), open()];
    for (const one of [session, twin]) await one.read(text.slice(0, 500));
    const stop = new AbortController();
    const reading = session.read(text.slice(500, 1150), {
      signal: stop.signal,
      onProgress: ({ tokens }) => {
        if (tokens >= 500) stop.abort();
      },
    });
    expect((await refused(reading)).code).toBe('aborted');
    expect(session.length).toBe(500);
    for (const one of [session, twin]) await one.read(text.slice(500, 700));
    expect(sameBits(await session.logits(), await twin.logits())).toBe(true);
    expect(freedIn(session)).toEqual(freedIn(twin));
    for (const one of [session, twin]) one.close();
  });

  it('comes back from a file, whose freed pages take nothing', async () => {
    const session = open({ tokensExpected: 1100 });
    await session.read(text.slice(0, 1000));
    const bytes = parkedBytes(session);
    expect(bytes.length).toBeLessThan(0.7 * 1000 * 2 * runtime.shape.layers * 128);
    const { session: back, resumed } = await resumeSession(
      runtime,
      setup({ tokensExpected: 1100 }),
      parseParked(bytes, 'parked'),
    );
    expect(resumed.by).toBe('pages');
    expect(freedIn(back)).toEqual(freedAt(1000));
    expect(await greedy(back, 40, text.slice(1000, 1030))).toEqual(await greedy(session, 40, text.slice(1000, 1030)));
    for (const one of [session, back]) one.close();
  });

  const kinds: [string, SessionOptions][] = [
    ['a budget', { kvBudget: '40%', tokensExpected: 1150 }],
    ['a budget and originals', { kvBudget: '40%', tokensExpected: 1150, originals: 'memory', promote: 2 }],
    ['a stated divergence', { kldBudget: 0.01, tokensExpected: 1150 }],
    // Latents need one rotary embedding in all layers.
    ...(name === 'mistral' ? [['latents', { latents: 'xq8' }] satisfies [string, SessionOptions]] : []),
  ];
  it.each(kinds)('goes on under %s, with forks', async (_name, options) => {
    const session = open(options);
    await session.read(text.slice(0, 700));
    const fork = 'latents' in options ? null : session.fork();
    await greedy(session, 8, text.slice(700, 1100));
    expect(freedIn(session)).toEqual(freedAt(session.length));
    if (fork !== null) {
      await greedy(fork, 8, text.slice(700, 800));
      expect(freedIn(fork)).toEqual(freedAt(fork.length));
      fork.close();
    }
    const { layers } = session.report();
    const freed = freedAt(session.length);
    expect(layers.map(({ kPages }) => kPages['freed'] ?? 0)).toEqual(freed);
    session.close();
  });
});
