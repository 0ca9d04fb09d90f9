// Memory that is too small: of a server, which then does not begin, and of a key, whose requests are refused while its
// own conversations keep theirs.
import { createHash } from 'node:crypto';
import { afterEach, expect, test } from 'vitest';
import { createEngine, type Engine, type EngineOptions, type LiveView, serve } from '../../../../engine/index.ts';
import { refused } from '../../../refusal.ts';

const open: { close(): Promise<void> }[] = [];
afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

async function engineWith(options: Omit<EngineOptions, 'model'>): Promise<Engine> {
  const engine = await createEngine({ model: 'reference', threads: 1, stateDir: null, ...options });
  open.push(engine);
  return engine;
}

async function served(engine: Engine, kvBudget?: string): Promise<LiveView> {
  const sha256 = createHash('sha256').update('key-of-ann').digest('hex');
  const keys = kvBudget === undefined ? {} : { keys: [{ name: 'ann', sha256, kvBudget }] };
  const view = await serve(engine, { port: 0, answers: {}, ...keys });
  open.push(view);
  return view;
}

const ask = ({ url }: LiveView, content: string, maxTokens: number): Promise<Response> =>
  fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: maxTokens }),
    headers: { 'content-type': 'application/json', authorization: 'Bearer key-of-ann' },
  });

test('a server whose memory holds no conversation does not begin, and says what would do', async () => {
  const error = await refused(served(await engineWith({ kvBudget: 1024 })));
  expect(error).toMatchObject({ code: 'budget-too-small', values: { budgetBytes: 1024 } });
  const neededBytes = error.values['neededBytes'] as number;
  const view = await served(await engineWith({ kvBudget: neededBytes }));
  const answer = await ask(view, 'Wax?', 4);
  expect([answer.status, await answer.json()]).toMatchObject([200, { usage: { completion_tokens: 4 } }]);
});

test('what the conversations of a key keep is 429 to its next one, until one of them is gone', async () => {
  const view = await served(await engineWith({ kvBudget: 2 ** 24, idleSessions: 'keep' }), '500KiB');
  const first = await ask(view, 'bees '.repeat(120), 8);
  expect(first.status).toBe(200);
  const refusal = await ask(view, 'wasps '.repeat(120), 8);
  expect([refusal.status, refusal.headers.get('retry-after')]).toEqual([429, '1']);
  expect(await refusal.json()).toMatchObject({
    error: { type: 'rate_limit_error', code: 'budget-exceeded', values: { kvGroup: 'ann', budgetBytes: 500 * 1024 } },
  });
  const session = first.headers.get('x-palimpsest-session')!;
  const removed = await fetch(`${view.url}/v1/sessions/${session}/delete`, {
    method: 'POST',
    body: '{}',
    headers: { 'content-type': 'application/json', authorization: 'Bearer key-of-ann' },
  });
  expect(removed.status).toBe(200);
  expect((await ask(view, 'wasps '.repeat(120), 8)).status).toBe(200);
});
