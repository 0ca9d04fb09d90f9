// Lists that are read from the end of a log, and counts, against the same questions answered by reading everything:
// several writers, many small segments, random filters. Then what a list looks like as CSV, and a session as a story.

import { describe, expect, it } from 'vitest';
import {
  type CountKey,
  countsText,
  csvText,
  DECISION_FIELDS,
  type DecisionRow,
  decisionRow,
  decisionsText,
  type Entry,
  openLogQuery,
  openWitnessLog,
  readLog,
  SESSION_ROW_FIELDS,
  type SessionFilter,
  timeline,
  timelineText,
} from '../../../witness/index.ts';
import { seeded } from '../../random.ts';
import { randomFilter, rowsBy } from '../../suite/questions.ts';
import { writeSessions } from '../../suite/store-data.ts';
import { scratchFolders } from './folder.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();

/** Three series whose times lie over each other, in segments of a few entries. */
async function manySegments(): Promise<string> {
  const dir = folder();
  const held = [];
  for (const [at, prefix] of ['a', 'b', 'c'].entries()) {
    await writeSessions(dir, {
      ...{ seed: 700 + at, sessions: 4 + at, decisionsPerSession: 30, prefix, segmentBytesMax: 9000 },
      startMs: 1_760_000_000_000 + 150 * at,
      leaveOpen: at === 1,
    });
    held.push(await openWitnessLog({ dir }));
  }
  for (const log of held) await log.close();
  return dir;
}

describe('a list read from the end', () => {
  it('is what reading everything gives, for any filter', async () => {
    const dir = await manySegments();
    const query = openLogQuery(dir);
    const all = [...readLog(dir, { kinds: ['decision'] })].map((entry) => decisionRow(entry as Entry<'decision'>));
    const models = new Map(
      [...readLog(dir, { kinds: ['open'] })].map((entry) => [entry.session, (entry as Entry<'open'>).body.model]),
    );
    expect(all.length).toBeGreaterThan(400);
    const next = seeded(71);
    const found: number[] = [];
    for (let round = 0; round < 120; round++) {
      const filter = randomFilter(all, models, next);
      const rows = rowsBy(all, models, filter);
      const listed = await query.decisions(filter);
      expect(listed, JSON.stringify(filter)).toEqual(rows);
      found.push(rows.length);
    }
    // The filters must let something through often, and leave something out.
    expect(found.filter((count) => count > 0).length).toBeGreaterThan(60);
    expect(found.some((count) => count === 0)).toBe(true);
  });

  it('goes on page by page until every decision was seen once, newest first', async () => {
    const dir = await manySegments();
    const query = openLogQuery(dir);
    const all = (await query.decisions({ limit: 100_000 })).map(({ seq }) => seq);
    const seen: number[] = [];
    for (let beforeSeq: number | undefined; ; ) {
      const rows = await query.decisions({ limit: 37, ...(beforeSeq === undefined ? {} : { beforeSeq }) });
      if (rows.length === 0) break;
      seen.push(...rows.map(({ seq }) => seq));
      beforeSeq = rows.at(-1)!.seq;
    }
    expect(seen).toEqual(all);
    expect(new Set(seen).size).toBe(all.length);
  });

  it('gives sessions as reading everything does, whatever is asked for', async () => {
    const dir = await manySegments();
    const query = openLogQuery(dir);
    const all = await query.sessions({ limit: 1000 });
    expect(all.map(({ session }) => session).sort()).toEqual(
      ['a', 'b', 'c'].flatMap((prefix, at) => Array.from({ length: 4 + at }, (_, s) => `${prefix}${s}`)),
    );
    expect(all.filter(({ end }) => end === 'open').map(({ session }) => session)).toEqual(['b4']);
    for (const filter of [
      { limit: 3 },
      { model: 'sha256:1' },
      { fromMs: all[4]!.openedMs, toMs: all[2]!.openedMs },
      { fromMs: all[0]!.openedMs + 1 },
    ] satisfies SessionFilter[]) {
      const { limit = 1000, fromMs = 0, toMs = Number.MAX_SAFE_INTEGER, model } = filter as SessionFilter;
      const rows = all.filter(
        (row) => row.openedMs >= fromMs && row.openedMs <= toMs && (model === undefined || row.modelDigest === model),
      );
      expect(await query.sessions(filter)).toEqual(rows.slice(0, limit));
    }
  });

  it('refuses bounds that are no numbers, and keys that do not exist', async () => {
    const dir = folder();
    await writeSessions(dir, { seed: 1, sessions: 1, decisionsPerSession: 4 });
    const query = openLogQuery(dir);
    for (const filter of [{ fromMs: Number.NaN }, { epsilonTo: { min: Number.POSITIVE_INFINITY } }])
      await expect(query.decisions(filter)).rejects.toMatchObject({ code: 'bad-argument' });
    await expect(query.counts('colour' as CountKey)).rejects.toMatchObject({ code: 'bad-argument' });
  });
});

describe('counts', () => {
  it('are the sums over the rows of a list', async () => {
    const dir = await manySegments();
    const query = openLogQuery(dir);
    const all = await query.decisions({ limit: 100_000 });
    const keys: Readonly<Record<Exclude<CountKey, 'model'>, (row: DecisionRow) => string | number>> = {
      layer: (row) => row.layer,
      reason: (row) => (row.accepted ? row.rule : row.verdictRule),
      hour: (row) => row.timeMs - (row.timeMs % 3_600_000),
      format: (row) => `${row.from}→${row.to}`,
      session: (row) => row.session,
    };
    for (const [by, keyOf] of Object.entries(keys)) {
      const rows = await query.counts(by as CountKey, { layer: 1 });
      const wanted = all.filter(({ layer }) => layer === 1);
      expect(new Set(rows.map(({ key }) => key)).size).toBe(new Set(wanted.map(keyOf)).size);
      for (const row of rows) {
        const own = wanted.filter((one) => keyOf(one) === row.key);
        const errors = own.map(({ epsilonNow, epsilonTo }) => epsilonNow ?? epsilonTo!);
        expect(row).toMatchObject({
          decisions: own.length,
          refused: own.filter(({ accepted }) => !accepted).length,
          bytesFreed: own.reduce((sum, one) => sum + one.bytesBefore - one.bytesAfter, 0),
          epsilonMax: Math.max(...errors),
          firstMs: Math.min(...own.map(({ timeMs }) => timeMs)),
          lastMs: Math.max(...own.map(({ timeMs }) => timeMs)),
        });
        expect(row.epsilonMean).toBeCloseTo(errors.reduce((sum, one) => sum + one, 0) / errors.length, 12);
      }
      expect(countsText(by as CountKey, rows)).toContain('moves');
    }
    const byModel = await query.counts('model');
    expect(byModel.map(({ key }) => String(key)).sort()).toEqual(['model 0 “ä”', 'model 1 “ä”']);
    expect(byModel.reduce((sum, { decisions }) => sum + decisions, 0)).toBe(all.length);
  });
});

describe('CSV', () => {
  it('names every field of a row, once, in the order of its table', async () => {
    const dir = folder();
    await writeSessions(dir, { seed: 1, sessions: 1, decisionsPerSession: 4 });
    const [row] = await openLogQuery(dir).decisions();
    expect([...DECISION_FIELDS]).toEqual(Object.keys(row!));
    const [session] = await openLogQuery(dir).sessions();
    expect([...SESSION_ROW_FIELDS]).toEqual(Object.keys(session!));
  });

  it('quotes what must be quoted, and computes nothing', () => {
    const rows = [
      ['plain', 1.5, true, null],
      ['a,b "c"\nd', -2, false, undefined],
      ['=1+1', { a: [1] }, '-x', new Date(0)],
    ];
    expect(csvText(['text', 'number', 'flag', 'none'], rows).split('\n')).toEqual([
      'text,number,flag,none',
      'plain,1.5,true,',
      '"a,b ""c""\\x0ad",-2,false,',
      `'=1+1,"{""a"":[1]}",'-x,1970-01-01T00:00:00.000Z`,
    ]);
  });
});

describe('a timeline', () => {
  it('tells a session in order, from open to close, with every decision in a plan', async () => {
    const dir = folder();
    let now = 0;
    const log = await openWitnessLog({ dir, clock: () => (now += 1000) });
    recordSession(log, 'first');
    log.append('first', 'note', { takenBack: 12, tokens: 888 });
    recordSession(log, 'second', { situations: 2, close: false });
    await log.close();
    const events = timeline(dir, 'first');
    expect(events[0]!.kind).toMatch(/open|evidence/);
    expect(events.map(({ kind }) => kind)).toEqual(expect.arrayContaining(['open', 'plan', 'close', 'note']));
    expect(events.map(({ seq }) => seq)).toEqual(events.map(({ seq }) => seq).sort((a, b) => a - b));
    const rows = await openLogQuery(dir).decisions({ session: 'first', limit: 1000 });
    const planned = events
      .filter(({ kind }) => kind === 'plan')
      .map(({ text }) => Number(/(\d+) moves? planned/.exec(text)![1]));
    expect(planned.reduce((sum, count) => sum + count, 0)).toBe(rows.length);
    const text = timelineText('first', events, 80);
    for (const line of text.split('\n')) expect(line.length, line).toBeLessThanOrEqual(80);
    expect(text).toContain('12 tokens were taken back');
    expect(timeline(dir, 'second').at(-1)!.kind).not.toBe('close');
    expect(timelineText('third', timeline(dir, 'third'))).toContain('no entries');
    expect(decisionsText(rows)).toContain('made');
  });
});
