/** The part of node:fs that the log uses, so that a test can replace it with a disk that fails. */
import fs from 'node:fs';
import { openFlags } from '../native/index.ts';

export interface LogFiles {
  /** `mode`: rights of a file that is made, default 0666 less the umask. */
  openSync(path: string, flags: string, mode?: number): number;
  closeSync(fd: number): void;
  readSync(fd: number, target: Uint8Array, offset: number, length: number, position: number): number;
  writeSync(fd: number, source: Uint8Array, offset: number, length: number, position: number): number;
  write(
    fd: number,
    source: Uint8Array,
    offset: number,
    length: number,
    position: number,
    done: (error: Error | null, written: number) => void,
  ): void;
  fdatasyncSync(fd: number): void;
  fdatasync(fd: number, done: (error: Error | null) => void): void;
  fsyncSync(fd: number): void;
  ftruncateSync(fd: number, length: number): void;
  /** Bytes of an open file; throws ENOTSUP for anything that is no regular one. */
  sizeSync(fd: number): number;
  /** Names in a folder, unsorted; throws ENOENT when it is missing. */
  listSync(dir: string): string[];
  mkdirSync(dir: string): void;
  renameSync(from: string, to: string): void;
  unlinkSync(path: string): void;
}

export const nodeFiles: LogFiles = {
  // Opening never blocks, so a pipe in the place of a segment holds nobody up.
  openSync: (path, flags, mode) =>
    flags === 'r' || flags === 'r+' ? fs.openSync(path, openFlags(flags === 'r+')) : fs.openSync(path, flags, mode),
  closeSync: (fd) => fs.closeSync(fd),
  readSync: (fd, target, offset, length, position) => fs.readSync(fd, target, offset, length, position),
  writeSync: (fd, source, offset, length, position) => fs.writeSync(fd, source, offset, length, position),
  write: (fd, source, offset, length, position, done) => fs.write(fd, source, offset, length, position, done),
  fdatasyncSync: (fd) => fs.fdatasyncSync(fd),
  fdatasync: (fd, done) => fs.fdatasync(fd, done),
  fsyncSync: (fd) => fs.fsyncSync(fd),
  ftruncateSync: (fd, length) => fs.ftruncateSync(fd, length),
  sizeSync: (fd) => {
    const stat = fs.fstatSync(fd);
    if (!stat.isFile()) throw Object.assign(new Error('it is not a regular file'), { code: 'ENOTSUP' });
    return stat.size;
  },
  listSync: (dir) => fs.readdirSync(dir),
  mkdirSync: (dir) => void fs.mkdirSync(dir, { recursive: true }),
  renameSync: (from, to) => fs.renameSync(from, to),
  unlinkSync: (path) => fs.unlinkSync(path),
};
