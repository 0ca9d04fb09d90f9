// The log as its callers see it: seqs, acknowledgement, rotation, reopening, one writer, misuse. Small logs on the real
// disk.
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { KvError } from '../../../native/index.ts';
import { isLogDir, lockWriter, openWitnessLog, readEntry, readLog, verifyLog } from '../../../witness/index.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();

async function codeOf(action: () => unknown): Promise<string> {
  try {
    await action();
  } catch (error) {
    return (error as KvError).code;
  }
  return 'no error';
}

describe('append and read', () => {
  // Everything appended comes back in order, with seqs from 0 and the injected clock's time.
  it('gives back what was appended', async () => {
    const dir = folder();
    let now = 999;
    const log = await openWitnessLog({ dir, clock: () => now++ });
    expect(log.acknowledgedSeq).toBe(-1);
    const seqs = [
      log.append('a', 'note', { x: 1 }),
      log.append('b', 'note', { text: 'ü "quoted" \u2028 \ud83d\ude00', list: [0.1, -0, null, true] }),
    ];
    expect(seqs).toEqual([0, 1]);
    expect(await log.flush()).toBe(1);
    await log.close();
    expect([...readLog(dir)]).toEqual([
      { seq: 0, timeMs: 1000, session: 'a', kind: 'note', body: { x: 1 } },
      {
        seq: 1,
        timeMs: 1001,
        session: 'b',
        kind: 'note',
        body: { text: 'ü "quoted" \u2028 \ud83d\ude00', list: [0.1, 0, null, true] },
      },
    ]);
    expect([...readLog(dir, { session: 'b' })].map((entry) => entry.seq)).toEqual([1]);
    expect([...readLog(dir, { kinds: ['open'] })]).toEqual([]);
    expect(readEntry(dir, 1).session).toBe('b');
  });

  // Nothing is acknowledged before its sync; without a flush the commit interval brings it there.
  it('acknowledges by itself after the commit interval', async () => {
    const log = await openWitnessLog({ dir: folder(), commitIntervalMs: 1 });
    log.append('a', 'note', {});
    expect(log.acknowledgedSeq).toBe(-1);
    while (log.acknowledgedSeq < 0) await new Promise((resolve) => setTimeout(resolve, 1));
    expect(log.acknowledgedSeq).toBe(0);
    await log.close();
  });

  // A tiny segment limit makes many files; reading, verifying, reading from the middle and appending later go across
  // them.
  it('rotates segments and continues them after reopening', async () => {
    const dir = folder();
    const options = { dir, segmentBytesMax: 600 };
    const log = await openWitnessLog(options);
    await fill(log, 40);
    const { id, bytes } = log;
    await log.close();
    const again = await openWitnessLog(options);
    expect([again.id, again.bytes, again.acknowledgedSeq]).toEqual([id, bytes, 39]);
    await fill(again, 10);
    await again.close();
    const segments = readdirSync(dir).filter((name) => name.endsWith('.wal'));
    expect(segments.length).toBeGreaterThan(8);
    expect(segments.reduce((sum, name) => sum + statSync(join(dir, name)).size, 0)).toBe(again.bytes);
    expect([...readLog(dir, { from: [17] })].map((entry) => entry.seq)).toEqual(
      Array.from({ length: 33 }, (_, index) => 17 + index),
    );
    expect(verifyLog(dir)).toMatchObject({
      ok: true,
      logId: id,
      segments: segments.length,
      entries: 50,
      problem: null,
      tornBytes: 0,
    });
  });

  // More than the buffer bound waits: append itself writes, so the file grows without a turn of the event loop.
  it('writes by itself when too much waits', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, bufferBytesMax: 2000, segmentBytesMax: 5000 });
    for (let n = 0; n < 100; n++) log.append('s', 'note', { n, pad: 'x'.repeat(100) });
    expect(log.acknowledgedSeq).toBeGreaterThan(80);
    expect([...readLog(dir)].length).toBe(log.acknowledgedSeq + 1);
    await log.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 100 });
  });

  // The same while a commit is on its way in the background: order on disk stays the order of seq.
  it('overtakes no batch that is on its way', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, bufferBytesMax: 3000, segmentBytesMax: 4000 });
    for (let round = 0; round < 20; round++) {
      log.append('s', 'note', { round });
      const flushed = log.flush();
      for (let n = 0; n < 30; n++) log.append('s', 'note', { n, pad: 'x'.repeat(200) });
      await flushed;
    }
    await log.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 620 });
  });

  // A reader beside the writer sees what is on disk so far, and nothing half.
  it('can be read while it is written', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    await fill(log, 5);
    log.append('s', 'note', { waiting: true });
    expect([...readLog(dir)].length).toBe(5);
    expect(verifyLog(dir).ok).toBe(true);
    await log.close();
    expect([...readLog(dir)].length).toBe(6);
  });
});

describe('the lock of a series', () => {
  // A lock is refused by name while its holder lives, and free after it closed; a dead owner's lock is taken over.
  it('is held by one writer, and taken over from a dead one', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const held = (values: object) =>
      expect.objectContaining({ code: 'locked', values: expect.objectContaining(values) });
    expect(() => lockWriter(dir)).toThrowError(held({ pid: process.pid }));
    const lock = JSON.parse(readFileSync(join(dir, 'writer.lock'), 'utf8'));
    await log.close();
    expect(readdirSync(dir)).toEqual(['00000000.wal']);
    // The same pid, started at another time: the process that held this lock is gone.
    writeFileSync(join(dir, 'writer.lock'), JSON.stringify({ ...lock, start: '1' }));
    await (await openWitnessLog({ dir })).close();
    // A file that names nobody protects nobody.
    writeFileSync(join(dir, 'writer.lock'), 'garbage');
    await (await openWitnessLog({ dir })).close();
    expect(readdirSync(dir)).toEqual(['00000000.wal']);
    // Another host cannot be asked: its series stays as it is, and the next writer begins one of its own.
    writeFileSync(join(dir, 'writer.lock'), JSON.stringify({ ...lock, host: 'elsewhere' }));
    expect(() => lockWriter(dir)).toThrowError(held({ host: 'elsewhere' }));
    const second = await openWitnessLog({ dir });
    expect(second.append('s', 'note', {})).toBe(2 ** 32);
    await second.close();
    expect(readdirSync(dir).sort()).toEqual(['00000000.wal', 'writer-0001', 'writer.lock']);
    expect([...readLog(dir)].map(({ seq }) => seq)).toEqual([2 ** 32]);
  });
});

describe('misuse', () => {
  // Each is one error with a code; none leaves a trace in the log.
  it('refuses what the log cannot hold', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const deep = Array.from({ length: 40 }).reduce((inner) => [inner], 1 as unknown);
    for (const [body, code] of [
      [{ x: Number.NaN }, 'bad-value'],
      [{ x: Number.POSITIVE_INFINITY }, 'bad-value'],
      [{ x: 1n }, 'bad-argument'],
      [{ x: new Float32Array(2) }, 'bad-argument'],
      [{ x: new Map() }, 'bad-argument'],
      [{ x: [undefined] }, 'bad-argument'],
      [{ deep }, 'bad-argument'],
      [{ x: 'y'.repeat(1 << 20) }, 'bad-argument'],
    ] as const) {
      expect(await codeOf(() => log.append('s', 'note', body))).toBe(code);
    }
    expect(log.append('s', 'note', { x: undefined, y: 1 })).toBe(0);
    await log.close();
    await log.close();
    expect([...readLog(dir)].map((entry) => entry.body)).toEqual([{ y: 1 }]);
    expect(await codeOf(() => log.append('s', 'note', {}))).toBe('closed');
    expect(await codeOf(() => log.flush())).toBe('closed');
  });

  it('refuses bad options, folders that are none, and ids that do not exist', async () => {
    const dir = folder();
    expect(await codeOf(() => openWitnessLog({ dir: '' }))).toBe('bad-argument');
    expect(await codeOf(() => openWitnessLog({ dir, mode: 'ignore' as never }))).toBe('bad-argument');
    expect(await codeOf(() => openWitnessLog({ dir, segmentBytesMax: Number.NaN }))).toBe('bad-argument');
    writeFileSync(join(dir, 'file'), '');
    expect(await codeOf(() => openWitnessLog({ dir: join(dir, 'file') }))).toBe('io');
    expect(await codeOf(() => verifyLog(join(dir, 'nothing')))).toBe('not-found');
    expect(await codeOf(() => [...readLog(dir)])).toBe('not-found');
    const log = await openWitnessLog({ dir });
    await log.close();
    expect([isLogDir(dir), isLogDir(join(dir, 'file')), isLogDir(join(dir, 'nothing'))]).toEqual([true, false, false]);
    expect(await codeOf(() => readEntry(dir, 0))).toBe('not-found');
    expect(await codeOf(() => readEntry(dir, -1))).toBe('bad-argument');
    expect(await codeOf(() => readEntry(dir, 1.5))).toBe('bad-argument');
  });
});
