/**
 * Opening, reading and replacing files. Paths come from callers and may name anything, so only regular files of a
 * plausible size are opened, and opening never blocks. A pipe that nobody writes to, for example, would block for ever,
 * and reading /dev/zero would never end. When a file is replaced, its name always stands for either the complete old
 * file or the complete new one.
 */
import fs from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { show } from './arguments.ts';
import { KvError, type KvErrorCode } from './error.ts';

export interface OpenFile {
  readonly fd: number;
  readonly size: number;
}

export interface OpenRules {
  /** The largest size that is plausible. */
  readonly bytesMax: number;
  /** The code of the error for a file that is not regular or too large, by default 'bad-file'. */
  readonly code?: KvErrorCode;
  /** True if to open the file for writing as well as reading. It must exist in either case. */
  readonly write?: boolean;
}

/** Refuses what a caller gave for a path and cannot be one. Throws 'bad-argument'. */
export function checkPath(path: unknown, what: string): void {
  if (typeof path !== 'string' || path === '')
    throw new KvError('bad-argument', `${what} needs a path`, { values: { path: show(path) } });
}

/** Flags that open a file that is there, without waiting where it is a pipe. */
export const openFlags = (write: boolean): number =>
  (write ? fs.constants.O_RDWR : fs.constants.O_RDONLY) | (fs.constants.O_NONBLOCK ?? 0);

/**
 * Opens a file, which the caller must close. Throws 'not-found', 'io', or `rules.code` for a pipe, device or folder or
 * a file over `bytesMax`.
 */
export function openRegular(path: string, rules: OpenRules): OpenFile {
  let fd: number;
  try {
    fd = fs.openSync(path, openFlags(rules.write === true));
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

/** Reads a whole file. Throws as `openRegular` does. */
export function readRegular(path: string, rules: OpenRules): Buffer {
  const { fd, size } = openRegular(path, rules);
  try {
    const bytes = Buffer.alloc(size);
    return bytes.subarray(0, readWhole(fd, bytes, 0));
  } catch (cause) {
    throw refusedFile(path, cause);
  } finally {
    fs.closeSync(fd);
  }
}

/** Makes a KvError, 'not-found' or 'io', of an error of the operating system. */
export function refusedFile(path: string, cause: unknown): KvError {
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ENOENT' || code === 'ENOTDIR')
    return new KvError('not-found', `${path} does not exist`, { values: { path }, cause });
  return new KvError('io', `${path}: ${message}`, { values: { path, code }, cause });
}

/** The functions of node:fs that are used below. Tests of the log replace them to simulate a failing disk. */
export type SyncedFiles = {
  openSync(path: string, flags: string): number;
  closeSync(fd: number): void;
  fsyncSync(fd: number): void;
  writeSync(fd: number, source: Uint8Array, offset: number, length: number, position: number): number;
};

/**
 * Syncs a folder, so that files created or renamed in it survive a power failure. Not on Windows: FlushFileBuffers,
 * which fsync is there, wants a handle that may write, and this one only reads.
 */
export function syncFolder(dir: string, files: SyncedFiles = fs): void {
  if (process.platform === 'win32') return;
  syncAt(dir, 'r', files);
}

/** Syncs a file that was written elsewhere. */
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

/** Node takes lengths of a call modulo 2^32, and refuses those from 2^31 on. */
const BYTES_AT_ONCE = 2 ** 30;

/** Fills `target` from a place of a file, in several calls where there is much. → how many bytes there were */
export function readWhole(
  fd: number,
  target: Uint8Array,
  position: number,
  files: Pick<typeof fs, 'readSync'> = fs,
): number {
  let done = 0;
  while (done < target.length) {
    const read = files.readSync(fd, target, done, Math.min(BYTES_AT_ONCE, target.length - done), position + done);
    if (read === 0) break;
    done += read;
  }
  return done;
}

/**
 * Writes all bytes, in several calls where there are many or the system writes only some of them at once. Throws ENOSPC
 * if it writes none.
 */
export function writeWhole(fd: number, source: Uint8Array, position: number, files: SyncedFiles = fs): void {
  for (let done = 0; done < source.length; ) {
    const left = Math.min(BYTES_AT_ONCE, source.length - done);
    const written = files.writeSync(fd, source, done, left, position + done);
    if (written <= 0) throw Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' });
    done += written;
  }
}

/**
 * Writes and syncs a file. This is not atomic, so it is only for names that nothing refers to yet. Flags 'wx' refuse a
 * name that exists.
 */
export function writeSynced(path: string, bytes: Uint8Array, flags = 'w', files: SyncedFiles = fs): void {
  const fd = files.openSync(path, flags);
  try {
    writeWhole(fd, bytes, 0, files);
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
}

/**
 * True if no process has the number. One on another machine may look so; whoever takes up its file must notice when
 * that changes.
 */
export function isGone(pid: number): boolean {
  if (!Number.isSafeInteger(pid) || pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH';
  }
}

/**
 * Removes what processes that are gone were writing in a folder: NAME.PID.tmp, where `isOurs` says yes to NAME. What
 * cannot be removed stays for the next time.
 */
export function removeLeftovers(dir: string, isOurs: (name: string) => boolean): void {
  try {
    for (const file of fs.readdirSync(dir)) {
      const [, name = '', pid = ''] = /^(.+)\.(\d{1,10})\.tmp$/s.exec(file) ?? [];
      if (pid !== '' && isOurs(name) && isGone(Number(pid))) fs.rmSync(join(dir, file), { force: true });
    }
  } catch {
    // The folder is not there yet, or is not ours to change: whoever writes next says so.
  }
}

/** The name that a file is written under before it takes its place: of this process alone. */
export const temporaryName = (path: string): string => `${path}.${process.pid}.tmp`;

/**
 * The name that a file is written under before it takes its place, for opening with the flag 'wx'. What killed
 * processes left of it is removed, and so is a link of that name: what it leads to is not written to.
 */
export function temporaryFor(path: string): string {
  checkReplaceable(path);
  const temporary = temporaryName(path);
  removeLeftovers(dirname(path), (name) => name === basename(path));
  fs.rmSync(temporary, { force: true });
  return temporary;
}

/**
 * Throws 'io' for what is there and is no file of its own: a name that is given to a file is taken from whatever had
 * it, which would end a device or a link (/dev/stdout) for everybody on the machine.
 */
function checkReplaceable(path: string): void {
  const found = fs.lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined || found.isFile()) return;
  const what = found.isDirectory() ? 'a folder' : found.isSymbolicLink() ? 'a link' : 'no regular file';
  throw new KvError('io', `cannot write ${path}: it is ${what}`, {
    values: { path },
    hint: 'name a file, or one that is not there yet',
  });
}

/** The same files, made so that only their owner can read them. */
export const privately = (
  files: Omit<SyncedFiles, 'openSync'> & { openSync(path: string, flags: string, mode: number): number } = fs,
): SyncedFiles => ({
  openSync: (path, flags) => files.openSync(path, flags, 0o600),
  closeSync: (fd) => files.closeSync(fd),
  fsyncSync: (fd) => files.fsyncSync(fd),
  writeSync: (fd, source, offset, length, position) => files.writeSync(fd, source, offset, length, position),
});

/**
 * Replaces the content of a file atomically: writes and syncs a temporary file, renames it, and syncs the folder.
 * Throws 'io'.
 */
export function replaceFile(path: string, bytes: Uint8Array, files: SyncedFiles = fs): void {
  let temporary = '';
  try {
    temporary = temporaryFor(path);
    writeSynced(temporary, bytes, 'wx', files);
    fs.renameSync(temporary, path);
    syncFolder(dirname(path));
  } catch (cause) {
    if (temporary !== '') fs.rmSync(temporary, { force: true });
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
}
