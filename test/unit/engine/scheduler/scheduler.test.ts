// Who is in a pass over the weights, seen by the tokens of each: sessions that share memory, in the thread of their
// model.
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime } = onRuntime();
const pool = openPool(2 ** 28);
const sessions: Session[] = [];
afterAll(() => {
  for (const session of sessions) session.close();
  pool.close();
});

let shared: SharedMemory;
/** Tokens of each pass so far. */
let passes: number[];
beforeEach(() => {
  const meter = new Meter();
  passes = [];
  const observe = meter.passTokens.observe.bind(meter.passTokens);
  meter.passTokens.observe = (tokens) => {
    passes.push(tokens);
    observe(tokens);
  };
  shared = new SharedMemory({ pool, meter, form: null, sessions: () => sessions });
});

function open(): Session {
  const thresholds = defaultThresholds(runtime().shape.layers);
  const session = Session.open(runtime(), { exact: true, pool, shared, thresholds, log: null });
  sessions.push(session);
  return session;
}

async function write(session: Session, maxTokens: number, seed = 1): Promise<number[]> {
  const before = session.length;
  for await (const _ of session.generate(null, { maxTokens, temperature: 0.8, seed }));
  return session.tokens.slice(before);
}

describe('a pass', () => {
  it('has all who write, and those who come later as well', async () => {
    const all = [open(), open(), open()];
    for (const session of all) await session.read(ids(20));
    const late = open();
    await late.read(ids(20));
    passes.length = 0;
    const writing = all.map((session) => write(session, 40));
    while (passes.length < 5) await new Promise((resolve) => setImmediate(resolve));
    writing.push(write(late, 20));
    await Promise.all(writing);
    expect(Math.max(...passes)).toBe(4);
    expect(passes.reduce((sum, rows) => sum + rows, 0)).toBe(3 * 40 + 20);
    // Nobody is left behind: as many passes as the longest answer has tokens, and hardly more.
    expect(passes.length).toBeLessThanOrEqual(42);
  });

  it('has a piece of a prompt as well, now and then, and writers write what they write alone', async () => {
    const [alone, writer, reader] = [open(), open(), open()];
    await alone.read(ids(30));
    await writer.read(ids(30));
    const expected = await write(alone, 120);
    passes.length = 0;
    const told: number[] = [];
    const writing = write(writer, 120);
    const reading = reader.read(ids(900), { onProgress: ({ tokens }) => told.push(tokens) });
    expect(await writing).toEqual(expected);
    await reading;
    expect(told[0]! % 16).toBe(0);
    expect(told.at(-1)).toBe(900);
    const mixed = passes.filter((rows) => rows % 16 === 1 && rows > 1);
    expect(mixed.length).toBeGreaterThan(0);
    // Between two pieces writers have their share of the time.
    expect(passes.filter((rows) => rows === 1).length).toBeGreaterThan(mixed.length);
    expect(passes.reduce((sum, rows) => sum + rows, 0)).toBe(120 + 900);
  });

  it('has the short prompts of several, as many as make a page', async () => {
    const all = Array.from({ length: 6 }, () => open());
    await Promise.all(all.map((session, seed) => session.read(ids(50, seed + 1))));
    expect(passes).toEqual([100, 100, 100]);
  });

  it('is not begun while somebody works alone, who waits for nobody but those before', async () => {
    const writer = open();
    await writer.read(ids(20));
    const writing = write(writer, 30);
    let during = -1;
    await shared.scheduler.alone(true, async () => {
      const before = passes.length;
      await new Promise((resolve) => setTimeout(resolve, 30));
      during = passes.length - before;
    });
    expect(during).toBe(0);
    await writing;
    await expect(
      shared.scheduler.alone(false, async () => {
        throw new Error('it went wrong');
      }),
    ).rejects.toThrow('it went wrong');
    expect((await write(writer, 3)).length).toBe(3);
  });
});
