// Failing disks, simulated: no space at any write, a sync that fails and forgets, short writes, power cuts at random
// moments. The promise is always the same: what was acknowledged is there, and made = logged + dropped.

import { describe, expect, it } from 'vitest';
import {
  type FailureMode,
  openWitnessLog,
  readLog,
  verifyLog,
  type WitnessLog,
  type WitnessOptions,
} from '../../../witness/index.ts';
import { mulberry32 } from '../../random.ts';
import { fill, scratchFolders } from './folder.ts';
import { type Answer, type Plan, SimulatedDisk } from './simulated-disk.ts';

const folder = scratchFolders();
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const open = (files: SimulatedDisk, more: Partial<WitnessOptions> = {}): Promise<WitnessLog> =>
  openWitnessLog({
    dir: folder(),
    files,
    commitIntervalMs: 0,
    retryMs: 1,
    blockMsMax: 20,
    segmentBytesMax: 1500,
    bufferBytesMax: 2500,
    ...more,
  });

/** Notes of the test itself, by n; the log's own notes left out. */
function written(disk: SimulatedDisk): number[] {
  return [...readLog('/', { files: disk, session: 's' })].map((entry) => (entry.body as { n: number }).n);
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, n) => n);

describe('no space left', () => {
  // Every operation of a small run fails once, for good, in every mode: nothing acknowledged is missing, and the log
  // opens again.
  it.each(['block', 'halt', 'drop'] as const)('at every single operation, mode %s', async (mode: FailureMode) => {
    const probe = new SimulatedDisk();
    const log = await open(probe, { mode });
    const opened = probe.count;
    await exercise(log, 30);
    await log.close();
    expect(written(probe)).toEqual(upTo(30));
    for (let failing = opened; failing < probe.count; failing++) {
      const disk = new SimulatedDisk();
      const sick = await open(disk, { mode });
      disk.plan = (_operation, count) => (count >= failing ? 'ENOSPC' : 'ok');
      const made = await exercise(sick, 30);
      const acknowledged = sick.acknowledgedSeq;
      await sick.close().catch((error) => expect(error.code).toBe('log-unwritable'));
      disk.plan = () => 'ok';
      const found = written(disk);
      expect(found.length).toBeGreaterThanOrEqual(acknowledged + 1);
      expect(found).toEqual(upTo(found.length));
      if (mode === 'drop') expect(made).toBe(30);
      const again = await open(disk);
      await again.close();
      expect(verifyLog('/', disk)).toMatchObject({ ok: true, tornBytes: 0 });
      expect(written(disk)).toEqual(found);
    }
  });

  // Block and halt tell the caller: by append, by flush, or at the latest by close.
  it.each(['block', 'halt'] as const)('is told to the caller, mode %s', async (mode) => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode });
    await fill(log, 3);
    disk.plan = (operation) => (operation === 'write' ? 'ENOSPC' : 'ok');
    log.append('s', 'note', { n: 3 });
    await expect(log.flush()).rejects.toMatchObject({
      code: 'log-unwritable',
      values: { mode, acknowledgedSeq: 2, lostEntries: 1 },
    });
    expect(() => log.append('s', 'note', { n: 4 })).toThrowError(/cannot be written/);
    await log.close();
    const other = await open(new SimulatedDisk(), { mode });
    await other.close();
    const silent = new SimulatedDisk();
    const unseen = await open(silent, { mode });
    silent.plan = () => 'EIO';
    unseen.append('s', 'note', { n: 0 });
    await expect(unseen.close()).rejects.toMatchObject({ code: 'log-unwritable' });
    expect(unseen.droppedCount).toBe(1);
  });

  // Block waits for space: when it comes back in time, nothing is lost and nobody hears of it.
  it('passes unnoticed in mode block when it is short', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'block', blockMsMax: 1000 });
    const until = disk.count + 6;
    disk.plan = (_operation, count) => (count < until ? 'ENOSPC' : 'ok');
    await fill(log, 20);
    expect(log.acknowledgedSeq).toBe(19);
    await log.close();
    expect(written(disk)).toEqual(upTo(20));
  });

  // Halt does not wait: the first refusal is the last.
  it('ends the log at once in mode halt', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'halt' });
    const until = disk.count + 1;
    disk.plan = (_operation, count) => (count < until ? 'ENOSPC' : 'ok');
    log.append('s', 'note', { n: 0 });
    await expect(log.flush()).rejects.toMatchObject({ code: 'log-unwritable' });
    await log.close();
    expect(written(disk)).toEqual([]);
  });
});

describe('mode drop', () => {
  // A full disk in the middle of a run: later entries are counted, and once there is space again a note says how many
  // are missing.
  it('counts what is lost and writes it down afterwards', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'drop' });
    await fill(log, 5);
    disk.plan = (operation) => (operation === 'write' ? 'ENOSPC' : 'ok');
    expect(log.append('s', 'note', { n: 5 })).toBe(5);
    expect(await log.flush()).toBe(4);
    const answers = upTo(10).map((n) => log.append(n % 2 === 0 ? 's' : 't', 'note', { n }));
    expect(answers).toEqual(Array.from({ length: 10 }, () => null));
    expect(log.droppedCount).toBe(10);
    disk.plan = () => 'ok';
    while (log.acknowledgedSeq < 6) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(log.append('s', 'note', { n: 99 })).toBe(7);
    await log.close();
    const entries = [...readLog('/', { files: disk })];
    expect(entries[6]).toMatchObject({
      session: '',
      kind: 'note',
      body: { note: 'dropped', entries: 10, sessions: { s: 5, t: 5 }, error: 'ENOSPC' },
    });
    expect(entries.length).toBe(8);
    expect(verifyLog('/', disk).ok).toBe(true);
  });
});

describe('a failed sync', () => {
  // The kernel forgets unsynced bytes when a sync fails: only writing them again makes the next sync mean something.
  it('is followed by a second write of the same bytes', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'block', blockMsMax: 1000 });
    let failures = 3;
    disk.plan = (operation) => (operation === 'sync' && failures-- > 0 ? 'EIO' : 'ok');
    await fill(log, 10);
    const survivor = disk.afterPowerCut(() => 0);
    expect(written(survivor)).toEqual(upTo(10));
    await log.close();
  });
});

describe('power cuts', () => {
  const seeds = upTo(80);
  // Random bodies, flushes, faults and short writes in a random mode, then the power goes: whatever survives opens,
  // verifies and holds all that was acknowledged.
  it.each(seeds)('seed %i', async (seed) => {
    const random = mulberry32(seed);
    const disk = new SimulatedDisk();
    const mode = (['block', 'halt', 'drop'] as const)[seed % 3] as FailureMode;
    const log = await open(disk, { mode, bufferBytesMax: random() < 0.5 ? 600 : 10_000 });
    disk.plan = randomPlan(random, random() < 0.4 ? 0 : 0.15);
    const count = Math.floor(random() * 60);
    let made = 0;
    try {
      for (; made < count; made++) {
        log.append('s', 'note', { n: made, pad: 'y'.repeat(Math.floor(random() * 400)) });
        if (random() < 0.2) void log.flush().catch(() => undefined);
        if (random() < 0.3) await turn();
      }
    } catch (error) {
      expect((error as { code: string }).code).toBe('log-unwritable');
    }
    const acknowledged = log.acknowledgedSeq;
    const survivor = disk.afterPowerCut(random);
    await log.close().catch(() => undefined);

    const seen = verifyLog('/', survivor);
    expect(seen.problem).toBeNull();
    const again = await open(survivor);
    const { acknowledgedSeq } = again;
    expect(acknowledgedSeq).toBeGreaterThanOrEqual(acknowledged);
    await fill(again, 3);
    await again.close();
    const entries = [...readLog('/', { files: survivor })];
    expect(entries.slice(0, acknowledged + 1).map((entry) => entry.seq)).toEqual(upTo(acknowledged + 1));
    expect(entries.some((entry) => entry.kind === 'recovered')).toBe(seen.tornBytes > 0);
    expect(verifyLog('/', survivor)).toMatchObject({ ok: true, tornBytes: 0, entries: entries.length });
  });
});

describe('made = logged + dropped', () => {
  // The same random faults without a power cut, in mode drop: after close every entry is either readable or counted.
  it.each(upTo(40))('seed %i', async (seed) => {
    const random = mulberry32(1000 + seed);
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'drop', bufferBytesMax: random() < 0.5 ? 600 : 10_000 });
    const faults = randomPlan(random, 0.3);
    // Cutting back what was not acknowledged may always succeed here: a disk that refuses even that leaves extra
    // entries, never fewer.
    disk.plan = (operation, count) =>
      operation === 'truncate' || operation === 'unlink' ? 'ok' : faults(operation, count);
    let made = 0;
    for (; made < 50; made++) {
      log.append('s', 'note', { n: made });
      if (random() < 0.2) await log.flush();
      else if (random() < 0.3) await turn();
    }
    await log.close();
    expect(written(disk).length + log.droppedCount).toBe(made);
    expect(verifyLog('/', disk).ok).toBe(true);
  });
});

/** Faults in stretches, as disks have them, and short writes in between. */
function randomPlan(random: () => number, rate: number): Plan {
  let left = 0;
  let answer: Answer = 'ok';
  return (operation) => {
    if (left-- > 0) return answer;
    answer = 'ok';
    if (operation === 'write' && random() < 0.2) return 1 + Math.floor(random() * 300);
    if (random() >= rate) return 'ok';
    left = Math.floor(random() * 8);
    answer = random() < 0.5 ? 'ENOSPC' : 'EIO';
    return answer;
  };
}

/** Appends with flushes in between, ignoring refusals. → appends that did not throw */
async function exercise(log: WitnessLog, count: number): Promise<number> {
  let made = 0;
  try {
    for (let n = 0; n < count; n++) {
      log.append('s', 'note', { n, pad: 'x'.repeat((n * 37) % 200) });
      made++;
      if (n % 7 === 6) await log.flush();
      else if (n % 3 === 2) await turn();
    }
  } catch (error) {
    expect((error as { code: string }).code).toBe('log-unwritable');
  }
  return made;
}
