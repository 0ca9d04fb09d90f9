// The ladder of bytes in shared memory: one table says who is asked, in which order; no rung is asked while one above
// it has bytes; and the log, the metrics and explanations name the rung on which bytes were found.
import { afterEach, describe, expect, it } from 'vitest';
import { createEngine, type EngineOptions } from '../../../../engine/index.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { KvError, openPool, type PagePool } from '../../../../native/index.ts';
import {
  defaultThresholds,
  EVEN,
  type PoolPolicy,
  RECLAIM_LADDER,
  RECLAIM_STAGES,
  type RungId,
  rungsOf,
  rungText,
} from '../../../../policy/index.ts';
import { Random } from '../../../../scripts/market/random.ts';
import { askingIn, explain, isPool, readLog, replay, timeline } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const { runtime } = onRuntime();
const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

describe('the ladder', () => {
  it('has its rungs in the order of their stages', () => {
    const stages = RECLAIM_LADDER.map(({ stage }) => RECLAIM_STAGES.indexOf(stage));
    expect(stages).toEqual([...stages].sort((a, b) => a - b));
    expect(rungsOf('disk')).toEqual([
      ...['kept', 'originals', 'demote-waiting', 'park', 'demote', 'demote-all', 'let-go'],
    ]);
    expect(rungsOf('reread')).toEqual(['kept', 'demote', 'demote-all', 'let-go']);
    expect(rungsOf('keep', 'named')).toEqual(['kept', 'demote']);
    expect(rungText('park')).toContain('parked');
    expect(rungText('other')).toBe(null);
  });
});

describe('random lives of sessions in a short budget', () => {
  /** What happened, and how often each rung was asked. */
  interface Life {
    readonly asked: Map<RungId, number>;
    readonly pool: PagePool;
    /** Turns of members that held pages together with others. */
    readonly sharing: number;
  }

  async function live(place: 'disk' | 'reread' | 'keep', seed: number, budgetBytes: number): Promise<Life> {
    const random = new Random(seed);
    const pool = openPool(budgetBytes);
    const sessions: Session[] = [];
    const asked = new Map<RungId, number>();
    let sharing = 0;
    let isChecking = false;
    // Whatever was looked at only once, a turn is decided on what its members are then.
    const next: PoolPolicy['next'] = (members, own) => {
      for (const { governed } of sessions) {
        const member = [own, ...members].find(({ id }) => id === governed.id);
        if (member === undefined) continue;
        expect(member.bytes).toBe(governed.kv.usedBytes);
        expect(member.behindBytes).toBeLessThanOrEqual(governed.kv.memory().pageBytes);
        expect(member.price).toBe(governed.policy.cheapest?.());
        if (governed.kin.sharedPages > 0) sharing++;
      }
      return EVEN.next(members, own);
    };
    const shared: SharedMemory = new SharedMemory({
      ...{ pool, meter: new Meter(), sessions: () => sessions },
      form: place === 'keep' ? null : place === 'disk' ? { place, stateDir: folder() } : { place },
      prefixes: { key: new Uint8Array(32), keepsClosed: true },
      policy: { ...EVEN, next },
      onRung: (rung, asking) => {
        if (isChecking) return;
        isChecking = true;
        asked.set(rung, (asked.get(rung) ?? 0) + 1);
        const above = rungsOf(place).slice(0, rungsOf(place).indexOf(rung));
        for (const higher of above)
          expect([higher, rung, shared.take(higher, asking, 2 ** 30)]).toEqual([higher, rung, 0]);
        isChecking = false;
      },
    });
    closing.push(() => {
      for (const session of sessions) session.close();
      shared.close();
      pool.close();
    });
    const thresholds = defaultThresholds(runtime().shape.layers);
    const open = (): Session => {
      const kind = random.next();
      const governing =
        kind < 0.1 ? { exact: true } : kind < 0.2 ? { kvFloor: 100_000 } : kind < 0.3 ? { policy: 'uniform' } : {};
      const session = Session.open(runtime(), {
        ...{ ...governing, pool, shared, thresholds, log: null, sharedBudgetBytes: budgetBytes },
      });
      sessions.push(session);
      return session;
    };
    for (let step = 0; step < 60; step++) {
      const session =
        sessions.length < 3 || random.next() < 0.1 ? open() : sessions[Math.floor(random.next() * sessions.length)]!;
      if (random.next() < 0.1) {
        sessions.splice(sessions.indexOf(session), 1);
        await session.end();
        shared.keep(session);
        session.close();
        shared.forget(session);
        continue;
      }
      try {
        const begins = session.tokens.length === 0 && random.next() < 0.7 ? ids(150, 7) : [];
        await session.read([...begins, ...ids(20 + Math.floor(random.next() * 180), seed * 100 + step)]);
      } catch (error) {
        if (!(error instanceof KvError) || error.code !== 'budget-exceeded') throw error;
      }
      expect(pool.usedBytes).toBeLessThanOrEqual(pool.budgetBytes);
    }
    return { asked, pool, sharing };
  }

  it.each(['disk', 'reread', 'keep'] as const)('ask no rung while one above it has bytes: %s', async (place) => {
    const seed = 1 + Math.floor(Math.random() * 1e6);
    console.log(`lives on the ladder, seed ${seed}`);
    const { asked } = await live(place, seed, 1_200_000);
    for (const rung of rungsOf(place, 'named')) expect([rung, asked.get(rung) ?? 0]).not.toEqual([rung, 0]);
  });

  it('are decided by what each takes at its turn, pages that several hold together included', async () => {
    const { sharing } = await live('reread', 2, 2_400_000);
    expect(sharing).toBeGreaterThan(0);
  });
});

describe('the log', () => {
  async function pressed(idleSessions: NonNullable<EngineOptions['idleSessions']>): Promise<string> {
    const dir = folder();
    const engine = await createEngine({
      ...{ model: MODEL, threads: 1, stateDir: dir, kvBudget: '1.6MiB', idleSessions },
    });
    const sessions = [await engine.openSession(), await engine.openSession(), await engine.openSession()];
    for (let turn = 0; turn < 12; turn++) await sessions[turn % 3]!.read(ids(turn < 3 ? 256 : 160, turn));
    const text = await engine.metrics();
    for (const rung of ['demote-waiting', 'park'])
      expect(Number(new RegExp(`pool_found_bytes_total\\{rung="${rung}"\\} (\\d+)`).exec(text)![1])).toBeGreaterThan(0);
    await engine.close();
    return dir;
  }

  it('names the rung of each asking, of who gave for it, of who was parked, and of a move; and replays', async () => {
    const dir = await pressed('disk');
    const entries = [...readLog(logDir(dir))];
    const ids = new Set(entries.map(({ session }) => session));
    const asking = entries.find((entry) => {
      const told = askingIn(entry);
      return told?.rung === 'demote-waiting' && told.turns.some(({ freedBytes }) => freedBytes > 0);
    })!;
    const given = askingIn(asking)!.turns.find(({ freedBytes }) => freedBytes > 0)!;
    const notes = entriesOf(dir, given.asked!, 'note').map(({ body }) => body);
    expect(notes.find(({ gaveUpIn }) => gaveUpIn === asking.seq)).toMatchObject({ rung: 'demote-waiting' });
    const parked = [...ids].flatMap((id) => entriesOf(dir, id, 'note')).filter(({ body }) => body['idle'] === 'parked');
    expect(parked.length).toBeGreaterThan(0);
    for (const { body } of parked) expect(body).toMatchObject({ rung: 'park', cause: 'pool' });
    const move = entriesOf(dir, given.asked!, 'decision').find(
      ({ seq, body }) => seq < asking.seq && (body as unknown as { situation: number }).situation === given.situation,
    )!;
    const why = explain(logDir(dir), move.seq);
    expect(JSON.stringify(why)).toContain(`on rung 'demote-waiting' of the ladder (${rungText('demote-waiting')})`);
    expect(
      timeline(logDir(dir), given.asked!)
        .map(({ text }) => text)
        .join('\n'),
    ).toContain("on rung 'demote-waiting'");
    for (const id of ids) {
      if (id === '' || (!isPool(id) && entriesOf(dir, id, 'open').length === 0)) continue;
      expect(replay(logDir(dir), id)).toMatchObject({ equal: true });
    }
  });
});
