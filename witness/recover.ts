/** Making the end of a log ready for the next entry: what a crash left half-written is put aside, never overwritten. */
import { join } from 'node:path';
import { assert } from '../native/index.ts';
import type { LogFiles } from './files.ts';
import { segmentName, segmentNumbers } from './segment.ts';
import { type LogEnd, walkLog } from './walk.ts';

export interface Recovered {
  /** null: the folder holds no log yet. */
  readonly end: LogEnd | null;
  readonly droppedBytes: number;
  /** Name of the segment that was cut, '' when nothing was. */
  readonly segment: string;
  /** Bytes of the segments that stay. */
  readonly bytes: number;
}

/**
 * Checks the last segment, copies a torn tail into `NAME.torn`, syncs the copy, then cuts. Dying in between loses nothing:
 * the next start finds the same tail again. Throws 'bad-log' when anything but a torn tail is wrong.
 */
export function recoverLog(files: LogFiles, dir: string): Recovered {
  if (segmentNumbers(files.listSync(dir)).length === 0) return { end: null, droppedBytes: 0, segment: '', bytes: 0 };
  const walk = walkLog(files, dir, Number.POSITIVE_INFINITY);
  let step = walk.next();
  while (!step.done) step = walk.next();
  const end = step.value;
  let segment = '';
  if (end.tornSegment !== null) {
    segment = segmentName(end.tornSegment);
    if (end.tornSegment === end.segment && end.logId !== null) cutTail(files, dir, segment, end);
    else files.renameSync(join(dir, segment), join(dir, freeName(files, dir, segment)));
    syncFolder(files, dir);
  }
  const bytes = segmentNumbers(files.listSync(dir)).reduce(
    (sum, number) => sum + fileBytes(files, join(dir, segmentName(number))),
    0,
  );
  return { end: end.logId === null ? null : end, droppedBytes: end.tornBytes, segment, bytes };
}

function cutTail(files: LogFiles, dir: string, name: string, end: LogEnd): void {
  const source = files.openSync(join(dir, name), 'r+');
  try {
    const tail = Buffer.alloc(files.sizeSync(source) - end.offset);
    assert(tail.length > 0, `torn tail of ${tail.length} bytes in ${name} at ${end.offset}`);
    readWhole(files, source, tail, end.offset);
    const aside = files.openSync(join(dir, freeName(files, dir, name)), 'wx');
    try {
      writeWhole(files, aside, tail, 0);
      files.fsyncSync(aside);
    } finally {
      files.closeSync(aside);
    }
    syncFolder(files, dir);
    files.ftruncateSync(source, end.offset);
    files.fsyncSync(source);
  } finally {
    files.closeSync(source);
  }
}

/** `NAME.torn`, or `NAME.torn-2` … when earlier crashes left one. */
function freeName(files: LogFiles, dir: string, name: string): string {
  const names = new Set(files.listSync(dir));
  let candidate = `${name}.torn`;
  for (let count = 2; names.has(candidate); count++) candidate = `${name}.torn-${count}`;
  return candidate;
}

function readWhole(files: LogFiles, fd: number, target: Uint8Array, position: number): void {
  for (let done = 0; done < target.length; ) {
    const read = files.readSync(fd, target, done, target.length - done, position + done);
    assert(read > 0, `a file ended ${target.length - done} bytes early`);
    done += read;
  }
}

/** Writes all of it, however little the disk takes at once. Throws ENOSPC when it takes nothing. */
export function writeWhole(files: LogFiles, fd: number, source: Uint8Array, position: number): void {
  for (let done = 0; done < source.length; ) {
    const written = files.writeSync(fd, source, done, source.length - done, position + done);
    if (written <= 0) throw Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' });
    done += written;
  }
}

/** A new name is only durable once its folder is. */
export function syncFolder(files: LogFiles, dir: string): void {
  const fd = files.openSync(dir, 'r');
  try {
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
}

function fileBytes(files: LogFiles, path: string): number {
  const fd = files.openSync(path, 'r');
  try {
    return files.sizeSync(fd);
  } finally {
    files.closeSync(fd);
  }
}
