// The log on a simulated disk, thousands of times: crashes at every call, failing and full disks, syncs that fail and
// forget, jumps of the clock. Nothing that was acknowledged is lost, nothing is there that nobody made, and made =
// logged + dropped. Disks that break their promise are found, so the simulation can fail. `npm run sim -- log --seeds
// N` runs more seeds, `npm run sim -- log SEED` one, with all it does.
// Nothing shorter proves it: what a crash leaves depends on the call at which it comes, and on what came before.
import { describe, expect, it, test } from 'vitest';
import { syncFolder } from '../../native/index.ts';
import type { LogFiles } from '../../witness/index.ts';
import { SessionKeys } from '../../witness/keys.ts';
import { mulberry32 } from '../random.ts';
import { seedFrom, VOLUMES, volume } from '../tier.ts';
import { SimulatedDisk } from './log-disk.ts';
import { type Outcome, type Simulation, simulateLog } from './log-run.ts';
import { SimulatedTime } from './log-time.ts';

const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? 1 + VOLUMES['log seeds'].full * seedFrom(0));
const SEEDS = Number(process.env['PALIMPSEST_SIM_SEEDS'] ?? volume('log seeds'));
const SCATTERED = Math.ceil(SEEDS / 4);
const trace = SEEDS === 1 ? (line: string): void => console.log(line) : undefined;

async function all(simulations: readonly Simulation[]): Promise<Outcome> {
  const sum: Record<string, number> = {};
  for (const simulation of simulations)
    for (const [name, count] of Object.entries(await simulateLog(simulation))) sum[name] = (sum[name] ?? 0) + count;
  return sum as unknown as Outcome;
}

const from = (seed: number, count: number): Simulation[] =>
  Array.from({ length: count }, (_, n) => ({ seed: seed + n, ...(trace === undefined ? {} : { trace }) }));

test(`${SEEDS} seeds from ${SEED}`, async () => {
  const sum = await all(from(SEED, SEEDS));
  console.log(
    `${SEEDS} seeds: ${Object.entries(sum)
      .map(([name, count]) => `${count} ${name}`)
      .join(', ')}`,
  );
  if (SEEDS < 100) return;
  expect(sum.kills).toBeGreaterThan(SEEDS / 5);
  expect(sum.powerCuts).toBeGreaterThan(SEEDS / 5);
  expect(sum.dropped).toBeGreaterThan(SEEDS / 10);
  expect(sum.refused).toBe(0);
});

// Sectors of one commit in any order: the log may be refused then, but what was acknowledged is read all the same.
test(`${SCATTERED} seeds from ${SEED} on a disk that writes sectors in any order`, async () => {
  const sum = await all(from(SEED, SCATTERED).map((simulation) => ({ ...simulation, canScatter: true })));
  console.log(`${sum.refused} of ${SCATTERED} logs need a person`);
  // Ten of 2,750 did.
  expect(sum.refused).toBeLessThanOrEqual(3 + SCATTERED / 50);
});

test('a crash at every call of three long lives', async () => {
  let lives = 0;
  for (let seed = 1; lives < 3; seed++) {
    const { firstCalls } = await simulateLog({ seed, crashAt: Number.POSITIVE_INFINITY });
    if (firstCalls < 80) continue;
    await all(Array.from({ length: firstCalls }, (_, crashAt) => ({ seed, crashAt })));
    lives++;
  }
});

// A seed of commit 951 found it: the writer that made a key failed before the folder of keys was synced, and the next
// one took the key from the cache of the system and acknowledged what it had encrypted with it.
test('a key that another writer put there is made sure of before anything is encrypted with it', () => {
  const [root, dir] = ['/simulated', '/simulated/log'];
  const disk = new SimulatedDisk({ root, random: mulberry32(1), time: new SimulatedTime() });
  disk.process().mkdirSync(dir);
  syncFolder(root, disk.process());
  const failing = new SessionKeys(disk.process(), dir);
  failing.encryption(0, 'a', 'note');
  disk.plan = (operation) => (operation === 'sync-folder' ? 'EIO' : 'ok');
  expect(() => failing.save()).toThrow('EIO');
  disk.plan = () => 'ok';
  const next = new SessionKeys(disk.process(), dir);
  next.encryption(0, 'a', 'note');
  next.save();
  disk.cutPower();
  expect(new SessionKeys(disk.process(), dir).unopened('a')).toBeNull();
});

/** The same files, some functions of which do something else. */
const changed = (files: LogFiles, changes: Partial<LogFiles>): LogFiles =>
  new Proxy(files, {
    get: (target, name) =>
      changes[name as keyof LogFiles] ?? (target[name as keyof LogFiles] as () => void).bind(target),
  });

const BROKEN: Readonly<Record<string, (files: LogFiles) => LogFiles>> = {
  'a sync of entries that does nothing': (files) =>
    changed(files, { fdatasync: (_fd, done) => queueMicrotask(() => done(null)), fdatasyncSync: () => {} }),
  'a sync of folders and of what was made aside that does nothing': (files) => changed(files, { fsyncSync: () => {} }),
  'bytes that are not written again after a sync failed': (files) => {
    const written = new Set<string>();
    return changed(files, {
      write: (fd, source, offset, length, position, done) => {
        const place = `${fd} ${position} ${length}`;
        if (written.has(place)) queueMicrotask(() => done(null, length));
        else files.write(fd, source, offset, length, position, done);
        written.add(place);
      },
    });
  },
  'a truncation that does nothing': (files) => changed(files, { ftruncateSync: () => {} }),
};

describe('a disk that breaks its promise is found', () => {
  it.each(Object.entries(BROKEN))('%s', async (_, wrap) => {
    const failure = async (seed: number): Promise<string | null> =>
      await simulateLog({ seed, wrap }).then(
        () => null,
        (error: Error) => error.message.replaceAll(/palimpsest-sim-\w+/g, 'folder'),
      );
    let seed = 0;
    let found: string | null = null;
    while (found === null && seed < 1000) found = await failure(++seed);
    expect(found).toMatch(/lost|cannot be read|made|another/);
    expect(await failure(seed)).toBe(found);
    // It is the disk and not the way in which it was changed.
    await simulateLog({ seed, wrap: (files) => changed(files, {}) });
  });
});
