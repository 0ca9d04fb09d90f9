// Ollama's API by its own client: chats, single prompts, lines as they come, tools, schemas, and what the model is.
import { Ollama, type Tool } from 'ollama';
import { beforeAll, expect, it } from 'vitest';
import { type Served, withServer } from '../openai/served.ts';

let served: Served;
let client: Ollama;
withServer((one) => {
  served = one;
});
beforeAll(() => {
  client = new Ollama({ host: served.url });
});

const model = 'reference';
const messages = [{ role: 'user', content: 'What is wax?' }];
const options = { seed: 1, num_predict: 12 };
const city = { type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'] };

it('a chat is the same at once and in lines, under its name with a tag as well', async () => {
  const whole = await client.chat({ model, messages, options });
  expect(whole).toMatchObject({ model, done: true, done_reason: 'length', eval_count: 12 });
  expect(whole.created_at).toBeDefined();
  let text = '';
  let last: object = {};
  for await (const line of await client.chat({ model: `${model}:latest`, messages, options, stream: true })) {
    text += line.message.content;
    last = line;
  }
  expect(text).toBe(whole.message.content);
  expect(last).toMatchObject({ done: true, done_reason: 'length', prompt_eval_count: whole.prompt_eval_count });
});

it('a prompt is a question, with a system before it', async () => {
  const chat = await client.chat({ model, messages: [{ role: 'system', content: 'Be brief.' }, ...messages], options });
  const told = await client.generate({ model, prompt: 'What is wax?', system: 'Be brief.', options });
  expect(told.response).toBe(chat.message.content);
  let text = '';
  const lines = await client.generate({ model, prompt: 'What is wax?', system: 'Be brief.', options, stream: true });
  for await (const line of lines) text += line.response;
  expect(text).toBe(told.response);
});

it('a format is followed, and tools are called and answered', async () => {
  const formed = await client.chat({ model, messages, options: { seed: 1, num_predict: 60 }, format: city });
  expect(['Rome', 'Oslo']).toContain((JSON.parse(formed.message.content) as { city: string }).city);
  const tools: Tool[] = [{ type: 'function', function: { name: 'weather', parameters: city as never } }];
  const calls = [{ function: { name: 'weather', arguments: { city: 'Oslo' } } }];
  const after = await client.chat({
    model,
    tools,
    options,
    messages: [
      ...messages,
      { role: 'assistant', content: '', tool_calls: calls },
      { role: 'tool', content: 'rain', tool_name: 'weather' },
    ],
  });
  expect(after.done).toBe(true);
  const prompt = await served.engine.render(
    [
      ...messages,
      { role: 'assistant', content: '', toolCalls: [{ id: 'a', name: 'weather', arguments: { city: 'Oslo' } }] },
      { role: 'tool', content: 'rain', toolCallId: 'a' },
    ] as never,
    { template: 'hermes', tools: [{ name: 'weather', parameters: city }] },
  );
  expect(after.prompt_eval_count).toBe((await served.engine.tokenize(prompt, 10_000, false)).length);
});

it('the model is in the list, and shown', async () => {
  const { models } = await client.list();
  expect(models.map(({ name, digest }) => [name, digest])).toEqual([[model, served.engine.info.digest]]);
  const shown = await client.show({ model });
  expect(shown.model_info).toMatchObject({ 'general.architecture': served.engine.info.config.architecture });
  expect(shown.capabilities).toContain('completion');
  expect((await client.version()).version).toMatch(/^\d+\./);
});

it('what is refused is told in words', async () => {
  await expect(client.chat({ model: 'llama', messages })).rejects.toMatchObject({
    status_code: 404,
    message: expect.stringMatching(/not served here/),
  });
  const picture = [{ role: 'user', content: 'x', images: ['AAAA'] }];
  await expect(client.chat({ model, messages: picture })).rejects.toMatchObject({ status_code: 400 });
  await expect(client.generate({ model, prompt: 'x', raw: true })).rejects.toMatchObject({ status_code: 400 });
});
