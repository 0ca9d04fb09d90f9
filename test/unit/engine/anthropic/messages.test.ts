// Anthropic's API by its own client: texts, tools, events, counts, and what is refused.
import Anthropic from '@anthropic-ai/sdk';
import { beforeAll, describe, expect, it } from 'vitest';
import { type Served, withServer } from '../openai/served.ts';

let served: Served;
let client: Anthropic;
withServer((one) => {
  served = one;
});
beforeAll(() => {
  client = new Anthropic({ baseURL: served.url, apiKey: 'none', authToken: null, maxRetries: 0 });
});

const model = 'reference';
const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'What is wax?' }];
const weather: Anthropic.Tool = {
  name: 'weather',
  description: 'Tells the weather',
  input_schema: { type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'] },
};
// A seed is an extension.
const asked = { model, messages, max_tokens: 12, seed: 1 } as Anthropic.MessageCreateParamsNonStreaming;

describe('messages', () => {
  it('are the same at once and as events, and the second reads nothing of what the first has read', async () => {
    const said = 'A long beginning of a conversation. '.repeat(40);
    const long = { ...asked, system: said };
    const whole = await client.messages.create(long);
    expect(whole).toMatchObject({ type: 'message', role: 'assistant', model, stop_reason: 'max_tokens' });
    expect(whole.usage.output_tokens).toBe(12);
    const stream = client.messages.stream(long);
    const pieces: string[] = [];
    stream.on('text', (text) => pieces.push(text));
    const told = await stream.finalMessage();
    expect(told.content).toMatchObject(whole.content);
    expect(pieces.join('')).toBe((whole.content[0] as Anthropic.TextBlock).text);
    expect(told.usage.cache_read_input_tokens).toBeGreaterThan(100);
    expect(told.usage.input_tokens + told.usage.cache_read_input_tokens!).toBe(
      whole.usage.input_tokens + whole.usage.cache_read_input_tokens!,
    );
    const { input_tokens } = await client.messages.countTokens({ model, messages, system: said });
    expect(input_tokens).toBe(whole.usage.input_tokens + whole.usage.cache_read_input_tokens!);
  });

  it('end at a stop sequence, which is told', async () => {
    const whole = await client.messages.create({ ...asked, max_tokens: 60 });
    const { text } = whole.content[0] as Anthropic.TextBlock;
    const stop = text.slice(10, 14);
    const cut = await client.messages.create({ ...asked, max_tokens: 60, stop_sequences: ['never said', stop] });
    expect(cut).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: stop });
    expect((cut.content[0] as Anthropic.TextBlock).text).toBe(text.slice(0, text.indexOf(stop)));
  });

  it('are what the same conversation is in the words of OpenAI', async () => {
    const blocks: Anthropic.MessageParam[] = [
      { role: 'user', content: [{ type: 'text', text: 'The weather?' }] },
      {
        role: 'assistant',
        content: [
          { type: 'text', text: 'Let me see.' },
          { type: 'tool_use', id: 'call00001', name: 'weather', input: { city: 'Oslo' } },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'call00001', content: [{ type: 'text', text: 'rain' }] },
          { type: 'text', text: 'And now?' },
        ],
      },
    ];
    const call = { id: 'call00001', type: 'function', function: { name: 'weather', arguments: '{"city":"Oslo"}' } };
    const chat = {
      messages: [
        { role: 'system', content: 'Be brief.' },
        { role: 'user', content: 'The weather?' },
        { role: 'assistant', content: 'Let me see.', tool_calls: [call] },
        { role: 'tool', tool_call_id: 'call00001', content: 'rain' },
        { role: 'user', content: 'And now?' },
      ],
      tools: [
        {
          type: 'function',
          function: { name: weather.name, description: weather.description, parameters: weather.input_schema },
        },
      ],
      tool_choice: 'none',
      max_tokens: 10,
      seed: 4,
    };
    const response = await fetch(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(chat),
    });
    const { choices, usage } = (await response.json()) as never as {
      choices: [{ message: { content: string } }];
      usage: { prompt_tokens: number };
    };
    const own = await client.messages.create({
      ...asked,
      messages: blocks,
      system: [{ type: 'text', text: 'Be brief.' }],
      tools: [weather],
      tool_choice: { type: 'none' },
      max_tokens: 10,
      seed: 4,
    } as Anthropic.MessageCreateParamsNonStreaming);
    expect((own.content[0] as Anthropic.TextBlock).text).toBe(choices[0].message.content);
    expect(own.usage.input_tokens + own.usage.cache_read_input_tokens!).toBe(usage.prompt_tokens);
  });

  it('call a tool that is wanted, at once and as events, and go on behind its result', async () => {
    const wanted = {
      ...asked,
      max_tokens: 200,
      tools: [weather],
      tool_choice: { type: 'tool', name: 'weather', disable_parallel_tool_use: true } as const,
    };
    const whole = await client.messages.create(wanted);
    const [use] = whole.content as [Anthropic.ToolUseBlock];
    expect([whole.stop_reason, use.type, use.name]).toEqual(['tool_use', 'tool_use', 'weather']);
    expect(['Rome', 'Oslo']).toContain((use.input as { city: string }).city);
    const told = await client.messages.stream(wanted).finalMessage();
    expect(told.content).toMatchObject([{ type: 'tool_use', name: 'weather', input: use.input }]);
    const next: Anthropic.MessageParam[] = [
      ...messages,
      { role: 'assistant', content: whole.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: 'rain' }] },
    ];
    const after = await client.messages.create({ ...asked, messages: next, tools: [weather] });
    expect(after.usage.cache_read_input_tokens).toBeGreaterThan(0);
  });
});

describe('what is refused', () => {
  it.each<[string, object, number, string]>([
    ['no model of that name', { model: 'claude' }, 404, 'not_found_error'],
    [
      'a picture',
      { messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] },
      400,
      'invalid_request_error',
    ],
    ['no bound', { max_tokens: 0 }, 400, 'invalid_request_error'],
    ['a tool of the server', { tools: [{ type: 'web_search_20250305', name: 'x' }] }, 400, 'invalid_request_error'],
    ['too long a text', { system: 'word '.repeat(5000) }, 400, 'exceed_context_size_error'],
  ])('%s', async (_, more, status, type) => {
    const refused = client.messages.create({ ...asked, ...more });
    await expect(refused).rejects.toMatchObject({ status, error: { type: 'error', error: { type } } });
  });
});
