// Adapters count in the budget that sessions share, to the byte: what nobody has goes where bytes are needed, pages or
// adapters; what somebody has stays; and where nothing fits, that is said with the numbers.
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type AdapterSet, Adapters } from '../../../../engine/adapters/adapters.ts';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../../../engine/adapters/registry.ts';
import { createEngine } from '../../../../engine/index.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { IdleForm } from '../../../../engine/session/park/idle.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { openPool, type PagePool } from '../../../../native/index.ts';
import { defaultThresholds, type RungId } from '../../../../policy/index.ts';
import { type Entry, type NoteBody, readLog, replay, timeline, timelineText } from '../../../../witness/index.ts';
import { seeded } from '../../../random.ts';
import { refusal, refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';
import { temporaryFolder } from '../transformer/model-files.ts';
import { lowRank, matricesOf, peftConfig, peftTensors, writePeft } from './adapter-files.ts';

const NAMES = ['a', 'b', 'c', 'd', 'e'] as const;
const folder = temporaryFolder();
const STATE = join(folder.dir, 'state');
const paths: Record<string, string> = {};
let runtime: Runtime;
/** Of the model without adapters, of each adapter, and of a session of TOKENS tokens. */
let bareBytes: number;
let adapterBytes: number;
let pageBytes: number;
const TOKENS = 300;

let pool: PagePool;
let sessions: Session[] = [];
let held: { leave(): void }[] = [];
let shared: SharedMemory;
let adapters: Adapters;
let totalBytes: number;
let isOpen = false;
/** Those of the ladder that were asked. */
let rungs: RungId[] = [];

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1, adapters: true });
  bareBytes = runtime.dense.bytes;
  const registry = new AdapterRegistry(STATE);
  const matrices = matricesOf(runtime.model.config).slice(0, 14);
  for (const [i, name] of NAMES.entries()) {
    const factors = peftTensors(lowRank(matrices, () => 64, 300 + i, 0.4));
    paths[name] = writePeft(folder, name, peftConfig({ r: 64, lora_alpha: 64 }), factors);
    registry.add(name, readAdapter(paths[name], runtime.model), runtime.model);
  }
  adapterBytes = runtime.dense.adapterBytes!(readAdapter(paths['a']!, runtime.model).added);
  memory(2 ** 26);
  pageBytes = (await reads(TOKENS, 1)).cache.usedBytes;
  close();
});
afterEach(() => close());
afterAll(async () => {
  await runtime?.close();
  folder.remove();
});

interface Memory {
  readonly maxConcurrent?: number;
  readonly form?: IdleForm;
}

function memory(budgetBytes: number, { maxConcurrent, form }: Memory = {}): void {
  isOpen = true;
  totalBytes = budgetBytes;
  pool = openPool(budgetBytes);
  const prefixes = { key: new Uint8Array(32), keepsClosed: true };
  rungs = [];
  const onRung = (rung: RungId): void => void rungs.push(rung);
  const parts = { pool, meter: new Meter(), form: form ?? null, sessions: () => sessions, prefixes, onRung };
  shared = new SharedMemory({ ...parts, ...(maxConcurrent !== undefined && { maxConcurrent }) });
  adapters = new Adapters(runtime, new AdapterRegistry(STATE), undefined, shared);
}

function close(): void {
  for (const session of sessions) session.close();
  for (const one of held) one.leave();
  [sessions, held] = [[], []];
  if (!isOpen) return;
  isOpen = false;
  shared.close();
  for (const { drop } of adapters.droppable) drop();
  adapters.close();
  pool.close();
}

function open(adapterSet?: AdapterSet): Session {
  const thresholds = defaultThresholds(runtime.shape.layers);
  const options = { exact: true, pool, shared, thresholds, log: null, ...(adapterSet && { adapterSet }) };
  const session = Session.open(runtime, options);
  sessions.push(session);
  return session;
}

async function reads(tokens: number, seed: number): Promise<Session> {
  const session = open();
  await session.read(ids(tokens, seed));
  return session;
}

function ends(session: Session): void {
  shared.keep(session);
  session.close();
  shared.forget(session);
  sessions = sessions.filter((one) => one !== session);
}

/** Has an adapter until it is left. */
function has(name: string): { leave(): void } {
  const set = adapters.set([{ name }]);
  const session = {};
  set.hold(session);
  const one = { leave: () => set.leave(session) };
  held.push(one);
  return one;
}

const residents = (): string[] => adapters.list().flatMap(({ name, state }) => (state === 'resident' ? [name] : []));

/** All bytes of adapters are in the budget, and nothing is beyond it. */
function expectCounted(): void {
  const bytes = adapters.list().reduce((sum, one) => sum + one.bytes, 0);
  expect(bytes).toBe(residents().length * adapterBytes);
  expect(runtime.dense.bytes - bareBytes).toBe(bytes);
  expect(pool.budgetBytes).toBe(totalBytes - bytes);
  expect(pool.usedBytes).toBeLessThanOrEqual(pool.budgetBytes);
}

test('as many as fit are had at once, and one more is refused with the numbers until one is left', () => {
  memory(3 * adapterBytes + 1000);
  const [a] = ['a', 'b', 'c'].map(has);
  expectCounted();
  const error = refusal(() => has('d'));
  expect(error).toMatchObject({ code: 'budget-exceeded' });
  expect(error.values).toMatchObject({ neededBytes: adapterBytes, roomBytes: 1000, pinnedBytes: 3 * adapterBytes });
  expect(residents()).toEqual(['a', 'b', 'c']);
  expectCounted();
  a!.leave();
  expect(residents()).toEqual(['a', 'b', 'c']);
  has('d');
  expect(residents()).toEqual(['b', 'c', 'd']);
  expectCounted();
});

test('of a set that does not fit as a whole nothing is had', () => {
  memory(2 * adapterBytes);
  expect(refusal(() => adapters.set(['a', 'b', 'c'].map((name) => ({ name })))).code).toBe('budget-exceeded');
  expectCounted();
  // Neither keeps its room.
  has('d');
  has('e');
  expect(residents()).toEqual(['d', 'e']);
});

test('one that nobody has goes for pages, and pages that nobody has go for one', async () => {
  memory(2 * adapterBytes + pageBytes + 2 ** 16);
  has('a').leave();
  const b = has('b');
  expect(residents()).toEqual(['a', 'b']);
  const first = await reads(TOKENS, 1);
  expect(residents()).toEqual(['a', 'b']);
  const second = await reads(128, 2);
  expect(residents()).toEqual(['b']);
  expectCounted();
  // Pages of sessions that are open do not go.
  expect(refusal(() => has('c')).code).toBe('budget-exceeded');
  ends(second);
  ends(first);
  expect(shared.prefixes!.keptBytes).toBeGreaterThan(0);
  b.leave();
  const all = ['c', 'd'].map(has);
  expectCounted();
  for (const one of all) one.leave();
});

/** A session whose pages may go lower, that has read so many tokens. */
async function governed(tokens: number, seed: number): Promise<Session> {
  const thresholds = defaultThresholds(runtime.shape.layers);
  const session = Session.open(runtime, { pool, shared, thresholds, log: null, sharedBudgetBytes: totalBytes });
  sessions.push(session);
  await session.read(ids(tokens, seed));
  return session;
}

test('pages of open sessions go lower for one, and no session is parked for it while they can', async () => {
  memory(2 ** 26);
  await governed(900, 1);
  const usedBytes = pool.usedBytes;
  close();
  for (const [form, rung] of [
    [undefined, 'demote'],
    [{ place: 'reread' }, 'demote'],
    [{ place: 'disk', stateDir: folder.dir }, 'demote-waiting'],
  ] as const) {
    memory(usedBytes + adapterBytes - 2 ** 17, form === undefined ? {} : { form });
    const session = await governed(900, 1);
    rungs = [];
    const before = session.cache.usedBytes;
    has('a');
    expect(rungs.at(-1)).toBe(rung);
    expect(before - session.cache.usedBytes).toBeGreaterThanOrEqual(2 ** 17);
    expect(session.governed.away).toBeNull();
    expectCounted();
    // It goes on over them.
    await session.read(ids(3, 2));
    expect(session.governed.length).toBe(903);
    close();
  }
});

test('a load that nothing makes room for takes nothing of anybody', async () => {
  memory(adapterBytes - 1);
  const session = await governed(300, 1);
  const before = session.cache.usedBytes;
  expect(refusal(() => has('a')).code).toBe('budget-exceeded');
  expect([session.cache.usedBytes, rungs]).toEqual([before, []]);
});

test('those at work come to their ends: what they will take is not there for an adapter', async () => {
  memory(adapterBytes + pageBytes + 2 ** 18);
  const session = open();
  await shared.enter(session, 2 * TOKENS, undefined);
  expect(refusal(() => has('a')).code).toBe('budget-exceeded');
  shared.leave(session);
  const a = has('a');
  // The other way round: whoever has it leaves no room for so long a call.
  expect((await refused(shared.enter(session, 2 * TOKENS, undefined))).code).toBe('budget-exceeded');
  a.leave();
  await shared.enter(session, 2 * TOKENS, undefined);
  // It is there still, but to use it would take what was promised.
  expect(residents()).toEqual(['a']);
  expect(refusal(() => has('a')).code).toBe('budget-exceeded');
  shared.leave(session);
});

test('a call that waits in line has its adapter in memory, where nobody takes it away before its turn', async () => {
  memory(adapterBytes + 2 * pageBytes, { maxConcurrent: 1 });
  const first = open();
  await shared.enter(first, 100, undefined);
  const second = open(adapters.set([{ name: 'a' }]));
  let isItsTurn = false;
  const entering = shared.enter(second, 100, undefined).then(() => {
    isItsTurn = true;
  });
  await new Promise((resolve) => setImmediate(resolve));
  expect(isItsTurn).toBe(false);
  expect(residents()).toEqual(['a']);
  expect(adapters.droppable).toEqual([]);
  shared.leave(first);
  await entering;
  expect(residents()).toEqual(['a']);
});

test('whatever happens, all of it is counted and nothing is beyond the budget', async () => {
  memory(2 * adapterBytes + 3 * pageBytes);
  const random = seeded(7);
  const pick = <T>(all: readonly T[]): T => all[Math.floor(random() * all.length)]!;
  let refusals = 0;
  for (let step = 0; step < 120; step++) {
    try {
      const what = pick(['has', 'has', 'leaves', 'reads', 'ends'] as const);
      if (what === 'has') has(pick(NAMES));
      if (what === 'leaves') held.splice(Math.floor(random() * held.length), 1)[0]?.leave();
      if (what === 'reads') await reads(pick([20, 130, 260]), pick([1, 2, 3]));
      if (what === 'ends' && sessions.length > 0) ends(pick(sessions));
    } catch (error) {
      expect(error).toMatchObject({ code: 'budget-exceeded' });
      refusals++;
    }
    expectCounted();
  }
  expect(refusals).toBeGreaterThan(0);
  for (const one of held) one.leave();
  expect(adapters.pinnedBytes).toBe(0);
});

describe('an engine', () => {
  test('refuses adapters that its budget has no room for when it is created, and later', async () => {
    const options = { model: MODEL, threads: 1, stateDir: null } as const;
    const small = createEngine({ ...options, kvBudget: adapterBytes - 1, adapters: { a: paths['a']! } });
    expect(await refused(small)).toMatchObject({ code: 'budget-exceeded' });
    const engine = await createEngine({ ...options, kvBudget: adapterBytes + 2 ** 16, adapters: { a: paths['a']! } });
    try {
      expect(await refused(engine.adapters.add('b', paths['b']!))).toMatchObject({ code: 'budget-exceeded' });
      await engine.adapters.remove('a');
      expect(await engine.adapters.add('b', paths['b']!)).toMatchObject({ bytes: adapterBytes });
    } finally {
      await engine.close();
    }
  });

  test('a session that could not be opened keeps none, wherever its opening failed', async () => {
    const kvBudget = adapterBytes + pageBytes + 2 ** 18;
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: STATE, kvBudget });
    try {
      for (const [options, code] of [
        [{ kvBudget: 1000 }, 'budget-too-small'],
        [{ pack: 'nobodys' }, 'not-found'],
        [{ policy: 'none', kldBudget: 1e-9 }, 'unsupported'],
      ] as const)
        expect(await refused(engine.openSession({ adapters: [{ name: 'a' }], ...options }))).toMatchObject({ code });
      // There is room for one.
      await (await engine.openSession({ adapters: [{ name: 'b' }] })).close();
    } finally {
      await engine.close();
    }
  });

  test('tells in its log which adapters went, for what, and by which numbers', async () => {
    const stateDir = join(folder.dir, 'told');
    const registry = new AdapterRegistry(stateDir);
    const digests = Object.fromEntries(
      NAMES.map((name) => [name, registry.add(name, readAdapter(paths[name]!, runtime.model), runtime.model).digest]),
    );
    const kvBudget = 2 * adapterBytes + 2 ** 18;
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir, kvBudget });
    for (const name of ['a', 'b', 'c']) await (await engine.openSession({ adapters: [{ name }] })).close();
    // Pages of a session take the room of another one.
    const session = await engine.openSession({ cacheTypes: 'f16' });
    await session.read(ids(100, 3));
    await session.close();
    await engine.close();
    const notes = [...readLog(logDir(stateDir), { kinds: ['note'] })] as Entry<'note'>[];
    const gone = notes.flatMap(({ body }) => (body as NoteBody).adapterGone ?? []);
    expect(gone.map(({ session: whose }) => whose)).toEqual([`adapter ${digests['c']!.slice(0, 12)}`, session.id]);
    // Which of them goes follows from how long they were idle and took to load.
    const [first, second] = gone.map(({ digest }) => digest);
    expect([digests['a'], digests['b']]).toContain(first);
    expect(Object.values(digests).filter((digest) => digest !== first)).toContain(second);
    for (const one of gone) {
      expect(one.bytes).toBe(adapterBytes);
      expect(Math.min(one.lackingBytes, one.idleMs, one.restoreMs)).toBeGreaterThan(0);
    }
    const pool = notes.find(({ body }) => 'adapterGone' in body)!.session;
    expect(replay(logDir(stateDir), pool)).toMatchObject({ equal: true });
    const words = timelineText(pool, timeline(logDir(stateDir), pool)).replace(/\s+/g, ' ');
    expect(words).toContain(`Adapter ${first!.slice(0, 12)} went from memory, where `);
    expect(words).toContain(`were lacking for session ${session.id}: nobody had it for`);
  });

  test('has in its log that an adapter asked an open session for bytes, which is decided again', async () => {
    const stateDir = join(folder.dir, 'asked');
    const registry = new AdapterRegistry(stateDir);
    const { digest } = registry.add('a', readAdapter(paths['a']!, runtime.model), runtime.model);
    const kvBudget = adapterBytes + pageBytes;
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir, kvBudget });
    const open = await engine.openSession();
    await open.read(ids(900, 4));
    const other = await engine.openSession({ adapters: [{ name: 'a' }] });
    await other.close();
    await open.close();
    await engine.close();
    const name = `adapter ${digest.slice(0, 12)}`;
    const notes = [...readLog(logDir(stateDir), { kinds: ['note'] })] as Entry<'note'>[];
    const asking = notes.find(({ body }) => (body as NoteBody).pool?.session === name)!;
    expect((asking.body as NoteBody).pool!.turns[0]!.asked).toBe(open.id);
    expect(replay(logDir(stateDir), asking.session)).toMatchObject({ equal: true, complete: true });
    expect(replay(logDir(stateDir), open.id)).toMatchObject({ equal: true });
    const words = (id: string): string => timelineText(id, timeline(logDir(stateDir), id)).replace(/\s+/g, ' ');
    expect(words(asking.session)).toContain(`Adapter ${digest.slice(0, 12)} needed `);
    expect(words(open.id)).toContain(`for ${name}, because memory was short`);
  });

  test('answers the same where adapters take turns in memory', async () => {
    const kvBudget = 2 * adapterBytes + pageBytes + 2 ** 18;
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir: STATE, kvBudget });
    const texts: string[] = [];
    for (const name of [...NAMES, ...NAMES]) {
      const session = await engine.openSession({ cacheTypes: 'f16', witness: false, adapters: [{ name }] });
      texts.push(await session.generate(ids(140, 5), { maxTokens: 6, temperature: 1, seed: 2 }).text());
      await session.close();
      const list = await engine.adapters.list();
      expect(list.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThanOrEqual(kvBudget);
      if (texts.length >= NAMES.length) expect(list.map(({ state }) => state)).toContain('known');
    }
    await engine.close();
    expect(texts.slice(NAMES.length)).toEqual(texts.slice(0, NAMES.length));
    expect(new Set(texts).size).toBe(NAMES.length);
  });
});
