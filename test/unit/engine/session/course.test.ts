// What sessions find of errors behind their first trials reaches the next session of their model: it stands in the
// entries of both, changes what is decided, and is in the log's replay. A threshold file carries it to another machine,
// where it decides, and where an explanation names the file.
import { join } from 'node:path';
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { logDir, memoryDir, readBook } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import {
  believed,
  formatThresholdFile,
  importThresholds,
  readThresholdFile,
  writeThresholdFile,
} from '../../../../memory/index.ts';
import { createPolicy } from '../../../../policy/index.ts';
import { decideWithout, explain, readLog, readLogId, replaySession } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL, openEngine, withEngine } from '../on-reference.ts';

const TOKENS = 1800;
const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

async function read(seed: number, by = engine, options: object = {}): Promise<string> {
  const session = await by.openSession({ kvBudget: '30%', tokensExpected: TOKENS, ...options });
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

it('goes to another machine in a threshold file, decides there, and is named', async () => {
  await read(2);
  const runtime = await Runtime.open({ model: MODEL, threads: 1 });
  const { digest: modelDigest, config } = runtime.model;
  const { layers, queryHeads, kvHeads, headDim, architecture: family } = config;
  const target = { modelDigest, family, shape: { layers, queryHeads, kvHeads, headDim } };
  await runtime.close();
  const book = await readBook(state);
  const file = await book.exportFile(target, { id: readLogId(logDir(state))! });
  await book.close();
  const path = join(folder(), 'taught.json');
  writeThresholdFile(path, file);
  const text = formatThresholdFile(file);
  expect(JSON.parse(text)).toMatchObject({ schemaVersion: 3, evidence: { sessions: 3 } });
  // Sessions leave digests of their beginnings to their own machines alone.
  const { pages } = entriesOf(state, [...readLog(logDir(state), { kinds: ['close'] })][0]!.session, 'close')[0]!.body
    .prefix!;
  for (const page of pages) expect(text).not.toContain(page);
  expect(text).not.toMatch(/prefix|later/);

  const other = join(folder(), 'state');
  importThresholds(memoryDir(other), readThresholdFile(path), target);
  const elsewhere = await openEngine(other);
  try {
    const [imported, given] = [await read(1, elsewhere), await read(1, elsewhere, { thresholdsPath: path })];
    for (const [id, name] of [
      [imported, 'imported-'],
      [given, 'taught.json ('],
    ] as const) {
      const { course, sources } = entriesOf(other, id, 'open')[0]!.body.context.thresholds;
      expect(course).toEqual(believed(file.course!));
      expect(sources!.course).toMatchObject({ origin: 'file', samples: 3 });
      const [report] = decideWithout(logDir(other), id, ['course']);
      expect(report!.counts.same).toBeLessThan(report!.decisions);
      const told = explain(logDir(other), report!.differing[0]!.seq);
      expect(told.knownBefore[0]).toMatchObject({ what: 'course', samples: 3, sessions: [] });
      expect(told.sentences.find(({ title }) => title === 'known')!.text).toContain(
        `the course of errors of 3 earlier sessions, from ${name}`,
      );
    }
    // What was learned here rests on fewer sessions so far.
    const third = entriesOf(other, await read(3, elsewhere), 'open')[0]!.body.context.thresholds;
    expect(third.course).toEqual(believed(file.course!));
  } finally {
    await elsewhere.close();
  }
});
