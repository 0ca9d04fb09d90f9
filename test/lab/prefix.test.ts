// What the bench of known beginnings takes out of what a session is told: a session of an engine whose beginning was
// known is decided otherwise by the policy that is told nothing of it, and one that knew none is decided as it was.
import { expect, it } from 'vitest';
import type { Engine } from '../../engine/index.ts';
import { logDir } from '../../engine/state/folder.ts';
import { tellOnly } from '../../lab/evaluate/prefix.ts';
import { readLog, replaySession } from '../../witness/index.ts';
import { entriesOf, ids, withEngine } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

async function read(question: number): Promise<string> {
  const session = await engine.openSession({ kvBudget: '30%', tokensExpected: 1400 });
  await session.generate([...ids(1200, 1), ...ids(150, 100 + question)], { maxTokens: 24, temperature: 0 }).result;
  await session.close();
  return session.id;
}

it('is the course of errors, what was asked of the beginning, or both', async () => {
  const [first, second] = [await read(1), await read(2)];
  const { thresholds } = entriesOf(state, second, 'open')[0]!.body.context;
  const { course, ...rest } = thresholds;
  expect(course).toBeDefined();
  for (const told of ['later', 'neither'] as const) expect(tellOnly(told).adjust!(thresholds)).toEqual(rest);
  for (const told of ['nothing', 'both', 'course'] as const) expect(tellOnly(told).adjust).toBeUndefined();

  for (const told of ['course', 'neither'] as const) {
    const again = (id: string): boolean =>
      replaySession(readLog(logDir(state), { session: id }), () => tellOnly(told).policy!).equal;
    expect([again(first), again(second)]).toEqual([true, false]);
  }
  for (const told of ['nothing', 'both', 'later'] as const) expect(tellOnly(told).policy).toBeUndefined();
});
