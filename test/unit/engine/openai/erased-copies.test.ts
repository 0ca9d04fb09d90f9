// What is erased while a conversation is parked, brought back or forked is not in the copy either.
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { createEngine, type Engine } from '../../../../engine/index.ts';
import { Conversations, type Taken } from '../../../../engine/openai/conversations.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
const terms = { tools: [], template: 'hermes', session: {} };
const messages = [{ role: 'user' as const, content: 'Who kept the bees?' }];
let engine: Engine;
let state: string;
let conversations: Conversations;
let id: string;
beforeAll(async () => {
  state = folder();
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, kvBudget: 2 ** 24 });
});
afterAll(() => engine.close());
const take = (session: string | null = null, said = messages): Promise<Taken> =>
  conversations.take(terms, said, { most: said.length - 1, session, keeps: true });
beforeEach(async () => {
  await conversations?.close();
  conversations = new Conversations(engine, 8);
  const taken = await take();
  id = taken.known.id;
  await taken.chat.send(messages, { maxTokens: 4, temperature: 0 }).result;
  await conversations.giveBack(taken);
});
const isGone = async (copy: Promise<unknown>): Promise<void> => {
  await Promise.all([expect(codeOf(copy)).resolves.toBe('not-found'), conversations.erase(id)]);
  expect(await conversations.list({ seesAll: true })).toEqual([]);
  expect(readdirSync(join(state, 'parked'))).toEqual([]);
};

it('a file', async () => {
  await conversations.park(id, {});
  await conversations.resume(id, {});
  id = (await conversations.list({}))[0]!.id;
  await isGone(conversations.park(id, {}));
});

it('what comes back from a file, which nobody else can do anything with until then', async () => {
  await conversations.park(id, {});
  const back = conversations.resume(id, {});
  for (const act of [
    conversations.resume(id, {}),
    conversations.fork(id, {}),
    conversations.remove(id, {}, async () => {}),
  ])
    await expect(act).rejects.toMatchObject({ status: 409 });
  await isGone(back);
});

it('a fork', () => isGone(conversations.fork(id, {})));
