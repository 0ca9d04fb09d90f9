// Answers of sessions that began with pages of others, or go on from another one, run again: their pages are made anew
// by the entries of those that had read them. Sessions hold pages together by chance of their moves, so that it takes
// dozens of answers, each run again by a log of all of them.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineSession, type SessionOptions } from '../../../../engine/index.ts';
import type { AnswerReceipt } from '../../../../engine/session/types.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { type ChangeBody, type Receipt, readLog, verifyReceipt } from '../../../../witness/index.ts';
import { refusal, refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';

const state = mkdtempSync(join(tmpdir(), 'palimpsest-receipt-lineage-'));
const log = logDir(state);
const OPTIONS = { maxTokens: 60, temperature: 0.8, seed: 3, receipt: true };
let engine: Engine;

beforeAll(async () => {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: state, kvBudget: '8MiB' });
});
afterAll(() => engine?.close());

const open = (options: SessionOptions): Promise<EngineSession> => engine.openSession(options);

const answer = async (session: EngineSession, prompt: readonly number[], more = {}) =>
  await session.generate(prompt, { ...OPTIONS, ...more }).result;

const again = ({ receipt, request }: AnswerReceipt) => engine.verifyReceipt(receipt, { log, request });

async function runsAgain(given: AnswerReceipt): Promise<void> {
  expect(given.receipt.bound).toBeNull();
  const ran = await again(given);
  expect(ran.again.tokens).toBe(given.receipt.answer.tokens);
}

const SHARED = ids(512);

it.each<SessionOptions>([{ tokensExpected: 900 }, { cacheTypes: 'rot4:rot2' }])(
  'runs an answer of a session again that began with pages of an open or a closed one of %j',
  async (options) => {
    const same = { ...options, cacheSalt: JSON.stringify(options) };
    const first = await open(same);
    await runsAgain((await answer(first, [...SHARED, ...ids(30, 4)])).receipt!);
    const second = await open(same);
    const one = await answer(second, [...SHARED, ...ids(50, 5)]);
    expect(one.cachedTokens).toBeGreaterThan(0);
    await runsAgain(one.receipt!);
    await first.close();
    const two = await answer(second, ids(90, 6), { maxTokens: 120 });
    await runsAgain(two.receipt!);
    const third = await open(same);
    const three = await answer(third, [...SHARED, ...ids(70, 7)]);
    expect(three.cachedTokens).toBeGreaterThan(0);
    await runsAgain(three.receipt!);
    await second.close();
    await third.close();
    const fourth = await open(same);
    const four = await answer(fourth, [...SHARED, ...ids(20, 8)]);
    expect(four.cachedTokens).toBeGreaterThan(0);
    await runsAgain(four.receipt!);
    await fourth.close();
  },
);

it.each<SessionOptions>([{ kvBudget: '50%', tokensExpected: 1200 }, { cacheTypes: 'rot4:rot2' }])(
  'runs answers of forks again, and of what they were forked from: %j',
  async (options) => {
    await using session = await open({ ...options, cacheSalt: `fork ${JSON.stringify(options)}` });
    await runsAgain((await answer(session, ids(400))).receipt!);
    await using fork = await session.fork();
    await runsAgain((await answer(fork, ids(100, 2), { maxTokens: 100 })).receipt!);
    await runsAgain((await answer(session, ids(80, 3))).receipt!);
    for (const one of await session.continuations(ids(5, 3), { ...OPTIONS, n: 2 })) await runsAgain(one.receipt!);
    await runsAgain((await answer(fork, ids(100, 9))).receipt!);
  },
);

it('runs answers again that were written in the same passes, with pages that all hold and that any of them moves', async () => {
  const kvBudget = '1200KiB';
  const own = mkdtempSync(join(tmpdir(), 'palimpsest-receipt-passes-'));
  await using small = await createEngine({ model: MODEL, threads: 1, stateDir: own, kvBudget });
  const same = { kvBudget, cacheTypes: 'trellis2:trellis1', tokensExpected: 1300 };
  let movedByOthers = 0;
  for (let turn = 0; movedByOthers === 0 && turn < 3; turn++) {
    const sessions = await Promise.all([1, 2, 3].map(() => small.openSession(same)));
    const prompts = [1, 2, 3].map((at) => [...SHARED, ...ids(40 * at, 20 + 3 * turn + at)]);
    const given = await Promise.all(sessions.map((session, at) => answer(session, prompts[at]!, { maxTokens: 150 })));
    for (const session of sessions) await session.close();
    for (const { receipt } of given) {
      const { again: ran } = await small.verifyReceipt(receipt!.receipt, {
        log: logDir(own),
        request: receipt!.request,
      });
      expect(ran.tokens).toBe(receipt!.receipt.answer.tokens);
      expect(ran.moves).toBeGreaterThan(0);
      for (const { body } of readLog(logDir(own), { session: receipt!.receipt.session, kinds: ['change'] }))
        if ((body as ChangeBody).cause === 'shared') movedByOthers++;
    }
  }
  expect(movedByOthers).toBeGreaterThan(0);
}, 60_000);

it('refuses receipts of these kinds in which a field was changed, and another request', async () => {
  const same = { tokensExpected: 900, cacheSalt: 'forged' };
  await using first = await open(same);
  await answer(first, SHARED);
  await using second = await open(same);
  await using fork = await first.fork();
  for (const session of [second, fork]) {
    const { receipt, request } = (await answer(session, [...SHARED, 7])).receipt!;
    expect(verifyReceipt(receipt, { log }).receipt).toEqual(receipt);
    const lies: readonly Partial<Receipt>[] = [
      { bound: 'fork' },
      { cache: { ...receipt.cache, bytes: receipt.cache.bytes + 64 } },
      { answer: { ...receipt.answer, text: receipt.request.digest } },
      { session: first.id },
    ];
    for (const lie of lies)
      expect(refusal(() => verifyReceipt({ ...receipt, ...lie }, { log })).code).toBe('bad-signature');
    const steps = [...request.steps, [1, 1] as const];
    const error = await refused(again({ receipt, request: { ...request, steps } }));
    expect(error.code).toBe('bad-signature');
  }
});
