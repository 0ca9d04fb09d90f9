// A server whose store goes away and comes back: it answers all the same, and says so.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../../suite/postgres-server.ts';

describe.skipIf(!HAS_POSTGRES)('PostgreSQL that is stopped (needs PostgreSQL 15 or later)', () => {
  let postgres: PostgresProcess;
  let engine: Engine;
  let view: LiveView;
  beforeAll(async () => {
    postgres = await PostgresProcess.start();
    engine = await createEngine({ model: 'reference', threads: 1, stateDir: null, kvBudget: 2 ** 26 });
    view = await serve(engine, { port: 0, answers: { store: postgres.url } });
  });
  afterAll(async () => {
    await view.close();
    await engine.close();
    await postgres.remove();
  });
  const chat = async (content: string): Promise<number> => {
    const body = JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: 2 });
    const headers = { 'content-type': 'application/json' };
    return (await fetch(`${view.url}/v1/chat/completions`, { method: 'POST', body, headers })).status;
  };
  const health = async (): Promise<{ status: string; store?: Record<string, string> }> => {
    const response = await fetch(`${view.url}/health`);
    expect(response.status).toBe(200);
    return (await response.json()) as never;
  };
  const failures = async (call: string): Promise<number> => {
    const text = await (await fetch(`${view.url}/metrics`)).text();
    return Number(new RegExp(`store_failures_total\\{call="${call}"\\} (\\d+)`).exec(text)![1]);
  };

  test('conversations are answered, and the server is degraded until it is back', async () => {
    expect(await chat('Wax?')).toBe(200);
    expect(await health()).toEqual({ status: 'ok' });
    expect(await failures('put')).toBe(0);
    await postgres.kill();
    expect(await chat('Honey?')).toBe(200);
    await expect.poll(async () => (await health()).store?.['put'], { timeout: 60_000 }).toBe('database');
    expect(await health()).toEqual({ status: 'degraded', store: { put: 'database' } });
    expect(await failures('put')).toBeGreaterThan(0);
    // A response is acknowledged when it is stored.
    const body = JSON.stringify({ input: 'Wax?', max_output_tokens: 2 });
    const headers = { 'content-type': 'application/json' };
    expect((await fetch(`${view.url}/v1/responses`, { method: 'POST', body, headers })).status).toBe(500);
    await postgres.start();
    expect(await chat('Propolis?')).toBe(200);
    await expect.poll(async () => (await health()).status, { timeout: 60_000 }).toBe('ok');
  }, 120_000);
});
