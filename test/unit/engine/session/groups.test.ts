// Sessions that hold no more than so many bytes together (kvGroup), whoever else has room.
import { afterEach, describe, expect, it } from 'vitest';
import { createEngine, type Engine, type EngineOptions, type EngineSession } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { replay } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
let engine: Engine;
afterEach(() => engine.close());

const BUDGET = 2 ** 23;
/** 600 tokens take 1.03 MB as they come, and 0.53 in the lowest formats; 900 take 1.46 and 0.64. */
const GROUP = 1_400_000;
const ann = { kvGroup: { name: 'ann', kvBudget: GROUP } };
async function open(options: Partial<EngineOptions> = {}): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, kvBudget: BUDGET, ...options });
}
const bytesOf = async (sessions: readonly EngineSession[]): Promise<number> => {
  let bytes = 0;
  for (const session of sessions) bytes += (await session.report()).kvBytesNow;
  return bytes;
};

describe('a kvGroup', () => {
  it('bounds its sessions together at every step, as one session is, and nobody else', async () => {
    await open({ prefixCaching: false, idleSessions: 'keep' });
    const [one, two] = [await engine.openSession(ann), await engine.openSession(ann)];
    const free = await engine.openSession();
    for (let turn = 0; turn < 4; turn++)
      for (const session of [one, two]) {
        await session.read(ids(150, turn));
        expect(await bytesOf([one, two])).toBeLessThanOrEqual(GROUP);
      }
    expect((await one.report()).decisions + (await two.report()).decisions).toBeGreaterThan(0);
    await free.read(ids(1200));
    expect(await bytesOf([free])).toBeGreaterThan(GROUP);
    expect((await free.report()).decisions).toBe(0);
  });

  it('holds what several of them hold together once, and a family once', async () => {
    await open();
    const wide = { kvGroup: { name: 'ann', kvBudget: 2_000_000 } };
    const [one, two] = [await engine.openSession(wide), await engine.openSession(wide)];
    await one.read(ids(600));
    await two.read(ids(600));
    const fork = await one.fork();
    // Each for itself, the three would take more than the group may hold, and pages would have moved.
    expect(await bytesOf([one, two])).toBeGreaterThan(2_000_000);
    expect((await fork.report()).tokens).toBe(600);
    expect((await one.report()).decisions + (await two.report()).decisions).toBe(0);
  });

  it.each(['reread', 'disk'] as const)('parks its own idle sessions first, with idleSessions %s', async (idle) => {
    await open({ idleSessions: idle, stateDir: folder(), prefixCaching: false });
    const other = await engine.openSession();
    await other.read(ids(600));
    const first = await engine.openSession(ann);
    await first.read(ids(900));
    const second = await engine.openSession(ann);
    await second.read(ids(1800, 3));
    expect((await first.report()).parked).not.toBeNull();
    expect((await other.report()).parked).toBeNull();
    expect((await other.report()).decisions).toBe(0);
    await first.read(ids(4));
    expect((await first.report()).tokens).toBe(904);
    expect(await bytesOf([first, second])).toBeLessThanOrEqual(GROUP);
  });

  it('has its calls wait for those of it that are at work, and nobody waits behind them', async () => {
    await open({ prefixCaching: false });
    const small = { kvGroup: { name: 'bob', kvBudget: 800_000 } };
    const [one, two] = [await engine.openSession(small), await engine.openSession(small)];
    const other = await engine.openSession(ann);
    const begun: string[] = [];
    const tell = (who: string) => () => void (begun.includes(who) || begun.push(who));
    const work = (session: EngineSession, who: string, tokens: number): Promise<unknown> =>
      session.read(ids(tokens), { onProgress: tell(who) });
    // The first of bob's needs most of what the group may hold at its end; the second waits, and ann's does not.
    await Promise.all([work(one, 'one', 900), work(two, 'two', 500), work(other, 'other', 64)]);
    expect(begun).toHaveLength(3);
    expect(begun.at(-1)).toBe('two');
    expect((await two.report()).pressure).toMatchObject({ waitedCalls: 1 });
    expect((await other.report()).pressure).toMatchObject({ waitedCalls: 0 });
    expect((await one.report()).parked).not.toBeNull();
  });

  it('refuses what it can never hold, and what it cannot hold now, with the numbers', async () => {
    await open({ idleSessions: 'keep' });
    const tight = { kvGroup: { name: 'bob', kvBudget: '10%' } };
    const budgetBytes = Math.floor(0.1 * BUDGET);
    const one = await engine.openSession(tight);
    const never = await refused(one.read(ids(1800)));
    expect(never.code).toBe('budget-too-small');
    expect(never.values).toMatchObject({ kvGroup: 'bob', budgetBytes });
    expect(never.values['neededBytes']).toBeGreaterThan(budgetBytes);
    await one.read(ids(400));
    const two = await engine.openSession(tight);
    const now = await refused(two.read(ids(300, 5)));
    expect(now.code).toBe('budget-exceeded');
    expect(now.values).toMatchObject({ kvGroup: 'bob', budgetBytes });
    expect(now.values['roomBytes']).toBeLessThan(now.values['neededBytes'] as number);
    await one.close();
    await two.read(ids(300, 5));
  });

  it('has the budget that was given last, and is refused where it makes no sense', async () => {
    await open();
    const one = await engine.openSession(ann);
    await one.read(ids(900));
    await engine.openSession({ kvGroup: { name: 'ann', kvBudget: 700_000 } });
    await one.read(ids(60));
    expect(await bytesOf([one])).toBeLessThanOrEqual(700_000);
    for (const kvGroup of [
      { name: '', kvBudget: 1e6 },
      { name: 'a', kvBudget: '0%' },
      { name: 'a', kvBudget: 'much' },
    ])
      expect((await refused(engine.openSession({ kvGroup }))).code).toBe('bad-argument');
  });

  it('leaves logs that replay', async () => {
    const dir = folder();
    await open({ stateDir: dir, idleSessions: 'keep', prefixCaching: false });
    const sessions = [await engine.openSession(ann), await engine.openSession(ann), await engine.openSession()];
    for (let turn = 0; turn < 4; turn++) for (const session of sessions) await session.read(ids(150, turn));
    await engine.close();
    for (const { id } of sessions) expect(replay(logDir(dir), id).equal).toBe(true);
  });
});
