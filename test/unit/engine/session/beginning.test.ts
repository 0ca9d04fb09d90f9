// A session leaves what was asked of its beginning; the next one that begins alike knows it, decides otherwise and is
// replayed, while one that begins otherwise is told nothing. The log names pages by digests alone.
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { setupOf } from '../../../../engine/session/experience.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir, memoryDir, openState } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { createPolicy } from '../../../../policy/index.ts';
import { readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, withEngine } from '../on-reference.ts';

const TOKENS = 1400;
const SHARED = 1200;
const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

/** A text of this beginning, with another end for each question. → id of the session */
async function read(beginning: number, question: number, maxTokens = 24): Promise<string> {
  const session = await engine.openSession({ kvBudget: '30%', tokensExpected: TOKENS });
  const prompt = [...ids(SHARED, beginning), ...ids(150, 100 + question)];
  await session.generate(prompt, { maxTokens, temperature: 0 }).result;
  await session.close();
  return session.id;
}

const laterIn = (id: string) =>
  entriesOf(state, id, 'situation').flatMap(({ body: { situation } }) => situation.later ?? []);
const moves = (id: string): unknown[] =>
  entriesOf(state, id, 'decision').map(({ body: { decision } }) => [decision.layer, decision.page, decision.to]);

it('what was asked of a beginning is known to the next session that begins alike, and to no other', async () => {
  const first = await read(1, 1);
  const left = entriesOf(state, first, 'close')[0]!.body.prefix!;
  expect(left.answers).toBe(1);
  expect(left.pages).toHaveLength(10);
  expect(statSync(join(memoryDir(state), 'prefix.key')).size).toBe(32);
  expect(laterIn(first)).toEqual([]);

  const second = await read(1, 2);
  const told = laterIn(second);
  expect(told.map(({ page }) => page)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8]);
  expect(told[0]).toMatchObject({ answers: 1 });
  expect(told[0]!.k.some((epsilon2) => epsilon2 > 0)).toBe(true);
  const notes = entriesOf(state, second, 'note').flatMap(({ body }) => body['beginning'] ?? []);
  expect(notes).toMatchObject([{ session: first }]);
  const story = timeline(logDir(state), second).map(({ text }) => text);
  expect(story.filter((text) => text.includes(`Began as 1 earlier session did: ${first}`))).toHaveLength(1);
  expect(story.filter((text) => text.includes('began with the same 9 pages and say what 1 answer asked'))).toHaveLength(
    1,
  );

  const third = await read(2, 1);
  expect(laterIn(third)).toEqual([]);
  const report = replaySession([...readLog(logDir(state), { session: second })], createPolicy);
  expect(report).toMatchObject({ equal: true, complete: true });
});

it('it changes which pages move', async () => {
  const known = moves(await read(1, 3));
  const session = await engine.openSession({ kvBudget: '30%', tokensExpected: TOKENS });
  await session.generate([...ids(SHARED, 1), ...ids(150, 103)], { maxTokens: 24, temperature: 0 }).result;
  await session.close();
  expect(known.length).toBeGreaterThan(0);
  // The one after knows an answer more.
  expect(moves(session.id)).not.toEqual(known);
});

it('every answer of a session counts, and what follows tokens that were taken back is another text', async () => {
  const runtime = await Runtime.open({ model: 'reference' });
  const kept = await openState(folder(), { mode: 'halt' });
  const session = Session.open(runtime, await setupOf(runtime, { kvBudget: '30%', tokensExpected: TOKENS }, kept));
  const answer = async (prompt: readonly number[]) => {
    for await (const _ of session.generate(prompt, { maxTokens: 20, temperature: 0 }));
    return session.governed.prefix!;
  };
  try {
    expect((await answer(ids(SHARED, 5))).answers).toBe(1);
    const { pages, answers } = await answer(ids(30, 6));
    expect([pages.length, answers]).toEqual([9, 2]);
    session.rewind(640);
    expect((await answer(ids(100, 7))).pages).toEqual(pages.slice(0, 5));
  } finally {
    session.close();
    await kept.close();
    await runtime.close();
  }
});
