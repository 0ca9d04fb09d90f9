// Receipts of answers that are streamed: real clients find one in the last event, the log proves it, and the engine
// writes the answer again.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AnswerReceipt, createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { CLIENTS, eventsIn } from './served.ts';

const stateDir = mkdtempSync(join(tmpdir(), 'palimpsest-streamed-receipts-'));
const model = 'reference';
const messages = [{ role: 'user' as const, content: 'What is honey made of?' }];
let engine: Engine;
let view: LiveView;

beforeAll(async () => {
  engine = await createEngine({ model, threads: 1, stateDir, kvBudget: '64MiB' });
  view = await serve(engine, { port: 0, answers: {} });
});
afterAll(async () => {
  await view?.close();
  await engine?.close();
});

/** That of the last of these events, which is the only one; proved, and run again. */
async function proves(events: readonly unknown[], tokens: number): Promise<void> {
  const found = events.map((event) => (event as { readonly palimpsest?: Partial<AnswerReceipt> }).palimpsest?.receipt);
  expect(found.map((receipt) => receipt !== undefined)).toEqual(events.map((_, at) => at === events.length - 1));
  const { request } = (events.at(-1) as { readonly palimpsest: AnswerReceipt }).palimpsest;
  const { again } = await engine.verifyReceipt(found.at(-1), { log: logDir(stateDir), request });
  expect(again.tokens).toBe(tokens);
}

async function all<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const events: T[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

describe.each(CLIENTS)('%s', (_, Client) => {
  const client = () => new Client({ baseURL: `${view.url}/v1`, apiKey: 'none' });

  test.each([true, false])('finds it in the last event of a chat and of a text, with usage: %s', async (usage) => {
    const stream_options = { include_usage: usage };
    const asked = { model, max_tokens: 6, seed: 2, stream: true, stream_options, receipt: true } as const;
    await proves(await all(await client().chat.completions.create({ ...asked, messages })), 6);
    await proves(await all(await client().completions.create({ ...asked, prompt: 'Honey is' })), 6);
  });

  test('finds it in the last event of a response', async () => {
    const asked = { model, input: 'What is wax?', max_output_tokens: 6, stream: true, receipt: true } as const;
    const events = await all(await client().responses.create(asked));
    await proves(
      events.map((event) => ('response' in event ? event.response : {})),
      6,
    );
  });
});

test('is before the end of a message of Anthropic', async () => {
  const body = JSON.stringify({ model, messages, max_tokens: 6, stream: true, receipt: true });
  const answer = await fetch(`${view.url}/v1/messages`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  });
  const events = eventsIn(await answer.text()).map((data): unknown => JSON.parse(data));
  expect(events.at(-1)).toEqual({ type: 'message_stop' });
  await proves(events.slice(0, -1), 6);
});
