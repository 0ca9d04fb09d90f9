// Frameworks over their own clients: LangChain on chats, agents on responses. What they are asked for is small; that
// they find what they look for in answers, events and usage is the point.
import { AIMessage, HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool as langchainTool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner, tool } from '@openai/agents';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});

const place = z.object({ place: z.enum(['Oslo', 'Rome']) });
const langchain = () =>
  new ChatOpenAI({ model: 'reference', apiKey: 'none', maxTokens: 16, configuration: { baseURL: `${served.url}/v1` } });

test('LangChain invokes and streams, with usage that tells what was cached', async () => {
  const answer = await langchain().invoke([new HumanMessage('What is wax?')]);
  const { tokenUsage } = answer.response_metadata as { tokenUsage: { totalTokens: number } };
  const held = tokenUsage.totalTokens;
  expect(answer.usage_metadata).toMatchObject({ output_tokens: 16, input_token_details: { cache_read: 0 } });
  let text = '';
  let usage: unknown;
  for await (const chunk of await langchain().stream([
    new HumanMessage('What is wax?'),
    answer,
    new HumanMessage('And honey?'),
  ])) {
    text += chunk.text;
    usage = chunk.usage_metadata ?? usage;
  }
  expect(text.length).toBeGreaterThan(0);
  expect(usage).toMatchObject({ output_tokens: 16 });
  const read = (usage as { input_token_details: { cache_read: number } }).input_token_details.cache_read;
  expect(read).toBeGreaterThanOrEqual(held - 1);
});

test('LangChain has a tool called and tells what it gave', async () => {
  const weather = langchainTool(({ place: where }) => `sun in ${where}`, {
    name: 'weather',
    description: 'The weather.',
    schema: place,
  });
  const model = new ChatOpenAI({
    model: 'reference',
    apiKey: 'none',
    maxTokens: 120,
    configuration: { baseURL: `${served.url}/v1` },
  });
  const bound = model.bindTools([weather], { tool_choice: 'weather' });
  const asked = new HumanMessage('How is the weather?');
  const answer = await bound.invoke([asked]);
  expect(answer).toBeInstanceOf(AIMessage);
  expect(answer.tool_calls).toHaveLength(1);
  const [call] = answer.tool_calls!;
  const told = new ToolMessage({
    content: String(await weather.invoke(place.parse(call!.args))),
    tool_call_id: call!.id!,
  });
  expect((await langchain().invoke([asked, answer, told])).text.length).toBeGreaterThan(0);
});

test('an agent calls a tool and goes on with what it gave', async () => {
  const given: string[] = [];
  const weather = tool({
    name: 'weather',
    description: 'The weather of a place.',
    parameters: place,
    execute: ({ place: where }) => {
      given.push(where);
      return `sun in ${where}`;
    },
  });
  const agent = new Agent({
    name: 'Forecaster',
    instructions: 'Say how the weather is.',
    model: 'reference',
    tools: [weather],
    modelSettings: { toolChoice: 'weather', maxTokens: 120, parallelToolCalls: false },
    toolUseBehavior: 'stop_on_first_tool',
  });
  const modelProvider = new OpenAIProvider({ apiKey: 'none', baseURL: `${served.url}/v1`, useResponses: true });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  const result = await runner.run(agent, 'How is the weather?');
  expect(given).toHaveLength(1);
  expect(result.finalOutput).toBe(`sun in ${given[0]}`);
  const streamed = await runner.run(agent, 'How is the weather?', { stream: true });
  await streamed.completed;
  expect(streamed.finalOutput).toMatch(/^sun in (Oslo|Rome)$/);
});
