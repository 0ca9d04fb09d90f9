// Files that are none: a pipe that nobody writes, a device that never ends, a folder, a file far too large. Each is
// refused at once, without waiting and without reading; an ordinary file is read and replaced as a whole, and what the
// system keeps of it can be given back.
import { execFileSync } from 'node:child_process';
import { createCipheriv } from 'node:crypto';
import { once } from 'node:events';
import fs, {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { writeParked } from '../../../engine/session/park/folder.ts';
import {
  forgetFileBytes,
  KvError,
  nativeInfo,
  readRegular,
  readWhole,
  replaceFile,
  TAG_BYTES,
  TAG_KEY_BYTES,
  tagChunks,
  writeWhole,
} from '../../../native/index.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-file-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

function codeOf(path: string): string {
  try {
    readRegular(path, { bytesMax: 1000, code: 'bad-log' });
  } catch (error) {
    if (error instanceof KvError) return error.code;
    throw error;
  }
  return 'no error';
}

describe('more bytes than 32 bits count', () => {
  // Node takes the length of one call modulo 2^32 when it reads: of 2^32 + 5 bytes it would read 5.
  it.each([2 ** 31 - 1, 2 ** 31, 2 ** 32, 2 ** 32 + 5])(
    '%i are read and written in calls that Node can make',
    (length) => {
      const many = { length } as Uint8Array;
      const calls: [number, number, number][] = [];
      const call = (_fd: number, _bytes: unknown, offset: unknown, count: unknown, position: unknown): number => {
        calls.push([offset as number, count as number, position as number]);
        return count as number;
      };
      const start = 2 ** 40;
      expect(readWhole(3, many, start, { readSync: call as never })).toBe(length);
      const read = calls.splice(0);
      writeWhole(3, many, start, { ...fs, writeSync: call } as never);
      expect(calls).toEqual(read);
      let done = 0;
      for (const [offset, count, position] of read) {
        expect([offset, position]).toEqual([done, start + done]);
        expect(count | 0).toBe(count);
        done += count;
      }
      expect(done).toBe(length);
    },
  );

  it('a session that could not be read again is not written', () => {
    const path = join(dir, 'large.parked');
    const bytes = { length: 2 ** 32 } as Uint8Array;
    expect(() => writeParked(path, bytes)).toThrow(
      expect.objectContaining({ code: 'unsupported', values: { path, bytes: 2 ** 32, bytesMax: 2 ** 32 - 1 } }),
    );
    expect(readdirSync(dir)).not.toContain('large.parked');
  });
});

describe('only regular files of plausible size are opened', () => {
  it('refuses a folder, what is not there and what is too large, also when the size is all hole', () => {
    writeFileSync(join(dir, 'giant'), 'x');
    truncateSync(join(dir, 'giant'), 2 ** 40);
    expect([codeOf(dir), codeOf(join(dir, 'nothing')), codeOf(join(dir, 'giant', 'below'))]).toEqual([
      'bad-log',
      'not-found',
      'not-found',
    ]);
    expect(codeOf(join(dir, 'giant'))).toBe('bad-log');
  });

  it.skipIf(process.platform === 'win32')('refuses a pipe and a link to a device (needs mkfifo)', () => {
    execFileSync('mkfifo', [join(dir, 'pipe')]);
    symlinkSync('/dev/zero', join(dir, 'zero'));
    expect([codeOf(join(dir, 'pipe')), codeOf(join(dir, 'zero'))]).toEqual(['bad-log', 'bad-log']);
  });

  it('reads what is whole, and replaces it without leaving anything behind', () => {
    const place = join(dir, 'place');
    const path = join(place, 'file');
    expect(() => replaceFile(path, Buffer.from('a'))).toThrowError(expect.objectContaining({ code: 'io' }));
    execFileSync('mkdir', [place]);
    replaceFile(path, Buffer.from('first'));
    replaceFile(path, Buffer.from('second'));
    expect(readRegular(path, { bytesMax: 6 }).toString()).toBe('second');
    expect([readFileSync(path, 'utf8'), readdirSync(place)]).toEqual(['second', ['file']]);
  });
});

it.skipIf(process.platform === 'win32')(
  'what is no file of its own is not replaced: its name is not taken from it (needs links and sockets)',
  async () => {
    const place = join(dir, 'others');
    mkdirSync(join(place, 'folder'), { recursive: true });
    writeFileSync(join(place, 'file'), 'as it was');
    symlinkSync(join(place, 'file'), join(place, 'link'));
    symlinkSync(join(place, 'loop'), join(place, 'loop'));
    const server = createServer().listen(join(place, 'socket'));
    await once(server, 'listening');
    const before = readdirSync(place);
    for (const name of ['folder', 'link', 'loop', 'socket'])
      expect(() => replaceFile(join(place, name), Buffer.from('a'))).toThrowError(
        expect.objectContaining({ code: 'io', hint: expect.stringContaining('name a file') }),
      );
    expect([readdirSync(place), readFileSync(join(place, 'link'), 'utf8')]).toEqual([before, 'as it was']);
    server.close();
  },
);

it('tags of chunks are the GMAC that node:crypto computes, of the last and shorter one too', () => {
  const bytes = Uint8Array.from({ length: 100 }, (_, i) => i);
  const key = Uint8Array.from({ length: TAG_KEY_BYTES }, (_, i) => 7 * i);
  const tags = new Uint8Array(3 * TAG_BYTES);
  tagChunks(key, bytes, 48, tags);
  for (const [chunk, at] of [0, 48, 96].entries()) {
    const mac = createCipheriv('aes-256-gcm', key, new Uint8Array(12)).setAAD(bytes.subarray(at, at + 48));
    mac.final();
    expect(Buffer.from(tags.subarray(chunk * TAG_BYTES, (chunk + 1) * TAG_BYTES))).toEqual(mac.getAuthTag());
  }
  expect(() => tagChunks(key.subarray(1), bytes, 48, tags)).toThrow(expect.objectContaining({ code: 'bad-shape' }));
  expect(() => tagChunks(key, bytes, 48, tags.subarray(1))).toThrow(expect.objectContaining({ code: 'bad-shape' }));
  expect(() => tagChunks(key, bytes, 0, tags)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
});

describe('what the system keeps of a file', () => {
  it('may be given back, and is read again from the disk; Linux takes such advice', () => {
    const path = join(dir, 'kept');
    const bytes = Uint8Array.from({ length: 1 << 20 }, (_, i) => i % 251);
    writeFileSync(path, bytes);
    const fd = openSync(path, 'r');
    expect(forgetFileBytes(fd, 4096, 1 << 19)).toBe(process.platform === 'linux' && nativeInfo().binding !== 'wasm');
    expect(readFileSync(path).equals(bytes)).toBe(true);
    for (const wrong of [-1, 0.5, 2 ** 53]) {
      expect(() => forgetFileBytes(fd, wrong, 1)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
      expect(() => forgetFileBytes(fd, 0, wrong)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
    }
    closeSync(fd);
  });

  it.skipIf(process.platform !== 'linux' || nativeInfo().binding === 'wasm')(
    'is not asked of a file that is not open (where the system is asked)',
    () => {
      expect(() => forgetFileBytes(2 ** 30, 0, 1)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
    },
  );
});
