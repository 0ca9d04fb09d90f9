// Sessions that begin with the same text at once: it is read once, by one of them, and the others wait for its pages.
// Nobody waits for one that was aborted or closed, or that is taken after it; and what each writes is what it writes
// alone.
import { afterEach, describe, expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineSession,
  type SessionOptions,
} from '../../../../engine/index.ts';
import { refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';
import { parseExposition } from '../serve/exposition.ts';

const CLIENTS = 8;
const COMMON = 1024;
const OWN = 20;
let engine: Engine;
afterEach(() => engine.close());

async function open(options: Partial<EngineOptions> = {}): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, ...options });
}

async function computedTokens(): Promise<number> {
  const families = parseExposition(await engine.metrics());
  const { samples } = families.find((one) => one.name === 'palimpsest_prompt_tokens_total')!;
  return samples.reduce((sum, { value }) => sum + value, 0);
}

const text = (client: number, own = OWN): number[] => [...ids(COMMON, 99), ...ids(own, 1 + client)];
const opened = (options: SessionOptions, count = CLIENTS): Promise<EngineSession[]> =>
  Promise.all(Array.from({ length: count }, () => engine.openSession(options)));
const asked = (session: EngineSession, client: number) =>
  session.generate(text(client), { maxTokens: 6, temperature: 0.8, seed: 7 }).result;

async function alone(options: SessionOptions): Promise<string[]> {
  await open({ prefixCaching: false });
  const texts: string[] = [];
  for (const [client, session] of (await opened(options)).entries()) {
    texts.push((await asked(session, client)).text);
    await session.close();
  }
  await engine.close();
  return texts;
}

describe('sessions that begin with one text at once', () => {
  it.each([{ exact: true }, {}] as const)(
    'compute its tokens once, and write what each writes alone (%o)',
    async (options) => {
      const expected = await alone(options);
      await open();
      const sessions = await opened(options);
      const answers = await Promise.all(sessions.map(asked));
      expect(answers.map(({ text: written }) => written)).toEqual(expected);
      expect(answers.map(({ cachedTokens }) => cachedTokens).sort((a, b) => a - b)).toEqual([
        0,
        ...Array.from({ length: CLIENTS - 1 }, () => COMMON),
      ]);
      expect(await computedTokens()).toBe(COMMON + CLIENTS * OWN);
    },
  );

  it('go on without one whose reader is aborted in the middle, with the pages that it had read', async () => {
    const expected = await alone({ exact: true });
    await open();
    const [first, ...others] = await opened({ exact: true });
    const controller = new AbortController();
    const reading = first!.read(text(0), {
      signal: controller.signal,
      onProgress: ({ tokens }) => {
        if (tokens >= COMMON / 2) controller.abort();
      },
    });
    const [error, ...answers] = await Promise.all([refused(reading), ...others.map((one, at) => asked(one, at + 1))]);
    expect(error.code).toBe('aborted');
    expect(answers.map(({ text: written }) => written)).toEqual(expected.slice(1));
    expect((await first!.report()).tokens).toBe(0);
    // A page more may have been read before the abort was heard, and the last one is not sealed.
    expect(await computedTokens()).toBeLessThanOrEqual(COMMON + 3 * 128 + CLIENTS * OWN);
    expect((await asked(first!, 0)).text).toBe(expected[0]);
  });

  it('wait no longer when they are aborted or closed, and nobody is kept by that', async () => {
    const expected = await alone({ exact: true });
    await open();
    const [first, second, third, fourth] = await opened({ exact: true }, 4);
    const controller = new AbortController();
    const reading = asked(first!, 0);
    const [waiting, closing] = [second!.read(text(1), { signal: controller.signal }), third!.read(text(2))];
    const last = asked(fourth!, 3);
    const errors = Promise.all([refused(waiting), refused(closing)]);
    controller.abort();
    await third!.close();
    expect((await errors).map(({ code }) => code)).toEqual(['aborted', 'closed']);
    expect([(await reading).text, (await last).text]).toEqual([expected[0], expected[3]]);
    expect((await last).cachedTokens).toBe(COMMON);
    expect((await asked(second!, 1)).text).toBe(expected[1]);
  });

  it('go on by themselves when the one that reads is closed', async () => {
    const expected = await alone({ exact: true });
    await open();
    const [first, ...others] = await opened({ exact: true }, 3);
    const reading = refused(
      first!.read(text(0), {
        onProgress: ({ tokens }) => {
          if (tokens >= 256) void first!.close();
        },
      }),
    );
    const answers = await Promise.all(others.map((one, at) => asked(one, at + 1)));
    expect((await reading).code).toBe('closed');
    expect(answers.map(({ text: written }) => written)).toEqual(expected.slice(1, 3));
    expect(answers.map(({ cachedTokens }) => cachedTokens).sort((a, b) => a - b)[1]).toBe(COMMON);
  });

  it('do not wait for one that is taken after them, has another salt, or is governed otherwise', async () => {
    await open();
    const kinds: SessionOptions[] = [
      { exact: true, schedulingPriority: 1 },
      { exact: true, schedulingPriority: 0, schedulingWeight: 2 },
      { exact: true, cacheSalt: 'other' },
      { policy: 'none' },
    ];
    const sessions = await Promise.all(kinds.map((options) => engine.openSession(options)));
    const answers = await Promise.all(sessions.map(asked));
    // Of one that reads beside them they may find what it has when they begin: nothing.
    expect(answers.map(({ cachedTokens }) => cachedTokens)).toEqual([0, 0, 0, 0]);
  });

  it('all come to their end where the memory has room for few of them', async () => {
    const expected = await alone({ policy: 'none' });
    for (const kvBudget of ['2.6MiB', '3.2MiB', '5MiB']) {
      await open({ kvBudget, idleSessions: 'reread' });
      const sessions = await opened({ policy: 'none' });
      const answers = await Promise.all(sessions.map(asked));
      expect(answers.map(({ text: written }) => written)).toEqual(expected);
      await engine.close();
    }
    await open();
  });
});
