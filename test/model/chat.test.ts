// A chat with a model that follows its template: SmolLM2 by its own template, whose turns are read once each, and by a
// template with tools, after whose examples it calls one, is told what that gave back, and answers with it. Skipped by
// name where the model was not fetched.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ChatMessage, createEngine, type Engine } from '../../engine/index.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';

const root = join(import.meta.dirname, '..', '..');
const cacheDir = process.env['PALIMPSEST_CACHE'] ?? join(root, '.cache');
const fetched = existsSync(fetchedPath('smollm2-135m', cacheDir));

const HERMES = `{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}
Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;
const WEATHER = {
  name: 'weather',
  description: 'The weather in a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
};

/** How it is done, once. */
const shown = (city: string, index: number): ChatMessage[] => [
  { role: 'user', content: `What is the weather in ${city}?` },
  { role: 'assistant', content: '', toolCalls: [{ id: `shown${index}`, name: 'weather', arguments: { city } }] },
  { role: 'tool', content: '{"sky": "sunny"}', toolCallId: `shown${index}`, name: 'weather' },
  { role: 'assistant', content: `It is sunny in ${city}.` },
];

describe.skipIf(!fetched)('a chat with SmolLM2-135M (skipped when not fetched: npm run fetch:model)', () => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await createEngine({ model: 'smollm2-135m', cacheDir, stateDir: null, threads: 1 });
  });
  afterAll(() => engine.close());

  it('by its own template reads each turn once', async () => {
    const chat = await engine.chat({
      system: 'You answer in one sentence.',
      maxTokens: 24,
      kvBudget: '40%',
      contextTokens: 1024,
    });
    const first = await chat.send('What do bees make?').result;
    expect(first.text).toMatch(/honey/i);
    for (const question of ['And what of wax?', 'Thank you.']) {
      const held = (await chat.session.report()).tokens;
      const answer = await chat.send(question).result;
      expect(answer.reusedTokens).toBe(held);
      expect(answer.promptTokens).toBeLessThan(24);
    }
    await chat.close();
  });

  it('by a template with tools calls one, and what the call took is not read again', async () => {
    const messages = ['Paris', 'London', 'Rome', 'Oslo'].flatMap(shown);
    const chat = await engine.chat({ template: HERMES, tools: [WEATHER], messages, maxTokens: 48 });
    const reply = chat.send('What is the weather in Berlin?');
    let text = '';
    for await (const piece of reply) text += piece;
    const asked = await reply.result;
    expect(text).toBe('');
    expect(asked).toMatchObject({ text: '', finish: 'stop' });
    expect(asked.toolCalls).toEqual([{ id: 'call00001', name: 'weather', arguments: { city: 'Berlin' } }]);
    const [{ id, name }] = asked.toolCalls as [(typeof asked.toolCalls)[number]];
    const told = await chat.send({ role: 'tool', content: '{"sky": "rain"}', toolCallId: id, name }).result;
    expect(told.reusedTokens).toBe(asked.contextTokens);
    expect(told.text).toMatch(/rain.* in Berlin/);
    await chat.close();
  });

  it('calls the tool that it is told to, hot as it is drawn, and with auto what it would have called anyway', async () => {
    const messages = ['Paris', 'London', 'Rome', 'Oslo'].flatMap(shown);
    const open = (options: object) => engine.chat({ template: HERMES, tools: [WEATHER], maxTokens: 200, ...options });
    const question = 'What is the weather in Berlin?';
    const [free, auto] = await Promise.all(
      [{}, { toolChoice: 'auto' }].map((options) => open({ messages, ...options })),
    );
    const [asked, held] = [await free!.send(question).result, await auto!.send(question).result];
    expect([held.toolCalls, held.tokens, held.callsConstrained]).toEqual([asked.toolCalls, asked.tokens, true]);
    const hot = await open({ toolChoice: { name: 'weather' }, temperature: 1.5, topK: 0, topP: 1, minP: 0 });
    let complete = 0;
    for (let seed = 0; seed < 8; seed++) {
      const answer = await hot.send(question, { seed }).result;
      hot.rewind();
      if (answer.grammarComplete !== true) continue;
      complete++;
      const call = { id: expect.any(String), name: 'weather', arguments: { city: expect.any(String) } };
      expect([answer.text, answer.toolCalls]).toEqual(['', [call]]);
    }
    expect(complete).toBeGreaterThan(2);
    for (const chat of [free!, auto!, hot]) await chat.close();
  });
});
