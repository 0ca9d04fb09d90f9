/**
 * How every room opens, reads and replaces files. Paths come from callers, so a name may stand for anything: only regular
 * files of plausible size are opened, and opening never waits (a pipe that nobody writes would wait for ever, and a link to
 * /dev/zero would be read for ever). What is replaced is either the old file or the new one, whatever happens in between.
 */
import fs from 'node:fs';
import { dirname } from 'node:path';
import { KvError, type KvErrorCode } from './error.ts';

export interface OpenFile {
  readonly fd: number;
  readonly size: number;
}

export interface OpenRules {
  /** Largest plausible size. */
  readonly bytesMax: number;
  /** Code of the error for a file that is no regular one or too large; default 'bad-file'. */
  readonly code?: KvErrorCode;
  /** Open for reading and writing; the file must exist. */
  readonly write?: boolean;
}

/** The caller closes `fd`. Throws 'not-found', 'io', or `rules.code` for a pipe, a device, a folder or a file over `bytesMax`. */
export function openRegular(path: string, rules: OpenRules): OpenFile {
  const { O_RDONLY, O_RDWR, O_NONBLOCK } = fs.constants;
  let fd: number;
  try {
    fd = fs.openSync(path, (rules.write === true ? O_RDWR : O_RDONLY) | (O_NONBLOCK ?? 0));
  } catch (cause) {
    throw refusedFile(path, cause);
  }
  try {
    const stat = fs.fstatSync(fd);
    const { code = 'bad-file', bytesMax } = rules;
    if (!stat.isFile()) throw new KvError(code, `${path} is not a regular file`, { values: { path } });
    if (stat.size > bytesMax) {
      throw new KvError(code, `${path} has ${stat.size} bytes; at most ${bytesMax} are plausible`, {
        values: { path, bytes: stat.size, bytesMax },
      });
    }
    return { fd, size: stat.size };
  } catch (error) {
    fs.closeSync(fd);
    throw error;
  }
}

/** The whole content. Throws what `openRegular` throws. */
export function readRegular(path: string, rules: OpenRules): Buffer {
  const { fd, size } = openRegular(path, rules);
  try {
    const bytes = Buffer.alloc(size);
    let done = 0;
    for (let read = 1; read > 0 && done < size; done += read) read = fs.readSync(fd, bytes, done, size - done, done);
    return bytes.subarray(0, done);
  } catch (cause) {
    throw refusedFile(path, cause);
  } finally {
    fs.closeSync(fd);
  }
}

/** What the operating system said about a path: 'not-found' or 'io'. */
export function refusedFile(path: string, cause: unknown): KvError {
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ENOENT' || code === 'ENOTDIR')
    return new KvError('not-found', `${path} does not exist`, { values: { path }, cause });
  // A socket cannot be opened at all, a pipe without a reader cannot be written.
  return new KvError('io', `${path}: ${message}`, { values: { path, code }, cause });
}

/** What the helpers below use of node:fs; tests of the log put a failing disk here. */
export type SyncedFiles = {
  openSync(path: string, flags: string): number;
  closeSync(fd: number): void;
  fsyncSync(fd: number): void;
  writeSync(fd: number, source: Uint8Array, offset: number, length: number, position: number): number;
};

/** Makes renames and creations in a folder survive a power cut. */
export function syncFolder(dir: string, files: SyncedFiles = fs): void {
  syncAt(dir, 'r', files);
}

/** fsync of a file that somebody else wrote. */
export function syncFile(path: string): void {
  syncAt(path, 'r+', fs);
}

function syncAt(path: string, flags: string, files: SyncedFiles): void {
  const fd = files.openSync(path, flags);
  try {
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
}

/** Writes all of it, however little the disk takes at once. Throws ENOSPC when it takes nothing. */
export function writeWhole(fd: number, source: Uint8Array, position: number, files: SyncedFiles = fs): void {
  for (let done = 0; done < source.length; ) {
    const written = files.writeSync(fd, source, done, source.length - done, position + done);
    if (written <= 0) throw Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' });
    done += written;
  }
}

/** Writes `bytes` to `path` and syncs it. Not atomic: for names that nothing refers to yet. Flags 'wx' insist that the name is new. */
export function writeSynced(path: string, bytes: Uint8Array, flags = 'w', files: SyncedFiles = fs): void {
  const fd = files.openSync(path, flags);
  try {
    writeWhole(fd, bytes, 0, files);
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
}

/** Replaces `path` by `bytes`: temporary file, fsync, rename, fsync of the folder. Throws 'io'. */
export function replaceFile(path: string, bytes: Uint8Array): void {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    writeSynced(temporary, bytes);
    fs.renameSync(temporary, path);
    syncFolder(dirname(path));
  } catch (cause) {
    fs.rmSync(temporary, { force: true });
    throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
}
