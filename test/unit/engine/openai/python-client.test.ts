// openai-python (2.8 was run) over loopback: chats whole and streamed, tools, responses, embeddings and refusals, as
// its own types read them. Python is `python3`, or what PALIMPSEST_TEST_PYTHON names.
import { execFile, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { type Served, withServer } from './served.ts';

const PYTHON = process.env['PALIMPSEST_TEST_PYTHON'] ?? 'python3';
const HAS_CLIENT = spawnSync(PYTHON, ['-c', 'import openai; openai.OpenAI.responses']).status === 0;

let served: Served;
withServer((one) => {
  served = one;
});

it.skipIf(!HAS_CLIENT)('is understood by openai-python (needs Python with openai 2)', async () => {
  const { stdout } = await promisify(execFile)(PYTHON, [join(import.meta.dirname, 'python_client.py'), served.url]);
  const told = JSON.parse(stdout) as Record<string, never> & { readonly chat: { readonly text: string } };
  const { text } = told.chat;
  expect(text).not.toBe('');
  expect(told).toMatchObject({
    chat: { finish: 'length', tokens: 12, cached: 0, session: expect.any(String) as string },
    streamed: { text, tokens: 12 },
    helper: text,
    calls: [['count', { what: expect.stringMatching(/^(bees|hives)$/) as string }]],
    behind: expect.stringMatching(/^(length|stop|tool_calls)$/) as string,
    responses: { status: 'incomplete', behind: true },
    models: ['reference'],
    refused: [400, 'temperature', 'bad-argument'],
  });
  const { responses, final, events, vector } = told as unknown as {
    readonly responses: { readonly text: string; readonly cached: number };
    readonly final: string;
    readonly events: readonly string[];
    readonly vector: number;
  };
  expect(responses.cached).toBeGreaterThan(0);
  expect(final).toBe(responses.text);
  expect(events).toEqual(
    expect.arrayContaining(['response.created', 'response.output_text.delta', 'response.incomplete']),
  );
  expect(vector).toBeGreaterThan(0);
});
