/**
 * Records of originals: what comes back is what was kept, or is refused; nothing of it can be read in the file, which
 * has no name and never takes more than was said; a disk that fails, at once or later, is told once.
 */
import { spawnSync } from 'node:child_process';
import fs, { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { afterAll, describe, expect, it } from 'vitest';
import { HeldRecords } from '../../../../engine/originals/records.ts';
import { SealedFile } from '../../../../engine/originals/sealed-file.ts';
import type { OriginalFiles } from '../../../../engine/originals/types.ts';
import type { KvError } from '../../../../native/index.ts';
import { codeOf } from '../../../refusal.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-originals-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const TAG = 16;
const text = (of: number, length = 5000): Buffer => Buffer.alloc(length, `original ${of} `);
const never = (error: KvError): void => expect.fail(`a failure was told: ${error.message}`);
/** What was put off is written by then. */
const written = (): Promise<void> => wait(50);

/** node:fs, and the number of the file that was opened with it. */
function watched(changes: Partial<OriginalFiles> = {}): { files: OriginalFiles; fd: () => number } {
  let fd = -1;
  const openSync = ((...given: Parameters<typeof fs.openSync>) => (fd = fs.openSync(...given))) as typeof fs.openSync;
  return { files: { ...fs, openSync, ...changes }, fd: () => fd };
}

describe('a sealed file of originals', () => {
  it('keeps its name to its end where the system takes none of an open file, and removes what a crash left', () => {
    const { pid } = spawnSync(process.execPath, ['-e', '0']);
    const left = `originals-${pid}-0123456789abcdef`;
    const others = [`originals-${process.pid}-0123456789abcdef`, `originals-${pid}-notours`, 'originals.txt'];
    for (const name of [left, ...others]) writeFileSync(join(dir, name), 'x');
    let isOpen = true;
    const unlinkSync: typeof fs.unlinkSync = (path) => {
      if (isOpen && !String(path).endsWith(left)) throw new Error('EBUSY');
      fs.unlinkSync(path);
    };
    const { files } = watched({ unlinkSync });
    const file = new SealedFile(dir, 2 ** 20, never, files);
    const names = readdirSync(dir);
    expect(names).toHaveLength(others.length + 1);
    expect(names).toEqual(expect.arrayContaining(others));
    isOpen = false;
    file.close();
    expect(readdirSync(dir).sort()).toEqual([...others].sort());
    for (const name of others) rmSync(join(dir, name));
  });

  it('gives back what it was given, before it is written and after, and has no name', async () => {
    const { files, fd } = watched();
    const file = new SealedFile(dir, 2 ** 20, never, files);
    expect(readdirSync(dir)).toEqual([]);
    const places = [1, 2, 3].map((of) => file.put(text(of))!);
    expect(file.bytes).toBe(3 * (5000 + TAG));
    for (const round of ['waiting', 'written']) {
      expect(
        places.map((place) => Buffer.compare(file.get(place), text(places.indexOf(place) + 1))),
        round,
      ).toEqual([0, 0, 0]);
      await written();
    }
    const bytes = Buffer.alloc(20_000);
    const length = fs.readSync(fd(), bytes, 0, bytes.length, 0);
    expect(length).toBe(file.bytes);
    expect(bytes.includes('original')).toBe(false);
    file.close();
    expect(() => fs.fstatSync(fd())).toThrow();
  });

  it('refuses what was changed, cut off, or stands where another record was', async () => {
    const { files, fd } = watched();
    const file = new SealedFile(dir, 2 ** 20, never, files);
    const [first, second] = [file.put(text(1))!, file.put(text(2))!];
    await written();
    const before = Buffer.alloc(5016);
    fs.readSync(fd(), before, 0, 5016, 0);
    // The second in the place of the first.
    const other = Buffer.alloc(5016);
    fs.readSync(fd(), other, 0, 5016, 5016);
    fs.writeSync(fd(), other, 0, 5016, 0);
    expect(codeOf(() => file.get(first))).toBe('checksum-mismatch');
    for (const at of [0, 777, 4999, 5000, 5015]) {
      const changed = Buffer.from(before);
      changed[at]! ^= 1;
      fs.writeSync(fd(), changed, 0, 5016, 0);
      expect(codeOf(() => file.get(first))).toBe('checksum-mismatch');
    }
    fs.writeSync(fd(), before, 0, 5016, 0);
    expect(Buffer.compare(file.get(first), text(1))).toBe(0);
    fs.ftruncateSync(fd(), 9000);
    expect(codeOf(() => file.get(second))).toBe('checksum-mismatch');
    // What stood in a place before is not what stands there now, though it was sealed under the same key.
    file.drop(first);
    const third = file.put(text(3))!;
    await written();
    fs.writeSync(fd(), before, 0, 5016, 0);
    expect(codeOf(() => file.get(third))).toBe('checksum-mismatch');
    file.close();
  });

  it('takes no more than was stated, and uses again what is free', async () => {
    const { files, fd } = watched();
    const file = new SealedFile(dir, 3 * 5016 + 100, never, files);
    const places = [1, 2, 3].map((of) => file.put(text(of))!);
    expect([file.put(text(4)), file.put(text(4, 100))]).toEqual([null, null]);
    await written();
    file.drop(places[1]!);
    expect(file.bytes).toBe(2 * 5016);
    const fourth = file.put(text(4))!;
    expect(file.put(text(5))).toBeNull();
    await written();
    expect(Buffer.compare(file.get(fourth), text(4))).toBe(0);
    expect(Buffer.compare(file.get(places[2]!), text(3))).toBe(0);
    expect(fs.fstatSync(fd()).size).toBe(3 * 5016);
    file.close();
  });

  it.each([
    ['no room', 'ENOSPC'],
    ['a fault', 'EIO'],
  ])('tells of a disk that has %s, whether it says so at once or later', async (_, code) => {
    const failing = Object.assign(new Error('the disk failed'), { code });
    const write = ((...given: unknown[]) => {
      queueMicrotask(() => (given.at(-1) as (error: Error, written: number) => void)(failing, 0));
    }) as unknown as typeof fs.write;
    const told: KvError[] = [];
    const file = new SealedFile(dir, 2 ** 20, (error) => told.push(error), watched({ write }).files);
    expect(file.put(text(1))).not.toBeNull();
    await written();
    expect(told.map((error) => [error.code, error.values['code']])).toEqual([['io', code]]);
    file.close();
    const missing = join(dir, 'missing');
    expect(codeOf(() => new SealedFile(missing, 2 ** 20, never))).toBe('not-found');
  });

  it('writes on where the system takes a part, waits where the disk is far behind, and closes behind the last write', async () => {
    let asked = 0;
    const write = ((fd: number, from: Buffer, at: number, length: number, position: number, done: () => void) => {
      asked++;
      return fs.write(fd, from, at, Math.min(length, 3_000_000), position, done);
    }) as unknown as typeof fs.write;
    const { files, fd } = watched({ write });
    const file = new SealedFile(dir, 2 ** 28, never, files);
    const kept = [1, 2, 3, 4, 5].map((of) => [file.put(text(of, 9_000_000))!, text(of, 9_000_000)] as const);
    const expectAll = (): void => {
      for (const [place, bytes] of kept) expect(Buffer.compare(file.get(place), bytes)).toBe(0);
    };
    expectAll();
    while (asked < 9) await written();
    await written();
    expectAll();
    file.put(text(6, 9_000_000));
    file.close();
    expect(isOpen(fd())).toBe(true);
    for (let i = 0; i < 100 && isOpen(fd()); i++) await written();
    expect(isOpen(fd())).toBe(false);
  });

  it('is in memory as it is in a file, with the same limit', () => {
    const held = new HeldRecords(10_000);
    const place = held.put(text(1))!;
    expect([held.put(text(2, 5001)), held.bytes]).toEqual([null, 5000]);
    expect(Buffer.compare(held.get(place), text(1))).toBe(0);
    held.drop(place);
    expect([held.put(text(2, 5001)) !== null, held.bytes]).toEqual([true, 5001]);
  });
});

function isOpen(fd: number): boolean {
  try {
    fs.fstatSync(fd);
    return true;
  } catch {
    return false;
  }
}
