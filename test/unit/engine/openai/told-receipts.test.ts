// A whole answer of a server with its receipt, by whichever API: its text is the one that the receipt is of, or it is
// refused. Somebody may pass on a true receipt beside a text that nobody wrote.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { toldText } from '../../../../engine/cli/told-text.ts';
import { verifyCommand } from '../../../../engine/cli/verify.ts';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';

const folder = mkdtempSync(join(tmpdir(), 'palimpsest-told-receipts-'));
const state = join(folder, 'state');
let engine: Engine;
let view: LiveView;
beforeAll(async () => {
  engine = await createEngine({ model: 'reference', threads: 1, stateDir: state, kvBudget: '64MiB' });
  view = await serve(engine, { port: 0, answers: {} });
});
afterAll(async () => {
  await view?.close();
  await engine?.close();
  rmSync(folder, { recursive: true });
});

const messages = [{ role: 'user', content: 'What is honey made of?' }];
const ASKED = {
  '/v1/chat/completions': { messages, max_tokens: 6 },
  '/v1/completions': { prompt: 'Honey is', max_tokens: 6 },
  '/v1/responses': { input: 'What is wax?', max_output_tokens: 6 },
  '/v1/messages': { messages, max_tokens: 6 },
};

async function verify(answer: object): Promise<string> {
  const path = join(folder, 'answer.json');
  writeFileSync(path, JSON.stringify(answer));
  const said: string[] = [];
  const spy = vi.spyOn(process.stdout, 'write').mockImplementation((text) => said.push(String(text)) > 0);
  try {
    await verifyCommand(path, { state });
    return said.join('');
  } finally {
    spy.mockRestore();
  }
}

test.each(Object.entries(ASKED))('%s', async (path, asked) => {
  const body = JSON.stringify({ ...asked, seed: 2, receipt: true });
  const response = await fetch(view.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body,
  });
  const answer = (await response.json()) as Record<string, unknown>;
  const text = toldText(answer)!;
  expect(text.length).toBeGreaterThan(2);
  expect(await verify(answer)).toContain('The receipt is what the log says');
  const quoted = JSON.stringify(text).slice(1, -1);
  const forged = JSON.parse(JSON.stringify(answer).replace(quoted, `no ${quoted}`)) as object;
  await expect(verify(forged)).rejects.toMatchObject({ code: 'bad-signature', message: /text of the answer/ });
  // The receipt by itself is sound.
  expect(await verify((forged as { readonly palimpsest: object }).palimpsest)).toContain('The receipt is what');
});

describe('the text of an answer', () => {
  test('is that of Ollama, too', () => {
    expect(toldText({ response: 'wax' })).toBe('wax');
    expect(toldText({ message: { role: 'assistant', content: 'wax' } })).toBe('wax');
  });

  test('is not told where tools are called, or where there is none', () => {
    expect(toldText({ choices: [{ message: { content: 'a', tool_calls: [{}] } }] })).toBeNull();
    expect(toldText({ content: [{ type: 'text', text: 'a' }, { type: 'tool_use' }] })).toBeNull();
    expect(toldText({ output: [{ type: 'message', content: [{ text: 'a' }] }, { type: 'function_call' }] })).toBeNull();
    for (const none of [{}, { choices: 5 }, { choices: [null] }, { output: [] }, { content: 'a' }])
      expect(toldText(none)).toBeNull();
  });
});
