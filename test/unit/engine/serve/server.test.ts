// The live view as its clients see it: every route over a real log, paging, events that miss nothing, and metrics of
// both uses. Answers are compared with the log itself, and with the schemas that the OpenAPI document is made from.
import { appendFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { type Engine, eraseSession, type LiveView, type SessionRow, serve } from '../../../../engine/index.ts';
import { ANSWERS } from '../../../../engine/serve/answers.ts';
import { ROUTES } from '../../../../engine/serve/routes.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { entryId, explain, openLogQuery, openWitnessLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, openEngine, written } from '../on-reference.ts';
import { ask, decisionSeqs, follow, refusal } from './ask.ts';
import { parseExposition } from './exposition.ts';

const folder = scratchFolders();
let state = '';
let engine: Engine;
let beside: LiveView;
let over: LiveView;
/** Sessions of the log, oldest first. */
const ids: string[] = [];

beforeAll(async () => {
  state = join(folder(), 'state');
  engine = await openEngine(state);
  for (const kvBudget of ['30%', '25%', '40%']) {
    const session = await written(engine, { kvBudget, compareTokens: 8 });
    ids.push(session.id);
    if (kvBudget === '25%') await session.compare();
    if (kvBudget !== '40%') await session.close();
    else await session.flush();
  }
  beside = await serve(engine, { port: 0 });
  over = await serve(state, { port: 0 });
});
afterAll(async () => {
  await beside.close();
  await over.close();
  await engine.close();
});

type Rows<Row> = { readonly rows: Row[]; readonly next: string | null };
interface DecisionRow {
  readonly seq: number;
  readonly layer: number;
  readonly accepted: boolean;
  readonly session: string;
}

test('every route that is documented answers what its schema says, in both uses', async () => {
  const [seq] = decisionSeqs(state, ids[0]!);
  for (const { url } of [beside, over]) {
    for (const { path, answer, source } of ROUTES) {
      if (source !== 'log') continue;
      const real = path.replace('{session}', ids[0]!).replace('{id}', entryId(seq!));
      answer!.parse(await ask(url, real));
    }
  }
});

test('sessions, memory and quality are those of the log', async () => {
  const { rows } = await ask<Rows<SessionRow>>(over.url, '/v1/sessions');
  expect(rows).toEqual(await openLogQuery(logDir(state)).sessions());
  const detail = ANSWERS.session.parse(await ask(over.url, `/v1/sessions/${ids[1]}`));
  expect(detail.session).toMatchObject({ session: ids[1], end: 'done', tokens: 1440 });
  expect(detail.session.meanKld).toBeGreaterThan(0);
  expect(detail.quality).toMatchObject({ session: ids[1], meanKld: detail.session.meanKld, gaveWay: null });
  expect(detail.memory.kvBytesPeak).toBeLessThanOrEqual(detail.memory.budgetBytes!);
  expect(Object.values(detail.memory.formats!.k).reduce((sum, share) => sum + share, 0)).toBeCloseTo(1);
  const running = ANSWERS.session.parse(await ask(over.url, `/v1/sessions/${ids[2]}`));
  expect(running).toMatchObject({ session: { end: 'open' }, memory: { kvBytesPeak: null, formats: null } });
  expect(running.memory.kvBytes).toBeGreaterThan(0);
});

test('lists are paged without a row missing or coming twice', async () => {
  const pages = async <Row>(path: string): Promise<Row[]> => {
    const all: Row[] = [];
    for (let cursor: string | null = ''; cursor !== null; ) {
      const { rows, next }: Rows<Row> = await ask(over.url, `${path}${cursor === '' ? '' : `&cursor=${cursor}`}`);
      all.push(...rows);
      cursor = next;
    }
    return all;
  };
  const all = ids.flatMap((id) => decisionSeqs(state, id));
  const decisions = await pages<DecisionRow>('/v1/decisions?limit=37');
  expect(decisions.map(({ seq }) => seq)).toEqual([...all].reverse());
  const sessions = await pages<SessionRow>('/v1/sessions?limit=2');
  expect(sessions.map(({ session }) => session)).toEqual([...ids].reverse());
  const refused = await pages<DecisionRow>(`/v1/decisions?session=${ids[0]}&layer=2&accepted=false&limit=3`);
  const expected = await openLogQuery(logDir(state)).decisions({
    session: ids[0]!,
    layer: 2,
    accepted: false,
    limit: 9999,
  });
  expect(refused).toEqual(expected);
  expect(refused.every(({ layer, accepted, session }) => layer === 2 && !accepted && session === ids[0])).toBe(true);
});

test('a decision is explained, and the log is verified', async () => {
  const seq = decisionSeqs(state, ids[1]!).at(-1)!;
  expect(await ask(over.url, `/v1/decisions/${entryId(seq)}/explain`)).toEqual(
    JSON.parse(JSON.stringify(explain(logDir(state), seq, { without: false }))),
  );
  const { report } = ANSWERS.verification.parse(await ask(over.url, '/v1/verify'));
  expect(report).toMatchObject({ ok: true, problem: null });
  expect(report.entries).toBeGreaterThan(seq);
});

test('what does not exist or is misspelt is refused by code', async () => {
  for (const [path, status, code] of [
    ['/v2/sessions', 404, 'not-found'],
    ['/v1/sessions/nobody', 404, 'not-found'],
    ['/v1/decisions/999999/explain', 404, 'not-found'],
    ['/v1/decisions/0/explain', 400, 'bad-argument'],
    ['/v1/decisions/x/explain', 400, 'bad-argument'],
    ['/v1/decisions?layr=1', 400, 'bad-argument'],
    ['/v1/decisions?layer=one', 400, 'bad-argument'],
    ['/v1/decisions?layer=', 400, 'bad-argument'],
    ['/v1/decisions?layer=1&layer=2', 400, 'bad-argument'],
    ['/v1/decisions?limit=1001', 400, 'bad-argument'],
    ['/v1/decisions?limit=0', 400, 'bad-argument'],
    ['/v1/decisions?accepted=1', 400, 'bad-argument'],
    ['/v1/decisions?cursor=x', 400, 'bad-argument'],
    ['/v1/decisions?reason=defict', 400, 'bad-argument'],
    ['/v1/sessions?cursor=17', 400, 'bad-argument'],
    ['/v1/sessions/%zz', 400, 'bad-argument'],
    ['/v1/decisions?__proto__=1', 400, 'bad-argument'],
    ['/v1/decisions/stream?after=999999', 404, 'not-found'],
  ] as const)
    expect([path, ...(await refusal(over.url, path))]).toEqual([path, status, code]);
});

test('an engine beside it is told of low memory by whoever has the token, and by nobody else', async () => {
  const path = '/v1/low-memory?low=true';
  const token = 'dGhpcyBpcyBhIHRva2Vu';
  const post = (authorization = `Bearer ${token}`) => ({ method: 'POST', headers: { authorization } });
  await using own = await openEngine(join(folder(), 'own'));
  await using live = await serve(own, { port: 0, token });
  const session = await written(own, { kvBudget: '60%' });
  const before = (await session.report()).kvBytesNow;
  expect(await refusal(live.url, path, post('Bearer another-token-of-one'))).toEqual([401, 'not-allowed']);
  expect(await refusal(live.url, path, { headers: post().headers })).toEqual([405, 'unsupported']);
  expect(await refusal(live.url, '/v1/low-memory', post())).toEqual([400, 'bad-argument']);
  expect(await refusal(live.url, '/v1/low-memory?low=perhaps', post())).toEqual([400, 'bad-argument']);
  expect(await refusal(live.url, path, { ...post(), body: '{}' })).toEqual([413, 'bad-argument']);
  expect(await refusal(live.url, '/v1/sessions', post())).toEqual([405, 'unsupported']);
  // Without a token anybody's page could send it, and other machines may send nothing even with one.
  expect(await refusal(beside.url, path, post())).toEqual([403, 'not-allowed']);
  await using open = await serve(own, { port: 0, token, host: '0.0.0.0' });
  expect(await refusal(open.url, path, post())).toEqual([403, 'not-allowed']);
  await using folderOnly = await serve(state, { port: 0, token });
  expect(await refusal(folderOnly.url, path, post())).toEqual([404, 'not-found']);
  expect((await session.report()).kvBytesNow).toBe(before);
  const answer = await fetch(live.url + path, post());
  expect([answer.status, ANSWERS.lowMemory.parse(await answer.json())]).toEqual([200, { low: true }]);
  await session.generate(null, { maxTokens: 30, temperature: 1 }).result;
  expect((await session.report()).kvBytesNow).toBeLessThan(before);
});

describe('the OpenAPI document', () => {
  interface Document {
    openapi: string;
    paths: Record<
      string,
      Record<
        'get' | 'post',
        {
          parameters: { name: string; in: string; required: boolean; schema: object }[];
          responses: { 200: { content: Record<string, { schema: object }> }; default: object };
          security: object[];
        }
      >
    >;
    components: { schemas: Record<string, object> };
  }

  test('has every route with its parameters, and schemas that a reader of JSON Schema takes', async () => {
    const document = await ask<Document>(over.url, '/openapi.json');
    expect(document.openapi).toMatch(/^3\.1\./);
    expect(Object.keys(document.paths)).toEqual(ROUTES.map(({ path }) => path));
    for (const [path, { get: asked, post }] of Object.entries(document.paths)) {
      const get = asked ?? post;
      expect([path, get.security]).toEqual([path, asked === undefined ? [{ token: [] }] : [{}, { token: [] }]]);
      const inPath = get.parameters.filter((one) => one.in === 'path');
      expect(inPath.map(({ name }) => `{${name}}`)).toEqual(path.match(/\{\w+\}/g) ?? []);
      expect(inPath.every(({ required }) => required)).toBe(true);
      for (const { schema } of Object.values(get.responses[200].content)) expect(schema).toHaveProperty('type');
    }
    const names = document.paths['/v1/decisions']!.get.parameters.map(({ name }) => name);
    expect(names).toEqual(expect.arrayContaining(['limit', 'cursor', 'session', 'layer', 'accepted']));
  });

  test('describes the answers that are given: each passes a schema made from the document alone', async () => {
    const document = await ask<Document>(over.url, '/openapi.json');
    for (const path of ['/v1/sessions', '/v1/decisions', '/v1/memory', '/v1/quality', '/v1/verify']) {
      const { schema } = document.paths[path]!.get.responses[200].content['application/json']!;
      const reader = z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0]);
      reader.parse(await ask(over.url, path));
      expect(reader.safeParse({ rows: 1 }).success).toBe(false);
    }
  });
});

describe('events', () => {
  test('tell what was missed and then what is written, once each, in the order of the log', async () => {
    const before = ids.flatMap((id) => decisionSeqs(state, id));
    let id = '';
    const told = await follow(
      over.url,
      '/v1/decisions/stream?after=start',
      (all) => id !== '' && all.filter(({ session }) => session === id).length > 30,
      {},
      () =>
        void written(engine, { kvBudget: '25%' }).then(async (session) => {
          await session.flush();
          id = session.id;
        }),
    );
    const seqs = told.map(({ seq }) => seq);
    expect(seqs.slice(0, before.length)).toEqual(before);
    expect(new Set(seqs).size).toBe(seqs.length);
    const now = decisionSeqs(state, id);
    expect(seqs.slice(before.length)).toEqual(now.slice(0, seqs.length - before.length));
  });

  test('go on behind the last one that a client saw', async () => {
    const all = decisionSeqs(state, ids[0]!);
    const path = `/v1/decisions/stream?session=${ids[0]}`;
    const first = await follow(over.url, `${path}&after=start`, (told) => told.length >= 5);
    const rest = await follow(over.url, path, (told) => told.length >= all.length - first.length, {
      'last-event-id': first.at(-1)!.id,
    });
    expect([...first, ...rest].map(({ seq }) => seq)).toEqual(all);
  });

  test('of several writers are told all: an id says how far each of them was', async () => {
    const dir = join(folder(), 'many');
    mkdirSync(dir, { recursive: true });
    const engines = [await openEngine(dir), await openEngine(dir)];
    const sessions = await Promise.all(engines.map((one) => written(one, { kvBudget: '25%' })));
    await Promise.all(sessions.map((one) => one.flush()));
    await using view = await serve(dir, { port: 0 });
    const all = sessions.flatMap(({ id }) => decisionSeqs(dir, id)).sort((a, b) => a - b);
    const first = await follow(view.url, '/v1/decisions/stream?after=start', (told) => told.length >= all.length / 2);
    expect(first.at(-1)!.id).toContain(',');
    const rest = await follow(view.url, '/v1/decisions/stream', (told) => told.length >= all.length - first.length, {
      'last-event-id': first.at(-1)!.id,
    });
    expect([...first, ...rest].map(({ seq }) => seq).sort((a, b) => a - b)).toEqual(all);
    for (const one of engines) await one.close();
  });
});

describe('metrics', () => {
  const valuesOf = async (url: string): Promise<Record<string, number>> => {
    const response = await fetch(`${url}/metrics`);
    expect(response.headers.get('content-type')).toBe('text/plain; version=0.0.4; charset=utf-8');
    const families = parseExposition(await response.text());
    return Object.fromEntries(
      families.map(({ name, samples }) => [
        name.replace('palimpsest_', ''),
        samples.filter((one) => !/_(bucket|sum)$/.test(one.name)).reduce((sum, { value }) => sum + value, 0),
      ]),
    );
  };

  test('beside an engine are its own, and those of the server', async () => {
    const values = await valuesOf(beside.url);
    expect(values['kv_bytes']).toBeGreaterThan(0);
    expect(values['generation_tokens_total']).toBeGreaterThanOrEqual(120);
    expect(values).toHaveProperty('log_append_seconds');
    expect(values['http_requests_total']).toBeGreaterThan(0);
    expect(values['stream_clients_dropped_total']).toBe(0);
  });

  test('over a folder are what the log tells; what it cannot tell is left out', async () => {
    const values = await valuesOf(over.url);
    const { rows } = await ask<Rows<SessionRow>>(over.url, '/v1/sessions');
    expect(values['decisions_total']).toBe(rows.reduce((sum, { decisions }) => sum + decisions, 0));
    expect(values['sessions_ended_total']).toBe(rows.filter(({ end }) => end !== 'open').length);
    expect(values['quality_kld']).toBe(1);
    for (const name of [
      'kv_bytes',
      'kv_cache_usage_ratio',
      'decisions_dropped_total',
      'generation_tokens_total',
      'sessions_open',
    ])
      expect(values).not.toHaveProperty(name);
    const decided = (await valuesOf(beside.url))['decisions_total'];
    expect(decided).toBe(values['decisions_total']);
  });

  test('are not served where they are switched off, nor is a log that is not written', async () => {
    await using quiet = await serve(state, { port: 0, metrics: false });
    expect(await refusal(quiet.url, '/metrics')).toEqual([404, 'not-found']);
    await using bare = await openEngine(null);
    await using view = await serve(bare, { port: 0 });
    expect(await refusal(view.url, '/v1/sessions')).toEqual([404, 'not-found']);
    expect(await valuesOf(view.url)).toHaveProperty('prompt_tokens_total');
  });

  test('hold nothing of prompts, models, paths or sessions', async () => {
    const text = await (await fetch(`${beside.url}/metrics`)).text();
    for (const secret of [...ids, 'reference', state]) expect(text).not.toContain(secret);
  });
});

test('of an erased session nothing is told any more but that it was erased', async () => {
  const dir = join(folder(), 'erased');
  const own = await openEngine(dir);
  const [gone, kept] = [await written(own, { kvBudget: '30%' }), await written(own, { kvBudget: '30%' })];
  for (const session of [gone, kept]) await session.close();
  await using view = await serve(dir, { port: 0 });
  expect((await ask<Rows<SessionRow>>(view.url, '/v1/sessions')).rows).toHaveLength(2);
  const decided = decisionSeqs(dir, gone.id).at(-1)!;
  await own.close();
  await eraseSession(dir, gone.id);
  for (let erased = 0; erased === 0; ) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    const list = ANSWERS.sessions.parse(await ask(view.url, '/v1/sessions'));
    erased = list.unopened.erased;
    if (erased === 1) expect(list.rows.map(({ session }) => session)).toEqual([kept.id]);
  }
  for (const path of [`sessions/${gone.id}`, `decisions/${entryId(decided)}/explain`, `decisions?session=${gone.id}`])
    expect([path, ...(await refusal(view.url, `/v1/${path}`))]).toEqual([path, 410, 'sealed']);
  const { rows } = await ask<Rows<DecisionRow>>(view.url, '/v1/decisions?limit=1000');
  expect(new Set(rows.map(({ session }) => session))).toEqual(new Set([kept.id]));
  expect(JSON.stringify([await ask(view.url, '/v1/memory'), await ask(view.url, '/v1/quality')])).not.toContain(
    gone.id,
  );
  // Whoever opens the view afterwards is told the same.
  await using later = await serve(dir, { port: 0 });
  expect(await refusal(later.url, `/v1/sessions/${gone.id}`)).toEqual([410, 'sealed']);
});

describe('a log that is damaged', () => {
  test('is said to be so by every answer that rests on it', async () => {
    const dir = join(folder(), 'damaged');
    const log = await openWitnessLog({ dir: logDir(dir) });
    for (let n = 0; n < 5; n++) log.append('s', 'note', { n });
    await log.close();
    await using view = await serve(dir, { port: 0 });
    expect((await ask<Rows<SessionRow>>(view.url, '/v1/sessions')).rows).toEqual([]);
    // A whole entry that continues nothing: no crash leaves this.
    appendFileSync(join(logDir(dir), '00000000.wal'), Buffer.alloc(600, 'x'));
    for (;;) {
      const [status, code] = await fetch(`${view.url}/v1/sessions`).then(async (response) => [
        response.status,
        ((await response.json()) as { error?: { code: string } }).error?.code,
      ]);
      if (status === 200) {
        // The files are looked at some times a second.
        await new Promise((resolve) => setTimeout(resolve, 50));
        continue;
      }
      expect([status, code]).toEqual([500, 'bad-log']);
      break;
    }
    expect(await refusal(view.url, '/metrics')).toEqual([500, 'bad-log']);
    const { report } = ANSWERS.verification.parse(await ask(view.url, '/v1/verify'));
    expect(report.ok).toBe(false);
  });

  test('or is not there is refused at once', async () => {
    expect(await codeOf(serve(folder(), { port: 0 }))).toBe('not-found');
  });
});
