// Who may be at work in shared memory, in the thread of the model: whoever waits can always leave.
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
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

describe('a call at work that finds no room after all', () => {
  /** One at work that takes nothing of its answer, and another one whose memory became less while it reads. */
  async function stuck(signal?: AbortSignal): Promise<{ readonly session: Session; readonly reading: Promise<unknown> }> {
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
