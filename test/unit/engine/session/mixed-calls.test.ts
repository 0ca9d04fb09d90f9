// Whatever is asked of sessions that share memory, in whatever order: every call ends, with its answer or by a reason
// that was given, and nothing is left at work or waiting.
import { afterEach, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineOptions, type EngineSession } from '../../../../engine/index.ts';
import { KvError } from '../../../../native/index.ts';
import { mulberry32 } from '../../../random.ts';
import { ids, MODEL } from '../on-reference.ts';
import { parseExposition } from '../serve/exposition.ts';

let engine: Engine;
afterEach(() => engine.close());

const ROUNDS = 14;
const SESSIONS = 8;
/** What may become of a call. */
const ENDS = new Set(['done', 'aborted', 'closed', 'budget-exceeded', 'budget-too-small', 'context-too-long']);

async function gauge(name: string): Promise<number> {
  const family = parseExposition(await engine.metrics()).find((one) => one.name === `palimpsest_${name}`);
  return (family?.samples ?? []).reduce((sum, { value }) => sum + value, 0);
}

it.each([
  [1, { idleSessions: 'reread', maxConcurrent: 3 }],
  // What is kept is given back by nobody, so there has to be more of it for anybody to be answered.
  [2, { idleSessions: 'keep', onPressure: 'queue', kvBudget: '1.5MiB' }],
  [3, { idleSessions: 'reread', onPressure: 'refuse', interTokenTargetMs: 5 }],
] satisfies [number, Partial<EngineOptions>][])(
  'ends, seed %i, with %o',
  async (seed, options) => {
    const random = mulberry32(seed);
    const among = <T>(...ones: T[]): T => ones[Math.floor(random() * ones.length)]!;
    engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, kvBudget: '0.9MiB', ...options });
    const open = (): Promise<EngineSession> =>
      engine.openSession({
        schedulingPriority: among(-2, 0, 0, 3),
        schedulingWeight: among(0.5, 1, 1, 4),
        ...among({}, { exact: true }, { kldBudget: 0.05 }, { cacheTypes: 'rot4:rot2' }),
        ...among({}, {}, { onPressure: 'refuse' as const }, { onPressure: 'queue' as const }),
      });
    const ends = new Map<string, number>();

    /** One call after the other of one session, which is now and then closed meanwhile, and another one opened. */
    async function use(): Promise<void> {
      let session = await open();
      for (let round = 0; round < ROUNDS; round++) {
        const abort = new AbortController();
        const asked = { maxTokens: 1 + Math.floor(random() * 40), temperature: 0.8, seed: round, signal: abort.signal };
        const prompt = ids(5 + Math.floor(random() * 120), Math.floor(random() * 5));
        const isClosed = random() < 0.1;
        const call = session.generate(prompt, asked).result;
        if (random() < 0.2) setTimeout(() => abort.abort(), random() * 60);
        const closing =
          isClosed && new Promise((resolve) => setTimeout(resolve, random() * 60)).then(() => session.close());
        const end = await call.then(
          ({ finish }) => (finish === 'aborted' ? 'aborted' : 'done'),
          (error) => (error instanceof KvError ? error.code : String(error)),
        );
        ends.set(end, (ends.get(end) ?? 0) + 1);
        if (isClosed || end === 'context-too-long' || random() < 0.1) {
          await (closing || session.close());
          session = await open();
        }
      }
    }

    await Promise.all(Array.from({ length: SESSIONS }, use));
    expect([...ends.keys()].filter((end) => !ENDS.has(end))).toEqual([]);
    expect([...ends.values()].reduce((sum, count) => sum + count, 0)).toBe(ROUNDS * SESSIONS);
    expect(ends.get('done')).toBeGreaterThan(10);
    expect([await gauge('num_requests_running'), await gauge('num_requests_waiting')]).toEqual([0, 0]);
    expect(await gauge('kv_bytes')).toBeLessThanOrEqual(await gauge('kv_budget_bytes'));
  },
  60_000,
);
