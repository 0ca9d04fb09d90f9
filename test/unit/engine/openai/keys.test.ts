// Keys of many people on one server: who may ask, what each is told of, and that nobody learns by the cache what
// another has asked.
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { sessionAsked } from '../../../../engine/openai/asked.ts';
import { KeyMetrics } from '../../../../engine/serve/key-metrics.ts';
import { KEY_FIELDS, readKeys } from '../../../../engine/serve/keys.ts';
import { refusal as thrown } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { type MetricFamily, parseExposition } from '../serve/exposition.ts';
import { type Served, withServer } from './served.ts';

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const KEYS = [
  { name: 'ann', sha256: sha256('key-of-ann'), sees: 'answers', priority: 0, weight: 1 },
  { name: 'bob', sha256: sha256('key-of-bob'), sees: 'answers', priority: 2, weight: 1 },
  { name: 'eve', sha256: sha256('key-of-eve'), sees: 'answers', priority: 0, weight: 1, requestsPerSecond: 0.5 },
  { name: 'dan', sha256: sha256('key-of-dan'), sees: 'all', priority: 0, weight: 1, requestsMax: 1, streamsMax: 2 },
  { name: 'fay', sha256: sha256('key-of-fay'), sees: 'answers', priority: 0, weight: 1, kvBudget: 500_000 },
  { name: 'root', sha256: sha256('key-of-root'), sees: 'all', priority: 0, weight: 1 },
] as const;

let served: Served;
withServer(
  (one) => {
    served = one;
  },
  {},
  { keys: KEYS },
);
const folder = scratchFolders();

const as = (name: string): Record<string, string> => ({ authorization: `Bearer key-of-${name}` });
const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
  fetch(served.url + path, { headers });
const post = (path: string, body: object, headers: Record<string, string>): Promise<Response> =>
  fetch(served.url + path, {
    method: 'POST',
    body: JSON.stringify(body),
    headers: { 'content-type': 'application/json', ...headers },
  });

test('only those who have a key are answered, and only those who see all are told of others', async () => {
  for (const [name, path, status] of [
    ['nobody', '/', 200],
    ['nobody', '/v1/live', 401],
    ['ann', '/v1/sessions/some-id', 403],
    ['ann', '/v1/decisions', 403],
    ['nobody', '/v1/models', 401],
    ['ann', '/v1/models', 200],
    ['ann', '/health', 200],
    ['nobody', '/health', 200],
    ['ann', '/metrics', 200],
    ['nobody', '/metrics', 401],
    ['ann', '/openapi.json', 403],
    ['ann', '/v1/sessions', 403],
    ['ann', '/v1/decisions/stream', 403],
    ['root', '/metrics', 200],
  ] as const)
    expect([name, path, (await get(path, as(name))).status]).toEqual([name, path, status]);
  expect((await get('/v1/models', { 'x-api-key': 'key-of-bob' })).status).toBe(200);
  expect((await get('/v1/models')).status).toBe(401);
});

test('nobody finds in the cache what another has read', async () => {
  const content = 'The keeper counted the hives along the wall. '.repeat(30);
  const asked = async (name: string): Promise<number> => {
    const answer = await post(
      '/v1/chat/completions',
      { messages: [{ role: 'user', content }], max_tokens: 2 },
      as(name),
    );
    const { usage } = (await answer.json()) as { usage: { prompt_tokens_details: { cached_tokens: number } } };
    return usage.prompt_tokens_details.cached_tokens;
  };
  expect(await asked('ann')).toBe(0);
  expect(await asked('bob')).toBe(0);
  expect(await asked('ann')).toBeGreaterThan(200);
  expect(await asked('bob')).toBeGreaterThan(200);
});

const familiesOf = async (name: string): Promise<readonly MetricFamily[]> =>
  parseExposition(await (await get('/metrics', as(name))).text());
const sampleOf = (families: readonly MetricFamily[], name: string, labels: Record<string, string>): number =>
  families
    .find((family) => family.name === `palimpsest_key_${name}`)!
    .samples.find((sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value))!.value;

test('a key is told what its own requests came to and nothing of others, who sees all of every key', async () => {
  const before = await familiesOf('bob');
  const content = 'What do bees gather? '.repeat(9);
  const chat = { messages: [{ role: 'user', content }], max_tokens: 5 };
  const text = { prompt: content, max_tokens: 3, n: 2 };
  let [read, cached, written] = [0, 0, 0];
  for (const [path, body] of [
    ['/v1/chat/completions', chat],
    ['/v1/chat/completions', chat],
    ['/v1/completions', text],
  ] as const) {
    const { usage } = (await (await post(path, body, as('bob'))).json()) as {
      usage: {
        prompt_tokens: number;
        completion_tokens: number;
        prompt_tokens_details: { cached_tokens: number };
      };
    };
    cached += usage.prompt_tokens_details.cached_tokens;
    read += usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens;
    written += usage.completion_tokens;
  }
  expect((await post('/v1/chat/completions', { messages: [] }, as('bob'))).status).toBe(400);
  const after = await familiesOf('bob');
  const since = (name: string, labels: Record<string, string> = { key: 'bob' }): number =>
    sampleOf(after, name, labels) - sampleOf(before, name, labels);
  expect(since('prompt_tokens_total')).toBe(read);
  expect(since('cached_tokens_total')).toBe(cached);
  expect(since('generation_tokens_total')).toBe(written);
  expect(since('requests_total', { key: 'bob', outcome: 'refused' })).toBe(1);
  // The scrape before among them.
  expect(since('requests_total', { key: 'bob', outcome: 'answered' })).toBe(4);
  expect(sampleOf(after, 'requests_running', { key: 'bob' })).toBe(1);
  const { data } = (await (await get('/v1/sessions/held', as('bob'))).json()) as { data: { kv_bytes: number }[] };
  expect(sampleOf(after, 'kv_bytes', { key: 'bob' })).toBe(data.reduce((sum, { kv_bytes }) => sum + kv_bytes, 0));

  for (const { name, samples } of after) {
    expect(name).toMatch(/^palimpsest_key_/);
    for (const { labels } of samples) expect(labels['key']).toBe('bob');
  }
  const all = await familiesOf('root');
  expect(all.map(({ name }) => name)).toContain('palimpsest_kv_bytes');
  for (const { name } of KEYS) expect(sampleOf(all, 'requests_running', { key: name })).toBe(name === 'root' ? 1 : 0);
  expect(sampleOf(all, 'generation_tokens_total', { key: 'bob' })).toBe(
    sampleOf(after, 'generation_tokens_total', { key: 'bob' }),
  );
});

test('a name of a key is a label whatever is in it', () => {
  const name = 'a "key"\\ of\nann';
  const metrics = new KeyMetrics([name, 'bob']);
  metrics.began(name)(null);
  const [requests] = parseExposition(metrics.text(new Map(), name));
  expect(requests!.samples.find(({ labels }) => labels['outcome'] === 'left')).toMatchObject({
    labels: { key: name },
    value: 1,
  });
});

test('a response is that of the key it was asked with', async () => {
  const { id } = (await (await post('/v1/responses', { input: 'Wax?', max_output_tokens: 2 }, as('ann'))).json()) as {
    id: string;
  };
  expect((await get(`/v1/responses/${id}`, as('bob'))).status).toBe(404);
  expect((await post('/v1/responses', { input: 'x', previous_response_id: id }, as('bob'))).status).toBe(404);
  const compared = { input: 'Wax?', max_output_tokens: 2, prompt_cache_options: { comparison_response_id: id } };
  const told = (await (await post('/v1/responses', compared, as('bob'))).json()) as Record<string, unknown>;
  expect(told['prompt_cache_diagnostics']).toEqual({ type: 'comparison_response_not_found' });
  const remove = (name: string): Promise<Response> =>
    fetch(`${served.url}/v1/responses/${id}`, { method: 'DELETE', headers: as(name) });
  expect((await remove('bob')).status).toBe(404);
  expect((await remove('ann')).status).toBe(200);
});

test('a key has a rate of its own', async () => {
  const answers = [await get('/v1/models', as('eve')), await get('/v1/models', as('eve'))];
  expect(answers.map(({ status }) => status)).toEqual([200, 429]);
  expect(Number(answers[1]!.headers.get('retry-after'))).toBeGreaterThan(0);
  expect((await get('/v1/models', as('ann'))).status).toBe(200);
});

/** An answer by events that has begun; abort ends it. */
async function streamed(name: string, path: string, body: object | null): Promise<AbortController> {
  const leaving = new AbortController();
  const response = await fetch(served.url + path, {
    ...(body === null ? {} : { method: 'POST', body: JSON.stringify(body) }),
    headers: { 'content-type': 'application/json', ...as(name) },
    signal: leaving.signal,
  });
  expect(response.status).toBe(200);
  await response.body!.getReader().read();
  return leaving;
}

test('a key has so many requests at one time, whatever others have', async () => {
  const asked = { messages: [{ role: 'user', content: 'Wax?' }], max_tokens: 1500, stream: true };
  const leaving = await streamed('dan', '/v1/chat/completions', asked);
  const refused = await post('/v1/chat/completions', { ...asked, stream: false, max_tokens: 1 }, as('dan'));
  expect(refused.status).toBe(429);
  expect(refused.headers.get('retry-after')).toBe('1');
  expect(await refused.json()).toMatchObject({ error: { code: 'busy', values: { requestsMax: 1 } } });
  expect((await post('/tokenize', { content: 'wax' }, as('ann'))).status).toBe(200);
  leaving.abort();
  await expect.poll(async () => (await post('/tokenize', { content: 'wax' }, as('dan'))).status).toBe(200);
});

test('a key has so many places of a stream, and others have theirs', async () => {
  const held = [await streamed('dan', '/v1/live', null), await streamed('dan', '/v1/live', null)];
  const refused = await get('/v1/live', as('dan'));
  expect(refused.status).toBe(503);
  expect(await refused.json()).toMatchObject({ error: { code: 'busy', values: { streamsMax: 2 } } });
  held.push(await streamed('root', '/v1/live', null));
  held.shift()!.abort();
  await expect
    .poll(async () => {
      const leaving = new AbortController();
      const { status } = await fetch(`${served.url}/v1/live`, { headers: as('dan'), signal: leaving.signal });
      leaving.abort();
      return status;
    })
    .toBe(200);
  for (const one of held) one.abort();
});

test('what the conversations of a key hold is bounded: 413 for what never fits, and it goes on with less', async () => {
  const asked = (words: number): object => ({
    messages: [{ role: 'user', content: 'bees '.repeat(words) }],
    max_tokens: 4,
  });
  const never = await post('/v1/chat/completions', asked(1500), as('fay'));
  expect(never.status).toBe(413);
  expect(await never.json()).toMatchObject({
    error: { code: 'budget-too-small', values: { kvGroup: 'fay', budgetBytes: 500_000 } },
  });
  for (const words of [100, 120, 140])
    expect((await post('/v1/chat/completions', asked(words), as('fay'))).status).toBe(200);
  const { data } = (await (await get('/v1/sessions/held', as('fay'))).json()) as { data: { kv_bytes: number }[] };
  expect(data).toHaveLength(3);
  expect(data.reduce((sum, { kv_bytes }) => sum + kv_bytes, 0)).toBeLessThanOrEqual(500_000);
  expect((await post('/v1/chat/completions', asked(1500), as('ann'))).status).toBe(200);
});

test('a request begins no earlier than its key has it', () => {
  const asker = { salt: 'bob', priority: 2, weight: 3 };
  const priorityOf = (priority?: number): unknown =>
    sessionAsked(priority === undefined ? {} : { priority }, asker).schedulingPriority;
  expect([priorityOf(), priorityOf(-5), priorityOf(7)]).toEqual([2, 2, 7]);
  expect(sessionAsked({}, asker)).toMatchObject({ schedulingWeight: 3 });
});

test.each<[string, string, string]>([
  ['no TOML', 'keys.toml', '[[keys'],
  ['no keys', 'keys.toml', 'a = 1'],
  ['an empty list', 'keys.json', '{"keys": []}'],
  ['a key itself', 'keys.json', '{"keys": [{"name": "ann", "key": "secret"}]}'],
  ['no hash', 'keys.toml', '[[keys]]\nname = "ann"\nsha256 = "abc"'],
  ['a budget that is none', 'keys.toml', `[[keys]]\nname = "ann"\nsha256 = "${sha256('x')}"\nkvBudget = "much"`],
  ['no rules', 'keys.json', `{"keys": [{"name": "a", "sha256": "${sha256('x')}", "logRules": [{"action": "mask"}]}]}`],
  ['a misspelt field', 'keys.toml', `[[keys]]\nname = "ann"\nsha256 = "${sha256('x')}"\nsee = "all"`],
])('a file with %s is refused', (_, name, text) => {
  const path = join(folder(), name);
  writeFileSync(path, text);
  expect(thrown(() => readKeys(path)).code).toBe('bad-config');
});

test('a file has keys, with defaults', () => {
  const path = join(folder(), 'keys.toml');
  writeFileSync(path, `[[keys]]\nname = "ann"\nsha256 = "${sha256('x')}"\n`);
  expect(readKeys(path)).toEqual([
    {
      ...{ name: 'ann', sha256: sha256('x'), sees: 'answers', priority: 0, weight: 1 },
      ...{ streamsMax: 4, logged: true },
    },
  ]);
});

test('the guide has each field of a key as its file is checked', () => {
  const guide = readFileSync(join(import.meta.dirname, '..', '..', '..', '..', 'docs', 'openai.md'), 'utf8');
  for (const { name, means, default: left } of KEY_FIELDS)
    expect(guide).toContain(`| \`${name}\` | ${means} | ${left === undefined ? '' : `\`${left}\``} |`);
});
