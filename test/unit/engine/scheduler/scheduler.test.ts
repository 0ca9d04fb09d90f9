// Who is in a pass over the weights, seen by the tokens of each: sessions that share memory, in the thread of their
// model.
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { refused } from '../../../refusal.ts';
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

function open(options: Pick<SessionOptions, 'schedulingPriority' | 'schedulingWeight'> = {}): Session {
  const thresholds = defaultThresholds(runtime().shape.layers);
  const session = Session.open(runtime(), { exact: true, ...options, pool, shared, thresholds, log: null });
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
    const { client } = writer;
    const work = async (): Promise<void> => {
      const before = passes.length;
      await new Promise((resolve) => setTimeout(resolve, 30));
      during = passes.length - before;
    };
    await shared.scheduler.alone({ client, reads: true }, { work, tokens: 0 });
    expect(during).toBe(0);
    await writing;
    const wrong = (): Promise<void> => Promise.reject(new Error('it went wrong'));
    await expect(shared.scheduler.alone({ client, reads: false }, { work: wrong, tokens: 0 })).rejects.toThrow(
      'it went wrong',
    );
    expect((await write(writer, 3)).length).toBe(3);
  });
});

/** What each has read whenever one of them has read a piece more. */
function watchReading(all: readonly Session[], tokens: number) {
  const seen: number[][] = [];
  const read = all.map(() => 0);
  const reading = all.map((session, at) =>
    session.read(ids(tokens, at), {
      onProgress: (progress) => {
        read[at] = progress.tokens;
        seen.push([...read]);
      },
    }),
  );
  return { seen, done: Promise.all(reading) };
}

describe('prompts', () => {
  it('of equals are read alike, and one that comes later begins where they are', async () => {
    const [first, second, late] = [open(), open(), open()];
    const { seen, done } = watchReading([first, second], 1800);
    while (seen.length < 10) await new Promise((resolve) => setImmediate(resolve));
    /** What the others have read whenever it has read a piece more. */
    const others: number[] = [];
    await late.read(ids(500), { onProgress: () => others.push(first.length + second.length) });
    await done;
    for (const [a, b] of seen) if (a! < 1800 && b! < 1800) expect(Math.abs(a! - b!)).toBeLessThanOrEqual(256);
    // They do not wait until it has as much as they.
    expect(others.at(-1)! - others[0]!).toBeGreaterThanOrEqual(2 * (500 - 2 * 128));
  });

  it('are read by the weights of their sessions', async () => {
    const { seen, done } = watchReading([open({ schedulingWeight: 3 }), open()], 1800);
    await done;
    const end = seen.find(([heavy]) => heavy === 1800)!;
    expect(end[1]).toBeGreaterThanOrEqual(600 - 256);
    expect(end[1]).toBeLessThanOrEqual(600 + 256);
  });

  it('of a higher priority are read before the others, which are read on now and then', async () => {
    const { seen, done } = watchReading([open({ schedulingPriority: 1 }), open({ schedulingPriority: -1 })], 1700);
    await done;
    const [low] = seen.find(([, high]) => high === 1700)!;
    // One before the other had asked for a second turn, and one in nine.
    expect(low).toBeGreaterThan(0);
    expect(low).toBeLessThanOrEqual(3 * 128);
  });

  it('are left at once by whoever is aborted or closed while it waits, and others lose nothing', async () => {
    const [busy, aborted, closed] = [open(), open({ schedulingPriority: 1 }), open({ schedulingPriority: 1 })];
    const work = async (): Promise<void> => void (await new Promise((resolve) => setTimeout(resolve, 20)));
    const { client } = busy;
    // Whoever asks for turn after turn before them.
    const turns = Array.from({ length: 8 }, () => shared.scheduler.alone({ client, reads: true }, { work, tokens: 1 }));
    const abort = new AbortController();
    const ends: string[] = [];
    const waits = [aborted.read(ids(50), { signal: abort.signal }), closed.read(ids(50))].map((reading) =>
      refused(reading).then((error) => ends.push(error.code)),
    );
    await turns[0];
    abort.abort();
    await closed.end();
    await Promise.all(waits);
    expect(ends.sort()).toEqual(['aborted', 'closed']);
    let left = 0;
    await Promise.race([Promise.all(turns).then(() => (left = -1)), new Promise((resolve) => setImmediate(resolve))]);
    expect(left).toBe(0);
    await Promise.all(turns);
    await aborted.read(ids(50));
    expect(aborted.length).toBe(50);
  });
});

describe('more who write than one pass has room for', () => {
  it('take turns, by their weights', async () => {
    const heavy = open({ schedulingWeight: 4 });
    const all = [heavy, ...Array.from({ length: 191 }, () => open())];
    for (const session of all) await session.read(ids(4));
    passes.length = 0;
    const writing = all.map((session) => write(session, 12));
    await writing[0];
    const lengths = all.slice(1).map(({ length }) => length - 4);
    expect(Math.max(...passes)).toBe(128);
    // Two in three of them are in each pass, and it is in all.
    expect(passes.length).toBeLessThanOrEqual(14);
    expect(Math.max(...lengths) - Math.min(...lengths)).toBeLessThanOrEqual(2);
    await Promise.all(writing);
  });

  it('wait for nobody who takes nothing of an answer', async () => {
    const [slow, quick] = [open(), open()];
    for (const session of [slow, quick]) await session.read(ids(20));
    const answer = slow.generate(null, { maxTokens: 50, temperature: 0.8 });
    await answer.next();
    passes.length = 0;
    expect((await write(quick, 40)).length).toBe(40);
    expect(passes).toEqual(Array.from({ length: 40 }, () => 1));
    await answer.return(undefined as never);
  });
});
