// What is erased is gone from what servers store at once: by a response, by a session, and by the log's own command.
import { mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import postgres from 'postgres';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { erase } from '../../../../engine/cli/erasure.ts';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../../suite/postgres-server.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-erasing-'));
afterAll(() => rmSync(root, { recursive: true }));

interface Told {
  readonly id: string;
  readonly palimpsest: { readonly session: string };
}

/** Two servers of one store, as two replicas have it. `all` is every byte that the store has. */
function contract(nameOf: () => string, all: () => Promise<string>): void {
  const state = mkdtempSync(join(root, 'state-'));
  let engine: Engine;
  let views: LiveView[];
  beforeAll(async () => {
    engine = await createEngine({ model: 'reference', threads: 1, stateDir: state, kvBudget: 2 ** 26 });
    const one = () => serve(engine, { port: 0, requestsPerSecond: 10_000, answers: { store: nameOf() } });
    views = [await one(), await one()];
  });
  const close = async (): Promise<void> => {
    for (const view of views) await view.close();
    await engine.close();
  };
  afterAll(close);
  const send = async (at: number, method: string, path: string, body?: object): Promise<Response> =>
    fetch(views[at]!.url + path, {
      method,
      ...(body === undefined
        ? {}
        : { headers: { 'content-type': 'application/json' }, body: JSON.stringify({ ...body }) }),
    });
  const respond = async (at: number, input: string, previous?: string): Promise<Told> => {
    const asked = { input, max_output_tokens: 4, temperature: 0, previous_response_id: previous ?? null };
    return (await send(at, 'POST', '/v1/responses', asked)).json() as Promise<Told>;
  };
  const statusOf = async (at: number, id: string): Promise<number> =>
    (await send(at, 'GET', `/v1/responses/${id}`)).status;
  /** The conversation is kept behind its answer. */
  const isKept = (word: string): Promise<void> => expect.poll(all, { timeout: 20_000 }).toContain(word);

  test('a response: with the caches that have its text, and no other response', async () => {
    const first = await respond(0, 'Quince and medlar?');
    const second = await respond(0, 'And then?', first.id);
    await isKept(`conversation ${second.palimpsest.session}`);
    expect((await send(1, 'DELETE', `/v1/responses/${second.id}`)).status).toBe(200);
    const left = await all();
    expect(left).not.toContain(`conversation ${second.palimpsest.session}`);
    expect([await statusOf(0, second.id), await statusOf(1, first.id)]).toEqual([404, 200]);
    // Whoever goes on has it read.
    expect((await respond(1, 'And then?', first.id)).id).toBeDefined();
  });

  test('a session: with all responses and caches of it, and those that went on with it elsewhere', async () => {
    const first = await respond(0, 'Damson and sloe?');
    const { session } = first.palimpsest;
    await isKept(`conversation ${session}`);
    const behind = await respond(1, 'And then?', first.id);
    expect(behind.palimpsest.session).not.toBe(session);
    await isKept(`conversation ${session} ${behind.palimpsest.session}`);
    const { status } = await send(0, 'POST', `/v1/sessions/${session}/delete`, {});
    expect(status).toBe(200);
    expect(await all()).not.toContain(session);
    for (const { id } of [first, behind]) expect([await statusOf(0, id), await statusOf(1, id)]).toEqual([404, 404]);
  });

  test('by the command that erases a session from the log', async () => {
    const { session } = (await respond(0, 'Service and rowan?')).palimpsest;
    await isKept(`conversation ${session}`);
    // No server has it in its memory any more.
    await close();
    const said: string[] = [];
    const spy = vi.spyOn(process.stdout, 'write').mockImplementation((text) => said.push(String(text)) > 0);
    await erase({ session, yes: true, state, store: nameOf(), json: true });
    spy.mockRestore();
    expect(JSON.parse(said.join(''))).toMatchObject({ session, stored: 2 });
    expect(await all()).not.toContain(session);
  });
}

describe('in a folder', () => {
  const dir = join(root, 'store');
  contract(
    () => dir,
    async () =>
      ['response', 'conversation']
        .flatMap((kind) =>
          readdirSync(join(dir, kind)).map((name) => {
            const file = readFileSync(join(dir, kind, name));
            return `${kind} ${file.toString('utf8', 44, 44 + file.readUInt32LE(40))}`;
          }),
        )
        .join('\n'),
  );
});

describe('where the store fails in the middle', () => {
  const dir = join(root, 'failing');
  let engine: Engine;
  let view: LiveView;
  beforeAll(async () => {
    engine = await createEngine({ model: 'reference', threads: 1, stateDir: join(root, 'own'), kvBudget: 2 ** 26 });
    view = await serve(engine, { port: 0, requestsPerSecond: 10_000, answers: { store: dir } });
  });
  afterAll(async () => {
    await view.close();
    await engine.close();
  });
  const send = (method: string, path: string, body?: object): Promise<Response> =>
    fetch(view.url + path, {
      method,
      ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
    });
  const respond = async (input: string): Promise<Told> => {
    const before = readdirSync(join(dir, 'conversation')).length;
    const told = (await (await send('POST', '/v1/responses', { input, max_output_tokens: 4 })).json()) as Told;
    await expect.poll(() => readdirSync(join(dir, 'conversation')).length, { timeout: 20_000 }).toBe(before + 1);
    return told;
  };
  /** The status of a request while the store has nothing of a kind, and that of the same one behind it. */
  async function twice(kind: string, ...asked: Parameters<typeof send>): Promise<readonly number[]> {
    const place = join(dir, kind);
    renameSync(place, `${place}-away`);
    const { status } = await send(...asked);
    renameSync(`${place}-away`, place);
    return [status, (await send(...asked)).status];
  }
  const kept = (): readonly number[] => ['response', 'conversation'].map((kind) => readdirSync(join(dir, kind)).length);

  test('a response is there until its cache is gone', async () => {
    const { id } = await respond('Bullace?');
    expect(await twice('conversation', 'DELETE', `/v1/responses/${id}`)).toEqual([500, 200]);
    expect(kept()).toEqual([0, 0]);
  });

  test('a session is held until its responses are gone, parked or not', async () => {
    for (const isParked of [false, true])
      for (const kind of ['response', 'conversation']) {
        const { session } = (await respond(`Greengage, ${isParked}, ${kind}?`)).palimpsest;
        if (isParked) expect((await send('POST', `/v1/sessions/${session}/park`, {})).status).toBe(200);
        const asked = ['POST', `/v1/sessions/${session}/delete`, {}] as const;
        expect(await twice(kind, ...asked)).toEqual([500, 200]);
        expect((await send(...asked)).status).toBe(404);
        expect(kept()).toEqual([0, 0]);
      }
    expect(readdirSync(join(root, 'own', 'parked'))).toEqual([]);
  });
});

describe.skipIf(!HAS_POSTGRES)('in PostgreSQL (needs PostgreSQL 15 or later)', () => {
  let server: PostgresProcess;
  let sql: postgres.Sql;
  beforeAll(async () => {
    server = await PostgresProcess.start();
    sql = postgres(server.url, { max: 1, onnotice: () => {} });
  });
  afterAll(async () => {
    await sql.end();
    await server.remove();
  });
  contract(
    () => server.url,
    async () => {
      const kept = await sql`select kind, key, sessions from kept where kind <> 'erased'`;
      const chunks = await sql`select kind, key from kept_chunks`;
      expect(new Set(chunks.map(({ kind, key }) => `${kind} ${key}`)).size).toBe(kept.length);
      return kept.map(({ kind, sessions }) => `${kind} ${sessions}`).join('\n');
    },
  );
});
