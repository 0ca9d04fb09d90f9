// A process that installs and activates is killed, or loses its power, at each of its calls to a simulated disk (at
// home at each fourth). Whoever comes next finds the generation before or the one after, whole; the log, on the same
// disk, has or gets every arrow of what is there; and the work can be done again.
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { PackKeeper, type PackTrial } from '../../../../engine/packs/lifecycle.ts';
import { type Generation, PackStore, packsDir } from '../../../../engine/packs/store.ts';
import { type LogFiles, openWitnessLog, type PackBody, readLog } from '../../../../witness/index.ts';
import { mulberry32 } from '../../../random.ts';
import { isLooking, type Process, SimulatedDisk } from '../../../simulation/log-disk.ts';
import { SimulatedTime } from '../../../simulation/log-time.ts';
import { isShare } from '../../../tier.ts';
import { manifestWith, NOW_MS, packOf, signTrust, trustWith } from './signed.ts';

const trial: PackTrial = {
  instrument: (module) => module,
  test: async () => ({ kept: true, calls: 1, problems: [], fuelPerToken: 1, error: 0 }),
};

/** One machine with its disk. Locks lie in a real folder, everything else on the disk. */
class Machine {
  readonly root = mkdtempSync(join(tmpdir(), 'palimpsest-kills-'));
  readonly state = join(this.root, 'state');
  readonly time = new SimulatedTime();
  readonly disk: SimulatedDisk;

  constructor(seed: number) {
    this.disk = new SimulatedDisk({ root: this.root, random: mulberry32(seed), time: this.time });
    this.time.offsetMs = NOW_MS;
    for (const dir of [join(this.state, 'log'), packsDir(this.state)]) mkdirSync(dir, { recursive: true });
  }

  /** Does something as a process of its own. `crashAt`: the call at which it ends. → how many calls there were */
  async live(work: (keeper: PackKeeper) => Promise<unknown>, crashAt = Number.POSITIVE_INFINITY): Promise<number> {
    const files: Process = this.disk.process();
    let calls = 0;
    this.disk.onCall = (operation) => {
      if (isLooking(operation)) return;
      if (calls++ === crashAt) files.isDead = true;
    };
    const ended = this.#work(files, work).catch((error: unknown) => {
      if (!files.isDead) throw error;
    });
    // Work of the log beside its caller is done in simulated time.
    let isOver = false;
    void ended.finally(() => (isOver = true)).catch(() => {});
    for (let i = 0; i < 2000 && !isOver && !files.isDead; i++) {
      await new Promise((resolve) => setImmediate(resolve));
      this.time.step();
    }
    if (!files.isDead) await ended;
    this.disk.onCall = () => {};
    if (crashAt === Number.POSITIVE_INFINITY) expect(this.disk.misuse).toEqual([]);
    for (const dir of [join(this.state, 'log'), packsDir(this.state)])
      rmSync(join(dir, 'writer.lock'), { force: true });
    return calls;
  }

  async #work(files: LogFiles, work: (keeper: PackKeeper) => Promise<unknown>): Promise<void> {
    const { clock } = this.time;
    const log = await openWitnessLog({ dir: join(this.state, 'log'), files, clock, blockMsMax: 0 });
    const keeper = await PackKeeper.open({ stateDir: this.state, log, clock, files });
    await work(keeper);
    keeper.close();
    await log.close();
  }

  /** What the next process finds, read through the same disk. */
  found(): { readonly now: Generation | null; readonly arrows: readonly PackBody[] } {
    const files = this.disk.process();
    const store = new PackStore(this.state, files);
    const now = store.current();
    for (const { digest, envelope } of now?.packs ?? [])
      for (const object of [digest, envelope]) store.object(object, 2 ** 20);
    const arrows = [...readLog(join(this.state, 'log'), { kinds: ['pack'], files })].map(
      ({ body }) => body as PackBody,
    );
    return { now, arrows };
  }

  end(): void {
    rmSync(this.root, { recursive: true, force: true });
  }
}

const pack = (version: string) => packOf({ manifest: manifestWith({ version }) });

/** Installs a second version beside an active one, and activates it. */
const change = async (keeper: PackKeeper): Promise<void> => {
  await keeper.install(pack('1.1.0'), trial);
  await keeper.activate('example@1.1.0');
};

const statesOf = (generation: Generation | null): string =>
  (generation?.packs ?? []).map(({ version, state }) => `${version} ${state}`).join(', ');

const LEGAL = ['1.0.0 active', '1.0.0 active, 1.1.0 tested', '1.0.0 draining, 1.1.0 active'] as const;

async function prepared(seed: number): Promise<Machine> {
  const machine = new Machine(seed);
  await machine.live(async (keeper) => {
    await keeper.installTrust(signTrust(trustWith()), 'trust');
    await keeper.install(pack('1.0.0'), trial);
    await keeper.activate('example');
  });
  return machine;
}

test('killed at each call, or without power from there on, a change is done, half done by whole steps, or not begun', async () => {
  const whole = await prepared(0);
  const calls = await whole.live(change);
  expect(statesOf(whole.found().now)).toBe(LEGAL[2]);
  whole.end();
  expect(calls).toBeGreaterThan(40);
  const seen = new Set<string>();
  for (let crashAt = 0; crashAt < calls; crashAt++) {
    if (!isShare(crashAt, 4)) continue;
    for (const isPower of [false, true]) {
      const machine = await prepared(2 * crashAt + Number(isPower));
      await machine.live(change, crashAt);
      if (isPower) machine.disk.cutPower();
      const { now } = machine.found();
      const at = `call ${crashAt}${isPower ? ', no power' : ''}`;
      expect(LEGAL, at).toContain(statesOf(now));
      seen.add(statesOf(now));
      // The next process tells what was not told, and finishes.
      await machine.live(async () => {});
      const { arrows } = machine.found();
      expect(new Set(arrows.map(({ generation }) => generation)), at).toContain(now!.generation);
      const finish = async (keeper: PackKeeper): Promise<void> => {
        await keeper.install(pack('1.1.0'), trial);
        if (keeper.find('example@1.1.0').state !== 'active') await keeper.activate('example@1.1.0');
      };
      await machine.live(finish);
      const after = machine.found();
      expect(statesOf(after.now), at).toBe(LEGAL[2]);
      const told = after.arrows.map(({ version, event, generation }) => `${generation} ${version} ${event}`);
      expect(new Set(told).size, `${at}: an arrow is told once`).toBe(told.length);
      machine.end();
    }
  }
  expect([...seen].sort()).toEqual([...LEGAL].sort());
});
