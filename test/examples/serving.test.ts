// Small programs that serve and share (examples/server.ts, rag.ts, agent.ts), run as they are on the reference model.
import { expect, it } from 'vitest';
import { run as runAgent } from '../../examples/agent.ts';
import { run as runRag } from '../../examples/rag.ts';
import { run as runServer } from '../../examples/server.ts';

it('a server of one file goes on with the conversation that a cookie names', async () => {
  const { url, close } = await runServer('reference', 0);
  const ask = (body: string, cookie: string) => fetch(url, { method: 'POST', body, headers: { cookie } });
  const first = await ask('What is honey?', 'name=ann');
  expect([first.status, first.headers.get('set-cookie')]).toEqual([200, 'name=ann']);
  expect((await first.text()).length).toBeGreaterThan(0);
  const answers = await Promise.all(['ann', 'bob'].map((name) => ask('And wax?', `name=${name}`)));
  for (const answer of answers) expect((await answer.text()).length).toBeGreaterThan(0);
  expect((await ask('word '.repeat(6000), 'name=ann')).status).toBe(400);
  await close();
});

it('questions about the same documents read them once', async () => {
  const [first, ...later] = await runRag('reference', () => {});
  expect(first!.cachedTokens).toBe(0);
  for (const { cachedTokens, promptTokens } of later) expect(cachedTokens).toBeGreaterThan(0.8 * promptTokens);
});

it('an agent calls tools for 20 turns in a budget that its memory does not leave', async () => {
  const { turns, budgetBytes } = await runAgent('reference', () => {});
  expect(turns).toHaveLength(20);
  for (const { kvBytes, calls } of turns) {
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes);
    expect(calls).toBe(1);
  }
  // What was said before is not read again, but where the oldest turns gave way.
  expect(turns.filter(({ cachedTokens }) => cachedTokens > 0).length).toBeGreaterThan(10);
});
