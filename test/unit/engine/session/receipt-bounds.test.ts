// Which answers can be run again, and which are refused with a reason: sessions of every policy, beside others under
// one budget, and such as have taken tokens back. Those that go on from others, or hold pages of others, are in
// receipt-lineage.test.ts, and those that were parked in receipt-parked.test.ts.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineSession, type SessionOptions } from '../../../../engine/index.ts';
import type { AnswerReceipt } from '../../../../engine/session/types.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { verifyReceipt } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';

const state = mkdtempSync(join(tmpdir(), 'palimpsest-receipt-bounds-'));
const log = logDir(state);
const OPTIONS = { maxTokens: 60, temperature: 0.8, seed: 3, receipt: true };
const BUDGET = { kvBudget: '25%', tokensExpected: 900 };
let engine: Engine;
let salts = 0;

beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, kvBudget: '2MiB' });
});
afterAll(() => engine?.close());

/** Apart from all others, unless a salt is named. */
const open = (options: SessionOptions): Promise<EngineSession> =>
  engine.openSession({ cacheSalt: String(salts++), ...options });

const answer = async (session: EngineSession, prompt: readonly number[], more = {}): Promise<AnswerReceipt> =>
  (await session.generate(prompt, { ...OPTIONS, ...more }).result).receipt!;

const again = ({ receipt, request }: AnswerReceipt) => engine.verifyReceipt(receipt, { log, request });

/** The log proves it, and it is not run again: what the receipt says, and a part of the sentence. */
async function isBound(one: AnswerReceipt, bound: string | null, sentence: string): Promise<void> {
  expect(one.receipt.bound).toBe(bound);
  expect(verifyReceipt(one.receipt, { log }).receipt).toEqual(one.receipt);
  const error = await refused(again(one), String(bound));
  expect(error.code).toBe('unsupported');
  expect(error.message).toContain(sentence);
}

it.each<SessionOptions>([
  { policy: 'h2o-pages', kvBudget: '40%', tokensExpected: 760 },
  { policy: 'tiers', kvBudget: '40%', tokensExpected: 760 },
  { kvBudget: '40%', tokensExpected: 760, openFormat: 'f16' },
])('runs an answer of %j again', async (options) => {
  await using session = await open(options);
  const { again: ran, decisions } = await again(await answer(session, ids(700)));
  expect(ran.tokens).toBe(OPTIONS.maxTokens);
  expect(ran.moves).toBeGreaterThan(0);
  expect(decisions).toBeGreaterThanOrEqual(ran.moves);
});

it('runs answers again that were written beside each other within one budget', async () => {
  await using one = await open({ tokensExpected: 700 });
  await using two = await open({ tokensExpected: 500 });
  for (const given of await Promise.all([answer(one, ids(600)), answer(two, ids(400, 5))])) {
    expect(given.receipt.bound).toBeNull();
    await again(given);
  }
});

it('says so of latents and originals', async () => {
  await using latents = await open({ ...BUDGET, kvBudget: '40%', latents: 'xq4' });
  await isBound(await answer(latents, ids(300)), 'latents', 'keeps latents');
  await using originals = await open({ ...BUDGET, originals: 'memory' });
  await isBound(await answer(originals, ids(300)), 'originals', 'from originals');
});

it('says so where tokens were taken back that were read in one step with others', async () => {
  const chat = await engine.chat({ ...BUDGET, system: 'Be brief.', template: 'hermes', cacheSalt: 'chat' });
  await again((await chat.send('One?', { ...OPTIONS, maxTokens: 5 }).result).receipt!);
  const anew = (await chat.regenerate({ ...OPTIONS, maxTokens: 5 }).result).receipt!;
  await isBound(anew, 'taken-back', 'took tokens back');
  await chat.session.close();
});
