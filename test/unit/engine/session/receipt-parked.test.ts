// Answers of sessions that were away run again: parked in a file and resumed, also after the engine was opened anew,
// or parked while others needed memory, and answers with proposed tokens. Those that stay bound say so.
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { createEngine, type Engine, type EngineOptions, type EngineSession } from '../../../../engine/index.ts';
import type { AnswerReceipt } from '../../../../engine/session/types.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { verifyReceipt } from '../../../../witness/index.ts';
import { refusal, refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';

const OPTIONS = { maxTokens: 30, temperature: 0.8, seed: 3, receipt: true };
const BUDGET = { kvBudget: '900KiB', tokensExpected: 900, cacheSalt: 'own' } as const;
/** Codes of its keys follow from the queries that it had. */
const STEERED = { cacheTypes: 'band3:rot2', cacheSalt: 'steered' } as const;
const REPEATED = 'The keeper of bees had seven hives. The keeper of bees had seven cats. '.repeat(9);

const folder = (): string => mkdtempSync(join(tmpdir(), 'palimpsest-receipt-parked-'));
const open = (stateDir: string, more: Partial<EngineOptions> = {}): Promise<Engine> =>
  createEngine({ model: MODEL, threads: 1, stateDir, ...more });

async function answer(session: EngineSession, prompt: readonly number[] | string, more = {}): Promise<AnswerReceipt> {
  return (await session.generate(prompt, { ...OPTIONS, ...more }).result).receipt!;
}

/** Its tokens come out the same, a changed one is refused, and so is another request. → moves that were made again */
async function runsAgain(engine: Engine, state: string, { receipt, request }: AnswerReceipt): Promise<number> {
  const log = logDir(state);
  expect(receipt.bound).toBeNull();
  const { again } = await engine.verifyReceipt(receipt, { log, request });
  expect(again.tokens).toBe(receipt.answer.tokens);
  const lies = [
    { answer: { ...receipt.answer, digest: receipt.answer.text } },
    { cache: { ...receipt.cache, bytes: receipt.cache.bytes + 64 } },
    { bound: 'parked' },
  ];
  for (const lie of lies)
    expect(refusal(() => verifyReceipt({ ...receipt, ...lie }, { log })).code).toBe('bad-signature');
  const steps = [[request.tokens.length, 1] as const];
  const other = await refused(engine.verifyReceipt(receipt, { log, request: { ...request, steps } }));
  expect(other.code).toBe('bad-signature');
  return again.moves;
}

/** The log proves it, and it is not run again. */
async function isBound(
  engine: Engine,
  state: string,
  { receipt, request }: AnswerReceipt,
  bound: string,
): Promise<void> {
  expect(receipt.bound).toBe(bound);
  const log = logDir(state);
  expect(verifyReceipt(receipt, { log }).receipt).toEqual(receipt);
  expect((await refused(engine.verifyReceipt(receipt, { log, request }))).code).toBe('unsupported');
}

it('runs answers again of a session that was resumed from a file, by engines of one state folder', async () => {
  const state = folder();
  const first = await open(state);
  let session = await first.openSession(BUDGET);
  await answer(session, ids(450));
  await session.park();
  session = await first.resume(session.id);
  expect(await runsAgain(first, state, await answer(session, ids(80, 2)))).toBeGreaterThan(0);
  await using fork = await session.fork();
  await runsAgain(first, state, await answer(fork, ids(30, 5)));
  await session.park();
  await fork.close();
  await first.close();
  await using second = await open(state);
  session = await second.resume(session.id);
  expect(session.resumed?.by).toBe('pages');
  expect(await runsAgain(second, state, await answer(session, ids(120, 3), { maxTokens: 60 }))).toBeGreaterThan(0);
  await using steered = await second.openSession(STEERED);
  await answer(steered, ids(300, 4));
  await steered.park();
  await using again = await second.resume(steered.id);
  expect(await runsAgain(second, state, await answer(again, ids(200, 6)))).toBeGreaterThan(0);
});

it('leaves out what a session did that went on behind what was kept of it', async () => {
  const state = folder();
  await using engine = await open(state);
  await using chat = await engine.chat({ ...STEERED, template: 'hermes' });
  await answer(chat.session, ids(250));
  const kept = await chat.save();
  await answer(chat.session, ids(150, 2));
  await using back = await engine.resumeChat(kept, { template: 'hermes' });
  expect(await runsAgain(engine, state, await answer(back.session, ids(80, 3)))).toBeGreaterThan(0);
});

it('is bound where the log has not what was parked, or where pages were predicted', async () => {
  const [here, there] = [folder(), folder()];
  await using one = await open(here);
  await using two = await open(there);
  const session = await one.openSession(BUDGET);
  await answer(session, ids(450));
  const { path } = await session.park();
  await using elsewhere = await two.resume(path, {});
  await isBound(two, there, await answer(elsewhere, ids(20)), 'pages-of-others');
  await using fork = await elsewhere.fork();
  await isBound(two, there, await answer(fork, ids(20)), 'fork');
  await using back = await one.resume(path);
  const { path: predicted } = await back.park(undefined, { predict: true });
  await using lossy = await one.resume(predicted);
  await isBound(one, here, await answer(lossy, ids(20)), 'pages-of-others');
});

it.each(['disk', 'reread', 'memory'] as const)(
  'runs answers of sessions again that waited in %s',
  async (idleSessions) => {
    const state = folder();
    // Where nothing is written, pages go lower before anybody loses them.
    const own = idleSessions === 'reread' ? ({ policy: 'none' } as const) : {};
    await using engine = await open(state, {
      kvBudget: idleSessions === 'reread' ? '1800KiB' : '1500KiB',
      idleSessions,
    });
    const [first, second] = await Promise.all(
      ['one', 'two'].map((cacheSalt) => engine.openSession({ cacheSalt, ...own })),
    );
    await answer(first!, ids(700));
    await answer(second!, ids(700, 2));
    expect((await first!.report()).parked?.place).toBe(idleSessions);
    for (const given of [await answer(first!, ids(20, 3)), await answer(first!, ids(90, 4))])
      if (idleSessions === 'memory') await isBound(engine, state, given, 'parked');
      else expect((await runsAgain(engine, state, given)) > 0).toBe(idleSessions === 'disk');
    await second!.close();
  },
);

it('runs answers again whose tokens were proposed, and those behind them', async () => {
  const state = folder();
  await using engine = await open(state);
  await using session = await engine.openSession(STEERED);
  const drafting = { promptLookupTokens: 6, temperature: 0, maxTokens: 160 };
  const { receipt: given, ...summary } = await session.generate(REPEATED, { ...OPTIONS, ...drafting }).result;
  expect(summary.drafted).toBeGreaterThan(0);
  expect(await runsAgain(engine, state, given!)).toBeGreaterThan(0);
  await runsAgain(engine, state, await answer(session, ids(40, 2), drafting));
});
