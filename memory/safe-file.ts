/** Files that are either the old one or the new one, whatever happens in between. */
import { closeSync, fsyncSync, openSync, renameSync, unlinkSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { KvError } from '../native/index.ts';

/** Makes renames and creations in a folder survive a power cut. */
export function syncFolder(dir: string): void {
  const fd = openSync(dir, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** fsync of a file that somebody else wrote. */
export function syncFile(path: string): void {
  const fd = openSync(path, 'r+');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Writes `bytes` to `path` and syncs it. Not atomic: for names that nothing refers to yet. */
export function writeSynced(path: string, bytes: Uint8Array): void {
  const fd = openSync(path, 'w', 0o644);
  try {
    for (let done = 0; done < bytes.length; ) done += writeSync(fd, bytes, done);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Replaces `path` by `bytes`: temporary file, fsync, rename, fsync of the folder. Throws 'io'. */
export function replaceFile(path: string, bytes: Uint8Array): void {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    writeSynced(temporary, bytes);
    renameSync(temporary, path);
    syncFolder(dirname(path));
  } catch (cause) {
    try {
      unlinkSync(temporary);
    } catch {
      // It may never have been created.
    }
    throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
}
