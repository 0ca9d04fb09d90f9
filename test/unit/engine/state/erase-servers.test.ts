// Erasing a session from servers: real ones are told of two sessions of the reference model, and one of the two is
// erased. Neither server answers anything of it afterwards, and in the files of their tables and vectors no number
// stands that only this session knew.

import { cpSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, type Engine, eraseSession } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { forgetShared } from '../../../../memory/index.ts';
import { type Entry, openAuditIndex, readLog, readLogId, verifyLog } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../../suite/postgres-server.ts';
import { HAS_BINARY, QdrantProcess, removeServers } from '../../../suite/qdrant-server.ts';
import { filesOf, scratchFolders } from '../../witness/folder.ts';
import { lastLine, palimpsest } from '../cli/command.ts';
import { ids, MODEL, written } from '../on-reference.ts';

const folder = scratchFolders();
const KEY = 'key-of-the-tests';
let [made, erased, other] = ['', '', ''];
let qdrant: QdrantProcess | null = null;
let sql: PostgresProcess | null = null;
afterAll(async () => {
  await sql?.remove();
  await removeServers();
});

const shared = () => ({ url: qdrant!.url, apiKey: KEY });

/** Records both sessions; `before` is awaited before the engine is closed. */
async function recorded(before: (engine: Engine) => Promise<void> = async () => {}): Promise<void> {
  made = join(folder(), 'state');
  const engine = await createEngine({
    model: MODEL,
    threads: 1,
    stateDir: made,
    ...(qdrant === null ? {} : { qdrant: shared() }),
  });
  const first = await written(engine, { kvBudget: '30%' });
  const second = await written(engine, { kvBudget: '40%' }, ids(1000, 7));
  [erased, other] = [first.id, second.id];
  await first.close();
  await second.close();
  await before(engine);
  await engine.close();
}

function copy(): string {
  const state = join(folder(), 'state');
  cpSync(made, state, { recursive: true });
  return state;
}

/** Long numbers of the body of entries that only one of the two sessions has. */
function numbersOf(state: string, session: string): number[] {
  const of = (one: string): Set<string> =>
    new Set(
      [...readLog(logDir(state), { session: one })].flatMap(
        ({ body }) => JSON.stringify(body).match(/\d\.\d{8,}/g) ?? [],
      ),
    );
  const apart = of(session === erased ? other : erased);
  return [...of(session)]
    .filter((text) => !apart.has(text))
    .slice(-60)
    .map(Number);
}

/** Files below a folder in which the name of the session stands, or one of these numbers as `Row` spells it. */
function naming(
  dir: string,
  session: string,
  numbers: readonly number[],
  Row: typeof Float64Array | typeof Float32Array,
): string[] {
  const bytes = numbers.map((x) => Buffer.from(Row.of(x).buffer));
  const isIn = (content: Buffer): boolean => content.includes(session) || bytes.some((one) => content.includes(one));
  return filesOf(dir).filter((path) => isIn(readFileSync(path)));
}

describe.skipIf(!HAS_POSTGRES)('on a PostgreSQL server (needs initdb and postgres)', () => {
  const TABLES = ['sessions', 'decisions', 'situations', 'experiences'];
  const rowsOf = async (session: string): Promise<number> => {
    const ask = postgres(sql!.url, { max: 1 });
    const counts = await Promise.all(
      TABLES.map((table) => ask.unsafe(`select count(*)::int as n from ${table} where session = $1`, [session])),
    );
    await ask.end();
    return counts.reduce((sum, [row]) => sum + row!['n'], 0);
  };
  const asked = async (statement: string): Promise<void> => {
    const ask = postgres(sql!.url, { max: 1, onnotice: () => {} });
    await ask.unsafe(statement);
    await ask.end();
  };
  const indexed = async (state: string): Promise<void> =>
    (await openAuditIndex({ logDir: logDir(state), url: sql!.url })).close();
  /** Tables, indexes and statistics, without the write-ahead log. */
  const tablesDir = (): string => join(sql!.dir, 'data', 'base');

  beforeAll(async () => {
    sql = await PostgresProcess.start();
    await recorded();
  });

  it('nothing is left in tables, indexes and statistics, and everything of others is', async () => {
    const state = copy();
    const numbers = numbersOf(state, erased);
    expect(numbers.length).toBeGreaterThan(50);
    await indexed(state);
    await asked('analyze');
    await asked('checkpoint');
    expect(naming(tablesDir(), erased, numbers, Float64Array).length).toBeGreaterThan(5);
    const [before, others] = [await rowsOf(erased), await rowsOf(other)];
    expect(before).toBeGreaterThan(10);
    const done = await eraseSession(state, erased, { database: sql!.url });
    expect(done).toMatchObject({ databaseRows: before, qdrantPoints: null });
    await asked('checkpoint');
    expect(naming(tablesDir(), erased, numbers, Float64Array)).toEqual([]);
    expect([await rowsOf(erased), await rowsOf(other)]).toEqual([0, others]);
    // A later comparison does not bring it back.
    const index = await openAuditIndex({ logDir: logDir(state), url: sql!.url, check: 'rows' });
    expect(index.report).toMatchObject({ wrong: 0, written: 0 });
    await index.close();
    expect(naming(tablesDir(), erased, numbers, Float64Array)).toEqual([]);
  });

  it('while another transaction sees its rows, or the server is away, it says what remains, and can be repeated', async () => {
    const state = copy();
    await indexed(state);
    const reader = postgres(sql!.url, { max: 1 });
    await reader.begin('isolation level repeatable read', async (tx) => {
      await tx`select count(*) from decisions`;
      const error = await refused(eraseSession(state, erased, { database: sql!.url }));
      expect(error).toMatchObject({
        code: 'database',
        values: { session: erased, remains: [{ place: 'the PostgreSQL server', code: 'database' }] },
      });
      expect(error.message).toMatch(/a transaction that began before still sees them/);
    });
    await reader.end();
    await sql!.kill();
    const away = await refused(eraseSession(state, erased, { database: sql!.url }));
    expect(away).toMatchObject({ code: 'database', values: { remains: [{ place: 'the PostgreSQL server' }] } });
    expect([...readLog(logDir(state), { session: erased, kinds: ['erase'] })]).toEqual([]);
    await sql!.start();
    const numbers = numbersOf(made, erased);
    const done = ['audit', 'erase', '--session', erased, '--yes', '--json', '--state', state];
    const told = await palimpsest([...done, '--database', sql!.url]);
    expect(lastLine(told.out)).toMatchObject({ session: erased, databaseRows: 0 });
    await asked('checkpoint');
    expect(naming(tablesDir(), erased, numbers, Float64Array)).toEqual([]);
    expect([...readLog(logDir(state), { session: erased, kinds: ['erase'] })].length).toBe(1);
    expect(verifyLog(logDir(state))).toMatchObject({ ok: true });
  });

  it('a user who may not write the tables anew is told so after the rows are gone', async () => {
    const state = copy();
    await indexed(state);
    await asked(`create role clerk login; grant create on database postgres to clerk; grant usage, create on schema public, drizzle to clerk;
      grant select, insert, update, delete on all tables in schema public, drizzle to clerk`);
    const url = sql!.url.replace('palimpsest@', 'clerk@');
    const error = await refused(eraseSession(state, erased, { database: url }));
    expect(error).toMatchObject({ code: 'database', message: expect.stringMatching(/may not write sessions/) });
    expect(await rowsOf(erased)).toBe(0);
    expect(await eraseSession(state, erased, { database: sql!.url })).toMatchObject({ databaseRows: 0 });
  });
});

describe.skipIf(!HAS_BINARY)('on a Qdrant server (needs ../shared/bin/qdrant)', () => {
  const call = async (method: 'POST' | 'PUT', path: string, body: unknown) => {
    const answer = await fetch(`${qdrant!.url}${path}`, {
      method,
      headers: { 'content-type': 'application/json', 'api-key': KEY },
      body: JSON.stringify(body),
    });
    expect(answer.ok).toBe(true);
    return (await answer.json()) as { result: { points: { payload: object }[] } };
  };
  const collections = async (): Promise<string[]> => {
    const answer = await fetch(`${qdrant!.url}/collections`, { headers: { 'api-key': KEY } });
    const { result } = (await answer.json()) as { result: { collections: { name: string }[] } };
    return result.collections.map(({ name }) => name);
  };
  /** Everything that the server answers, as text. */
  const everything = async (): Promise<string> => {
    const all: unknown[] = [];
    for (const name of await collections())
      all.push(
        (await call('POST', `/collections/${name}/points/scroll`, { limit: 1000, with_vector: true })).result.points,
      );
    return JSON.stringify(all);
  };
  /**
   * A session leaves a server alone that has not answered within two seconds, as on a busy machine; the end of the next
   * one sends what it lacks.
   */
  async function sent(engine: Engine): Promise<void> {
    for (;;) {
      const told = await everything();
      if (told.includes(erased) && told.includes(other)) return;
      await setTimeout(100);
      await (await engine.openSession()).close();
    }
  }
  const segments = (): string => join(qdrant!.dir, 'data', 'storage', 'collections');

  beforeAll(async () => {
    qdrant = await QdrantProcess.start({
      apiKey: KEY,
      environment: { QDRANT__STORAGE__OPTIMIZERS__FLUSH_INTERVAL_SEC: '1' },
    });
    await recorded(sent);
  });

  it('no point is left in any collection of ours, and no vector in the files of its segments', async () => {
    const state = copy();
    // An earlier version of the vectors had a collection of its own.
    await call('PUT', '/collections/palimpsest-v0-d2', { vectors: { size: 2, distance: 'Euclid' } });
    const log = readLogId(logDir(state))!;
    const points = [erased, other].map((session, id) => ({
      id,
      vector: [id, 1],
      payload: { log, payload: { session } },
    }));
    await call('PUT', '/collections/palimpsest-v0-d2/points?wait=true', { points });
    const closeOf = (session: string): readonly number[] =>
      ([...readLog(logDir(state), { session, kinds: ['close'] })] as Entry<'close'>[])[0]!.body.fingerprint;
    const vector = closeOf(erased).filter((x) => Math.abs(x) > 1e-3 && !closeOf(other).includes(x));
    expect(vector.length).toBeGreaterThan(3);
    const inVectors = (): string[] =>
      naming(segments(), erased, vector, Float32Array).filter((path) => path.includes('vector_storage'));
    await expect.poll(inVectors, { timeout: 20_000 }).not.toEqual([]);
    expect(await everything()).toContain(erased);
    const done = await eraseSession(state, erased, { qdrant: shared() });
    expect(done).toMatchObject({ qdrantPoints: 2, databaseRows: null });
    const left = await everything();
    expect(left).not.toContain(erased);
    expect(left.split(other).length).toBeGreaterThan(2);
    await expect.poll(inVectors, { timeout: 20_000 }).toEqual([]);
    expect(await forgetShared(shared(), log, erased)).toBe(0);
  });

  it('what is in the way is told, and an engine that had not sent it yet does not send it', async () => {
    const state = copy();
    await qdrant!.kill();
    const away = await refused(eraseSession(state, erased, { qdrant: shared() }));
    expect(away).toMatchObject({
      code: 'network',
      values: { session: erased, remains: [{ place: 'the Qdrant server', code: 'network' }] },
      hint: expect.stringMatching(/erase it again/),
    });
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, qdrant: shared() });
    const late = await written(engine, { kvBudget: '60%' }, ids(600));
    await late.close();
    const busy = await refused(eraseSession(state, late.id, { qdrant: shared() }));
    expect(busy.values['remains']).toMatchObject([{ code: 'locked' }, { code: 'network' }]);
    await qdrant!.start();
    const next = await written(engine, { kvBudget: '60%' }, ids(600, 3));
    await next.close();
    await engine.close();
    const told = ['audit', 'erase', '--yes', '--json', '--state', state, '--qdrant-url', qdrant!.url];
    for (const session of [erased, late.id]) {
      const done = await palimpsest([...told, '--session', session], { env: { PALIMPSEST_QDRANT_API_KEY: KEY } });
      expect(lastLine(done.out)).toMatchObject({ session, qdrantPoints: 0 });
    }
    const left = await everything();
    for (const session of [erased, late.id]) expect(left).not.toContain(session);
  });
});
