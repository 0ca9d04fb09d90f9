// Segments of format 2: what their headers say, what may follow what, when a new one begins, and how the oldest are
// removed. Small logs, on the real disk, and on a simulated one that dies at every operation of a removal.
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { openWitnessLog, readEntry, readLog, verifyLog } from '../../../witness/index.ts';
import { decodeHeader, encodeHeader, type SegmentHeader, segmentHash } from '../../../witness/segment.ts';
import { Frontier, leafHash, nodeHash } from '../../../witness/tree.ts';
import { fill, scratchFolders } from './folder.ts';
import { SimulatedDisk } from './simulated-disk.ts';

const folder = scratchFolders();
const golden = join(import.meta.dirname, '../../golden');
const walIn = (dir: string): string[] => readdirSync(dir).filter((name) => name.endsWith('.wal'));
const headerOf = (dir: string, name: string): SegmentHeader =>
  decodeHeader(readFileSync(join(dir, name))) as SegmentHeader;

describe('a Merkle tree', () => {
  // The frontier against the recursive definition of RFC 6962, for every number of leaves up to 70.
  it('has the root that RFC 6962 defines', () => {
    const treeHash = (leaves: readonly Uint8Array[]): Uint8Array => {
      if (leaves.length === 1) return leaves[0]!;
      const half = 2 ** Math.floor(Math.log2(leaves.length - 1));
      return nodeHash(treeHash(leaves.slice(0, half)), treeHash(leaves.slice(half)));
    };
    const leaves: Uint8Array[] = [];
    const tree = new Frontier();
    expect(Buffer.from(tree.root()).toString('hex')).toMatch(/^e3b0c442/);
    for (let n = 0; n < 70; n++) {
      leaves.push(leafHash(Buffer.from(`leaf ${n}`)));
      tree.add(leaves[n]!);
      expect(Buffer.compare(tree.root(), treeHash(leaves)), `${n + 1} leaves`).toBe(0);
      expect(tree.peaks.length).toBe([...(n + 1).toString(2)].filter((bit) => bit === '1').length);
    }
  });
});

describe('a log of format 1', () => {
  // A writer never adds to an old segment: the next one is of format 2, its tree has the old entries as well, and all
  // of it verifies.
  it('is continued by segments of format 3', async () => {
    const dir = folder();
    cpSync(join(golden, 'log-v1'), dir, { recursive: true });
    const old = readFileSync(join(dir, '00000001.wal'));
    const before = [...readLog(dir)];
    const log = await openWitnessLog({ dir });
    expect(log.acknowledgedSeq).toBe(13);
    await fill(log, 3);
    await log.close();
    expect(readFileSync(join(dir, '00000001.wal')).equals(old)).toBe(true);
    expect(walIn(dir)).toEqual(['00000000.wal', '00000001.wal', '00000002.wal']);
    expect(headerOf(dir, '00000002.wal')).toMatchObject({ version: 3, number: 2, firstSeq: 14, leaves: 14 });
    expect([...readLog(dir)].slice(0, 14)).toEqual(before);
    const report = verifyLog(dir);
    expect(report).toMatchObject({ ok: true, entries: 17, segments: 3 });
    const tree = new Frontier();
    for (const entry of readLog(dir)) tree.add(leafHash(Buffer.from(JSON.stringify(entry))));
    expect(report.series[0]!.rootHash).toBe(Buffer.from(tree.root()).toString('hex'));
    const again = await openWitnessLog({ dir });
    expect(again.append('s', 'note', {})).toBe(17);
    await again.close();
    expect(walIn(dir).length).toBe(3);
  });

  // The old format cannot say what was before it, so a series never goes back to it.
  it('never follows one of format 2, and never begins behind its first segment', () => {
    const dir = folder();
    cpSync(join(golden, 'log-v2'), dir, { recursive: true });
    const next = { ...headerOf(dir, '00000002.wal'), version: 1, leaves: 0, peaks: [] } as const;
    writeFileSync(join(dir, '00000002.wal'), encodeHeader(next));
    expect(verifyLog(dir).problem?.what).toContain('format 1 follows format 2');
    const other = folder();
    cpSync(join(golden, 'log-v1'), other, { recursive: true });
    rmSync(join(other, '00000000.wal'));
    expect(verifyLog(other).problem?.what).toContain('00000000.wal is missing before it');
  });
});

it('a folder with the name of a segment, behind a gap, is not of the log and no gap', async () => {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  await fill(log, 3);
  await log.close();
  mkdirSync(join(dir, '00000005.wal'));
  const { ok, entries, foreign } = verifyLog(dir);
  expect({ ok, entries, foreign: foreign.map(({ file, what }) => `${file} ${what}`) }).toEqual({
    ok: true,
    entries: 3,
    foreign: ['00000005.wal is not of the log'],
  });
});

describe('a new segment begins', () => {
  // After so many bytes or so much time, whichever is first, but never behind an empty one.
  it('when the old one is full, or old', async () => {
    const dir = folder();
    let now = 1_800_000_000_000;
    const log = await openWitnessLog({ dir, clock: () => now, segmentMsMax: 1000, keyId: 'a1b2c3d4e5f60718' });
    await fill(log, 2);
    now += 999;
    await fill(log, 1);
    now += 1;
    await fill(log, 2);
    now += 5000;
    await fill(log, 2);
    await log.close();
    const headers = walIn(dir).map((name) => headerOf(dir, name));
    expect(headers.map(({ firstSeq, beganMs, keyId }) => [firstSeq, beganMs, keyId])).toEqual([
      [0, 1_800_000_000_000, 'a1b2c3d4e5f60718'],
      [3, 1_800_000_001_000, 'a1b2c3d4e5f60718'],
      [5, 1_800_000_006_000, 'a1b2c3d4e5f60718'],
    ]);
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 7 });
    await expect(openWitnessLog({ dir, keyId: 'short' })).rejects.toMatchObject({ code: 'bad-argument' });
  });

  // A header with a right checksum and a right chain, whose tree is not that of the entries before it.
  it('with the tree of the entries before it, and no other', async () => {
    const dir = folder();
    cpSync(join(golden, 'log-v2'), dir, { recursive: true });
    const header = headerOf(dir, '00000002.wal');
    const peaks = [Buffer.alloc(32, 7), ...header.peaks.slice(1)];
    writeFileSync(join(dir, '00000002.wal'), encodeHeader({ ...header, peaks }));
    expect(verifyLog(dir).problem).toMatchObject({ segment: '00000002.wal', offset: 104 });
    writeFileSync(
      join(dir, '00000002.wal'),
      encodeHeader({ ...header, leaves: header.leaves + 1, peaks: header.peaks.slice(1) }),
    );
    expect(verifyLog(dir).ok).toBe(false);
    expect(segmentHash(header).equals(segmentHash({ ...header, peaks }))).toBe(false);
  });

  // A crash may leave any beginning of a header: the next writer puts it aside, and the log goes on.
  it('also where a crash cut its header short at any byte', async () => {
    const whole = new SimulatedDisk();
    const log = await openWitnessLog({ dir: folder(), files: whole, segmentBytesMax: 600 });
    await fill(log, 12);
    await log.close();
    const [last] = [...whole.files.keys()].sort().slice(-1) as [string];
    const bytes = whole.files.get(last)!.cached;
    for (let length = 0; length < bytes.readUInt32LE(12); length++) {
      const disk = new SimulatedDisk();
      for (const [name, file] of whole.files) disk.files.set(name, { ...file });
      disk.files.get(last)!.cached = bytes.subarray(0, length);
      const report = verifyLog('/', disk);
      expect(report, `${length} bytes`).toMatchObject({ ok: true, tornBytes: length });
      const again = await openWitnessLog({ dir: folder(), files: disk, segmentBytesMax: 600 });
      await fill(again, 2);
      await again.close();
      expect(verifyLog('/', disk), `${length} bytes`).toMatchObject({ ok: true, tornBytes: 0 });
    }
  });
});

describe('the oldest segments', () => {
  async function long(options: object = {}): Promise<string> {
    const dir = folder();
    const log = await openWitnessLog({ dir, segmentBytesMax: 600, ...options });
    await fill(log, 30);
    await log.close();
    return dir;
  }

  // The log goes on as if nothing had happened: same root as with all of its entries, same ids, appended to, verified.
  it('can be removed, and an entry says so', async () => {
    const dir = await long();
    const copy = folder();
    cpSync(dir, copy, { recursive: true });
    const log = await openWitnessLog({ dir, segmentBytesMax: 600 });
    const removed = await log.removeSegments(4);
    expect(removed).toMatchObject({ firstSegment: 4, segments: 4, firstSeq: headerOf(dir, '00000004.wal').firstSeq });
    expect(await log.removeSegments(4)).toBeNull();
    await expect(log.removeSegments(99)).rejects.toMatchObject({ code: 'bad-argument' });
    await fill(log, 10);
    const { bytes } = log;
    await log.close();
    expect(walIn(dir)[0]).toBe('00000004.wal');
    expect(bytes).toBe(walIn(dir).reduce((sum, name) => sum + readFileSync(join(dir, name)).length, 0));
    const report = verifyLog(dir);
    expect(report).toMatchObject({ ok: true, problem: null, foreign: [], entries: 41 - removed!.firstSeq });
    const whole = await openWitnessLog({ dir: copy, segmentBytesMax: 600 });
    await whole.close();
    const tree = new Frontier();
    for (const from of [copy, dir])
      for (const entry of readLog(from))
        if (entry.seq === tree.leaves) tree.add(leafHash(Buffer.from(JSON.stringify(entry))));
    expect(report.series[0]!.rootHash).toBe(Buffer.from(tree.root()).toString('hex'));
    expect(readEntry(dir, removed!.firstSeq).seq).toBe(removed!.firstSeq);
    expect(() => readEntry(dir, removed!.firstSeq - 1)).toThrowError(/has no entry/);
    expect(headerOf(dir, walIn(dir).at(-1)!).firstSegment).toBe(4);
    // Seldom, but possible: everything but the last segment goes, and what remains opens again.
    const last = await openWitnessLog({ dir, segmentBytesMax: 600 });
    const number = Number(walIn(dir).at(-1)!.slice(0, 8));
    await last.removeSegments(number);
    await last.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true });
    await (await openWitnessLog({ dir })).close();
  });

  // Who deletes files without an entry has damaged the log, whether one segment or all but the last.
  it('are missed when no entry speaks of them', async () => {
    const dir = await long();
    const names = walIn(dir);
    for (const name of names.slice(0, -1)) {
      rmSync(join(dir, name));
      expect(verifyLog(dir).problem?.what).toContain(
        `${name} is missing before it, and no entry says that it was removed`,
      );
      expect(() => [...readLog(dir)]).toThrowError(/is missing/);
      await expect(openWitnessLog({ dir })).rejects.toMatchObject({ code: 'bad-log' });
    }
    const told = await long();
    const log = await openWitnessLog({ dir: told, segmentBytesMax: 600 });
    await log.removeSegments(3);
    await fill(log, 5);
    await log.close();
    rmSync(join(told, '00000003.wal'));
    expect(verifyLog(told).problem?.what).toContain('00000003.wal is missing');
    await expect(openWitnessLog({ dir: told })).rejects.toMatchObject({ code: 'bad-log' });
  });

  it('of format 1 stay until format 2 can say what they were', async () => {
    const dir = folder();
    cpSync(join(golden, 'log-v1'), dir, { recursive: true });
    const log = await openWitnessLog({ dir });
    await expect(log.removeSegments(1)).rejects.toMatchObject({ code: 'bad-argument' });
    await fill(log, 1);
    expect(await log.removeSegments(2)).toMatchObject({ segments: 2, firstSeq: 14 });
    await log.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 2 });
  });

  // The power goes, or the disk refuses, at every single operation of a removal: what is left verifies, opens and goes
  // on.
  it('leave a log that opens, wherever their removal ends', async () => {
    let operations = 1;
    for (let failing = 0; failing < operations; failing++) {
      const disk = new SimulatedDisk();
      const options = { dir: folder(), files: disk, segmentBytesMax: 600, mode: 'halt', commitIntervalMs: 0 } as const;
      const log = await openWitnessLog(options);
      await fill(log, 30);
      const start = disk.count;
      disk.plan = (_operation, count) => (count >= start + failing ? 'EIO' : 'ok');
      const outcome = await log.removeSegments(4).catch((error: Error) => error);
      operations = Math.max(operations, disk.count - start + (outcome instanceof Error ? 1 : 0));
      const told = `operation ${failing} of ${operations}: ${outcome}`;
      const survivor = disk.afterPowerCut(() => 0.99);
      await log.close().catch(() => undefined);
      expect(verifyLog('/', survivor), told).toMatchObject({ problem: null });
      const again = await openWitnessLog({ ...options, files: survivor });
      await fill(again, 3);
      await again.close();
      expect(verifyLog('/', survivor), told).toMatchObject({ ok: true, tornBytes: 0 });
    }
    expect(operations).toBeGreaterThan(8);
  });
});
