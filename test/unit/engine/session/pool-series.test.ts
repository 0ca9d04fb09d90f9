// The series of a pool: what is written of each asking is all that it was decided on, so it is decided again from the
// log alone, and any change of it shows; explanations of moves that were made for it name it; retention may take it.
import { beforeAll, describe, expect, it } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import {
  askingIn,
  type Entry,
  explain,
  isPool,
  openWitnessLog,
  type PoolAsking,
  planRetention,
  readLog,
  replay,
  replayText,
  sessionReport,
  timeline,
  timelineText,
  verifyLog,
} from '../../../../witness/index.ts';
import { type ReportData, Table } from '../../../../witness/report/page/data.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { forgeLog } from '../../witness/forged.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();

/** The log of three sessions that read a page each in turns within a budget that is short. */
async function pressed(): Promise<{ log: string; sessions: readonly string[] }> {
  const dir = folder();
  const engine = await createEngine({
    ...{ model: MODEL, threads: 1, stateDir: dir, kvBudget: '1.6MiB', idleSessions: 'keep' },
  });
  const sessions = [await engine.openSession(), await engine.openSession(), await engine.openSession()];
  for (let turn = 0; turn < 15; turn++) await sessions[turn % 3]!.read(ids(turn < 3 ? 256 : 96, turn));
  await engine.close();
  return { log: logDir(dir), sessions: sessions.map(({ id }) => id) };
}

type Mutable<T> = T extends readonly (infer One)[]
  ? Mutable<One>[]
  : T extends object
    ? { -readonly [K in keyof T]: Mutable<T[K]> }
    : T;
type Loose = Mutable<PoolAsking>;

let log: string;
let sessions: readonly string[];
let pool: string;
let entries: readonly Entry<'note'>[];
beforeAll(async () => {
  ({ log, sessions } = await pressed());
  entries = [...readLog(log, { kinds: ['note'] })].filter((one) => askingIn(one) !== null) as Entry<'note'>[];
  pool = entries[0]!.session;
});

/** The log of the pool alone, with one asking as `change` makes it. */
function forged(at: number, change: (asking: Loose) => void): string {
  const copy = structuredClone(entries) as Entry<'note'>[];
  change(askingIn(copy[at]!) as Loose);
  const dir = folder();
  forgeLog(dir, copy as unknown as Record<string, unknown>[]);
  return dir;
}

const askings = (): PoolAsking[] => entries.map((one) => askingIn(one)!);
/** The first asking whose turn of this number asks somebody while others could be asked. */
const contested = (): number => askings().findIndex(({ turns }) => turns.length > 2 && turns[0]!.changed!.length > 1);

describe('the series of a pool', () => {
  it('has one entry an asking, whose turns end where there is room or nobody gives more', () => {
    expect(isPool(pool) && !sessions.some(isPool)).toBe(true);
    expect(entries.length).toBeGreaterThan(3);
    expect(new Set(entries.map(({ session }) => session))).toEqual(new Set([pool]));
    for (const { turns, neededBytes, budgetBytes, session, policy } of askings()) {
      expect([policy, budgetBytes, sessions.includes(session)]).toEqual(['even', 1_677_721, true]);
      expect(turns.at(-1)!.asked).toBeNull();
      expect(turns.slice(0, -1).every(({ asked, roomBytes }) => asked !== null && roomBytes < neededBytes)).toBe(true);
      // Who was looked at is written once, and then what changed.
      expect(turns[0]!.changed!.length).toBeGreaterThan(0);
      for (const { changed = [] } of turns.slice(1)) expect(changed.length).toBeLessThanOrEqual(1);
    }
    const given = (id: string): number =>
      askings().reduce(
        (sum, { turns, session }) =>
          sum + turns.reduce((of, turn) => of + (turn.asked === id && session !== id ? turn.freedBytes : 0), 0),
        0,
      );
    const told = (id: string): number =>
      entriesOf(log.replace(/\/log$/, ''), id, 'note').reduce(
        (sum, { body }) => sum + Number(body['gaveUpBytes'] ?? 0),
        0,
      );
    for (const id of sessions) expect(given(id)).toBe(told(id));
  });

  it('is decided again from the log alone, by the id of the pool or its beginning', () => {
    const report = replay(log, 'pool');
    expect(report).toMatchObject({ session: pool, policy: 'even@2', equal: true, complete: true, missing: 0 });
    expect([report.situations, report.decisions]).toEqual([
      entries.length,
      askings().reduce((sum, { turns }) => sum + turns.length, 0),
    ]);
    expect(replayText(report)).toMatch(/^Replayed \d+ turns of \d+ askings of pool-.*: every byte is the same\.$/);
    for (const id of sessions) expect(replay(log, id).equal).toBe(true);
    expect(verifyLog(log).ok).toBe(true);
  });

  it.each<[string, (asking: Loose) => void, string]>([
    [
      'another one was asked',
      ({ turns: [turn] }) => (turn!.asked = turn!.changed!.find(({ id }) => id !== turn!.asked)!.id),
      'turn',
    ],
    ['nobody was asked though there was no room', ({ turns: [turn] }) => (turn!.asked = null), 'turn'],
    [
      'whoever was asked had less',
      ({ turns: [turn] }) => (turn!.changed!.find(({ id }) => id === turn!.asked)!.behindBytes = 1),
      'turn',
    ],
    ['more was freed', ({ turns: [turn] }) => (turn!.freedBytes += 64), 'bytes'],
    ['a turn is missing', ({ turns }) => turns.pop(), 'end'],
    ['it went on though there was room', (asking) => (asking.neededBytes = 1), 'turn'],
    ['no policy that is known decided', (asking) => (asking.version = 9), 'policy'],
  ])('differs where it is told that %s', (_, change, what) => {
    const dir = forged(contested(), change);
    const { equal, firstDifference } = replay(dir, pool);
    expect([equal, firstDifference?.what, firstDifference?.seq]).toEqual([false, what, contested()]);
  });

  it('differs where all is told to be of another policy', () => {
    const dir = folder();
    const copy = structuredClone(entries) as Entry<'note'>[];
    for (const one of copy) Object.assign(askingIn(one) as Loose, { policy: 'lru', version: 1 });
    forgeLog(dir, copy as unknown as Record<string, unknown>[]);
    expect(replay(dir, pool)).toMatchObject({ equal: false, policy: 'lru@1', firstDifference: { what: 'turn' } });
  });

  it('is decided again as by the first version, where it was', () => {
    const dir = folder();
    const copy = structuredClone(entries) as Entry<'note'>[];
    for (const one of copy) {
      const asking = askingIn(one) as Loose;
      asking.version = 1;
      for (const { changed = [], asking: own } of asking.turns)
        for (const of of [...changed, ...(own === undefined ? [] : [own])]) {
          expect(of.tokenBytes).toBe(3072);
          delete of.tokenBytes;
        }
    }
    forgeLog(dir, copy as unknown as Record<string, unknown>[]);
    expect(replay(dir, pool)).toMatchObject({ equal: true, policy: 'even@1' });
  });

  it('differs where an entry is no asking, and says which turns an entry had no room for', () => {
    const dir = folder();
    forgeLog(dir, [{ ...entries[0], body: { what: 'else' } }]);
    expect(replay(dir, pool).firstDifference).toMatchObject({ what: 'entry', seq: 0 });
    const left = replay(
      forged(0, (asking) => Object.assign(asking, { turns: [], leftOut: 7 })),
      pool,
    );
    expect(left).toMatchObject({ equal: true, complete: false });
    expect(replayText(left)).toContain('Some askings were of more sessions than an entry has room for');
  });

  it('is told as a timeline', () => {
    const events = timeline(log, pool);
    expect(events).toHaveLength(entries.length);
    expect(timelineText(pool, events)).toMatch(/^Pool pool-/);
    expect(events[contested()]!.text).toMatch(
      /^Session .* needed .* of 1\.6 MiB, and there was room for .*\. Asked by 'even': .*\.$/,
    );
  });
});

describe('the explanation of a move that a session made for another one', () => {
  it('names the asking, whose need it was, and what was spared', () => {
    const at = askings().findIndex(({ turns, session }) =>
      turns.some(({ asked, situation }) => asked !== null && asked !== session && situation !== undefined),
    );
    const { session: asking, turns } = askings()[at]!;
    const turn = turns.find(({ asked, situation }) => asked !== asking && situation !== undefined)!;
    const moves = [...readLog(log, { session: turn.asked!, kinds: ['decision'] })] as Entry<'decision'>[];
    const move = moves.find(({ body }) => body.situation === turn.situation)!;
    const { askedFor, sentences } = explain(log, move.seq, { without: false });
    expect(askedFor).toMatchObject({
      seq: entries[at]!.seq,
      pool,
      session: asking,
      policy: 'even',
      movesLeft: turn.movesLeft,
    });
    expect(askedFor!.others).toBeGreaterThan(0);
    expect(sentences.find(({ title }) => title === 'pool')!.text).toMatch(
      new RegExp(
        `^Because session ${asking} needed .* more than there was room for \\(entry \\d+ of ${pool}\\)\\. By 'even' it was this session's turn, on rung 'demote' of the ladder \\(.*\\), and \\d other sessions? (was|were) spared.*\\d+ moves? .* spared here\\.$`,
      ),
    );
  });

  it('says that it was its own turn, and nothing of a pool where none asked', async () => {
    const at = askings().findIndex(({ turns, session }) =>
      turns.some((one) => one.asked === session && one.situation !== undefined),
    );
    const { session, turns } = askings()[at]!;
    const turn = turns.find(({ asked, situation }) => asked === session && situation !== undefined)!;
    const moves = [...readLog(log, { session, kinds: ['decision'] })] as Entry<'decision'>[];
    const own = explain(log, moves.find(({ body }) => body.situation === turn.situation)!.seq, { without: false });
    expect(own.sentences.find(({ title }) => title === 'pool')!.text).toContain('it was its own turn');

    const dir = folder();
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    const alone = await engine.openSession({ kvBudget: '30%', tokensExpected: 700 });
    await alone.read(ids(700));
    await engine.close();
    const [decision] = entriesOf(dir, alone.id, 'decision');
    expect(explain(logDir(dir), decision!.seq, { without: false })).toMatchObject({ askedFor: null });
  });
});

describe('the report of a session', () => {
  it('shows who gave what to whom while it was open, and the bytes of all', () => {
    const [first] = sessions;
    const html = sessionReport(log, first!);
    expect(html).toContain('<a href="#pool">Shared memory</a>');
    expect(html).toContain(`audit replay ${pool}`);
    const gifts = [
      ...html.matchAll(/<tr><th scope="row">([^<]*)<\/th><td>([^<]*)<\/td><td>([^<]*)<\/td><td>([^<]*)<\/td>/g),
    ];
    const from = gifts.filter(([, who, whom]) => who === 'this session' && whom !== 'itself');
    expect(from.length).toBeGreaterThan(0);
    const times = askings().filter(
      ({ session, turns }) => session !== first && turns.some(({ asked }) => asked === first),
    );
    expect(from.reduce((sum, [, , , count]) => sum + Number(count), 0)).toBe(times.length);
    const data = JSON.parse(
      /<script type="application\/json" id="data">(.*?)<\/script>/s.exec(html)![1]!,
    ) as ReportData;
    const rows = new Table(data.pool!.rows);
    const [used, own, budget] = [rows.of('used'), rows.of('own'), rows.of('budget')];
    expect(rows.length).toBe(2 * entries.length);
    for (const [row, bytes] of used.entries()) {
      expect(bytes).toBeLessThanOrEqual(budget[row]!);
      expect(Number.isNaN(own[row]!) || own[row]! < bytes).toBe(true);
    }
  });

  it('has no such part where nobody asked', async () => {
    const dir = folder();
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: dir });
    const { id } = await engine.openSession({ kvBudget: '50%', tokensExpected: 300 });
    await engine.close();
    const html = sessionReport(logDir(dir), id);
    expect(html).not.toContain('Shared memory');
    expect(html).toContain('"pool":null');
  });
});

describe('retention', () => {
  it('takes what a pool said while its engine runs, and never the key that it goes on with', async () => {
    const dir = folder();
    let nowMs = 0;
    // No two entries at once, and none before the lock of the log was taken, however long that takes.
    const clock = (): number => (nowMs = Math.max(nowMs + 1, Date.now()));
    const writer = await openWitnessLog({ dir, encrypt: true, segmentBytesMax: 4000, clock });
    const write = (of: string): void => void writer.append(of, 'note', entries[0]!.body);
    for (let n = 0; n < 40; n++) write(pool);
    for (let n = 0; n < 40; n++) write('someone');
    await writer.flush();
    const plan = planRetention(dir, { maxBytes: 1 });
    expect(plan.series[0]!.segments).toBeGreaterThan(3);
    expect(plan.sessions).toEqual([]);
    await writer.close();
    expect(planRetention(dir, { maxBytes: 1 }).sessions).toEqual([pool]);
  });
});
