// Sessions that wait on an engine whose memory is short: one is parked, comes back by itself when it is used, and
// answers what it would have answered had its caller parked and resumed it; who cannot be parked is passed over, and
// who cannot come back loses nothing.

import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineSession,
  parkedSessions,
} from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { isForHome } from '../../../tier.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, entriesOf, ids, MODEL } from '../on-reference.ts';
import { parseExposition } from '../serve/exposition.ts';

const folder = scratchFolders();
const TOKENS = 900;
/** What a session of so many tokens takes in 8 bits. */
const SESSION_BYTES = 1_824_768;
const STORY = 'The keeper of bees went down to the river, and the river was high that spring. '.repeat(60);

/** Pages of such a session stay as they are, whoever else needs memory. */
const AS_IT_IS = { policy: 'none' } as const;

const open = (stateDir: string | null, options: Partial<EngineOptions>): Promise<Engine> =>
  createEngine({ model: MODEL, threads: 1, stateDir, ...options });

async function read(engine: Engine, seed: number, options: Parameters<Engine['openSession']>[0] = AS_IT_IS) {
  const session = await engine.openSession(options);
  await session.read(await promptOf(engine, seed));
  return session;
}

/** Text, so that it can be predicted, another for each seed. */
async function promptOf(engine: Engine, seed: number): Promise<number[]> {
  const tokens = await engine.tokenize(STORY);
  return [...ids(20, seed), ...tokens].slice(0, TOKENS);
}

const answer = (session: EngineSession): Promise<string> =>
  session.generate(ids(5, 9), { maxTokens: 24, temperature: 1, seed: 4 }).text();
const parkedAt = async (session: EngineSession): Promise<string | null> =>
  (await session.report()).parked?.place ?? null;
const notesOf = (dir: string, session: string) =>
  entriesOf(dir, session, 'note')
    .map(({ body }) => body)
    .filter(({ idle }) => idle !== undefined);

/** What the sessions of three seeds answer whose callers parked and resumed them, by whether they were predicted. */
const told = new Map<boolean, Promise<readonly string[]>>();

async function answersOfThree(predict: boolean): Promise<readonly string[]> {
  const engine = await open(folder(), {});
  const texts: string[] = [];
  for (const seed of [1, 2, 3]) {
    const session = await read(engine, seed);
    await session.park(undefined, { predict });
    texts.push(await answer(await engine.resume(session.id)));
  }
  await engine.close();
  return texts;
}

/** The answers of the first `count` of them. */
async function answersWhenParked(count: number, predict: boolean): Promise<readonly string[]> {
  const made = told.get(predict) ?? answersOfThree(predict);
  told.set(predict, made);
  return (await made).slice(0, count);
}

const PLACES = ['memory', 'disk'] as const;
describe.each(PLACES.filter((_, place) => isForHome(place, 2)))('sessions that wait, parked in %s', (place) => {
  it('answer what they would have answered had their callers parked and resumed them', async () => {
    const dir = folder();
    const engine = await open(dir, { kvBudget: 1.35 * SESSION_BYTES, idleSessions: place });
    const [first, second, third] = [await read(engine, 1), await read(engine, 2), await read(engine, 3)];
    expect(await Promise.all([first, second, third].map(parkedAt))).toEqual([place, place, null]);
    const texts: string[] = [];
    // The last one is still there, and is parked for the first.
    for (const session of [first, second, third]) texts.push(await answer(session));
    expect(texts).toEqual(await answersWhenParked(3, place === 'memory'));
    expect(await Promise.all([first, second, third].map(parkedAt))).toEqual([place, place, null]);
    await engine.close();
    for (const { id } of [first, second, third]) {
      const told = notesOf(dir, id).map(({ idle, by }) => by ?? idle);
      expect(told).toEqual(id === third.id ? ['parked', 'pages'] : ['parked', 'pages', 'parked']);
      expect(replaySession(readLog(logDir(dir), { session: id }))).toMatchObject({ equal: true, complete: true });
    }
    expect(parkedSessions(dir)).toEqual([]);
  });

  it('make room for one that is resumed, which comes back by its pages', async () => {
    const engine = await open(folder(), { kvBudget: 1.35 * SESSION_BYTES, idleSessions: place });
    const gone = await read(engine, 1);
    await gone.park();
    const waiting = await read(engine, 2);
    const back = await engine.resume(gone.id);
    expect(back.resumed).toMatchObject({ by: 'pages', why: null });
    expect(await parkedAt(waiting)).toBe(place);
    expect(await answer(back)).toBe((await answersWhenParked(1, false))[0]);
    await engine.close();
  });

  it('are not disturbed at work by one that is resumed, which waits until there is room', async () => {
    const engine = await open(folder(), { kvBudget: 1.35 * SESSION_BYTES, idleSessions: place });
    const gone = await read(engine, 1);
    await gone.park();
    const busy = await read(engine, 2);
    const writing = answer(busy);
    const back = await engine.resume(gone.id);
    expect(back.resumed).toMatchObject({ by: 'pages', why: null });
    // It did not go before the other had written everything.
    expect(await Promise.race([writing, Promise.resolve('is writing')])).not.toBe('is writing');
    expect(await parkedAt(busy)).toBe(place);
    await engine.close();
  });

  it('are counted where they are, and tell why they were parked', async () => {
    const dir = folder();
    const engine = await open(dir, { kvBudget: 1.35 * SESSION_BYTES, idleSessions: place });
    const first = await read(engine, 1);
    const before = await first.report();
    expect(before).toMatchObject({ parked: null, kvBytesNow: SESSION_BYTES });
    const second = await read(engine, 2);
    const after = await first.report();
    const heldBytes = place === 'memory' ? after.parked!.bytes : 0;
    expect(after).toMatchObject({ tokens: TOKENS, kvBytesNow: heldBytes, parked: { place, kvBytes: SESSION_BYTES } });
    // What comes back is told as if it were there.
    expect(after.layers).toEqual(before.layers);
    expect(after.kvBytes).toBe(before.kvBytes);
    expect(after.parked!.bytes).toBeLessThan(place === 'memory' ? SESSION_BYTES / 3 : SESSION_BYTES);
    expect(await first.memoryUsage()).toMatchObject({ totalBytes: 0, parkedBytes: heldBytes });
    const families = parseExposition(await engine.metrics());
    const metric = (name: string, labels: object): number =>
      families
        .find((family) => family.name === `palimpsest_${name}`)!
        .samples.filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
        .reduce((sum, { value }) => sum + value, 0);
    expect(metric('kv_bytes', { tier: 'parked' })).toBe(heldBytes);
    expect(metric('kv_bytes', {})).toBe(heldBytes + (await second.report()).kvBytesNow);
    expect(metric('sessions_parked', { place })).toBe(1);
    await first.close();
    expect(metric('sessions_open', {})).toBe(2);
    await engine.close();

    const [note] = notesOf(dir, first.id);
    expect(note).toMatchObject({
      idle: 'parked',
      place,
      cause: 'pool',
      asking: second.id,
      bytesBefore: SESSION_BYTES,
      bytesAfter: heldBytes,
      tokens: TOKENS,
    });
    const events = timeline(logDir(dir), first.id).map(({ text }) => text);
    expect(events.find((text) => text.includes('was parked'))).toContain(`session ${second.id} lacked`);
    // Closed while it was parked, it leaves what it would have left.
    const [[closed], [other]] = [entriesOf(dir, first.id, 'close'), entriesOf(dir, second.id, 'close')];
    expect(closed!.body.formats).toEqual(other!.body.formats);
    expect(closed!.body.fingerprint.length).toBe(other!.body.fingerprint.length);
    expect(closed!.body.kvBytes).toBe(SESSION_BYTES);
  });

  it('are those that have waited longest, and no more of them than must be', async () => {
    const engine = await open(folder(), { kvBudget: 3.4 * SESSION_BYTES, idleSessions: place });
    const sessions = [await read(engine, 1), await read(engine, 2), await read(engine, 3)];
    await answer(sessions[0]!);
    sessions.push(await read(engine, 4));
    expect(await Promise.all(sessions.map(parkedAt))).toEqual([null, place, null, null]);
    await engine.close();
  });

  it('are passed over where a fork shares their pages; who finds no room then is refused and goes on later', async () => {
    const engine = await open(folder(), { kvBudget: 1.5 * SESSION_BYTES, idleSessions: place });
    const first = await read(engine, 1);
    const fork = await first.fork();
    const second = await engine.openSession(AS_IT_IS);
    const error = await refused(second.read(await promptOf(engine, 2)));
    expect(error.code).toBe('budget-exceeded');
    expect(error.values).toHaveProperty('neededBytes');
    expect((await second.report()).tokens).toBe(0);
    expect(await parkedAt(first)).toBe(null);
    await fork.close();
    await second.read(await promptOf(engine, 2));
    expect(await parkedAt(first)).toBe(place);
    expect([await answer(first), await answer(second)]).toEqual(await answersWhenParked(2, place === 'memory'));
    await engine.close();
  });

  it('stay parked and lose nothing where there is no room for them to come back', async () => {
    const dir = folder();
    const engine = await open(dir, { kvBudget: 1.5 * SESSION_BYTES, idleSessions: place });
    const first = await read(engine, 1);
    const second = await read(engine, 2);
    expect(await parkedAt(first)).toBe(place);
    const fork = await second.fork();
    for (const use of [answer(first), first.read([5]), first.fork(), first.park()]) {
      const error = await refused(use);
      expect(error.code).toBe('budget-exceeded');
      expect(error.values['neededBytes']).toBeGreaterThan(error.values['roomBytes'] as number);
    }
    expect(await first.report()).toMatchObject({ tokens: TOKENS, parked: { place } });
    await fork.close();
    expect(await answer(first)).toBe((await answersWhenParked(1, place === 'memory'))[0]);
    await engine.close();
  });

  it('are not those that are at work, for which others wait', async () => {
    const engine = await open(folder(), { kvBudget: 1.5 * SESSION_BYTES, idleSessions: place });
    const prompts = [await promptOf(engine, 1), await promptOf(engine, 2)];
    const sessions = [await engine.openSession(AS_IT_IS), await engine.openSession(AS_IT_IS)];
    await Promise.all(sessions.map((session, i) => session.read(prompts[i]!)));
    expect(await Promise.all(sessions.map(async (session) => (await session.report()).tokens))).toEqual([
      TOKENS,
      TOKENS,
    ]);
    expect(await Promise.all(sessions.map(parkedAt))).toEqual([place, null]);
    expect(await engine.metrics()).toMatch(/^palimpsest_room_waits_total 1$/m);
    await engine.close();
  });

  it('are parked when another session is told that memory is short, and all come back', async () => {
    const dir = folder();
    const engine = await open(dir, { idleSessions: place });
    const [first, second, third] = [await read(engine, 1), await read(engine, 2), await engine.openSession()];
    await second.setLowMemory(true);
    await second.setLowMemory(false);
    expect(await Promise.all([first, second, third].map(parkedAt))).toEqual([place, null, null]);
    await answer(first);
    expect(await parkedAt(first)).toBe(null);
    await engine.close();
    expect(notesOf(dir, first.id)[0]).toMatchObject({ cause: 'low-memory', asking: second.id });
  });

  it('are all parked when the engine is told so, and nobody asks', async () => {
    const dir = folder();
    const engine = await open(dir, { idleSessions: place });
    const sessions = [await read(engine, 1), await read(engine, 2)];
    await engine.setLowMemory(true);
    await engine.setLowMemory(false);
    expect(await Promise.all(sessions.map(parkedAt))).toEqual([place, place]);
    await engine.close();
    const [note] = notesOf(dir, sessions[0]!.id);
    expect(note).toMatchObject({ cause: 'low-memory' });
    expect(note).not.toHaveProperty('asking');
  });

  it('are no longer parked when they are used in turn: then the pages of all go lower instead', async () => {
    const dir = folder();
    const engine = await open(dir, { kvBudget: 1.5 * SESSION_BYTES, idleSessions: place });
    const sessions = [await read(engine, 1, {}), await read(engine, 2, {})];
    for (let turn = 0; turn < 12; turn++)
      await sessions[turn % 2]!.generate(ids(5, 9), { maxTokens: 3, temperature: 1 }).result;
    expect(await Promise.all(sessions.map(parkedAt))).toEqual([null, null]);
    await engine.close();
    const told = sessions.flatMap(({ id }) => notesOf(dir, id)).map(({ idle }) => idle);
    expect(told.filter((idle) => idle === 'woken').length).toBeLessThanOrEqual(4);
    expect(told.filter((idle) => idle === 'parked').length).toBeLessThanOrEqual(4);
    for (const { id } of sessions)
      expect(replaySession(readLog(logDir(dir), { session: id }))).toMatchObject({ equal: true, complete: true });
  });

  it('spare those that have budgets of their own from being forced lower, and the logs replay', async () => {
    const dir = folder();
    const engine = await open(dir, { kvBudget: 2_000_000, idleSessions: place });
    const options = { kvBudget: 1_100_000, tokensExpected: 1000 };
    const sessions: EngineSession[] = [];
    for (const seed of [1, 2, 3]) sessions.push(await read(engine, seed, options));
    for (const session of sessions) await answer(session);
    const reports = await Promise.all(sessions.map((session) => session.report()));
    expect(reports.map(({ parked }) => parked?.place ?? null)).toEqual([place, place, null]);
    await engine.close();
    for (const { session, kvBytes, decisions } of reports) {
      expect(kvBytes).toBeLessThanOrEqual(options.kvBudget);
      expect(decisions).toBeGreaterThan(0);
      const budgets = entriesOf(dir, session, 'situation').map(({ body }) => body.situation);
      const least = Math.min(...budgets.map(({ budgetBytes, canaryBytes = 0 }) => budgetBytes! + canaryBytes));
      expect(least).toBeGreaterThan(0.95 * options.kvBudget);
      expect(replaySession(readLog(logDir(dir), { session }))).toMatchObject({ equal: true, complete: true });
    }
  });
});

describe('what may not lose anything', () => {
  it('is not parked in memory: exact sessions and those with a divergence budget', async () => {
    const engine = await open(folder(), { idleSessions: 'memory' });
    const options = [{ exact: true }, { kldBudget: 0.01 }, { latents: 'xq8' }, {}] as const;
    const sessions = await Promise.all(options.map((one) => engine.openSession(one)));
    for (const session of sessions) await session.read(ids(300));
    const last = await engine.openSession(AS_IT_IS);
    await last.setLowMemory(true);
    expect(await Promise.all(sessions.map(parkedAt))).toEqual([null, null, null, 'memory']);
    await engine.close();
  });

  it('is not parked where its pages are as small as predicted ones', async () => {
    const engine = await open(folder(), { idleSessions: 'memory' });
    const session = await engine.openSession({ cacheTypes: 'rot2:rot1', openFormat: 'q8', windowTokens: 64 });
    await session.read(ids(1500));
    await (await engine.openSession(AS_IT_IS)).setLowMemory(true);
    expect(await parkedAt(session)).toBe(null);
    await engine.close();
  });

  it('is parked on disk, bit for bit, but for latents', async () => {
    const engine = await open(folder(), { idleSessions: 'disk' });
    const options = [{ exact: true }, { kldBudget: 0.01 }, { latents: 'xq8' }] as const;
    const sessions = await Promise.all(options.map((one) => engine.openSession({ ...one, compareTokens: 8 })));
    for (const session of sessions) await session.read(ids(300));
    await (await engine.openSession(AS_IT_IS)).setLowMemory(true);
    expect(await Promise.all(sessions.map(parkedAt))).toEqual(['disk', 'disk', null]);
    await sessions[0]!.read(ids(40, 2));
    expect((await sessions[0]!.compare()).meanKld).toBeLessThan(1e-9);
    await engine.close();
  });
});

describe('files of sessions that wait', () => {
  const pathOf = (dir: string, { id }: EngineSession): string => join(dir, 'parked', `${id}.parked`);
  async function parked(dir: string): Promise<{ engine: Engine; session: EngineSession }> {
    const engine = await open(dir, { idleSessions: 'disk' });
    const session = await read(engine, 1);
    const other = await engine.openSession(AS_IT_IS);
    await other.setLowMemory(true);
    await other.close();
    return { engine, session };
  }

  it('are their owner’s alone, can be resumed by others, and go when the session is used or closed', async () => {
    const dir = folder();
    const { engine, session } = await parked(dir);
    const path = pathOf(dir, session);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(parkedSessions(dir)).toMatchObject([{ session: session.id, tokens: TOKENS, trouble: null }]);
    // As after a crash.
    const other = await open(folder(), {});
    const resumed = await other.resume(path);
    expect(resumed.resumed).toMatchObject({ by: 'pages', from: session.id });
    expect(await answer(resumed)).toBe(await answer(session));
    await other.close();
    expect(existsSync(path)).toBe(false);
    await (await engine.openSession(AS_IT_IS)).setLowMemory(true);
    expect(existsSync(path)).toBe(true);
    await session.close();
    expect(existsSync(path)).toBe(false);
    await engine.close();
  });

  it('that were changed are not trusted: the tokens are read again, an abort loses nothing, and the log says why', async () => {
    const dir = folder();
    const { engine, session } = await parked(dir);
    const path = pathOf(dir, session);
    const bytes = readFileSync(path);
    bytes[bytes.length - 5000]! ^= 1;
    writeFileSync(path, bytes);
    const abort = new AbortController();
    const broken = session.read(ids(200, 2), { signal: abort.signal, onProgress: () => abort.abort() });
    expect(await codeOf(broken)).toBe('aborted');
    expect(await answer(session)).toBe((await answersWhenParked(1, false))[0]);
    expect((await session.report()).tokens).toBe(TOKENS + 5 + 24);
    await engine.close();
    expect(notesOf(dir, session.id)[1]).toMatchObject({
      idle: 'woken',
      by: 'reading',
      why: expect.stringMatching(/checksum/),
    });
    const told = timeline(logDir(dir), session.id).map(({ text }) => text);
    expect(told.some((text) => text.includes('read again'))).toBe(true);
    expect(replaySession(readLog(logDir(dir), { session: session.id }))).toMatchObject({ equal: true, complete: true });
  });

  it('that are gone are not missed', async () => {
    const dir = folder();
    const { engine, session } = await parked(dir);
    writeFileSync(pathOf(dir, session), '');
    expect(await answer(session)).toBe((await answersWhenParked(1, false))[0]);
    await engine.close();
  });

  it('that cannot be written leave the session as it is, and the log says why', async () => {
    const dir = folder();
    writeFileSync(join(dir, 'parked'), 'in the way of the folder');
    const { engine, session } = await parked(dir);
    expect(await parkedAt(session)).toBe(null);
    expect(await answer(session)).toBe((await answersWhenParked(1, false))[0]);
    await engine.close();
    expect(notesOf(dir, session.id)).toMatchObject([{ idle: 'kept', cause: 'low-memory' }]);
    const told = timeline(logDir(dir), session.id).map(({ text }) => text);
    expect(told.join('\n')).toMatch(/and was not: .*parked is a file, and there must be a folder/);
  });
});

describe('an engine', () => {
  it('refuses what it cannot do before anything is loaded, or as soon as that is known', async () => {
    const cases: [Partial<EngineOptions>, RegExp][] = [
      [{ idleSessions: 'park' as 'disk' }, /parked in 'memory'/],
      [{ idleSessions: 'disk' }, /there is none/],
      [{ kvBudget: '25%' }, /needs the expected length/],
      [{ kvBudget: 'much' }, /is not a KV budget/],
    ];
    for (const [options, message] of cases) {
      const error = await refused(open(null, options));
      expect(error.code).toBe('bad-argument');
      expect(error.message).toMatch(message);
    }
  });

  it('that keeps sessions refuses who finds no room, and parks nobody', async () => {
    const engine = await open(null, { kvBudget: 1.5 * SESSION_BYTES, idleSessions: 'keep' });
    const first = await read(engine, 1);
    const second = await engine.openSession(AS_IT_IS);
    await second.setLowMemory(true);
    expect(await codeOf(second.read(await promptOf(engine, 2)))).toBe('budget-exceeded');
    expect(await parkedAt(first)).toBe(null);
    await engine.close();
  });
});
