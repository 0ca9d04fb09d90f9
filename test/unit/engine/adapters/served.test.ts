// Adapters over HTTP: a request names those that add to its answer, conversations with different ones are kept apart,
// and what cannot be is refused.
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { MODEL } from '../on-reference.ts';
import { temporaryFolder } from '../transformer/model-files.ts';
import { lowRank, matricesOf, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const folder = temporaryFolder();
let engine: Engine;
let view: LiveView;

beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, adapters: {}, kvBudget: '64MiB' });
  const matrices = matricesOf(engine.info.config);
  for (const [name, seed] of [
    ['tales', 1],
    ['letters', 2],
  ] as const) {
    const factors = lowRank(matrices, () => 8, seed, 0.4);
    await engine.adapters.add(name, writePeft(folder, name, peftConfig(), peftTensors(factors)));
  }
  const session = { adapters: [{ name: 'tales' }] };
  view = await serve(engine, { port: 0, answers: { session } });
});
afterAll(async () => {
  await view?.close();
  await engine?.close();
  folder.remove();
});

const QUESTION = 'Once upon a time there was an old house by the sea. '.repeat(24);
const SAMPLED = { seed: 3, temperature: 0.8 };

interface Answer {
  readonly status: number;
  readonly text: string | undefined;
  readonly cached: number | undefined;
  readonly param: string | undefined;
}

async function ask(more: object): Promise<Answer> {
  const response = await fetch(`${view.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      model: engine.info.name,
      messages: [{ role: 'user', content: QUESTION }],
      ...{ max_tokens: 12, ...SAMPLED },
      ...more,
    }),
  });
  const { choices, usage, error } = (await response.json()) as {
    choices?: readonly { message: { content: string } }[];
    usage?: { prompt_tokens_details?: { cached_tokens: number } };
    error?: { param: string };
  };
  return {
    status: response.status,
    text: choices?.[0]?.message.content,
    cached: usage?.prompt_tokens_details?.cached_tokens,
    param: error?.param,
  };
}

test('a request has those of the server, its own, or none', async () => {
  const asked = [
    {},
    { adapters: [{ name: 'letters' }] },
    { adapters: [] },
    { adapters: [{ name: 'tales', scale: 0.5 }] },
  ];
  const first: Answer[] = [];
  for (const more of asked) first.push(await ask(more));
  expect(first.map(({ status, cached }) => [status, cached])).toEqual(asked.map(() => [200, 0]));
  expect(new Set(first.map(({ text }) => text)).size).toBe(asked.length);
  // Again, in the other order: each goes on from its own pages, and answers as before.
  for (const [at, more] of [...asked.entries()].reverse()) {
    const again = await ask(more);
    expect(again.text).toBe(first[at]!.text);
    expect(again.cached).toBeGreaterThan(0);
  }
  expect((await ask({ adapters: [{ name: 'tales' }] })).text).toBe(first[0]!.text);
  expect((await ask({ adapters: [{ name: 'letters', scale: 0 }] })).text).toBe(first[2]!.text);
});

/** The same question in the words of other APIs: the text of each answer. */
const TEXTS: Readonly<Record<string, (adapters: readonly object[]) => Promise<unknown>>> = {
  responses: async (adapters) => {
    const { output } = await told('/v1/responses', { input: QUESTION, max_output_tokens: 12, ...SAMPLED, adapters });
    return output![0]!.content[0]!.text;
  },
  messages: async (adapters) => {
    const messages = [{ role: 'user', content: QUESTION }];
    return (await told('/v1/messages', { messages, max_tokens: 12, ...SAMPLED, adapters })).content![0]!.text;
  },
  'chats of Ollama': async (adapters) => {
    const messages = [{ role: 'user', content: QUESTION }];
    const options = { num_predict: 12, ...SAMPLED };
    return (await told('/api/chat', { messages, stream: false, options, adapters })).message!.content;
  },
};
interface Told {
  readonly output?: readonly { readonly content: readonly { readonly text: string }[] }[];
  readonly content?: readonly { readonly text: string }[];
  readonly message?: { readonly content: string };
}
async function told(path: string, asked: object): Promise<Told> {
  const headers = { 'content-type': 'application/json' };
  const body = JSON.stringify({ model: engine.info.name, ...asked });
  return (await fetch(view.url + path, { method: 'POST', headers, body })).json() as Promise<Told>;
}

test.each(Object.keys(TEXTS))('%s are answered with them as chats are', async (api) => {
  for (const adapters of [[], [{ name: 'letters' }]])
    expect(await TEXTS[api]!(adapters)).toBe((await ask({ adapters })).text);
});

test.each([
  [{ adapters: [{ name: 'nobody' }] }, 404],
  [{ adapters: [{ name: 'tales', scale: 1000 }] }, 400],
  [{ adapters: [{ name: 'tales' }, { name: 'tales' }] }, 400],
  [{ adapters: 'tales' }, 400],
])('%j is refused', async (more, status) => {
  expect(await ask(more)).toMatchObject({ status, text: undefined });
});
