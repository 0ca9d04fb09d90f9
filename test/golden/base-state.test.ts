// Does what an earlier build wrote still open? Reads the state folder in test/fixtures/base-state/ (its README says
// what it holds) with every reader there is, and lets a writer continue a copy of it.
import { cpSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { inspectIndex, openThresholdBook, readThresholdFile } from '../../memory/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import {
  explain,
  explanationText,
  openLogQuery,
  openWitnessLog,
  readLog,
  replaySession,
  verifyLog,
} from '../../witness/index.ts';

const state = join(import.meta.dirname, '../fixtures/base-state');
const log = join(state, 'log');
const SESSIONS = { '6ab9ee33': [21, 147, true], e48a4c5f: [3, 12, true], '95221492': [2, 3, false] } as const;
const ENTRIES = 196;
const TORN_BYTES = 678;

const scratch = mkdtempSync(join(tmpdir(), 'palimpsest-base-state-'));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

describe('the log of an earlier build', () => {
  it('verifies, with the torn tail of the session that was killed', () => {
    expect(verifyLog(log)).toMatchObject({ ok: true, segments: 1, entries: ENTRIES, problem: null, tornBytes: TORN_BYTES });
  });

  it.each(Object.entries(SESSIONS))('replays session %s byte for byte', (session, [situations, decisions, complete]) => {
    expect(replaySession(readLog(log, { session }))).toMatchObject({
      situations,
      decisions,
      complete,
      equal: true,
      firstDifference: null,
    });
  });

  it('answers questions, and every decision can be explained', async () => {
    const query = openLogQuery(log);
    expect((await query.sessions()).map(({ session, end }) => [session, end])).toEqual([
      ['95221492', 'open'],
      ['e48a4c5f', 'done'],
      ['6ab9ee33', 'done'],
    ]);
    const rows = await query.decisions({ limit: 1000 });
    expect(rows.length).toBe(147 + 12 + 3);
    for (const { seq } of rows.slice(0, 20)) expect(explanationText(explain(log, seq))).toContain(`Entry ${seq}`);
  });

  it('is continued by a writer, which sets the torn tail aside', async () => {
    const dir = join(scratch, 'log');
    cpSync(log, dir, { recursive: true });
    const writer = await openWitnessLog({ dir });
    expect(writer.append('s', 'note', { text: 'later' })).toBe(ENTRIES + 1);
    await writer.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: ENTRIES + 2, tornBytes: 0 });
    const [recovered, note] = [...readLog(dir, { from: [ENTRIES] })];
    expect(recovered).toMatchObject({ kind: 'recovered', body: { droppedBytes: TORN_BYTES, segment: '00000000.wal' } });
    expect(note).toMatchObject({ seq: ENTRIES + 1, kind: 'note', body: { text: 'later' } });
    expect(readFileSync(join(dir, '00000000.wal')).subarray(0, 1000)).toEqual(
      readFileSync(join(log, '00000000.wal')).subarray(0, 1000),
    );
  });
});

describe('what an earlier build learned', () => {
  const file = readThresholdFile(join(state, 'thresholds.json'));

  it('opens as a threshold file', () => {
    expect(file).toMatchObject({ model: { shape: { layers: 6 } }, thresholds: { 'price.start': { samples: 1 } } });
  });

  // Its vector index is of a schema of its own time. The log is the truth, so the index is made again and says the
  // same.
  it('is read from the log again, and is exported as the same numbers', async () => {
    const dir = join(scratch, 'memory');
    cpSync(join(state, 'memory'), dir, { recursive: true });
    expect(() => inspectIndex(join(dir, 'experiences'))).toThrow(/schemaVersion/);
    const book = await openThresholdBook({
      dir,
      logId: verifyLog(log).logId as string,
      entries: (from) => readLog(log, { from, kinds: ['open', 'close'] }),
    });
    expect(book.rebuilt).toMatch(/schemaVersion/);
    expect(inspectIndex(join(dir, 'experiences')).count).toBeGreaterThan(0);
    const { modelDigest, shape } = { modelDigest: file.model.digest, shape: file.model.shape };
    const again = await book.exportFile(
      { modelDigest, shape, family: 'llama', defaults: defaultThresholds(shape.layers) },
      null,
    );
    await book.close();
    expect(again.thresholds['price.start']).toEqual(file.thresholds['price.start']);
    expect([again.c, again.gains]).toEqual([file.c, file.gains]);
  });
});
