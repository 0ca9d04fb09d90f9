// What sessions find of errors behind their first trials reaches the next session of their model: it stands in the
// entries of both, changes what is decided, and is in the log's replay.
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { createPolicy } from '../../../../policy/index.ts';
import { readLog, replaySession } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, withEngine } from '../on-reference.ts';

const TOKENS = 1800;
const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

async function read(seed: number): Promise<string> {
  const session = await engine.openSession({ kvBudget: '30%', tokensExpected: TOKENS });
  await session.generate(ids(TOKENS - 1, seed), { maxTokens: 1 }).result;
  await session.close();
  return session.id;
}

it('a session leaves its course, and the next one begins with it, decides otherwise and is replayed', async () => {
  const [first, second] = [await read(1), await read(1)];
  expect(entriesOf(state, first, 'open')[0]!.body.context.thresholds.course).toBeUndefined();
  const left = entriesOf(state, first, 'close')[0]!.body.course!;
  expect(left.persistence.k.some(({ samples }) => samples > 8)).toBe(true);
  expect(left.left.length).toBeGreaterThan(0);
  const given = entriesOf(state, second, 'open')[0]!.body.context.thresholds.course!;
  expect(given.left[0]!.value).toBeCloseTo(left.left[0]!.value, 3);
  const moves = (id: string): unknown[] =>
    entriesOf(state, id, 'decision').map(({ body: { decision } }) => [decision.layer, decision.page, decision.to]);
  expect(moves(second)).not.toEqual(moves(first));
  const report = replaySession([...readLog(logDir(state), { session: second })], createPolicy);
  expect(report).toMatchObject({ equal: true, complete: true });
});
