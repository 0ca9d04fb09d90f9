// Who may be at work in shared memory, in the thread of the model: whoever waits can always leave.
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Admission } from '../../../../engine/session/admission.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { Thrash, WINDOW_STEPS } from '../../../../engine/session/thrash.ts';
import { openPool, type PagePool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { refused } from '../../../refusal.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime } = onRuntime();
let pool: PagePool;
let sessions: Session[];
let shared: SharedMemory;
let meter: Meter;
beforeEach(() => {
  pool = openPool(2 ** 24);
  sessions = [];
  meter = new Meter();
  shared = new SharedMemory({ pool, meter, form: null, sessions: () => sessions });
});
afterEach(() => {
  for (const session of sessions) session.close();
  pool.close();
});

function open(): Session {
  const thresholds = defaultThresholds(runtime().shape.layers);
  const session = Session.open(runtime(), { exact: true, pool, shared, thresholds, log: null });
  sessions.push(session);
  return session;
}

describe('memory that thrashes', () => {
  /** As if sessions had been parked and wanted back for two windows with three at work. */
  function thrashing(meter: Meter): Thrash {
    const thrash = new Thrash(meter);
    for (let step = 0; step < 2 * WINDOW_STEPS; step++) {
      thrash.parked(thrash, 100);
      thrash.cameBack(thrash);
      thrash.stepped(3, 1);
    }
    return thrash;
  }

  function admission(thrash: Thrash): Admission {
    const parkedBytes = (): null => null;
    const nobody = { makeRoom: () => {}, keptBytes: () => 0, heldAgain: (): null => null };
    const asked = { maxConcurrent: undefined, onPressure: 'degrade' as const };
    return new Admission({ pool, meter, sessions: () => sessions, parkedBytes, ...nobody, ...asked, thrash });
  }

  it('has one call fewer at work, which it tells, and one more after eight calm windows', async () => {
    const told: string[] = [];
    meter = new Meter(undefined, (event, fields) => told.push(`${event} ${'calls' in fields ? fields.calls : ''}`));
    const thrash = thrashing(meter);
    const entering = admission(thrash);
    expect(meter.text(['concurrency_limit'])).toMatch(/ 2$/m);
    expect(meter.text(['pool_refault_ratio'])).toMatch(/ 1$/m);
    const all = [open(), open(), open(), open(), open()];
    const begun: Session[] = [];
    for (const session of all)
      void entering.enter(session, 10, undefined).then(() => {
        begun.push(session);
      });
    await new Promise((resolve) => setImmediate(resolve));
    expect(begun).toEqual(all.slice(0, 2));
    for (let step = 0; step < 8 * WINDOW_STEPS; step++) if (thrash.stepped(2, 3)) entering.retry();
    await new Promise((resolve) => setImmediate(resolve));
    expect(begun).toEqual(all.slice(0, 3));
    for (let step = 0; step < 16 * WINDOW_STEPS; step++) if (thrash.stepped(3, 2)) entering.retry();
    await new Promise((resolve) => setImmediate(resolve));
    expect(begun).toEqual(all);
    expect(told).toEqual(['calls-fewer 2', 'calls-more 3', 'calls-more 4', 'calls-unbounded ']);
    expect(meter.text(['concurrency_limit'])).toMatch(/ \+Inf$/m);
  });

  it('lets one more begin where those at work do nothing', async () => {
    const entering = admission(thrashing(meter));
    const all = [open(), open(), open()];
    const start = performance.now();
    for (const session of all) await entering.enter(session, 10, undefined);
    expect(performance.now() - start).toBeGreaterThan(900);
    expect(entering.working).toBe(3);
  });

  it('takes nothing for thrashing that comes back after a while', () => {
    const thrash = new Thrash(meter);
    for (let step = 0; step < 6 * WINDOW_STEPS; step++) {
      if (step % (2 * WINDOW_STEPS) === 0) thrash.parked(thrash, 100);
      if (step % (2 * WINDOW_STEPS) === 2 * WINDOW_STEPS - 1) thrash.cameBack(thrash);
      thrash.stepped(3, 1);
    }
    expect(thrash.callsMax).toBe(Number.POSITIVE_INFINITY);
    expect(meter.text(['pool_refaulted_bytes_total'])).toMatch(/ 0$/m);
    expect(meter.text(['pool_reclaimed_bytes_total'])).toMatch(/ 300$/m);
  });
});

describe('a call at work that finds no room after all', () => {
  /** One at work that takes nothing of its answer, and another one whose memory became less while it reads. */
  async function stuck(
    signal?: AbortSignal,
  ): Promise<{ readonly session: Session; readonly reading: Promise<unknown> }> {
    const [other, session] = [open(), open()];
    await other.generate(ids(20), { maxTokens: 50, temperature: 0.8 }).next();
    const onProgress = (): void => {
      pool.setBudget(pool.usedBytes);
    };
    const reading = session.read(ids(900), { onProgress, ...(signal && { signal }) });
    const waiting = (): string => {
      shared.measure();
      return meter.text(['num_requests_waiting']);
    };
    while (!/ 1$/m.test(waiting())) await new Promise((resolve) => setImmediate(resolve));
    return { session, reading };
  }

  it('waits for another one to end, and leaves at once when it is aborted', async () => {
    const abort = new AbortController();
    const { session, reading } = await stuck(abort.signal);
    const error = refused(reading);
    abort.abort();
    expect((await error).code).toBe('aborted');
    expect(session.length).toBe(0);
  });

  it('leaves when its session is closed', async () => {
    const { session, reading } = await stuck();
    const error = refused(reading);
    await session.end();
    expect((await error).code).toBe('closed');
  });
});
