// What a session has of shared memory whoever needs some: bytes that stay (kvFloor), and a weight (kvWeight).
import { afterEach, describe, expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineSession,
  type SessionOptions,
} from '../../../../engine/index.ts';
import { TopView } from '../../../../engine/serve/top-view.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { askingIn, readLog, replay } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
let engine: Engine;
afterEach(() => engine.close());

const BUDGET = 2 ** 20;
const PRESSED_BUDGET = 1.6 * 2 ** 20;
async function open(options: Partial<EngineOptions> = {}): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, kvBudget: BUDGET, ...options });
}

const bytesOf = async (session: EngineSession): Promise<number> => (await session.report()).kvBytesNow;

/** Bytes of a session that waits, after another one has read as much as there is. */
async function pressed(options: SessionOptions, idleSessions: 'keep' | 'reread'): Promise<number> {
  await open({ idleSessions, kvBudget: Math.floor(PRESSED_BUDGET) });
  const first = await engine.openSession(options);
  await first.read(ids(600));
  const second = await engine.openSession();
  await second.read(ids(1700, 2));
  const { parked } = await first.report();
  const bytes = parked === null ? await bytesOf(first) : 0;
  expect((await second.report()).kvBytesNow + bytes).toBeLessThanOrEqual(PRESSED_BUDGET);
  await engine.close();
  return bytes;
}

describe('kvFloor', () => {
  it.each(['keep', 'reread'] as const)('is left to a session that waits, with idleSessions %s', async (idle) => {
    const floorBytes = 500_000;
    expect(await pressed({}, idle)).toBeLessThan(0.95 * floorBytes);
    expect(await pressed({ kvFloor: floorBytes }, idle)).toBeGreaterThanOrEqual(floorBytes);
  });

  it('is a size as people write it, and is told by the report', async () => {
    await open();
    const session = await engine.openSession({ kvFloor: '0.25MiB', kvWeight: 3 });
    expect((await session.report()).pressure).toMatchObject({ floorBytes: 2 ** 18, weight: 3 });
  });

  it('is promised: what does not fit into the budget beside others is refused with the numbers', async () => {
    await open();
    const first = await engine.openSession({ kvFloor: 700_000 });
    const { code, values } = await refused(engine.openSession({ kvFloor: 400_000 }));
    expect(code).toBe('budget-exceeded');
    expect(values).toMatchObject({ kvFloor: 400_000, committedBytes: 700_000, budgetBytes: BUDGET });
    await engine.openSession({ kvFloor: 300_000 });
    await first.close();
    // What was refused has left nothing behind, and what was closed is free again.
    await engine.openSession({ kvFloor: 700_000 });
  });

  it('is one for a session and its forks, until the last of them is closed', async () => {
    await open();
    const first = await engine.openSession({ kvFloor: 700_000 });
    await first.read(ids(300));
    const fork = await first.fork();
    expect((await fork.report()).pressure).toMatchObject({ floorBytes: 700_000 });
    await first.close();
    expect((await refused(engine.openSession({ kvFloor: 400_000 }))).code).toBe('budget-exceeded');
    await fork.close();
    await engine.openSession({ kvFloor: 1_000_000 });
  });

  it('is not there for the calls of others, whether it is used or not', async () => {
    await open({ idleSessions: 'keep' });
    const session = await engine.openSession();
    await engine.openSession({ kvFloor: 900_000 });
    const { code, values } = await refused(session.read(ids(900)));
    expect(code).toBe('budget-exceeded');
    expect(values['roomBytes']).toBe(BUDGET - 900_000);
    await session.read(ids(60));
    const choosy = await engine.openSession({ onPressure: 'refuse' });
    expect((await refused(choosy.read(ids(300)))).values['neededBytes']).toBeGreaterThan(900_000);
  });

  it('is refused where it makes no sense', async () => {
    await open();
    for (const options of [{ kvFloor: 'much' }, { kvFloor: '20%' }, { kvFloor: 2 ** 19, kvBudget: 2 ** 18 }])
      expect((await refused(engine.openSession(options))).code).toBe('bad-argument');
    for (const kvWeight of [0, -1, 101, Number.NaN])
      expect((await refused(engine.openSession({ kvWeight }))).code).toBe('bad-argument');
  });

  it.each([
    [undefined, 512],
    [300_000, 0],
  ])('of %s: pages held together with others, who could move them, have %i tokens', async (kvFloor, heldTokens) => {
    const dir = folder();
    await open({ stateDir: dir });
    const first = await engine.openSession();
    await first.read(ids(600));
    const second = await engine.openSession(kvFloor === undefined ? {} : { kvFloor });
    await second.read(ids(600));
    await engine.close();
    const note = entriesOf(dir, second.id, 'note').find(({ body }) => 'adopted' in body);
    expect(note?.body['heldTokens'] ?? 0).toBe(heldTokens);
  });
});

describe('kvWeight', () => {
  it('is how many bytes old pages keep beside those of others, which the logs replay and top shows', async () => {
    const dir = folder();
    await open({ stateDir: dir, idleSessions: 'keep', kvBudget: '1.6MiB' });
    const heavy = await engine.openSession({ kvWeight: 2, kvFloor: 100_000 });
    const light = await engine.openSession();
    for (let turn = 0; turn < 6; turn++) for (const one of [heavy, light]) await one.read(ids(180, turn));
    const ratio = (await bytesOf(heavy)) / (await bytesOf(light));
    expect(ratio).toBeGreaterThan(1.25);
    await engine.close();
    const view = new TopView();
    let pool = '';
    for (const entry of readLog(logDir(dir))) {
      if (entry.kind !== 'close') view.add(entry);
      if (askingIn(entry) !== null) pool = entry.session;
    }
    const rows = view.rows(Date.now(), () => true);
    expect(rows.find(({ session }) => session === heavy.id)).toMatchObject({ floorBytes: 100_000, weight: 2 });
    expect(rows.find(({ session }) => session === light.id)).toMatchObject({ floorBytes: 0, weight: 1 });
    const [opened] = entriesOf(dir, heavy.id, 'open');
    expect(opened!.body).toMatchObject({
      requested: { kvFloor: 100_000, kvWeight: 2 },
      effective: { floorBytes: 100_000 },
    });
    for (const id of [heavy.id, light.id, pool]) expect(replay(logDir(dir), id).equal).toBe(true);
  });
});
