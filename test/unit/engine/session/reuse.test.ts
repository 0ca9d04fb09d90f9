// What is used again is what it would be if it were made anew: forks, the same request again and again, conversations
// over one beginning that are parked in turn, what lies beside pages, files that are damaged, and one parked session
// that is resumed twice. On the reference model and small models of two families, greedy.

import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine } from '../../../../engine/index.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { parseParked } from '../../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { familyTokens, hfFiles, readFamily } from '../../../model/family-files.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, MODEL } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const folder = scratchFolders();
const models = temporaryFolder();
afterAll(() => models.remove());
const { open } = onRuntime();

async function greedy(session: Session, maxTokens: number, prompt: readonly number[] | null = null): Promise<number[]> {
  const before = session.length;
  for await (const _ of session.generate(prompt, { maxTokens, temperature: 0 }));
  return session.tokens.slice(before + (prompt?.length ?? 0));
}

/** A digest of all numbers that a cache holds. */
function rowsOf({ cache, length, governed }: Session): string {
  const hash = createHash('sha256');
  for (let layer = 0; layer < governed.shape.layers; layer++)
    for (let page = 0; page < Math.ceil(length / 128); page++)
      for (const side of governed.sliding.isFreed(layer, page) ? [] : (['k', 'v'] as const))
        hash.update(new Uint8Array(cache.decode(layer, page, side).buffer));
  return hash.digest('hex');
}

describe('a borrower never writes into the lender', () => {
  const kinds: [string, SessionOptions][] = [
    ['8-bit', {}],
    ['exact', { exact: true }],
    ['with latents', { latents: 'xq8' }],
  ];
  it.each(kinds)('%s: a fork that writes over a page end changes nothing of its origin', async (_name, options) => {
    const alone = open(options);
    await alone.read(ids(300));
    const expected = { tokens: await greedy(alone, 64), rows: rowsOf(alone), layers: alone.report().layers };
    const lender = open(options);
    await lender.read(ids(300));
    const borrower = lender.fork();
    const own = await greedy(borrower, 100, ids(60, 2));
    borrower.rewind(256);
    await greedy(borrower, 8, ids(9, 3));
    expect({ tokens: await greedy(lender, 64), rows: rowsOf(lender), layers: lender.report().layers }).toEqual(
      expected,
    );
    const cold = open('latents' in options ? {} : options);
    await cold.read(ids(300));
    expect(own).toEqual(await greedy(cold, 100, ids(60, 2)));
    for (const session of [alone, lender, borrower, cold]) session.close();
  });

  const moving: [string, SessionOptions][] = [
    ['in rot4:rot2', { cacheTypes: 'rot4:rot2' }],
    ['in rot4:rot2, within a window of 64 tokens', { cacheTypes: 'rot4:rot2', windowTokens: 64 }],
    ['in rot4:rot2, open pages in 8 bits', { cacheTypes: 'rot4:rot2', openFormat: 'q8' }],
    ['in one pair for each layer', { cacheTypes: ['rot4:rot2', 'rot3', 'rot4', 'rot2', 'rot3:rot2', 'rot4'] }],
    ['by age', { policy: 'age' }],
    ['in fixed formats under a budget with room for all', { cacheTypes: 'rot4:rot2', kvBudget: '4MiB' }],
    ['under a budget with room for all', { kvBudget: '4MiB', tokensExpected: 900 }],
  ];
  // 300 tokens: the last full page is in the window. 256: it has not been sealed. 385: one has just left the window.
  const lengths = [256, 385];
  const cases = [
    ...moving.map(([name, options]) => [name, 300, options] as const),
    ...lengths.map((tokens) => [moving[0]![0], tokens, moving[0]![1]] as const),
  ];
  it.each(cases)(
    '%s, after %i tokens: origin and forks answer as if each were alone',
    async (_name, tokens, options) => {
      /** The last 20 tokens come one by one, as those that are written do. */
      const begun = async (): Promise<Session> => {
        const session = open(options);
        await session.read(ids(tokens - 20));
        for (const id of ids(tokens).slice(tokens - 20)) await session.read([id]);
        return session;
      };
      const alone = await begun();
      const expected = { tokens: await greedy(alone, 64), rows: rowsOf(alone), layers: alone.report().layers };
      const cold = await begun();
      const others = { tokens: await greedy(cold, 120, ids(60, 2)), rows: rowsOf(cold) };
      const lender = await begun();
      const borrower = lender.fork();
      const second = borrower.fork();
      expect({ tokens: await greedy(borrower, 120, ids(60, 2)), rows: rowsOf(borrower) }).toEqual(others);
      expect({ tokens: await greedy(lender, 64), rows: rowsOf(lender), layers: lender.report().layers }).toEqual(
        expected,
      );
      expect({ tokens: await greedy(second, 120, ids(60, 2)), rows: rowsOf(second) }).toEqual(others);
      for (const session of [alone, cold, lender, borrower, second]) session.close();
    },
  );

  it('under a budget that is short they share it: both keep it, and the open page is their own', async () => {
    const options: SessionOptions = { kvBudget: '45%', tokensExpected: 900 };
    const lender = open(options);
    await lender.read(ids(300));
    const openRows = (): string =>
      JSON.stringify([0, 5].map((layer) => [...lender.cache.decode(layer, 2, 'k').subarray(0, 44 * 128)]));
    const before = openRows();
    const borrower = lender.fork();
    await greedy(borrower, 200, ids(60, 2));
    expect(openRows()).toBe(before);
    expect(lender.length).toBe(300);
    expect((await greedy(lender, 64)).length).toBe(64);
    const { kvBytes, budgetBytes } = lender.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes ?? 0);
    for (const session of [borrower, lender]) session.close();
  });

  it('continuations leave the session that they go on from as it was', async () => {
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: null });
    const told: string[] = [];
    for (const n of [0, 2]) {
      const session = await engine.openSession({ cacheTypes: 'rot4:rot2' });
      if (n === 0) await session.read(ids(300));
      else await session.continuations(ids(300), { n, maxTokens: 100, temperature: 0.8 });
      told.push(await session.generate(ids(3, 7), { maxTokens: 64, temperature: 0 }).text());
    }
    expect(told[1]).toBe(told[0]);
    await engine.close();
  });
});

describe('the second to the fifth time', () => {
  it.each([1, 127, 128, 129, 255, 256, 257])('a request that ends at %i tokens is answered alike', async (tokens) => {
    for (const options of [{ exact: true }, {}]) {
      const cold = open(options);
      const expected = await greedy(cold, 6, ids(tokens));
      cold.close();
      const session = open(options);
      for (let time = 1; time <= 5; time++) {
        const kept = await session.follow(ids(tokens));
        // The last token is read again for its output, and with it the page that was sealed behind it.
        expect(kept).toBe(time === 1 ? 0 : session.keeps(ids(tokens)) === tokens ? kept : -1);
        expect(session.length).toBe(tokens);
        expect(await greedy(session, 6)).toEqual(expected);
      }
      session.close();
    }
  });
});

describe('ten conversations over one system text, parked and resumed in turn', () => {
  const system = ids(300);
  const questions = Array.from({ length: 10 }, (_, i) => ids(7, 20 + i));
  const more = ids(3, 50);
  type Conversation = Awaited<ReturnType<Engine['openSession']>>;
  const say = (session: Conversation, prompt: number[]): Promise<string> =>
    session.generate(prompt, { maxTokens: 5, temperature: 0 }).text();

  /** What the conversations are told by an engine each, where nobody else is. */
  async function fresh(options: SessionOptions, count: number): Promise<string[][]> {
    const told: string[][] = [];
    for (const question of questions.slice(0, count)) {
      const engine = await createEngine({ model: MODEL, threads: 1, stateDir: null });
      const session = await engine.openSession(options);
      told.push([await say(session, [...system, ...question]), await say(session, more)]);
      await engine.close();
    }
    return told;
  }

  /** The same by one engine: all read, then each is asked in turn, the last one first. */
  async function together(
    idleSessions: 'memory' | 'disk' | 'reread',
    kvBudget: string,
    optionsOf: (index: number) => SessionOptions,
    prefixCaching = false,
  ): Promise<string[][]> {
    const options = { model: MODEL, threads: 1, kvBudget, idleSessions, prefixCaching };
    const engine = await createEngine({ ...options, stateDir: folder() });
    const sessions: Conversation[] = [];
    for (const index of questions.keys()) sessions.push(await engine.openSession(optionsOf(index)));
    const told: string[][] = [];
    for (const [i, question] of questions.entries()) told[i] = [await say(sessions[i]!, [...system, ...question])];
    for (const i of [...questions.keys()].reverse()) told[i]!.push(await say(sessions[i]!, more));
    // Who begins with pages of others needs less room.
    if (!prefixCaching)
      expect(await engine.metrics()).toMatch(new RegExp(`sessions_parked\\{place="${idleSessions}"\\} [1-9]`));
    await engine.close();
    return told;
  }

  it('answer what ten fresh engines do, from the disk and read again', async () => {
    const expected = await fresh({ policy: 'none' }, questions.length);
    for (const place of ['disk', 'reread'] as const)
      expect(await together(place, '2.5MiB', () => ({ policy: 'none' }))).toEqual(expected);
    expect(await together('disk', '2.5MiB', () => ({ policy: 'none' }), true)).toEqual(expected);
  });

  // What is parked in memory is predicted and comes back with a small error, so that its next answer may be another;
  // exact sessions are never parked there, and what is parked beside them changes nothing of theirs.
  it('in memory, where parked pages come back changed, exact ones answer what fresh engines do', async () => {
    const exact = { exact: true };
    const told = await together('memory', '4.5MiB', (index) => (index < 2 ? exact : { policy: 'none' }));
    expect(told.slice(0, 2)).toEqual(await fresh(exact, 2));
    expect(told.flat().every((text) => text !== '')).toBe(true);
  });
});

describe.each(['phi3-long', 'gemma3'])('what lies beside pages is parked as well: %s', (name) => {
  let small: Runtime;
  beforeAll(async () => {
    for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) models.write(`${name}/${file}`, content);
    small = await Runtime.open({ model: join(models.dir, name), threads: 1 });
  });
  afterAll(() => small.close());
  const setup = (options: SessionOptions) => ({
    ...options,
    log: null,
    thresholds: defaultThresholds(small.shape.layers),
  });
  const text = familyTokens(400);

  it.each([
    [200, 250],
    [300, 400],
  ])('after %i tokens of %i it goes on as one that was not', async (tokens, tokensExpected) => {
    const session = Session.open(small, setup({ tokensExpected }));
    await session.read(text.slice(0, tokens));
    const parked = parseParked(parkedBytes(session), 'parked');
    const { session: back, resumed } = await resumeSession(small, setup({ tokensExpected }), parked);
    expect(resumed.by).toBe('pages');
    expect(await greedy(back, 12, text.slice(tokens, tokens + 20))).toEqual(
      await greedy(session, 12, text.slice(tokens, tokens + 20)),
    );
    expect(rowsOf(back)).toBe(rowsOf(session));
    for (const one of [session, back]) one.close();
  });

  it('for another length it is what it would be for that length', async () => {
    const session = Session.open(small, setup({ tokensExpected: 250 }));
    await session.read(text.slice(0, 200));
    const parked = parseParked(parkedBytes(session), 'parked');
    const { session: back } = await resumeSession(small, setup({ tokensExpected: 400 }), parked);
    const fresh = Session.open(small, setup({ tokensExpected: 400 }));
    await fresh.read(text.slice(0, 200));
    expect(rowsOf(back)).toBe(rowsOf(fresh));
    for (const one of [session, back, fresh]) one.close();
  });
});

describe('files of parked sessions', () => {
  let engine: Engine;
  afterEach(() => engine.close());
  const answer = (one: Pick<Awaited<ReturnType<Engine['resume']>>, 'generate'>): Promise<string> =>
    one.generate(ids(5, 9), { maxTokens: 6, temperature: 0 }).text();
  const parked = async (path: string): Promise<Buffer> => {
    engine = await createEngine({ model: MODEL, threads: 1, stateDir: null });
    const session = await engine.openSession();
    await session.read(ids(200));
    await session.park(path);
    return readFileSync(path);
  };

  it('of another version, cut, or with absurd counts are refused, and the next request is answered as ever', async () => {
    const path = join(folder(), 'one.parked');
    const bytes = await parked(path);
    const right = await answer(await engine.resume(path));
    const with32 = (at: number, value: number): Buffer => {
      const copy = Buffer.from(bytes);
      copy.writeUInt32LE(value, at);
      return copy;
    };
    const newer = Buffer.from(bytes);
    newer.write('KVPARK99', 'latin1');
    const cases: [Buffer, string][] = [
      [newer, 'unsupported'],
      [bytes.subarray(0, 32 + bytes.readUInt32LE(8) + 100), 'bad-file'],
      [bytes.subarray(0, 20), 'bad-file'],
      [with32(8, 0xfffffff0), 'bad-file'],
      [with32(12, 0xfffffff0), 'bad-file'],
      [with32(16, 0xfffffff0), 'bad-file'],
      [with32(12, 199), 'bad-file'],
    ];
    for (const [file, code] of cases) {
      writeFileSync(path, file);
      expect((await refused(engine.resume(path))).code).toBe(code);
      writeFileSync(path, bytes);
      expect(await answer(await engine.resume(path))).toBe(right);
    }
  });

  it('resumed twice are two sessions, which write at once and leave the file as it was', async () => {
    const path = join(folder(), 'one.parked');
    const bytes = await parked(path);
    const first = await engine.resume(path);
    const writing = answer(first);
    const second = await engine.resume(path);
    expect(second.id).not.toBe(first.id);
    expect(await answer(second)).toBe(await writing);
    expect([(await first.report()).tokens, (await second.report()).tokens]).toEqual([211, 211]);
    expect(readFileSync(path).equals(bytes)).toBe(true);
  });
});
