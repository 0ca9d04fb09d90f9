// What an engine tells its logger, each event brought about as it happens to people: sessions parked and woken, budgets
// that give way, servers that are away, a log that is cut, refused and repaired, a model file that changes. No event
// holds a word of what was said, a logger that throws or is slow harms nobody, and every event of the table is told.
import { spawnSync } from 'node:child_process';
import fs, { appendFileSync, cpSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { memoryRows } from '../../../../engine/cli/report.ts';
import { type EngineEvent, eventTeller } from '../../../../engine/events/event.ts';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  EVENTS,
  type EventName,
  type Logger,
  type SessionOptions,
  serve,
} from '../../../../engine/index.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { SessionSetup } from '../../../../engine/session/setup.ts';
import { logDir, memoryDir, openState } from '../../../../engine/state/folder.ts';
import { watchedHelpers } from '../../../../engine/thread/watched-helpers.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { misled, wrongLaw } from '../../../../lab/evaluate/plants.ts';
import { openPool } from '../../../../native/index.ts';
import { createPolicy, defaultThresholds, thresholdOf } from '../../../../policy/index.ts';
import { makeCheckpointKeys, readLog, timeline } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { recordSession } from '../../witness/session.ts';
import { ids, MODEL, PROMPT_TOKENS } from '../on-reference.ts';
import { logged } from '../on-runtime.ts';

const folder = scratchFolders();
/** What no event may hold. */
const SECRET = 'The password of Aloysius is heliotrope. ';

interface Heard {
  readonly level: keyof Logger;
  readonly event: EngineEvent;
  readonly sentence: string;
}

/** Names of all events that any test of this file was told. */
const everTold = new Set<EventName>();

/** A logger that keeps what it is told. */
function listener(): { logger: Logger; heard: Heard[]; names: () => EventName[] } {
  const heard: Heard[] = [];
  const line =
    (level: keyof Logger) =>
    (event: EngineEvent, sentence: string): void => {
      heard.push({ level, event, sentence });
      everTold.add(event.event);
    };
  const logger = { debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };
  return { logger, heard, names: () => heard.map(({ event }) => event.event) };
}

async function withEngine(options: Partial<EngineOptions>, work: (engine: Engine) => Promise<void>): Promise<void> {
  const engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, ...options });
  try {
    await work(engine);
  } finally {
    await engine.close();
  }
}

const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 5));
};

/** An address on loopback where nobody listens. */
async function nobody(): Promise<string> {
  const server: Server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/** A meter, and the events that it hears. */
function listening(): { readonly heard: EngineEvent[]; readonly meter: Meter } {
  const heard: EngineEvent[] = [];
  const tell = (event: EngineEvent): void => {
    heard.push(event);
    everTold.add(event.event);
  };
  return { heard, meter: new Meter([], eventTeller(tell)) };
}

describe('sessions', () => {
  it('that are parked and come back are told in order, without a word of what was said', async () => {
    const { logger, heard, names } = listener();
    const text = SECRET.repeat(20);
    await withEngine({ logger, stateDir: folder(), idleSessions: 'disk' }, async (engine) => {
      const [first, second] = [await engine.openSession({ policy: 'none' }), await engine.openSession()];
      await first.read(text);
      await second.setLowMemory(true);
      const answer = await first.generate(SECRET, { maxTokens: 20, temperature: 0.8, seed: 3 }).text();
      expect(names()).toEqual(['thresholds-not-found', 'thresholds-not-found', 'session-parked', 'session-woken']);
      const { level, event, sentence } = heard[2]!;
      expect(level).toBe('info');
      expect(event).toMatchObject({ session: first.id, place: 'disk', cause: 'low-memory', bytesAfter: 0 });
      expect(sentence).toContain(`Session ${first.id.slice(-8)} was parked (disk, low-memory): `);
      expect(heard[3]!.event).toMatchObject({ session: first.id, by: 'pages', bytesBefore: 0 });
      const all = JSON.stringify(heard);
      for (const word of [...SECRET.split(' '), ...answer.split(/\W+/)].filter((one) => one.length > 5))
        expect(all).not.toContain(word);
    });
    expect(heard.map(({ event }) => event.timeMs)).toEqual(
      heard.map(({ event }) => event.timeMs).sort((a, b) => a - b),
    );
  });

  it('that cannot be parked are told with the code of the reason', async () => {
    const { logger, heard } = listener();
    const stateDir = folder();
    writeFileSync(join(stateDir, 'parked'), 'in the way of the folder');
    await withEngine({ logger, stateDir, idleSessions: 'disk' }, async (engine) => {
      const [first, second] = [await engine.openSession({ policy: 'none' }), await engine.openSession()];
      await first.read(ids(300));
      await second.setLowMemory(true);
    });
    expect(heard.map(({ event }) => event)).toContainEqual(
      expect.objectContaining({ event: 'session-kept', cause: 'low-memory', code: 'io', tokens: 300 }),
    );
  });

  it.each([
    ['bytes', 'divergence-budget-gave-way'],
    ['kld', 'byte-budget-gave-way'],
  ] as const)(
    'with two budgets of which %s is kept are told by how much the other gave way',
    async (priority, name) => {
      const { logger, heard } = listener();
      const both: SessionOptions = { kvBudget: '22%', kldBudget: 1e-5, priority, tokensExpected: PROMPT_TOKENS };
      await withEngine({ logger }, async (engine) => {
        await (await engine.openSession(both)).read(ids(PROMPT_TOKENS));
      });
      const told = heard.filter(({ event }) => event.event.endsWith('gave-way'));
      expect(told.map(({ event }) => event.event)).toEqual([name]);
      const [{ event, level }] = told as [Heard];
      expect(level).toBe('warn');
      if (event.event === 'byte-budget-gave-way') expect(event.neededBytes).toBeGreaterThan(event.budgetBytes);
      if (event.event === 'divergence-budget-gave-way') expect(event.predictedNats).toBeGreaterThan(0);
    },
  );

  it('that are short of what an engine has are told: who waits, whose pages go lower, who is refused', async () => {
    const { logger, names } = listener();
    await withEngine({ logger, kvBudget: '0.8MiB', idleSessions: 'keep' }, async (engine) => {
      const [first, second] = [await engine.openSession(), await engine.openSession()];
      await first.read(ids(400));
      const reading = second.read(ids(200, 2));
      const more = refused(first.read(ids(1900)));
      await reading;
      await more;
    });
    expect([...new Set(names())]).toEqual(['call-short', 'call-waits', 'engine-budget-pressed', 'call-refused']);
  });

  it('that park each other in turn are told of: how many are at work then, and when all are again', async () => {
    const { logger, names } = listener();
    const options = { stateDir: folder(), logger, idleSessions: 'disk', kvBudget: '3.2MiB' } as const;
    await withEngine(options, async (engine) => {
      const four = (work: (seed: number) => Promise<void>) => Promise.all([1, 2, 3, 4].map(work));
      const open = () => engine.openSession({ exact: true, witness: false });
      const sampling = { temperature: 0.8, seed: 1 };
      await four(async (seed) => {
        const session = await open();
        await session.read(ids(200, seed));
        while (!names().includes('calls-fewer'))
          await session.generate(ids(1, seed), { maxTokens: 6, ...sampling }).result;
        await session.close();
      });
      // Of short ones there is room for all.
      await four(async (seed) => {
        while (!names().includes('calls-unbounded')) {
          const session = await open();
          await session.generate(ids(10, seed), { maxTokens: 60, ...sampling }).result;
          await session.close();
        }
      });
    });
    const told = names().filter((name) => name.startsWith('calls-'));
    expect(told[0]).toBe('calls-fewer');
    expect(told.slice(1).at(-1)).toBe('calls-unbounded');
    expect(told).toContain('calls-more');
  });

  it('that start from what earlier ones taught say so', async () => {
    const stateDir = folder();
    for (const expected of ['thresholds-not-found', 'thresholds-found'] as const) {
      const { logger, names } = listener();
      await withEngine({ logger, stateDir }, async (engine) => {
        const session = await engine.openSession({ kvBudget: '60%', tokensExpected: 400 });
        await session.read(ids(400));
        await session.close();
      });
      expect(names()).toEqual([expected]);
    }
  });
});

describe('servers', () => {
  it('that are away and come back are told, and what no place has signed when the engine closes', async () => {
    const { logger, names, heard } = listener();
    let isAway = true;
    const server = createServer((_, response) => response.writeHead(isAway ? 503 : 200).end());
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    afterAll(() => server.close());
    const { port } = server.address() as AddressInfo;
    const key = join(folder(), 'audit.key');
    makeCheckpointKeys(key);
    const state = { stateDir: folder(), logger };
    const to = [`http://127.0.0.1:${port}/checkpoints`];
    await withEngine({ ...state, anchor: { key, to } }, async (engine) => {
      await (await engine.openSession()).read(ids(10));
      await until(() => names().includes('anchor-away'));
      isAway = false;
      await until(() => names().includes('anchor-back'));
    });
    expect(names().filter((name) => name.startsWith('anchor'))).toEqual(['anchor-away', 'anchor-back']);
    expect(names()).not.toContain('entries-unanchored');
    await withEngine({ ...state, anchor: { key, to: [join(folder(), 'no', 'folder')] } }, async (engine) => {
      await (await engine.openSession()).read(ids(10));
    });
    expect(heard.at(-1)).toMatchObject({ level: 'error', event: { event: 'entries-unanchored' } });
  }, 120_000);

  it('that keep conversations beyond the process are told when they fail, and when they work again', async () => {
    const { logger, names, heard } = listener();
    const store = folder();
    await withEngine({ logger, stateDir: null }, async (engine) => {
      await using view = await serve(engine, { port: 0, answers: { store } });
      const chat = async (content: string): Promise<void> => {
        const body = JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: 2 });
        const headers = { 'content-type': 'application/json' };
        const { status } = await fetch(`${view.url}/v1/chat/completions`, { method: 'POST', body, headers });
        expect(status).toBe(200);
      };
      const health = async (): Promise<unknown> => (await fetch(`${view.url}/health`)).json();
      await chat('Wax?');
      const kept = join(store, 'conversation');
      await until(() => readdirSync(kept).length === 1);
      expect(await health()).toEqual({ status: 'ok' });
      renameSync(kept, `${kept}-away`);
      writeFileSync(kept, 'no folder');
      await chat('Honey?');
      await until(() => names().includes('store-refuses'));
      expect(await health()).toEqual({ status: 'degraded', store: { put: 'io' } });
      rmSync(kept);
      renameSync(`${kept}-away`, kept);
      await chat('Propolis?');
      await until(() => names().includes('store-takes-again'));
      expect(await health()).toEqual({ status: 'ok' });
    });
    const told = heard.filter(({ event }) => event.event.startsWith('store'));
    expect(told.map(({ event }) => event)).toMatchObject([
      { event: 'store-refuses', call: 'put', code: 'io' },
      { event: 'store-takes-again', call: 'put', failed: 1 },
    ]);
  });

  it('that share sessions are told once when they are away', async () => {
    const { logger, names, heard } = listener();
    const url = await nobody();
    await withEngine({ logger, stateDir: folder(), qdrant: { url, apiKey: 'heliotrope' } }, async (engine) => {
      for (let n = 0; n < 2; n++) await (await engine.openSession()).close();
    });
    expect(names().filter((name) => name.startsWith('qdrant'))).toEqual(['qdrant-away']);
    expect(JSON.stringify(heard)).not.toMatch(/heliotrope|127\.0\.0\.1/);
  });
});

describe('a stated divergence', () => {
  it('that is broken is told once, and once when it is kept again', async () => {
    const { heard, meter } = listening();
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const session = Session.open(runtime, {
      kvBudget: '22%',
      kldBudget: 5e-5,
      priority: 'bytes',
      tokensExpected: PROMPT_TOKENS,
      meter,
      log: null,
      thresholds: defaultThresholds(runtime.shape.layers),
    });
    const told = () => heard.filter(({ event }) => event.startsWith('stated-divergence'));
    await session.read(ids(PROMPT_TOKENS));
    expect(told()).toMatchObject([{ event: 'stated-divergence-broken', session: session.id, budgetNats: 5e-5 }]);
    expect(session.report().stated).toMatchObject({ budgetNats: 5e-5, isBroken: true, timesBroken: 1 });
    const row = () => memoryRows(session.report()).find(([name]) => name === 'Stated')?.[1];
    expect(row()).toMatch(
      /^divergence of 0\.0000500 nats, which is broken: 0\.000\d+ nats are expected, as predicted$/,
    );
    session.rewind(0);
    expect(told().slice(1)).toMatchObject([{ event: 'stated-divergence-kept', tokens: 0 }]);
    expect(session.report().stated).toMatchObject({ isBroken: false, timesBroken: 1 });
    expect(row()).toMatch(/are expected to be spent, as predicted; it was broken before, by up to 0\.000\d+ nats$/);
    for (const { expectedNats, event } of told() as { expectedNats: number; event: string }[])
      expect(expectedNats > 5e-5).toBe(event === 'stated-divergence-broken');
    expect(meter.text(['stated_divergence_broken_total'])).toContain('stated_divergence_broken_total 1');
    session.close();
    await runtime.close();
  });

  it('that is kept is not told, and where none is nothing is said of it', async () => {
    const { logger, names } = listener();
    await withEngine({ logger }, async (engine) => {
      const stated = await engine.openSession({ kldBudget: 0.01, tokensExpected: PROMPT_TOKENS });
      await stated.read(ids(PROMPT_TOKENS));
      const report = (await stated.report()).stated;
      expect(report).toMatchObject({ budgetNats: 0.01, isBroken: false, timesBroken: 0 });
      expect(report!.expectedNats).toBeGreaterThan(0);
      expect((await (await engine.openSession()).report()).stated).toBeNull();
    });
    expect(names()).toEqual([]);
  });
});

describe('originals', () => {
  it('that a disk takes no more are told as lost, once', async () => {
    const heard: EngineEvent[] = [];
    const tell = eventTeller((event) => {
      heard.push(event);
      everTold.add(event.event);
    });
    const full = Object.assign(new Error('no space'), { code: 'ENOSPC' });
    const write = ((...given: unknown[]) =>
      queueMicrotask(() => (given.at(-1) as (error: Error, written: number) => void)(full, 0))) as typeof fs.write;
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const session = Session.open(runtime, {
      kvBudget: '40%',
      tokensExpected: PROMPT_TOKENS,
      originals: 'disk',
      originalsDir: folder(),
      originalFiles: { ...fs, write },
      meter: new Meter([], tell),
      log: null,
      thresholds: defaultThresholds(runtime.shape.layers),
    });
    await session.read(ids(PROMPT_TOKENS - 1));
    session.close();
    await runtime.close();
    expect(heard).toMatchObject([{ event: 'originals-lost', session: session.id, code: 'io' }]);
  });

  it.each([
    ['memory', 'codes-mended'],
    ['none', 'codes-damaged'],
  ] as const)('kept in %s: of codes that are damaged %s is told', async (originals, event) => {
    const heard: EngineEvent[] = [];
    const tell = eventTeller((one) => {
      heard.push(one);
      everTold.add(one.event);
    });
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const thresholds = defaultThresholds(runtime.shape.layers);
    const options = { kvBudget: '25%', tokensExpected: PROMPT_TOKENS, originals, log: null, thresholds };
    const session = Session.open(runtime, { ...options, meter: new Meter([], tell) });
    await session.read(ids(PROMPT_TOKENS - 1));
    const { cache } = session;
    session.governed.mending.check();
    const pages = Array.from({ length: cache.table(2).pages }, (_, page) => page);
    const like = (page: number): number[] =>
      pages.filter((it) => it > page && cache.format(2, it, 'v') === cache.format(2, page, 'v'));
    const page = pages.find((it) => cache.format(2, it, 'v') !== 'q8' && like(it).length > 0)!;
    cache.exchangeSide(2, page, 'v', cache.exportSide(2, like(page)[0]!, 'v'));
    session.governed.mending.check();
    session.close();
    await runtime.close();
    expect(heard).toMatchObject([{ event, session: session.id, sides: 1 }]);
  });
});

describe('layers', () => {
  /** What one session over so many tokens tells of its layers, and how its errors went on. */
  async function read(seed: number, setup: Partial<SessionSetup>) {
    const heard: EngineEvent[] = [];
    const tell = eventTeller((one) => {
      heard.push(one);
      everTold.add(one.event);
    });
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const thresholds = defaultThresholds(runtime.shape.layers);
    const options = { kvBudget: '25%', tokensExpected: 2000, log: null, thresholds };
    const session = Session.open(runtime, { ...options, meter: new Meter([], tell), ...setup });
    await session.read(ids(2000, seed));
    const course = session.governed.policy.course!()!;
    session.close();
    await runtime.close();
    return { session: session.id, heard, course, thresholds };
  }

  it('that are told wrongly are told once, and once when they are healthy again', async () => {
    const { session, heard } = await read(3, { policy: misled(createPolicy('price')) });
    expect(heard).toMatchObject([
      { event: 'layers-degraded', session, layers: 1, by: 'error' },
      { event: 'layers-healthy', session },
    ]);
  });

  it('whose gains are not believed are watched', async () => {
    const { thresholds, course } = await read(3, {});
    const { heard } = await read(3, { thresholds: wrongLaw(thresholds, course.persistence.k.length) });
    expect(heard[0]).toMatchObject({ event: 'layers-watched', layers: 2, by: 'gain' });
  });

  it('that no longer agree with what earlier sessions told are trusted no longer', async () => {
    const { thresholds: set, course } = await read(3, {});
    const at = (id: 'trust.enter' | 'trust.leave', value: number) => ({ [id]: { ...thresholdOf(set, id), value } });
    // One bound hardly below the other, so that a little chance is enough.
    const near = { ...set.thresholds, ...at('trust.enter', 0.5), ...at('trust.leave', 0.49) };
    const told: EngineEvent[] = [];
    for (let seed = 3; told.length === 0 && seed < 11; seed++) {
      const { heard } = await read(seed, { thresholds: { ...set, course, thresholds: near } });
      told.push(...heard.filter(({ event }) => event === 'layers-doubted'));
    }
    expect(told[0]).toMatchObject({ event: 'layers-doubted', layers: expect.any(Number) });
  }, 60_000);
});

describe('a state folder', () => {
  /** A folder that is opened as an engine opens it, with small segments. */
  const opened = (stateDir: string, heard: EngineEvent[]) =>
    openState(stateDir, {
      mode: 'drop',
      retention: { maxSize: 100_000 },
      tell: eventTeller((event) => {
        heard.push(event);
        everTold.add(event.event);
      }),
    });
  const namesOf = (heard: readonly EngineEvent[]) => heard.map(({ event }) => event);

  it('tells what retention removed, and why it could not', async () => {
    const [stateDir, heard] = [folder(), [] as EngineEvent[]];
    const state = await opened(stateDir, heard);
    for (let n = 0; !heard.some(({ event }) => event === 'log-retained'); n++) {
      recordSession(state.log, `s${n}`);
      await state.log.flush();
    }
    const [first] = heard;
    expect(first).toMatchObject({ event: 'log-retained', segments: expect.any(Number) });
    // A folder in the place of a segment cannot be read.
    const segment = readdirSync(logDir(stateDir)).find((name) => name.endsWith('.wal'))!;
    renameSync(join(logDir(stateDir), segment), join(stateDir, 'aside'));
    for (let n = 0; !heard.some(({ event }) => event === 'retention-failed'); n++) {
      recordSession(state.log, `t${n}`);
      await state.log.flush();
    }
    await state.close();
  }, 60_000);

  it('tells that the disk refuses the log and takes it again, with what was lost', async () => {
    const [stateDir, heard] = [folder(), [] as EngineEvent[]];
    const state = await opened(stateDir, heard);
    state.log.append('s', 'note', { n: 0 });
    await state.log.flush();
    renameSync(logDir(stateDir), join(stateDir, 'aside'));
    // The next segment has no folder to be in.
    for (let n = 0; !namesOf(heard).includes('log-refused'); n++) {
      state.log.append('s', 'note', { n, pad: 'x'.repeat(10_000) });
      await state.log.flush();
    }
    renameSync(join(stateDir, 'aside'), logDir(stateDir));
    await until(() => namesOf(heard).includes('log-written-again'));
    expect(heard.filter(({ event }) => event.startsWith('log-'))).toMatchObject([
      { event: 'log-refused', code: 'ENOENT' },
      { event: 'log-written-again' },
    ]);
    await state.close();
  }, 60_000);

  it('tells that a writer was killed in it: whose place it takes, and what it cuts off', async () => {
    const [stateDir, heard] = [folder(), [] as EngineEvent[]];
    const script = `import('${join(import.meta.dirname, '../../../../engine/state/folder.ts')}').then(async ({ openState }) => {
      const { log } = await openState(${JSON.stringify(stateDir)}, { mode: 'block' });
      log.append('s', 'note', { n: 0 });
      await log.flush();
      process.kill(process.pid, 'SIGKILL');
    })`;
    spawnSync(process.execPath, ['--import', 'tsx', '-e', script]);
    const [segment] = readdirSync(logDir(stateDir)).filter((name) => name.endsWith('.wal'));
    appendFileSync(join(logDir(stateDir), segment!), 'cut');
    const state = await opened(stateDir, heard);
    expect(heard).toMatchObject([
      { event: 'state-taken-over', part: 'log' },
      { event: 'log-repaired', droppedBytes: 3 },
      { event: 'state-taken-over', part: 'memory' },
    ]);
    await state.close();
    rmSync(memoryDir(stateDir), { recursive: true });
  }, 60_000);
});

it('a model file that is overwritten is told with the session that met it', async () => {
  const { logger, heard } = listener();
  const model = join(folder(), 'model');
  cpSync(MODEL, model, { recursive: true });
  await withEngine({ logger, model }, async (engine) => {
    const session = await engine.openSession();
    writeFileSync(join(model, 'model.safetensors'), '');
    await refused(session.read(ids(5)));
    expect(heard.map(({ event }) => event)).toMatchObject([{ event: 'model-changed', session: session.id }]);
  });
});

describe('a logger', () => {
  it('is an object with a function for each level, or refused before anything is loaded', async () => {
    for (const logger of [null, {}, { debug() {}, info() {}, warn() {} }, () => {}])
      expect(await refused(createEngine({ model: 'nowhere', logger: logger as unknown as Logger }))).toMatchObject({
        code: 'bad-argument',
        message: 'logger is an object with the functions debug, info, warn and error',
      });
  });

  it('that throws or rejects changes no answer, and the process warns of it once', async () => {
    const warnings: Error[] = [];
    const warn = (warning: Error): void => void warnings.push(warning);
    process.on('warning', warn);
    const texts: string[] = [];
    const info = (): never => {
      throw new Error('no space in the logger');
    };
    const debug = (): Promise<never> => Promise.reject(new Error('no space in the logger'));
    for (const logger of [undefined, { debug, info, warn: info, error: info }])
      await withEngine({ ...(logger && { logger }), stateDir: folder(), idleSessions: 'disk' }, async (engine) => {
        const [first, second] = [await engine.openSession({ policy: 'none' }), await engine.openSession()];
        await first.read(ids(300));
        await second.setLowMemory(true);
        texts.push(await first.generate(ids(5), { maxTokens: 12, temperature: 0.8, seed: 3 }).text());
      });
    await new Promise((resolve) => setImmediate(resolve));
    process.off('warning', warn);
    expect(new Set(texts).size).toBe(1);
    expect(warnings.map(({ message }) => message)).toEqual(['no space in the logger']);
  });

  it('that is slow does not hold the engine up', async () => {
    const stateDir = folder();
    const entries = (): number => [...readLog(logDir(stateDir), { kinds: ['situation'] })].length;
    let [before, after] = [0, 0];
    // In the caller's thread, which does nothing else until the log has more of the answer.
    const info = (event: EngineEvent): void => {
      if (event.event !== 'session-woken') return;
      before = entries();
      while (after <= before) after = entries();
    };
    const none = (): void => {};
    const logger = { debug: none, info, warn: none, error: none };
    await withEngine({ logger, stateDir, idleSessions: 'disk' }, async (engine) => {
      const first = await engine.openSession({ kvBudget: '40%', tokensExpected: 900 });
      const second = await engine.openSession();
      await first.read(ids(300));
      await second.setLowMemory(true);
      await first.read(ids(600, 2));
    });
    expect(after).toBeGreaterThan(before);
  }, 60_000);
});

describe('a cache that grows without end', () => {
  const LONG = ids(1800);
  async function read(more: Partial<SessionSetup>, tokens = LONG) {
    const { heard, meter } = listening();
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const dir = folder();
    const { session, entries } = await logged(
      dir,
      (log) =>
        Session.open(runtime, { ...{ meter, log, thresholds: defaultThresholds(runtime.shape.layers) }, ...more }),
      async (one) => void (await one.read(tokens)),
    );
    const told = heard.filter(({ event }) => event === 'growth-without-end');
    const notes = entries.filter(({ body }) => 'growth' in body);
    await runtime.close();
    return { told, notes, session, meter, dir };
  }

  it('is told once, with the tokens that are left, to all who are told', async () => {
    const pool = openPool(4 * 2 ** 20);
    const { told, notes, session, meter, dir } = await read({ pool });
    expect(told).toHaveLength(1);
    const growth = session.governed.growing.report()!;
    expect(growth).toMatchObject({ limitBytes: pool.budgetBytes });
    // It has 8-bit pages: nine bits of each of so many numbers, about.
    const { layers, kvHeads, headDim } = session.governed.shape;
    expect(growth.bytesPerToken / (2 * layers * kvHeads * headDim)).toBeCloseTo(1.1, 0);
    expect(growth.tokens + growth.tokensLeft).toBeLessThan(4096);
    const { tokens, bytes, limitBytes, tokensLeft } = growth;
    expect(told[0]).toMatchObject({ session: session.id, tokens, bytes, limitBytes, tokensLeft });
    expect(notes.map(({ body }) => body)).toMatchObject([{ growth, tokens }]);
    expect(
      timeline(dir, session.id)
        .map(({ text }) => text)
        .join(),
    ).toContain('The cache grows without end');
    expect(meter.text(['growth_without_end_total'])).toContain('growth_without_end_total 1');
    pool.close();
  });

  it('is not one that a budget holds, that memory holds to its end, or that is as long as was planned', async () => {
    const pool = openPool(4 * 2 ** 20);
    for (const more of [
      { kvBudget: '30%', tokensExpected: 4096 },
      {},
      { pool, tokensExpected: LONG.length },
    ] as const) {
      const { told, notes, session } = await read(more);
      expect([told, notes, session.governed.growing.report()]).toEqual([[], [], null]);
    }
    pool.close();
  });
});

describe('the table of events', () => {
  it('has a sentence of the fields of each', () => {
    for (const [name, { fields, says }] of Object.entries(EVENTS)) {
      const named = [...says.matchAll(/\{(\w+)\}/g)].map(([, field]) => field!);
      expect(Object.keys(fields), name).toEqual(expect.arrayContaining(named));
    }
  });

  it('is what is told, and nothing beside', () => {
    const tell = eventTeller(() => {});
    const told = (fields: object) => () => tell('retention-failed', fields as { code: string });
    expect(told({ code: 'io' })).not.toThrow();
    for (const fields of [{}, { code: SECRET }, { code: 'io', prompt: SECRET }, { code: 5 }])
      expect(told(fields)).toThrow(/event retention-failed is told with a (code|field)/);
  });

  it('tells what becomes of helpers, and counts it', async () => {
    const { heard, meter } = listening();
    const counts = (): string => meter.text(['helpers', 'helper_failures_total']).replaceAll(/^#.*\n/gm, '');
    const helpers = watchedHelpers(meter, { limits: { startMs: 120_000, deadlineMs: 120_000 }, restMs: 0 });
    try {
      const [text, failures] = [Buffer.from(SECRET.repeat(20)), { kinds: 0 }];
      const isTold = async (isKilled: boolean): Promise<void> => {
        const hint = helpers.hintOf(text);
        if (isKilled) process.kill(helpers.pids[0]!, 'SIGKILL');
        if (isKilled) failures.kinds++;
        expect((await hint) === null).toBe(isKilled);
      };
      expect(counts()).toContain('helpers{state="stopped"} 2\n');
      await isTold(false);
      expect(counts()).toContain('helpers{state="running"} 2\n');
      await isTold(true);
      expect(counts()).toContain('helpers{state="restarting"} 1\n');
      await isTold(false);
      for (let time = 0; time < 3; time++) await isTold(true);
      for (const line of ['helpers{state="running"} 1\n', 'helpers{state="broken"} 1\n'])
        expect(counts()).toContain(line);
      expect(counts()).toContain(`helper_failures_total{helper="kinds"} ${failures.kinds}\n`);
      expect(counts()).toContain('helper_failures_total{helper="places"} 0\n');
      const told = heard.map(({ event }) => event.slice('helper-'.length));
      expect(told).toEqual(['failed', 'back', 'failed', 'failed', 'broken']);
      expect(heard.every((event) => 'helper' in event && event.helper === 'kinds')).toBe(true);
    } finally {
      await helpers.close();
    }
  });

  it('has no event that is never told', () => {
    // A Qdrant that comes back is in test/suite/shared.test.ts, which has a server.
    const missing = Object.keys(EVENTS).filter((name) => !everTold.has(name as EventName) && name !== 'qdrant-back');
    expect(missing).toEqual([]);
  });
});
