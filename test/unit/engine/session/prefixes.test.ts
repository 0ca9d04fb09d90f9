// Sessions that begin with pages of others: what they write is what each writes alone where nothing is lost, budgets
// and salts are kept apart, and what a move of one does to the other is told to both, by their logs.
import { readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import type { Governed } from '../../../../engine/cache/governed.ts';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineSession,
  type SessionOptions,
} from '../../../../engine/index.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { readLog, replaySession, timeline, verifyLog } from '../../../../witness/index.ts';
import { pick, uniform } from '../../../native/dense.ts';
import { seedFrom, TIER, volume } from '../../../tier.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, MODEL } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';
import { parseExposition } from '../serve/exposition.ts';

const folder = scratchFolders();
let engine: Engine;
afterEach(() => engine.close());

async function open(options: Partial<EngineOptions> = {}): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, ...options });
}

async function metric(name: string): Promise<number> {
  const families = parseExposition(await engine.metrics());
  return families.find((one) => one.name === `palimpsest_${name}`)!.samples.reduce((sum, { value }) => sum + value, 0);
}

/** What a session writes behind a prompt. */
async function asked(session: EngineSession, prompt: readonly number[], maxTokens = 12) {
  return session.generate(prompt, { maxTokens, temperature: 0.8, seed: 7 }).result;
}

async function answer(prompt: readonly number[], options: SessionOptions = {}) {
  const session = await engine.openSession(options);
  return { session, ...(await asked(session, prompt)) };
}

/** A text of so many tokens behind a beginning that texts of the same seed have in common. */
const text = (common: number, own: number, seed = 1): number[] => [...ids(common, 99), ...ids(own, seed)];

describe('a session that begins as another one', () => {
  it('reads all of it where its keys are rotated for another length', async () => {
    const model = folder();
    for (const name of readdirSync(MODEL)) symlinkSync(join(MODEL, name), join(model, name));
    const config = JSON.parse(readFileSync(join(MODEL, 'config.json'), 'utf8')) as object;
    rmSync(join(model, 'config.json'));
    const scaled = { ...config, max_position_embeddings: 512, rope_scaling: { rope_type: 'dynamic', factor: 4 } };
    writeFileSync(join(model, 'config.json'), JSON.stringify(scaled));
    await open({ model });
    const found = async (tokensExpected: number) => (await answer(text(300, 20), { tokensExpected })).cachedTokens;
    expect([await found(2000), await found(500), await found(2000), await found(400)]).toEqual([0, 0, 256, 256]);
  });

  it.each([[{ exact: true }], [{}]] as const)(
    'reads the rest alone, and writes what it writes alone (%o)',
    async (options) => {
      await open({ prefixCaching: false });
      const alone = await answer(text(300, 40), options);
      expect(alone.cachedTokens).toBe(0);
      await engine.close();
      await open();
      const first = await answer(text(300, 20, 2), options);
      expect(first.cachedTokens).toBe(0);
      const second = await answer(text(300, 40), options);
      expect([second.cachedTokens, second.promptTokens]).toEqual([256, 340]);
      expect(second.text).toBe(alone.text);
      expect(await metric('prefix_cache_hits_total')).toBe(256);
      // The last token of each is read whatever there is.
      expect(await metric('prefix_cache_queries_total')).toBe(319 + 339);
      // The first one goes on as if nobody had.
      await first.session.close();
      const third = await answer(text(300, 40), options);
      expect([third.cachedTokens, third.text]).toEqual([256, alone.text]);
    },
  );

  it('finds the pages of sessions that were closed, as long as nobody needs their memory', async () => {
    await open({ kvBudget: '3MiB' });
    const { session, text: written } = await answer(text(300, 20));
    await session.close();
    const again = await answer(text(300, 20));
    expect([again.cachedTokens, again.text]).toEqual([256, written]);
    await again.session.close();
    // Another text takes all there is.
    const large = await answer(ids(1500, 5));
    expect(await metric('kv_bytes')).toBeLessThanOrEqual(3 * 2 ** 20);
    await large.session.close();
    expect((await answer(text(300, 20))).text.length).toBeGreaterThan(0);
  });

  it('reads at least its last token, and finds whole pages only', async () => {
    await open();
    await answer(ids(256, 3), { exact: true });
    expect((await answer(ids(256, 3), { exact: true })).cachedTokens).toBe(128);
    expect((await answer(ids(257, 3), { exact: true })).cachedTokens).toBe(256);
    expect((await answer(ids(127, 3), { exact: true })).cachedTokens).toBe(0);
    expect((await answer([...ids(200, 3), 1, ...ids(100, 4)], { exact: true })).cachedTokens).toBe(128);
  });

  it('finds nothing of sessions with another salt', async () => {
    await open();
    await answer(text(300, 20), { cacheSalt: 'one' });
    expect((await answer(text(300, 20), { cacheSalt: 'two' })).cachedTokens).toBe(0);
    expect((await answer(text(300, 20))).cachedTokens).toBe(0);
    expect((await answer(text(300, 20), { cacheSalt: 'one' })).cachedTokens).toBe(256);
  });

  it('keeps its salt in forks, and where it was parked and resumed', async () => {
    await open({ stateDir: folder() });
    const { session } = await answer(text(300, 20), { cacheSalt: 'one', exact: true });
    await session.fork();
    expect((await answer(text(300, 20, 2), { exact: true, cacheSalt: 'none' })).cachedTokens).toBe(0);
    const second = await answer(text(300, 20, 2), { cacheSalt: 'two', exact: true });
    await second.session.park();
    await engine.resume(second.session.id);
    expect((await answer(text(300, 20), { exact: true })).cachedTokens).toBe(0);
    expect((await answer(text(300, 20, 2), { cacheSalt: 'two', exact: true })).cachedTokens).toBe(256);
  });

  it('takes copies in which nothing is lost where it has a budget of its own, or none of the engine’s', async () => {
    await open({ kvBudget: '6MiB' });
    const first = await answer(text(700, 20));
    const before = (await first.session.report()).kvBytesNow;
    const own = await engine.openSession({ kvBudget: '0.5MiB' });
    await asked(own, text(700, 30, 4));
    const report = await own.report();
    expect(report.kvBytesNow).toBeLessThanOrEqual(0.5 * 2 ** 20);
    expect(report.decisions).toBeGreaterThan(0);
    // Nobody else's page went lower for it.
    expect((await first.session.report()).kvBytesNow).toBe(before);
    expect((await first.session.report()).decisions).toBe(0);
    const exact = await answer(text(700, 30, 5), { exact: true });
    expect(exact.cachedTokens).toBe(0);
  });

  it('takes copies of one that waits where there is little room, and does not have it parked for them before', async () => {
    await open({ kvBudget: '1.5MiB', idleSessions: 'disk', stateDir: folder() });
    const first = await answer(text(400, 20));
    const second = await answer(text(400, 100, 4), { windowTokens: 64 });
    expect(second.cachedTokens).toBeGreaterThan(0);
    expect((await asked(first.session, ids(5, 6))).text.length).toBeGreaterThan(0);
    expect(await metric('kv_bytes')).toBeLessThanOrEqual(1.5 * 2 ** 20);
  });

  it('under one budget holds pages together: a move is one for all, and every log replays', async () => {
    const stateDir = folder();
    await open({ kvBudget: '2MiB', stateDir });
    const sessions: EngineSession[] = [];
    let cached = 0;
    for (let seed = 1; seed <= 4; seed++) {
      const session = await engine.openSession();
      cached += (await asked(session, text(500, 30, seed))).cachedTokens;
      sessions.push(session);
    }
    expect(cached).toBeGreaterThanOrEqual(3 * 384);
    // They grow until pages must go lower.
    for (const [at, session] of sessions.entries()) await asked(session, ids(400, 20 + at));
    expect(await metric('kv_bytes')).toBeLessThanOrEqual(2 * 2 ** 20);
    for (const session of sessions) await session.close();
    const dir = logDir(stateDir);
    expect(verifyLog(dir).problem).toBeNull();
    const shared = [...readLog(dir)].filter(
      ({ kind, body }) => kind === 'change' && (body as { cause: string }).cause === 'shared',
    );
    expect(shared.length).toBeGreaterThan(0);
    for (const { id } of sessions)
      expect(replaySession([...readLog(dir, { session: id })])).toMatchObject({ equal: true, complete: true });
    // Each knows of the others that a move of these pages is theirs as well.
    const told = [...readLog(dir, { session: sessions[0]!.id })].flatMap(({ body }) => {
      const { situation } = body as { situation?: { sharers?: readonly unknown[] } };
      return situation?.sharers ?? [];
    });
    expect(told).toContainEqual({ pages: 3, sessions: 3 });
    const notes = [...readLog(dir)].filter(({ body }) => 'adopted' in body);
    expect(notes.length).toBe(3);
    const lines = timeline(dir, sessions[1]!.id).map(({ text: line }) => line);
    expect(lines.join()).toMatch(
      /Began with 384 tokens that session \S+ had read: \d+ in pages that both hold, \d+ in/,
    );
  });
});

describe('what parking a session would free', () => {
  const { runtime } = onRuntime();

  it('leaves out the pages that others read by, until they are closed', async () => {
    await open();
    const pool = openPool(2 ** 26);
    const sessions: Session[] = [];
    const prefixes = { key: new Uint8Array(32), keepsClosed: true };
    const meter = new Meter();
    const shared = new SharedMemory({ pool, meter, form: null, prefixes, sessions: () => sessions });
    const thresholds = defaultThresholds(runtime().shape.layers);
    for (const seed of [1, 2]) {
      const session = Session.open(runtime(), { exact: true, pool, shared, thresholds, log: null });
      sessions.push(session);
      await session.read(text(300, 40, seed));
    }
    const [first, second] = sessions.map(({ governed }) => governed) as [Governed, Governed];
    expect(first.kv.commonBytes).toBeGreaterThan(0);
    for (const { aloneBytes, kv } of [first, second]) expect(aloneBytes).toBe(kv.usedBytes - kv.commonBytes);
    shared.keep(sessions[1]!);
    sessions[1]!.close();
    // What is kept has no use for what trials need.
    const tried = Session.open(runtime(), {
      kvBudget: '60%',
      tokensExpected: 400,
      pool,
      shared,
      thresholds,
      log: null,
    });
    const empty = tried.governed.emptied();
    expect([tried.governed.kv.hasSketch(0), empty.hasSketch(0)]).toEqual([true, false]);
    empty.close();
    tried.close();
    expect(first.aloneBytes).toBe(first.kv.usedBytes);
    sessions[0]!.close();
    shared.close();
    expect(pool.usedBytes).toBe(0);
    pool.close();
  });
});

describe('random lives of sessions that begin alike', () => {
  const LIVES = Math.ceil(volume('prefix lives') / (TIER === 'home' ? 5 : 1));
  const SEED = seedFrom(20261128);

  it(
    `write what each writes where the others never were, over ${LIVES} steps`,
    async () => {
      console.log(`prefix lives, seed ${SEED}`);
      const random = uniform(SEED);
      const upTo = (most: number): number => 1 + Math.floor(most * random());
      await open({ stateDir: folder(), idleSessions: 'disk' });
      const alone = await createEngine({ model: MODEL, threads: 1, stateDir: null, prefixCaching: false });
      const options: SessionOptions = { exact: true, witness: false };
      interface Life {
        session: EngineSession;
        readonly twin: EngineSession;
      }
      let lives: Life[] = [];
      const count = { cached: 0, together: 0, forked: 0, aborted: 0, woken: 0, resumed: 0, closed: 0 };
      const born = async (): Promise<Life> => {
        const life = { session: await engine.openSession(options), twin: await alone.openSession(options) };
        lives.push(life);
        return life;
      };
      const check = async ({ session, twin }: Life, prompt: readonly number[]): Promise<void> => {
        const { parked } = await session.report();
        const [one, other] = await Promise.all([asked(session, prompt, 2), asked(twin, prompt, 2)]);
        expect(one.text).toBe(other.text);
        count.cached += one.cachedTokens;
        if (parked !== null) count.woken++;
      };
      const beginning = (): number[] => text(pick(random, [130, 130, 260]), upTo(50), upTo(3));
      const steps: (() => Promise<void>)[] = [
        async () => check(await born(), beginning()),
        async () => {
          const prompts = Array.from({ length: 3 }, beginning);
          const all = await Promise.all(prompts.map(born));
          await Promise.all(all.map((life, at) => check(life, prompts[at]!)));
          count.together++;
        },
        () => check(pick(random, lives), ids(upTo(60), 7)),
        () => check(pick(random, lives), ids(upTo(60), 8)),
        async () => {
          const { session, twin } = pick(random, lives);
          lives.push({ session: await session.fork(), twin: await twin.fork() });
          count.forked++;
        },
        async () => {
          const life = pick(random, lives);
          // An abort in the middle of a prompt leaves it as it was.
          const controller = new AbortController();
          const reading = life.session.read([...ids(128, 99), ...ids(120, 8)], {
            signal: controller.signal,
            onProgress: () => controller.abort(),
          });
          const isAborted = await reading.then(
            () => false,
            () => true,
          );
          count.aborted += Number(isAborted);
          if (!isAborted) lives = lives.filter((one) => one !== life);
        },
        async () => {
          // All that wait are parked, and come back when they are used.
          await engine.setLowMemory(true);
          await engine.setLowMemory(false);
        },
        async () => {
          const life = pick(random, lives);
          const { session: id } = await life.session.park();
          life.session = await engine.resume(id, { witness: false });
          count.resumed++;
        },
        async () => {
          const life = pick(random, lives);
          lives = lives.filter((one) => one !== life);
          await Promise.all([life.session.close(), life.twin.close()]);
          count.closed++;
        },
      ];
      for (let step = 0; step < LIVES; step++)
        await (lives.length === 0 ? steps[0]! : lives.length > 6 ? steps.at(-1)! : pick(random, steps))();
      for (const [what, times] of Object.entries(count)) expect([what, times > LIVES / 100]).toEqual([what, true]);
      await alone.close();
    },
    30 * 60_000,
  );
});
