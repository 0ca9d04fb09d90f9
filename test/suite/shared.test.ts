/**
 * Sessions of several machines in one collection of a real Qdrant server: they teach each other, and whatever happens
 * to the server, no session fails, nothing that a log holds is lost, and what the server lacks is sent when it is back.
 */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createEngine } from '../../engine/index.ts';
import { openCache } from '../../engine/session/policy-cache.ts';
import { logDir } from '../../engine/state/folder.ts';
import { openSessionIndex } from '../../engine/state/sessions.ts';
import {
  FINGERPRINT_VERSION,
  openQdrantIndex,
  SESSION_FIELDS,
  type SessionRecord,
  sessionsOf,
} from '../../memory/index.ts';
import { given } from '../../native/index.ts';
import { proposeAdapters } from '../../policy/index.ts';
import { type Entry, readLog, readLogId } from '../../witness/index.ts';
import { seeded } from '../random.ts';
import { ids } from '../unit/engine/on-reference.ts';
import { here, Machine, query, sessionAt } from './machine.ts';
import { HAS_BINARY, Line, QdrantProcess, removeServers } from './qdrant-server.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-shared-'));
let server: QdrantProcess;
let names = 0;
const fresh = (): string => `c${names++}`;
const machineOf = (id: string, collection: string): Machine => new Machine({ id, server, collection, root });

describe.skipIf(!HAS_BINARY)('sessions on a Qdrant server (needs ../shared/bin/qdrant)', () => {
  beforeAll(async () => {
    server = await QdrantProcess.start();
  });
  afterEach(async () => {
    await server.start();
  });
  afterAll(async () => {
    await removeServers();
    rmSync(root, { recursive: true, force: true });
  });

  // A machine that knows nothing asks; its start values come from another's sessions, and the evidence says whose they
  // are.
  test('teach another machine', async () => {
    const [teacher, pupil] = [machineOf('teacher', 'lesson'), machineOf('pupil', 'lesson')];
    await teacher.open();
    for (let n = 1; n <= 5; n++) await teacher.record(2 * n);
    await teacher.catchUp();
    expect(teacher.book.status).toEqual({ index: 'hnsw', shared: { url: server.url, trouble: null, waiting: 0 } });
    await pupil.open();
    await pupil.record(2, 1e-7);
    await pupil.catchUp();
    const { book } = pupil;
    const { thresholds, neighbours, shared } = await book.lookup(query);
    expect(thresholds.thresholds['price.start']).toMatchObject({ origin: 'learned', samples: 6, evidence: [2] });
    expect(thresholds.sources!.law).toMatchObject({ origin: 'learned', samples: 6, evidence: [2] });
    expect(neighbours.map(({ log, seq }) => [log, seq])).toEqual(
      [[undefined, 2], ...[2, 4, 6, 8, 10].map((seq) => ['teacher', seq])].sort(
        (a, b) => Number(a[1]) - Number(b[1]) || (a[0] === undefined ? -1 : 1),
      ),
    );
    expect(shared).toEqual({ url: server.url, trouble: null, waiting: 0 });
    // Whose session it was, and where.
    const near = await book.nearestSessions(here, 10, { mustNot: [{ field: 'log', equals: 'pupil' }] });
    expect(near).toHaveLength(5);
    expect(near[0]).toMatchObject({
      id: { log: 'teacher' },
      payload: { writer: 0, kvBytes: 1000 },
    });
    expect(JSON.stringify(near)).not.toContain(root);
    for (const machine of [teacher, pupil]) await machine.book.close();
    // Nothing is asked twice, and nothing is sent by somebody who only reads.
    const reader = await machineOf('reader', 'lesson').open(server.url, {
      shared: { url: server.url, collection: 'lesson', send: false },
    });
    await reader.record(...sessionAt(2));
    expect((await reader.nearestSessions(here, 100)).map(({ id }) => id.log).sort()).toEqual([
      'pupil',
      'reader',
      ...new Array(5).fill('teacher'),
    ]);
    await reader.close();
    expect(await machineOf('reader', 'lesson').there()).toEqual([]);
  });

  test('of earlier versions named a path: they are read without it, and lose it when their machine sends again', async () => {
    const old = machineOf('old', 'paths');
    const index = await openQdrantIndex<SessionRecord & { stateDir: string }>({
      ...{ url: server.url, collection: 'paths', dim: here.length },
      ...{ fields: SESSION_FIELDS, version: FINGERPRINT_VERSION },
    });
    const before = [2, 4].flatMap((seq) => sessionAt(seq));
    const points = [...sessionsOf(before, 'old', here.length)].map((entry) => ({
      ...entry,
      payload: { ...entry.payload, stateDir: '/srv/state' },
    }));
    const others = points.map(({ id, ...rest }) => ({ ...rest, id: { ...id, log: 'other' } }));
    await index.add([...points, ...others]);
    const paths = async (log: string): Promise<unknown[]> =>
      (await index.list({ filter: { must: [{ field: 'log', equals: log }] } })).items.map(
        ({ payload }) => payload.stateDir,
      );
    const pupil = machineOf('new', 'paths');
    await pupil.open();
    const near = await pupil.book.nearestSessions(here, 10);
    expect(near).toHaveLength(4);
    expect(JSON.stringify(near)).not.toContain('/srv/state');
    await pupil.book.close();
    expect(await paths('old')).toEqual(['/srv/state', '/srv/state']);
    old.log.push(...before);
    await old.open();
    await old.record(6);
    await old.catchUp();
    expect(await paths('old')).toEqual([undefined, undefined, undefined]);
    expect(await paths('other')).toEqual(['/srv/state', '/srv/state']);
    await old.book.close();
  });

  // What sessions of another machine used is proposed here, by digest; points of versions that did not tell it speak
  // for nothing.
  test('tell another machine which adapters texts like these had', async () => {
    const [teacher, pupil] = [machineOf('adapted', 'adapters'), machineOf('asking', 'adapters')];
    const style = { digest: 'd'.repeat(64), scale: 0.5 };
    await teacher.open();
    for (const seq of [2, 4, 6]) {
      const [open, close] = sessionAt(seq);
      const entries = [{ ...open, body: { ...(open.body as object), adapters: [style] } }, close] as const;
      teacher.log.push(...entries);
      await teacher.book.record(...entries);
    }
    await teacher.catchUp();
    const index = await openQdrantIndex<object>({
      ...{ url: server.url, collection: 'adapters', dim: here.length },
      ...{ fields: SESSION_FIELDS, version: FINGERPRINT_VERSION },
    });
    const [told] = [...sessionsOf(sessionAt(2), 'older', here.length)];
    const { plainDigest: _plain, adapters: _adapters, textPlace: _text, ...before } = told!.payload;
    await index.add([{ ...told!, payload: before }]);
    await index.close();
    await pupil.open();
    await pupil.record(2);
    const asked = { plainDigest: 'm1', fingerprint: here, k: 16, tokensLeast: 128 };
    const seen = await pupil.book.precedents(asked);
    expect(seen.map(({ log, seq, adapters }) => [log, seq, adapters])).toEqual(
      expect.arrayContaining([[undefined, 2, []], ...[2, 4, 6].map((seq) => ['adapted', seq, [style]])]),
    );
    expect(seen).toHaveLength(4);
    expect(proposeAdapters(seen, 1000)).toMatchObject({ adapters: [style], weight: 3, share: 0.75 });
    expect(await pupil.book.precedents({ ...asked, plainDigest: 'm2' })).toEqual([]);
    expect((await pupil.book.nearestSessions(here, 10)).map(({ id }) => id.log)).toContain('older');
    for (const machine of [teacher, pupil]) await machine.book.close();
  });

  // The digests of one machine say nothing to another, unless both have the key.
  test('learn from each other what is asked of texts that begin alike', async () => {
    const collection = fresh();
    const prompt = (question: number): number[] => [...ids(900, 1), ...ids(60, question)];
    const knownBy = async (name: string, prefixKey: string | undefined, question: number): Promise<number> => {
      const stateDir = join(root, name);
      const qdrant = { url: server.url, collection, ...given({ prefixKey }) };
      const engine = await createEngine({ model: 'reference', stateDir, qdrant });
      try {
        const session = await engine.openSession({ kvBudget: '30%', tokensExpected: 1024 });
        await session.generate(prompt(question), { maxTokens: 24, temperature: 0 }).result;
        await session.close();
        const entries = [
          ...readLog(logDir(stateDir), { session: session.id, kinds: ['situation'] }),
        ] as Entry<'situation'>[];
        return Math.max(0, ...entries.flatMap(({ body }) => body.situation.later ?? []).map(({ answers }) => answers));
      } finally {
        await engine.close();
      }
    };
    const secret = 'known on both machines';
    expect(await knownBy('begins', secret, 2)).toBe(0);
    expect(await knownBy('begins-too', secret, 3)).toBe(1);
    expect(await knownBy('without-key', undefined, 4)).toBe(0);
    expect(await knownBy('begins', secret, 5)).toBe(2);
  });

  test('need a state folder to be shared from', async () => {
    const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
    await expect(openCache({ ...shape, qdrant: { url: server.url } })).rejects.toMatchObject({ code: 'bad-argument' });
    await expect(openCache({ ...shape, stateDir: join(root, 'never'), qdrant: { url: 'x' } })).rejects.toMatchObject({
      code: 'bad-config',
    });
  });

  test('wait for a server that is away, and are sent when it is back', async () => {
    const machine = machineOf('m', fresh());
    await server.kill();
    await machine.open();
    for (let n = 1; n <= 3; n++) await machine.record(2 * n);
    const { thresholds, shared } = await machine.book.lookup(query);
    expect(thresholds.thresholds['price.start']!.evidence).toEqual([2, 4, 6]);
    expect(shared!.trouble).toContain('was not reached');
    expect(machine.notes).toEqual(['away']);
    await server.start();
    // It is left alone for a second or two, or for a minute if its first answer takes too long; then the next session's
    // end sends everything.
    for (let n = 4; machine.book.status.shared!.trouble !== null; n++) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      await machine.record(2 * n);
    }
    expect(machine.notes).toEqual(['away', 'back']);
    expect(machine.book.status.shared!.waiting).toBe(0);
    expect(await machine.there()).toEqual(machine.ends);
    await machine.book.close();
  });

  // A process that ends while the server is away leaves it to the next one, which has only the log and the local index.
  test('are sent by the next process, holes in the middle too', async () => {
    const machine = machineOf('m', fresh());
    await machine.open();
    for (let n = 1; n <= 900; n++) machine.log.push(...sessionAt(2 * n));
    await machine.book.close();
    await machine.catchUp();
    expect(await machine.there()).toEqual(machine.ends);
    const index = await openQdrantIndex<SessionRecord>({
      ...{
        url: server.url,
        collection: `c${names - 1}`,
        dim: here.length,
        fields: SESSION_FIELDS,
        version: FINGERPRINT_VERSION,
      },
    });
    await index.remove({ must: [{ field: 'seq', range: { min: 700, max: 720 } }] });
    await index.remove({ must: [{ field: 'seq', oneOf: [2, 1800] }] });
    expect((await machine.there()).length).toBe(900 - 11 - 2);
    await machine.book.close();
    await machine.catchUp();
    expect(await machine.there()).toEqual(machine.ends);
    // A log that was cut: what is no longer in it is taken from the server as well.
    await machine.book.close();
    machine.log.splice(1000);
    await machine.open();
    expect(machine.book.rebuilt).toContain('the log has no session');
    await machine.catchUp();
    expect(await machine.there()).toEqual(machine.ends);
    await machine.book.close();
    // A server that lost everything gets everything again.
    await index.remove({});
    await machine.catchUp();
    expect(await machine.there()).toEqual(machine.ends);
    expect(await machine.book.rebuildFrom(machine.log)).toBe(500);
    await machine.catchUp();
    expect(await machine.there()).toEqual(machine.ends);
    await machine.book.close();
  });

  test('cost a server that hangs one wait, and then none', async () => {
    const line = await Line.open(server.port);
    const machine = machineOf('m', fresh());
    await machine.open(line.url);
    line.delayMs = 60_000;
    const start = performance.now();
    await machine.book.lookup(query);
    expect(performance.now() - start).toBeLessThan(2500);
    const again = performance.now();
    for (let n = 1; n <= 3; n++) await machine.record(2 * n);
    expect((await machine.book.lookup(query)).neighbours).toHaveLength(3);
    // One wait more would be a second.
    expect(performance.now() - again).toBeLessThan(1000);
    expect(machine.book.status.shared!.trouble).toContain('did not answer within');
    await machine.book.close();
    await line.close();
    await machine.catchUp();
    expect(await machine.there()).toEqual([2, 4, 6]);
    await machine.book.close();
  });

  test('are told by an engine when the server is away, and when it is back', async () => {
    const told: string[] = [];
    const line = ({ event }: { readonly event: string }): void => void told.push(event);
    const engine = await createEngine({
      model: 'reference',
      threads: 1,
      stateDir: join(root, 'told'),
      qdrant: { url: server.url, collection: fresh() },
      logger: { debug() {}, info: line, warn: line, error: line },
    });
    await server.kill();
    await (await engine.openSession()).close();
    expect(told).toEqual(['qdrant-away']);
    await server.start();
    // It is left alone for a second, and for longer where it answers slowly.
    while (!told.includes('qdrant-back')) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      await (await engine.openSession()).close();
    }
    await engine.close();
    expect(told).toEqual(['qdrant-away', 'qdrant-back']);
  });

  // The whole way: caches in two state folders on one server, the server away in between, its notes in the log, and the
  // session index.
  test('of caches come back as start values, and the log says when the server was away', async () => {
    const qdrant = { url: server.url, collection: fresh() };
    const dirs = [join(root, 'first'), join(root, 'second')] as const;
    const shape = { layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64 };
    const run = async (stateDir: string) => {
      const cache = await openCache({
        ...shape,
        kvBudget: '50%',
        tokensExpected: 1024,
        modelDigest: 'm',
        stateDir,
        qdrant,
      });
      const next = seeded(5);
      for (let page = 0; page < 8; page++) {
        const rows = (heads: number): Float32Array =>
          Float32Array.from({ length: 128 * heads * 64 }, () => next() - 0.5);
        cache.append(0, rows(2), rows(2));
        cache.attention(0, rows(2));
      }
      const report = cache.report();
      await cache.close();
      return report;
    };
    const first = await run(dirs[0]);
    expect(first.shared).toEqual({ url: server.url, trouble: null, waiting: 0 });
    await run(dirs[1]);
    const [evidence] = [...readLog(logDir(dirs[1]), { kinds: ['evidence'] })];
    expect((evidence!.body as { neighbours: object[] }).neighbours).toMatchObject([
      { session: first.session, log: expect.any(String) },
    ]);
    await server.kill();
    const alone = await run(dirs[1]);
    expect(alone.shared!.trouble).toContain('was not reached');
    const notes = [...readLog(logDir(dirs[1]), { kinds: ['note'] })].map(({ body }) => body);
    expect(notes).toMatchObject([{ what: 'qdrant', isAway: true }]);
    await server.start();
    await run(dirs[1]);
    const sessions = await openSessionIndex({ stateDir: null, qdrant });
    const near = await sessions.nearestSessions(here.slice(), 10);
    expect(near).toHaveLength(4);
    expect(
      near.filter(({ id }) => id.log === readLogId(logDir(dirs[0]))).map(({ payload }) => payload.session),
    ).toEqual([first.session]);
    const shares = Object.values(near[0]!.payload.formats!.k).reduce((a, b) => a + b, 0);
    expect(shares).toBeCloseTo(1, 10);
    await sessions.close();
    const local = await openSessionIndex({ stateDir: dirs[0] });
    expect((await local.nearestSessions(here.slice(), 10)).map(({ id }) => id.log)).toEqual([
      readLogId(logDir(dirs[0])),
    ]);
    await local.close();
  });
});
