// Sessions that hold pages together and are parked: they come back holding them together, as long as somebody has them;
// what they write is what they write alone, and each is told what others did to the pages meanwhile.
import { afterEach, describe, expect, it } from 'vitest';
import { takeBack } from '../../../../engine/cache/step.ts';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import type { IdleForm } from '../../../../engine/session/park/idle.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { parseParked } from '../../../../engine/session/park/parked-file.ts';
import { findPredictor } from '../../../../engine/session/park/predictors.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { SessionSetup } from '../../../../engine/session/setup.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { openPool, type PagePool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { openWitnessLog, readLog, replaySession, type WitnessLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { onRuntime, write } from '../on-runtime.ts';

const { runtime } = onRuntime();
const folder = scratchFolders();
let pool: PagePool;
let sessions: Session[] = [];
let shared: SharedMemory;
let log: WitnessLog | null = null;

afterEach(async () => {
  for (const session of sessions) close(session);
  sessions = [];
  shared.close();
  expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
  pool.close();
  await log?.close();
  log = null;
});

function share(form: IdleForm | null, bytes = 2 ** 26): void {
  pool = openPool(bytes);
  const prefixes = { key: new Uint8Array(32), keepsClosed: true };
  shared = new SharedMemory({ pool, meter: new Meter(), form, prefixes, sessions: () => sessions });
}

const setup = (options: SessionOptions): SessionSetup => ({
  ...{ ...options, pool, shared, log, sharedBudgetBytes: pool.budgetBytes },
  thresholds: defaultThresholds(runtime().shape.layers),
});

function open(options: SessionOptions = { exact: true }): Session {
  const session = Session.open(runtime(), setup(options));
  sessions.push(session);
  return session;
}

function close(session: Session): void {
  session.close();
  shared.forget(session);
}

const text = (own: number, seed: number): number[] => [...ids(300, 99), ...ids(own, seed)];

async function two(options?: SessionOptions): Promise<[Session, Session]> {
  const [first, second] = [open(options), open(options)];
  await first.read(text(240, 1));
  await second.read(text(200, 2));
  return [first, second];
}

const place = (kind: 'memory' | 'disk'): IdleForm =>
  kind === 'disk'
    ? { place: kind, stateDir: folder() }
    : { place: kind, predictorOf: () => findPredictor(runtime().model.digest, null)! };

/** Of the pages that two() share. */
const formatsOf = ({ cache }: Session): string[] =>
  Array.from({ length: cache.shape.layers }, (_, layer) => layer).flatMap((layer) =>
    [0, 1].flatMap((page) => [cache.format(layer, page, 'k'), cache.format(layer, page, 'v')]),
  );

const rowsOf = ({ cache, length }: Session): Float32Array[] =>
  Array.from({ length: Math.ceil(length / 128) }, (_, page) => page).flatMap((page) => [
    cache.decode(3, page, 'k'),
    cache.decode(3, page, 'v'),
  ]);

const commonBytes = (of: readonly Session[]): number[] => of.map(({ cache }) => cache.commonBytes);

describe('a session that holds pages together with another one, and is parked', () => {
  it.each(['memory', 'disk'] as const)('in %s comes back holding them together', async (kind) => {
    share(place(kind));
    const [first, second] = await two(kind === 'disk' ? { exact: true } : { policy: 'none' });
    const [before, usedBytes] = [commonBytes([first, second]), pool.usedBytes];
    expect(before[0]).toBeGreaterThan(0);
    const predictor = kind === 'memory' ? findPredictor(runtime().model.digest, null)! : null;
    const parked = parseParked(parkedBytes(second, predictor), 'parked');
    shared.parkAll(first.governed);
    expect([second.governed.away?.heldPages, second.cache.commonBytes]).toEqual([2, 0]);
    await second.awake(() => {});
    expect(commonBytes([first, second])).toEqual(before);
    expect(pool.usedBytes).toBe(usedBytes);
    expect([pool.auditBytes(), second.length]).toEqual([usedBytes, 500]);
    expect(first.governed.kin.sharedWith(second.governed.kin)).toBe(2);
    // What is its own is what it is for one that finds nobody.
    const { pool: _, shared: __, ...alike } = setup(kind === 'disk' ? { exact: true } : { policy: 'none' });
    const { session: alone } = await resumeSession(runtime(), alike, parked, {}, predictor);
    for (const page of [2, 3])
      for (const side of ['k', 'v'] as const)
        expect(second.cache.decode(5, page, side)).toEqual(alone.cache.decode(5, page, side));
    alone.close();
    // The one that stayed can go: the other holds what both held.
    close(first);
    sessions = [second];
    expect(second.cache.auditBytes()).toBe(second.cache.usedBytes);
  });

  it('writes what it writes alone, also where its tokens are read again', async () => {
    share(null);
    const alone = open();
    await alone.read(text(200, 2));
    const expected = await write(alone, ids(9, 4));
    close(alone);
    sessions = [];
    shared.close();
    for (const form of [place('disk'), { place: 'reread' } as const]) {
      share(form);
      const [first, second] = await two();
      const before = commonBytes([first, second]);
      if (form.place === 'disk') shared.parkAll(first.governed);
      else shared.take('let-go', first.governed, pool.budgetBytes);
      expect(second.governed.away?.place).toBe(form.place);
      expect(await write(second, ids(9, 4))).toBe(expected);
      expect(commonBytes([first, second])).toEqual(before);
      for (const session of sessions) close(session);
      sessions = [];
      shared.close();
    }
  });

  it('comes back with its own where the others are gone, and shares those with who comes next', async () => {
    share(place('disk'));
    const [first, second] = await two();
    const third = open();
    shared.parkAll(third.governed);
    expect([first, second].map(({ governed }) => governed.away?.place)).toEqual(['disk', 'disk']);
    await second.awake(() => {});
    expect(commonBytes([second])).toEqual([0]);
    await first.awake(() => {});
    expect(first.cache.commonBytes).toBeGreaterThan(0);
    expect(commonBytes([first])).toEqual(commonBytes([second]));
    expect(await third.read(text(20, 3))).toBe(256);
  });

  it('is told of moves that others made meanwhile, and its log replays', async () => {
    const dir = folder();
    log = await openWitnessLog({ dir });
    share(place('disk'), 3 * 2 ** 20);
    const [first, second] = await two({});
    const third = open({});
    await third.read(text(100, 3));
    close(third);
    sessions = [first, second];
    shared.parkAll(first.governed);
    // It grows until its pages go lower, the shared ones among them.
    await first.read(ids(2400, 7));
    expect(formatsOf(first).filter((format) => format !== 'q8').length).toBeGreaterThan(0);
    await second.awake(() => {});
    expect(formatsOf(second)).toEqual(formatsOf(first));
    expect(first.governed.kin.sharedWith(second.governed.kin)).toBe(2);
    await second.read(ids(150, 8));
    const told = [...readLog(dir, { session: second.id })].filter(({ kind }) => kind === 'change');
    expect(told.map(({ body }) => (body as { cause: string }).cause)).toContain('shared');
    const ended = sessions.map(({ id }) => id);
    for (const session of sessions) close(session);
    sessions = [];
    await log.flush();
    for (const session of ended) expect(replaySession([...readLog(dir, { session })])).toMatchObject({ equal: true });
  });

  it('finds room for what nobody else has, in a pool that has no more', async () => {
    share(place('disk'));
    const [first, second] = await two();
    shared.parkAll(first.governed);
    const { kvBytes } = second.governed.away!;
    // Alone it would not fit.
    pool.setBudget(pool.usedBytes + kvBytes - 1);
    await second.awake(() => {});
    expect(first.governed.away).toBe(null);
    expect(second.cache.commonBytes).toBe(first.cache.commonBytes);
  });
});

describe('what is kept of closed sessions', () => {
  it('is counted as that where whoever held it as well is parked', async () => {
    share(place('disk'));
    const [first, second] = await two();
    shared.keep(first);
    close(first);
    sessions = [second];
    const [kept] = shared.prefixes!.kept;
    const { pageBytes } = kept!.lender.kv.memory();
    expect(shared.prefixes!.keptBytes).toBe(pageBytes - second.cache.commonBytes);
    const third = open();
    // Whoever lends pages stays while others are parked for them.
    shared.holdAgain(third, { tokenIds: text(240, 1), pages: 4 }, (held) => {
      expect(held).toBeGreaterThan(2);
      shared.take('park', third.governed, 2 ** 40);
      third.governed.vacate();
    });
    expect(second.governed.away?.place).toBe('disk');
    expect(shared.prefixes!.keptBytes).toBe(pageBytes);
    await second.awake(() => {});
    expect(shared.prefixes!.keptBytes).toBe(pageBytes - second.cache.commonBytes);
  });
});

describe('a prompt over shared pages', () => {
  it.each([
    ['in its open page', [5]],
    ['behind pages that it sealed', [12, 128, 60]],
    ['before it has read anything', []],
  ] as const)('is taken back %s where the pool has no room for a fork to go back to', async (_where, pieces) => {
    share(null);
    const [first, second] = await two();
    const twin = second.fork();
    const expected = await write(twin, ids(9, 4));
    close(twin);
    const [before, rows, wholeBytes] = [commonBytes([first, second]), rowsOf(second), pool.budgetBytes];
    pool.setBudget(pool.usedBytes);
    const way = second.governed.wayBack(400);
    expect([way.isOpen, pool.usedBytes]).toEqual([true, pool.budgetBytes]);
    pool.setBudget(wholeBytes);
    for (const tokens of pieces) await second.forward(ids(tokens, 6));
    // Others may have taken what there was.
    pool.setBudget(pool.usedBytes);
    takeBack(second.governed, way);
    way.close();
    second.tokens.length = 500;
    expect([second.governed.length, second.cache.length()]).toEqual([500, 500]);
    expect(rowsOf(second)).toEqual(rows);
    expect([pool.auditBytes(), second.cache.auditBytes()]).toEqual([pool.usedBytes, second.cache.usedBytes]);
    expect(first.cache.commonBytes).toBe(before[0]);
    expect(first.governed.kin.sharedWith(second.governed.kin)).toBe(2);
    pool.setBudget(wholeBytes);
    expect(await write(second, ids(9, 4))).toBe(expected);
  });
});

describe('forks and files', () => {
  it('a fork of a session that shares comes back sharing', async () => {
    share(place('disk'));
    const [first, second] = await two();
    const fork = second.fork();
    close(second);
    sessions = [first, fork];
    const before = commonBytes(sessions);
    expect(before[1]).toBeGreaterThan(0);
    shared.parkAll(first.governed);
    expect(fork.governed.away?.place).toBe('disk');
    await fork.awake(() => {});
    expect(commonBytes(sessions)).toEqual(before);
    expect(await write(fork, ids(5, 3))).not.toBe('');
  });

  it('one that was taken back to whole pages comes back, and can be forked', async () => {
    share(place('disk'));
    const [first, second] = await two();
    second.rewind(256);
    shared.parkAll(first.governed);
    await second.awake(() => {});
    expect([second.length, first.governed.kin.sharedWith(second.governed.kin)]).toEqual([256, 1]);
    first.rewind(256);
    const fork = first.fork();
    sessions.push(fork);
    expect([fork.length, fork.cache.length()]).toEqual([256, 256]);
    const texts = [await write(first, ids(5, 3)), await write(fork, ids(5, 3)), await write(second, ids(5, 3))];
    expect(new Set(texts).size).toBe(1);
  });

  it('a session that its caller parked and resumed holds them together again', async () => {
    share(null);
    const [first, second] = await two();
    const before = commonBytes([first, second]);
    const fork = second.fork();
    const expected = await write(fork, ids(9, 4));
    close(fork);
    const file = parkedBytes(second);
    close(second);
    sessions = [first];
    const parked = parseParked(file, 'parked');
    expect(parked.head.heldPages).toBe(2);
    const { session, resumed } = await resumeSession(runtime(), setup({ exact: true }), parked);
    sessions = [first, session];
    expect([resumed.by, ...commonBytes(sessions)]).toEqual(['pages', ...before]);
    expect(await write(session, ids(9, 4))).toBe(expected);
    // Where it is governed otherwise, it has pages of its own.
    const { session: other } = await resumeSession(runtime(), setup({ policy: 'none' }), parked);
    sessions.push(other);
    expect(other.cache.commonBytes).toBe(0);
  });
});
