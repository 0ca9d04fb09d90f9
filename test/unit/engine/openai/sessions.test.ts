// Conversations that a server holds: listed to those whose they are, parked and brought back, forked and ended, and
// gone on with by their id.
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createEngine, type Engine, type LiveView, parkedSessions, serve } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog } from '../../../../witness/index.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-held-'));
const [ANN, BOB, ALL] = ['key-of-ann-0000000', 'key-of-bob-0000000', 'key-of-all-0000000'];
const sha256 = (key: string): string => createHash('sha256').update(key).digest('hex');
let engine: Engine;
let view: LiveView;
beforeAll(async () => {
  engine = await createEngine({ model: 'reference', threads: 1, stateDir: dir, kvBudget: 2 ** 26 });
  const keys = [
    { name: 'ann', sha256: sha256(ANN) },
    { name: 'bob', sha256: sha256(BOB) },
    { name: 'all', sha256: sha256(ALL), sees: 'all' as const },
    { name: 'quiet', sha256: sha256('key-of-quiet-00000'), logged: false },
    {
      name: 'ruled',
      sha256: sha256('key-of-ruled-00000'),
      logRules: [{ action: 'mask' as const, path: 'model.name', kinds: ['open' as const] }],
    },
  ];
  view = await serve(engine, { port: 0, keys, requestsPerSecond: 10_000, answers: { conversationsMax: 4 } });
});
afterAll(async () => {
  await view.close();
  await engine.close();
  rmSync(dir, { recursive: true });
});

interface Held {
  readonly id: string;
  readonly state: string;
  readonly tokens: number;
}
interface Answered {
  readonly text: string;
  readonly session: string;
  readonly read: number;
}
const post = async (path: string, body: object, key: string = ANN): Promise<{ status: number; told: never }> => {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}` };
  const response = await fetch(view.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, told: (await response.json()) as never };
};
const held = async (key: string = ANN): Promise<readonly Held[]> => {
  const response = await fetch(`${view.url}/v1/sessions/held`, { headers: { authorization: `Bearer ${key}` } });
  return ((await response.json()) as { data: readonly Held[] }).data;
};
const act = async (id: string, what: string, key: string = ANN): Promise<Held> =>
  (await post(`/v1/sessions/${id}/${what}`, {}, key)).told;
const statusOf = async (id: string, what: string, key: string = ANN): Promise<number> =>
  (await post(`/v1/sessions/${id}/${what}`, {}, key)).status;

type Message = { role: string; content: string };
const LONG = 'The keeper counted the hives along the wall, and went home. '.repeat(30);
async function say(messages: readonly Message[], more: object = {}, key: string = ANN): Promise<Answered> {
  const body = { messages, max_tokens: 8, seed: 5, ...more };
  const { told } = await post('/v1/chat/completions', body, key);
  const { choices, palimpsest, timings } = told as {
    choices: [{ message: { content: string } }];
    palimpsest: { session: string };
    timings: { prompt_n: number };
  };
  return { text: choices[0].message.content, session: palimpsest.session, read: timings.prompt_n };
}

it('are told to their owner and to who sees all, and nobody else can do anything with them', async () => {
  const { session } = await say([{ role: 'user', content: `${LONG}Who?` }]);
  const [own] = await held();
  expect(own).toMatchObject({ id: session, state: 'idle', effective_bits: expect.any(Number) });
  expect(own!.tokens).toBeGreaterThan(300);
  expect((await held(ALL)).map(({ id }) => id)).toContain(session);
  expect((await held(BOB)).map(({ id }) => id)).not.toContain(session);
  for (const what of ['park', 'fork', 'delete', 'resume']) expect(await statusOf(session, what, BOB)).toBe(404);
  expect(await statusOf(session, 'delete')).toBe(200);
  expect((await held()).map(({ id }) => id)).not.toContain(session);
  expect(await statusOf(session, 'delete')).toBe(404);
});

it('are forked, and each goes on by its id as the conversation would have gone on', async () => {
  const first: Message[] = [{ role: 'user', content: `${LONG}What?` }];
  const begun = await say(first);
  const fork = await act(begun.session, 'fork');
  expect(fork.id).not.toBe(begun.session);
  const next = [...first, { role: 'assistant', content: begun.text }, { role: 'user', content: 'And then?' }];
  const [one, other] = [await say(next), await say(next, { session: fork.id })];
  expect([other.session, other.text, other.read]).toEqual([fork.id, one.text, one.read]);
  expect(one.session).toBe(begun.session);
  // The other conversation is not what it has read.
  const wrong = { messages: [{ role: 'user', content: 'Something else' }], session: fork.id };
  const refused = await post('/v1/chat/completions', wrong);
  expect([refused.status, refused.told]).toMatchObject([400, { error: { param: 'session' } }]);
  const foreign = await post('/v1/chat/completions', { messages: next, session: fork.id }, BOB);
  expect([foreign.status, foreign.told]).toMatchObject([404, { error: { param: 'session' } }]);
  const again = [...next, { role: 'assistant', content: other.text }, { role: 'user', content: 'So?' }];
  expect((await say(again, { session: fork.id })).read).toBeLessThan(60);
  for (const id of [fork.id, begun.session]) expect(await statusOf(id, 'delete')).toBe(200);
});

it('are parked, come back with all that they have read, and are ended where they are', async () => {
  const first: Message[] = [{ role: 'user', content: `${LONG}Where?` }];
  const begun = await say(first);
  expect(await act(begun.session, 'park')).toMatchObject({ id: begun.session, state: 'parked' });
  expect(parkedSessions(dir).map(({ session }) => session)).toEqual([begun.session]);
  expect(await held()).toMatchObject([{ id: begun.session, state: 'parked' }]);
  const back = await act(begun.session, 'resume');
  expect([back.state, back.id === begun.session]).toEqual(['idle', false]);
  const next = [...first, { role: 'assistant', content: begun.text }, { role: 'user', content: 'And then?' }];
  const after = await say(next, { session: back.id });
  expect([after.session, after.read < 60]).toEqual([back.id, true]);
  // One that is parked comes back by itself for who goes on with it.
  await act(back.id, 'park');
  const more = [...next, { role: 'assistant', content: after.text }, { role: 'user', content: 'So?' }];
  const last = await say(more, { session: back.id });
  expect(last.read).toBeLessThan(60);
  await act(last.session, 'park');
  expect(await statusOf(last.session, 'delete')).toBe(200);
  expect(await held()).toEqual([]);
  expect(parkedSessions(dir)).toEqual([]);
});

it('are no more than the server holds, those that nobody named first', async () => {
  const first: Message[] = [{ role: 'user', content: 'Hello' }];
  const { session } = await say(first);
  const forks = [await act(session, 'fork'), await act(session, 'fork')];
  for (const content of ['One?', 'Two?', 'Three?']) await say([{ role: 'user', content }]);
  const all = (await held()).map(({ id }) => id);
  expect(all.length).toBe(4);
  for (const { id } of forks) expect(all).toContain(id);
});

it('lie in no more files than there are places in memory, and those that lie there longest leave', async () => {
  const parked: string[] = [];
  for (let n = 0; n < 6; n++) {
    const { session } = await say([{ role: 'user', content: `Number ${n}?` }]);
    expect(await act(session, 'park')).toMatchObject({ state: 'parked' });
    parked.push(session);
  }
  const left = parked.slice(-4).sort();
  const lying = (await held()).filter(({ state }) => state === 'parked');
  expect(lying.map(({ id }) => id).sort()).toEqual(left);
  const inFiles = parkedSessions(dir).map(({ session }) => session);
  expect(new Set(inFiles)).toEqual(new Set(left));
  expect(await statusOf(parked[0]!, 'resume')).toBe(404);
  for (const id of left) expect(await statusOf(id, 'delete')).toBe(200);
});

it('are in the log as the key of their owner says', async () => {
  const asked = [{ role: 'user', content: 'Wax?' }];
  const [own, ruled, quiet] = [
    await say(asked),
    await say(asked, {}, 'key-of-ruled-00000'),
    await say(asked, {}, 'key-of-quiet-00000'),
  ];
  // A conversation that goes on from a file is as its key says as well.
  await act(quiet.session, 'park', 'key-of-quiet-00000');
  const back = await act(quiet.session, 'resume', 'key-of-quiet-00000');
  expect(back.id).not.toBe(quiet.session);
  const opened = new Map<string, unknown>();
  await expect
    .poll(() => {
      for (const entry of readLog(logDir(dir), { kinds: ['open'] })) opened.set(entry.session, entry.body);
      return [own, ruled].every(({ session }) => opened.has(session));
    })
    .toBe(true);
  expect(opened.get(own.session)).toMatchObject({ model: { name: 'reference' } });
  expect(opened.get(ruled.session)).toMatchObject({ model: { name: '***' } });
  expect(opened.has(quiet.session) || opened.has(back.id)).toBe(false);
});
