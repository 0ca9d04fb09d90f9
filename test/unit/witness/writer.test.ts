// What the writer promises while the disk misbehaves, and what recovery and removal do to the files, each for its own:
// a simulated disk that refuses on command, and folders as crashes leave them. The soaks try these at random; here each
// promise has its one case.
import { cpSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type LogFiles, nodeFiles } from '../../../witness/files.ts';
import { openWitnessLog, readLog, verifyLog, type WitnessLog, type WitnessOptions } from '../../../witness/index.ts';
import { recoverLog } from '../../../witness/recover.ts';
import { planRemoval } from '../../../witness/remove.ts';
import { fill, scratchFolders } from './folder.ts';
import { SimulatedDisk } from './simulated-disk.ts';

const folder = scratchFolders();
const open = (files: SimulatedDisk, more: Partial<WitnessOptions> = {}): Promise<WitnessLog> =>
  openWitnessLog({
    dir: folder(),
    files,
    commitIntervalMs: 1,
    retryMs: 1,
    blockMsMax: 20,
    segmentBytesMax: 600,
    ...more,
  });
const namesOn = (disk: SimulatedDisk): string[] => [...disk.files.keys()].sort();
const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((resolve) => setTimeout(resolve, 1));
};

describe('a disk that takes no bytes and gives no error', () => {
  it.each(['halt', 'block'] as const)('is a full disk, mode %s', async (mode) => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode });
    await fill(log, 1);
    disk.plan = (operation) => (operation === 'write' ? 0 : 'ok');
    log.append('s', 'note', { n: 1 });
    await expect(log.flush()).rejects.toMatchObject({ code: 'log-unwritable' });
    await log.close();
    expect(log.droppedCount).toBe(1);
    expect([...readLog('/', { files: disk })].length).toBe(1);
  });
});

describe('what is acknowledged', () => {
  // The power goes right behind the acknowledgement, and keeps nothing that was not synced: neither bytes nor names of
  // files.
  it.each([
    ['written beside the caller', 1 << 20],
    ['written by append itself', 500],
  ])('is on the disk, in whatever segment, %s', async (_how, bufferBytesMax) => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { bufferBytesMax });
    for (let n = 0; n < 15; n++) {
      log.append('s', 'note', { n, pad: 'x'.repeat(100) });
      if (bufferBytesMax > 500) await log.flush();
      const survivor = disk.afterPowerCut(() => 0);
      const there = survivor.files.size === 0 ? 0 : [...readLog('/', { files: survivor })].length;
      expect(there, `after ${n}`).toBeGreaterThanOrEqual(log.acknowledgedSeq + 1);
      if (bufferBytesMax > 500) expect(log.acknowledgedSeq).toBe(n);
    }
    expect(log.acknowledgedSeq).toBeGreaterThan(8);
    expect(namesOn(disk).length).toBeGreaterThan(3);
    await log.close();
  });

  it.each(['write', 'sync'] as const)('is nothing that a %s refused', async (refused) => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'halt' });
    await fill(log, 1);
    disk.plan = (operation) => (operation === refused ? 'EIO' : 'ok');
    log.append('s', 'note', { n: 1 });
    await expect(log.flush()).rejects.toMatchObject({
      code: 'log-unwritable',
      message: expect.stringContaining('EIO'),
      hint: expect.stringContaining('mode drop'),
      values: { acknowledgedSeq: 0, lostEntries: 1 },
    });
    expect(log.acknowledgedSeq).toBe(0);
    disk.plan = () => 'ok';
    await log.close();
    // What was promised to nobody was cut off again.
    expect([...readLog('/', { files: disk })].length).toBe(1);
    expect(log.droppedCount).toBe(1);
  });

  it('takes one open file at a time, or two around a new segment, and none when the log is closed', async () => {
    const own = new Set<number>();
    let most = 0;
    const counted: LogFiles = {
      ...nodeFiles,
      openSync: (path, flags, mode) => {
        const fd = nodeFiles.openSync(path, flags, mode);
        if (path.endsWith('.wal')) own.add(fd);
        most = Math.max(most, own.size);
        return fd;
      },
      closeSync: (fd) => {
        own.delete(fd);
        nodeFiles.closeSync(fd);
      },
    };
    const log = await openWitnessLog({ dir: folder(), segmentBytesMax: 600, files: counted });
    for (let n = 0; n < 12; n++) await fill(log, 1, 150);
    expect(most).toBeLessThanOrEqual(2);
    await log.close();
    expect(own.size).toBe(0);
  });
});

describe('mode drop, while the disk refuses', () => {
  it('says what refused, also where the disk gave no reason', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'drop' });
    await fill(log, 1);
    disk.plan = (operation) => (operation === 'write' ? 0 : 'ok');
    log.append('s', 'note', { n: 1 });
    await log.flush();
    expect(log.append('s', 'note', { n: 2 })).toBeNull();
    disk.plan = () => 'ok';
    await log.close();
    const told = [...readLog('/', { files: disk, session: '' })].map(({ body }) => body);
    expect(told).toEqual([expect.objectContaining({ note: 'dropped', entries: 1, error: 'ENOSPC' })]);
  });

  it('says how many entries of a session may be missing: those dropped, and those that still wait', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'drop' });
    await fill(log, 2);
    expect(log.missingOf('s')).toBe(0);
    disk.plan = (operation) => (operation === 'write' ? 'EIO' : 'ok');
    log.append('s', 'note', { n: 2 });
    // Nobody knows of any trouble yet.
    expect(log.missingOf('s')).toBe(0);
    await log.flush();
    expect([log.missingOf('s'), log.missingOf('t')]).toEqual([1, 0]);
    expect(log.append('s', 'note', { n: 3 })).toBeNull();
    expect(log.append('t', 'note', { n: 3 })).toBeNull();
    expect([log.missingOf('s'), log.missingOf('t'), log.droppedCount]).toEqual([2, 1, 2]);
    disk.plan = () => 'ok';
    await until(() => log.missingOf('s') === 1);
    expect([log.missingOf('t'), log.droppedCount]).toEqual([1, 2]);
    await log.close();
  });

  it('removes no segment, neither where the refusal is known nor where it comes with the entry that says so', async () => {
    for (const isKnown of [true, false]) {
      const disk = new SimulatedDisk();
      const log = await open(disk, { mode: 'drop' });
      await fill(log, 20);
      const before = namesOn(disk);
      expect(before.length).toBeGreaterThan(4);
      disk.plan = (operation) => (operation === 'write' ? 'ENOSPC' : 'ok');
      if (isKnown) {
        log.append('s', 'note', { n: 20 });
        await log.flush();
      }
      expect(await log.removeSegments(3)).toBeNull();
      expect(namesOn(disk).slice(0, 4)).toEqual(before.slice(0, 4));
      disk.plan = () => 'ok';
      await log.close();
      expect(verifyLog('/', disk)).toMatchObject({ ok: true, problem: null });
      const again = await open(disk);
      expect(await again.removeSegments(3)).toMatchObject({ firstSegment: 3, segments: 3 });
      await again.close();
      expect(namesOn(disk)[0]).toBe(before[3]);
      expect(verifyLog('/', disk)).toMatchObject({ ok: true, problem: null });
    }
  });
});

describe('at close, mode drop', () => {
  const refusal = (code: string): Error => Object.assign(new Error(code), { code });
  const notes = (dir: string, files: LogFiles = nodeFiles): unknown[] =>
    [...readLog(dir, { files, session: '' })].map(({ body }) => body);

  it('what is missing is told in a new segment where the old one may not grow', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { mode: 'drop', segmentBytesMax: 1 << 20 });
    await fill(log, 2);
    let isOpened = false;
    disk.plan = (operation) => {
      isOpened ||= operation === 'open';
      return operation === 'write' && !isOpened ? 'ENOSPC' : 'ok';
    };
    log.append('s', 'note', { n: 2 });
    await log.flush();
    await log.close();
    expect(log.droppedCount).toBe(1);
    expect(namesOn(disk)).toEqual(['00000000.wal', '00000001.wal']);
    expect(notes('/', disk)).toEqual([expect.objectContaining({ note: 'dropped', entries: 1, error: 'ENOSPC' })]);
    expect(verifyLog('/', disk)).toMatchObject({ ok: true, entries: 3 });
  });

  it('the same where the old one cannot be opened', async () => {
    const dir = folder();
    const first = await openWitnessLog({ dir });
    await fill(first, 2);
    await first.close();
    let isRefused = false;
    const openSync: LogFiles['openSync'] = (path, flags, mode) => {
      if (isRefused && flags === 'r+') throw refusal('EMFILE');
      return nodeFiles.openSync(path, flags, mode);
    };
    const log = await openWitnessLog({ dir, mode: 'drop', retryMs: 1, files: { ...nodeFiles, openSync } });
    isRefused = true;
    log.append('s', 'note', { n: 2 });
    expect(await log.flush()).toBe(1);
    await log.close();
    expect(log.droppedCount).toBe(1);
    expect(readdirSync(dir).sort()).toEqual(['00000000.wal', '00000001.wal']);
    expect(notes(dir)).toEqual([expect.objectContaining({ note: 'dropped', entries: 1, error: 'EMFILE' })]);
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 3 });
  });

  // Nothing is written unencrypted: an entry whose key cannot be read counts as one that the disk refused.
  it.each(['drop', 'halt', 'block'] as const)(
    'a key that cannot be read keeps its session out, mode %s',
    async (mode) => {
      const dir = folder();
      const first = await openWitnessLog({ dir, encrypt: true });
      first.append('s', 'note', { n: 0 });
      await first.close();
      let isRefused = false;
      const openSync: LogFiles['openSync'] = (path, flags, access) => {
        if (isRefused && path.includes('keys') && flags === 'r') throw refusal('EIO');
        return nodeFiles.openSync(path, flags, access);
      };
      const files = { ...nodeFiles, openSync };
      const log = await openWitnessLog({ dir, mode, encrypt: true, retryMs: 1, blockMsMax: 5, files });
      isRefused = true;
      if (mode !== 'drop') {
        for (let n = 0; n < 2; n++)
          expect(() => log.append('s', 'note', { n })).toThrowError(
            expect.objectContaining({ code: 'log-unwritable' }),
          );
        await log.close();
        expect([...readLog(dir)].length).toBe(1);
        return;
      }
      expect(log.append('s', 'note', { n: 1 })).toBeNull();
      expect(log.droppedCount).toBe(1);
      isRefused = false;
      // The note that tells it is made at once, and the session goes on.
      expect(log.append('s', 'note', { n: 2 })).toBe(2);
      log.append('t', 'note', { n: 3 });
      isRefused = true;
      expect(log.append('u', 'note', { n: 4 })).toBeNull();
      isRefused = false;
      await log.close();
      expect(log.droppedCount).toBe(2);
      expect(notes(dir)).toEqual([
        expect.objectContaining({ entries: 1, sessions: { s: 1 }, error: 'EIO' }),
        expect.objectContaining({ entries: 1, sessions: { u: 1 }, error: 'EIO' }),
      ]);
      expect([...readLog(dir, { session: 's' })].map(({ body }) => body)).toEqual([{ n: 0 }, { n: 2 }]);
      expect(verifyLog(dir)).toMatchObject({ ok: true });
    },
  );
});

describe('what is to be removed', () => {
  it('is every segment before the one that is named, with the bytes they have', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, segmentBytesMax: 600 });
    await fill(log, 20);
    await log.close();
    const names = readdirSync(dir).filter((name) => name.endsWith('.wal'));
    const last = names.length - 1;
    const bytes = names.slice(0, 3).reduce((sum, name) => sum + readFileSync(join(dir, name)).length, 0);
    const plan = planRemoval(nodeFiles, dir, 3, last);
    expect(plan).toMatchObject({ numbers: [0, 1, 2], body: { firstSegment: 3, segments: 3, bytes } });
    const before = [...readLog(dir)].filter(({ seq }) => seq < plan!.body.firstSeq).length;
    expect(before).toBe(plan!.body.firstSeq);
    expect(planRemoval(nodeFiles, dir, 0, last)).toBeNull();
    let opened = 0;
    const counted: LogFiles = {
      ...nodeFiles,
      openSync: (path, flags) => {
        opened++;
        return nodeFiles.openSync(path, flags);
      },
      closeSync: (fd) => {
        opened--;
        nodeFiles.closeSync(fd);
      },
    };
    planRemoval(counted, dir, 3, last);
    expect(opened).toBe(0);
    const damaged = readFileSync(join(dir, names[3]!));
    damaged[40]! ^= 1;
    writeFileSync(join(dir, names[3]!), damaged);
    expect(() => planRemoval(nodeFiles, dir, 3, last)).toThrowError(
      expect.objectContaining({ code: 'bad-log', message: expect.stringContaining('the checksum of the header') }),
    );
    expect(planRemoval(nodeFiles, dir, last, last)?.numbers.length).toBe(last);
    for (const wrong of [-1, 1.5, Number.NaN, last + 1])
      expect(() => planRemoval(nodeFiles, dir, wrong, last)).toThrowError(
        expect.objectContaining({
          code: 'bad-argument',
          message: expect.stringContaining(`before ${wrong} cannot be removed`),
          hint: expect.stringContaining(`at most ${last}`),
          values: { firstSegment: wrong, current: last },
        }),
      );
  });

  it('is nothing before a segment of format 1, which can only follow all before it', () => {
    const dir = folder();
    cpSync(join(import.meta.dirname, '../../golden/log-v1'), dir, { recursive: true });
    expect(() => planRemoval(nodeFiles, dir, 1, 1)).toThrowError(
      expect.objectContaining({
        code: 'bad-argument',
        message: expect.stringContaining('00000001.wal is of format 1'),
        hint: expect.stringContaining('format 1'),
        values: { firstSegment: 1 },
      }),
    );
  });
});

describe('recovery', () => {
  async function written(count: number, segmentBytesMax = 1 << 20): Promise<string> {
    const dir = folder();
    let now = 1000;
    const log = await openWitnessLog({ dir, segmentBytesMax, clock: () => now++ });
    for (let n = 0; n < count; n++) log.append('s', 'note', { n });
    await log.close();
    return dir;
  }
  const bytesOf = (dir: string, name = '00000000.wal'): Buffer => readFileSync(join(dir, name));

  it('of an empty folder finds nothing', () => {
    const empty = { end: null, droppedBytes: 0, segment: '', bytes: 0, lastMs: 0, firstSegment: 0 };
    expect(recoverLog(nodeFiles, folder())).toEqual(empty);
  });

  it('of a sound log changes no byte, and says where it ends', async () => {
    const dir = await written(20, 600);
    const names = readdirSync(dir).sort();
    const before = names.map((name) => bytesOf(dir, name));
    const found = recoverLog(nodeFiles, dir);
    expect(readdirSync(dir).sort()).toEqual(names);
    expect(names.map((name) => bytesOf(dir, name))).toEqual(before);
    expect(found).toMatchObject({
      droppedBytes: 0,
      segment: '',
      bytes: before.reduce((sum, { length }) => sum + length, 0),
      lastMs: [...readLog(dir)].at(-1)!.timeMs,
      firstSegment: 0,
      end: { nextSeq: 20, segment: names.length - 1, offset: before.at(-1)!.length, tornSegment: null },
    });
    expect(found.end!.tree!.leaves).toBe(20);
  });

  it('knows the latest time also of a log of format 1, and of a segment that has no entry yet', async () => {
    const old = folder();
    cpSync(join(import.meta.dirname, '../../golden/log-v1'), old, { recursive: true });
    const times = [...readLog(old)].map(({ timeMs }) => timeMs);
    expect(recoverLog(nodeFiles, old)).toMatchObject({ lastMs: Math.max(...times), end: { nextSeq: 14 } });
    // The next segment, of format 2, must say the tree of all before it.
    expect(recoverLog(nodeFiles, old).end!.tree!.leaves).toBe(14);
    const dir = await written(3);
    const header = bytesOf(dir).readUInt32LE(12);
    truncateSync(join(dir, '00000000.wal'), header);
    expect(recoverLog(nodeFiles, dir)).toMatchObject({ lastMs: 1000, bytes: header, end: { nextSeq: 0 } });
  });

  it('puts a torn tail aside byte for byte, beside those of earlier crashes, and leaves what stands before it', async () => {
    const dir = await written(3);
    const whole = bytesOf(dir);
    const tails: Buffer[] = [];
    for (const cut of [1, 30, 60]) {
      const torn = whole.subarray(0, whole.length - cut);
      writeFileSync(join(dir, '00000000.wal'), torn);
      const found = recoverLog(nodeFiles, dir);
      expect(found).toMatchObject({ segment: '00000000.wal', end: { nextSeq: 2 } });
      const kept = bytesOf(dir);
      expect(kept.equals(whole.subarray(0, kept.length))).toBe(true);
      expect([found.bytes, found.end!.offset]).toEqual([kept.length, kept.length]);
      expect(found.droppedBytes).toBe(torn.length - kept.length);
      tails.push(Buffer.from(torn.subarray(kept.length)));
    }
    const names = ['00000000.wal.torn', '00000000.wal.torn-2', '00000000.wal.torn-3'];
    expect(readdirSync(dir).sort()).toEqual(['00000000.wal', ...names]);
    for (const [at, name] of names.entries()) expect(bytesOf(dir, name)).toEqual(tails[at]);
  });

  it('puts a segment whose header was not finished aside as a whole, also where it is the only one', async () => {
    const dir = await written(20, 600);
    const names = readdirSync(dir).sort();
    const next = `${String(names.length).padStart(8, '0')}.wal`;
    writeFileSync(join(dir, next), Buffer.alloc(100));
    const found = recoverLog(nodeFiles, dir);
    expect(found).toMatchObject({ segment: next, droppedBytes: 100, end: { nextSeq: 20, segment: names.length - 1 } });
    expect(readdirSync(dir).sort()).toEqual([...names, `${next}.torn`].sort());
    const alone = folder();
    writeFileSync(join(alone, '00000000.wal'), bytesOf(dir).subarray(0, 50));
    expect(recoverLog(nodeFiles, alone)).toEqual({
      ...{ end: null, droppedBytes: 50, segment: '00000000.wal', bytes: 0, lastMs: 0, firstSegment: 0 },
    });
    expect(readdirSync(alone)).toEqual(['00000000.wal.torn']);
  });

  // A killed writer may have left bytes in the cache alone: after recovery the power may go, and all is there.
  it('leaves on the disk what a killed writer had left in the cache, name and bytes, and the copy before the cut', async () => {
    const disk = new SimulatedDisk();
    const log = await open(disk, { segmentBytesMax: 1 << 22 });
    await fill(log, 3, 200_000);
    await fill(log, 8, 200_000);
    await log.close();
    const [name] = namesOn(disk) as [string];
    const file = disk.files.get(name)!;
    const bytes = Buffer.from(file.cached);
    for (const torn of [0, 10]) {
      const cached = bytes.subarray(0, bytes.length - torn);
      disk.files.clear();
      disk.files.set(name, { cached, durable: Buffer.alloc(0), dirty: [], isNameDurable: false });
      const found = recoverLog(disk, '/');
      const after = disk.afterPowerCut(() => 0);
      expect(after.files.get(name)!.cached.equals(bytes.subarray(0, found.end!.offset))).toBe(true);
      expect(found.end!.offset > 1 << 20).toBe(true);
      if (torn > 0) {
        const tail = bytes.subarray(found.end!.offset, bytes.length - torn);
        expect(after.files.get(`${name}.torn`)!.cached.equals(tail)).toBe(true);
      }
      expect(verifyLog('/', after)).toMatchObject({ ok: true, problem: null });
    }
  });

  it('is right on a disk that gives fewer bytes than it was asked for, and leaves no file open', async () => {
    const dir = await written(30);
    const whole = bytesOf(dir);
    writeFileSync(join(dir, '00000000.wal'), whole.subarray(0, whole.length - 5));
    let open = 0;
    const files: LogFiles = {
      ...nodeFiles,
      openSync: (path, flags, mode) => {
        open++;
        return nodeFiles.openSync(path, flags, mode);
      },
      closeSync: (fd) => {
        open--;
        nodeFiles.closeSync(fd);
      },
      readSync: (fd, target, offset, length, position) =>
        nodeFiles.readSync(fd, target, offset, Math.min(length, 50), position),
    };
    const found = recoverLog(files, dir);
    const kept = found.end!.offset;
    expect(open).toBe(0);
    expect(bytesOf(dir)).toEqual(whole.subarray(0, kept));
    expect(bytesOf(dir, '00000000.wal.torn')).toEqual(whole.subarray(kept, whole.length - 5));
    // Where a file ends before its size there is nothing to wait for.
    let isSettling = false;
    const ending: LogFiles = {
      ...files,
      openSync: (path, flags, mode) => {
        isSettling ||= flags === 'r+';
        return files.openSync(path, flags, mode);
      },
      readSync: (...args) => (isSettling ? 0 : files.readSync(...args)),
    };
    expect(() => recoverLog(ending, dir)).toThrowError(/ended \d+ bytes early/);
    expect(open).toBe(0);
    expect(bytesOf(dir)).toEqual(whole.subarray(0, kept));
  });

  it('loses nothing wherever the disk refuses: the tail is in the segment or in the copy, and the next try finishes', async () => {
    const whole = bytesOf(await written(3));
    const torn = whole.subarray(0, whole.length - 10);
    for (let failing = 0; ; failing++) {
      const disk = new SimulatedDisk();
      disk.files.set('00000000.wal', { cached: torn, durable: torn, dirty: [], isNameDurable: true });
      disk.plan = (_operation, count) => (count === failing ? 'EIO' : 'ok');
      let isDone = true;
      try {
        recoverLog(disk, '/');
      } catch (error) {
        isDone = false;
        expect((error as NodeJS.ErrnoException).code).toMatch(/^(EIO|io)$/);
      }
      const after = disk.afterPowerCut(() => 0.99);
      const left = after.files.get('00000000.wal')!.cached;
      const copies = [...after.files].filter(([name]) => name.includes('.torn'));
      const isThere = left.equals(torn) || copies.some(([, { cached }]) => Buffer.concat([left, cached]).equals(torn));
      expect(isThere, `call ${failing}`).toBe(true);
      expect(recoverLog(after, '/').end).toMatchObject({ nextSeq: 2 });
      expect(verifyLog('/', after)).toMatchObject({ problem: null, tornBytes: 0, entries: 2 });
      if (!isDone) continue;
      expect(failing).toBeGreaterThan(5);
      break;
    }
  });
});
