// A server of several models: lists all, answers from the one that a request names in any of its APIs, keeps their
// conversations apart, and refuses names that nobody has.
import { afterAll, beforeAll, expect, it, vi } from 'vitest';
import { createRuntime, type Engine, type EngineRuntime, type LiveView, serve } from '../../../../engine/index.ts';
import { LogReader } from '../../../../engine/serve/reader.ts';
import { hfFiles, readFamily } from '../../../model/family-files.ts';
import { refused } from '../../../refusal.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const models = temporaryFolder();
let runtime: EngineRuntime;
let engines: readonly [Engine, Engine];
let view: LiveView;
beforeAll(async () => {
  let folder = '';
  for (const [file, content] of Object.entries(hfFiles(readFamily('llama'))))
    folder = models.write(`small-llama/${file}`, content).replace(/[\\/][^\\/]*$/, '');
  runtime = await createRuntime({ stateDir: null, kvBudget: 2 ** 24 });
  const open = (model: string): Promise<Engine> => runtime.openEngine({ model, threads: 1 });
  engines = [await open('reference'), await open(folder)];
  view = await serve(runtime, { port: 0, requestsPerSecond: 10_000, answers: {} });
});
afterAll(async () => {
  await view.close();
  await runtime.close();
  models.remove();
});

// biome-ignore lint/suspicious/noExplicitAny: answers are looked into
async function ask(path: string, body?: object): Promise<{ status: number; json: any }> {
  const headers = { 'content-type': 'application/json' };
  const sent = body === undefined ? {} : { method: 'POST', headers, body: JSON.stringify(body) };
  const response = await fetch(view.url + path, sent);
  return { status: response.status, json: await response.json() };
}

/** The folder of the second model, by which it may be asked for, and what it is called. */
const FOLDER = 'small-llama';
const other = (): string => engines[1].info.name;

it('lists all of them, in OpenAI’s API and in Ollama’s', async () => {
  const { data } = (await ask('/v1/models')).json;
  expect(data.map(({ id }: { id: string }) => id)).toEqual(['reference', other()]);
  const digests = engines.map(({ info }) => info.digest);
  expect(data.map(({ meta }: { meta: { digest: string } }) => meta.digest)).toEqual(digests);
  expect((await ask(`/v1/models/${FOLDER}`)).json.meta.n_vocab).toBe(256);
  const tags = (await ask('/api/tags')).json.models;
  expect(tags.map(({ name }: { name: string }) => name)).toEqual(['reference', other()]);
});

it.each([
  ['reference', 0],
  [FOLDER, 1],
  [undefined, 0],
] as const)('answers a request for %s from model %d', async (asked, which) => {
  const prompt = 'hello hello hell';
  const more = asked === undefined ? {} : { model: asked };
  const { json } = await ask('/v1/completions', { prompt, max_tokens: 8, temperature: 0, ...more });
  const session = await engines[which].openSession();
  const { text } = await session.generate(prompt, { maxTokens: 8, temperature: 0 }).result;
  await session.close();
  expect([json.model, json.choices[0].text]).toEqual([engines[which].info.name, text]);
  const { tokens } = (await ask('/tokenize', { content: prompt, ...more })).json;
  expect(tokens).toEqual(await engines[which].tokenize(prompt, 1000, false));
  const { data } = (await ask('/v1/embeddings', { input: prompt, ...more })).json;
  expect(data[0].embedding).toHaveLength(engines[which].info.config.hiddenSize);
});

it('finds a conversation wherever it is held', async () => {
  const messages = [{ role: 'user', content: 'Who kept the bees?' }];
  const asked = { model: 'reference', messages, max_tokens: 4 };
  expect((await ask('/v1/chat/completions', asked)).status).toBe(200);
  const { data } = (await ask('/v1/sessions/held')).json;
  expect(data).toHaveLength(1);
  const forked = await ask(`/v1/sessions/${data[0].id}/fork`, {});
  expect(forked.status).toBe(200);
  expect((await ask(`/v1/sessions/${forked.json.id}/delete`, {})).json.deleted).toBe(true);
  expect((await ask('/v1/sessions/none/fork', {})).status).toBe(404);
});

it('refuses a name that no model has, with the names that there are', async () => {
  for (const [path, body] of [
    ['/v1/completions', { prompt: 'a', model: 'gpt-4' }],
    ['/v1/models/gpt-4', undefined],
    ['/api/show', { model: 'gpt-4' }],
    ['/v1/messages/count_tokens', { model: 'gpt-4', messages: [{ role: 'user', content: 'a' }] }],
  ] as const) {
    const { status, json } = await ask(path, body);
    expect([path, status]).toEqual([path, 404]);
    expect(JSON.stringify(json)).toContain('gpt-4 is not served here');
  }
  const { error } = (await ask('/v1/completions', { prompt: 'a', model: 'gpt-4' })).json;
  expect(error).toMatchObject({ param: 'model', values: { served: ['reference', other()] } });
});

it('is refused where names would not tell models apart, or one name were for two', async () => {
  const { code } = await refused(serve(runtime, { port: 0, answers: { modelName: 'mine' } }));
  expect(code).toBe('bad-argument');
  const twin = await runtime.openEngine({ model: 'reference', threads: 1 });
  expect((await refused(serve(runtime, { port: 0, answers: {} }))).message).toContain('have one name');
  await twin.close();
  expect(runtime.engines).toEqual(engines);
  const empty = await createRuntime({ stateDir: null });
  expect((await refused(serve(empty, { port: 0 }))).code).toBe('bad-argument');
  await empty.close();
});

it('refuses two of one name, and leaves no thread that reads their log', async () => {
  const twice = await createRuntime({
    stateDir: models.write('state/.keep', '').replace(/[\\/]\.keep$/, ''),
    kvBudget: 2 ** 24,
  });
  const close = vi.spyOn(LogReader.prototype, 'close');
  try {
    for (let n = 0; n < 2; n++) await twice.openEngine({ model: 'reference', threads: 1 });
    await expect(serve(twice, { port: 0, answers: {} })).rejects.toMatchObject({ code: 'bad-argument' });
    expect(close).toHaveBeenCalled();
  } finally {
    close.mockRestore();
    await twice.close();
  }
});
