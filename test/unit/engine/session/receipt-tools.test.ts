// Receipts of answers that call tools as their caller chose: what they followed is in the request, so that they are run
// again to the same tokens; and other tools, or another choice, are refused.
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import {
  type AnswerReceipt,
  type ChatAnswer,
  createEngine,
  type Engine,
  type ToolChoice,
} from '../../../../engine/index.ts';
import { hermes } from '../../../../engine/session/chat/calls/hermes.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { requestDigest } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { markedModel } from './chat/calls/marked-model.ts';

const TOOLS = [
  { name: 'now', parameters: { type: 'object', properties: {}, additionalProperties: false } },
  {
    name: 'count',
    parameters: {
      type: 'object',
      properties: { what: { enum: ['bees', 'hives'] }, most: { type: 'integer', minimum: 1, maximum: 9 } },
      required: ['what'],
      additionalProperties: false,
    },
  },
];
const folder = scratchFolders();
const model = markedModel(hermes.controls);
let engine: Engine;
let state: string;
beforeAll(async () => {
  state = join(folder(), 'state');
  engine = await createEngine({ model, threads: 1, stateDir: state });
});
afterAll(async () => {
  await engine.close();
  rmSync(model, { recursive: true });
});

/** Two turns, the second of which has a receipt. */
async function answered(toolChoice: ToolChoice, seed = 0): Promise<ChatAnswer> {
  const chat = await engine.chat({
    template: 'hermes',
    tools: TOOLS,
    toolChoice,
    kvBudget: '60%',
    tokensExpected: 1200,
  });
  const sampling = { temperature: 1.5, maxTokens: 48, seed };
  await chat.send('How many?', sampling).result;
  const answer = await chat.send('And now?', { ...sampling, receipt: true }).result;
  await chat.close();
  return answer;
}
const verify = ({ receipt, request }: AnswerReceipt) =>
  engine.verifyReceipt(JSON.parse(JSON.stringify(receipt)), {
    log: logDir(state),
    request: JSON.parse(JSON.stringify(request)),
  });

it.each<ToolChoice>(['auto', 'none', 'required', { name: 'count' }])(
  'runs an answer with tool choice %j again',
  async (choice) => {
    for (let seed = 0; seed < 2; seed++) {
      const { receipt, tokens, toolCalls } = await answered(choice, seed);
      if (choice === 'none') expect(toolCalls).toEqual([]);
      expect(receipt!.receipt.bound).toBeNull();
      expect((await verify(receipt!)).again).toMatchObject({ tokens });
    }
  },
);

it('runs one again that may have one call alone', async () => {
  const chat = await engine.chat({ template: 'hermes', tools: TOOLS, toolChoice: 'required' });
  const answer = await chat.send('How many?', { parallelToolCalls: false, maxTokens: 96, receipt: true, seed: 4 })
    .result;
  expect(answer.toolCalls).toHaveLength(1);
  expect((await verify(answer.receipt!)).again).toMatchObject({ tokens: answer.tokens });
  await chat.close();
});

it('refuses other tools, another choice and other calls', async () => {
  const { receipt, request } = (await answered({ name: 'count' })).receipt!;
  const { calls } = request.options as { readonly calls: { readonly tools: typeof TOOLS } };
  const forged = [
    { ...calls, tools: calls.tools.slice(0, 1) },
    { ...calls, choice: 'none' },
    { ...calls, once: true },
    { ...calls, template: 'mistral' },
  ].map((others) => ({ ...request, options: { ...request.options, calls: others } }));
  for (const other of [...forged, { ...request, options: { ...request.options, calls: undefined } }]) {
    expect((await refused(verify({ receipt, request: other }))).code).toBe('bad-signature');
    const { tokens } = receipt.request;
    const fitting = { ...receipt, request: { tokens, digest: requestDigest(other) } };
    expect((await refused(verify({ receipt: fitting, request: other }))).code).toBe('bad-signature');
  }
});
