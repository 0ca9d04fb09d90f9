/**
 * Makes the end of a log ready for the next entry. What a crash left half-written is put aside and never overwritten.
 */
import { join } from 'node:path';
import { assert, syncFolder, writeSynced, writeWhole } from '../native/index.ts';
import { parseEnvelope } from './entry.ts';
import type { LogFiles } from './files.ts';
import { payloadIn, type Run } from './run.ts';
import { segmentName } from './segment.ts';
import { type LogEnd, listSegments, type WalkOptions, walkRuns } from './walk.ts';

const SETTLE_BYTES = 1 << 20;

export interface Recovered {
  /** null: the folder holds no log yet. */
  readonly end: LogEnd | null;
  readonly droppedBytes: number;
  /** Name of the segment that was cut, '' when nothing was. */
  readonly segment: string;
  /** Bytes of the segments that stay. */
  readonly bytes: number;
  /** Latest time of the entries in the last segment, 0 without any. */
  readonly lastMs: number;
  /** Number of the first segment. */
  readonly firstSegment: number;
}

/**
 * Checks the last segment, copies a torn tail into `NAME.torn`, syncs the copy, then cuts. Dying in between loses
 * nothing: the next start finds the same tail again. What is left is on disk when this returns. Throws 'bad-log' when
 * anything but a torn tail is wrong.
 */
export function recoverLog(files: LogFiles, dir: string): Recovered {
  const [firstSegment] = listSegments(files, dir);
  if (firstSegment === undefined)
    return { end: null, droppedBytes: 0, segment: '', bytes: 0, lastMs: 0, firstSegment: 0 };
  let { end, lastMs } = walkFrom(files, dir, { fromSeq: Number.POSITIVE_INFINITY, withTree: true });
  // A segment of format 1 says nothing about the tree, and without an entry nothing about the time.
  if (end.header?.version === 1) ({ end, lastMs } = walkFrom(files, dir, { withTree: true }));
  let segment = '';
  if (end.tornSegment !== null) {
    segment = segmentName(end.tornSegment);
    if (end.tornSegment === end.segment && end.logId !== null) cutTail(files, dir, segment, end);
    else files.renameSync(join(dir, segment), join(dir, freeName(files, dir, segment)));
    syncFolder(dir, files);
  }
  if (end.logId !== null) settle(files, dir, end);
  const names = listSegments(files, dir).map(segmentName);
  const bytes = names.reduce((sum, name) => sum + fileBytes(files, join(dir, name)), 0);
  return { end: end.logId === null ? null : end, droppedBytes: end.tornBytes, segment, bytes, lastMs, firstSegment };
}

function walkFrom(files: LogFiles, dir: string, options: WalkOptions): { end: LogEnd; lastMs: number } {
  const walk = walkRuns(files, dir, { ...options, withKinds: true });
  let lastMs = 0;
  for (let step = walk.next(); ; step = walk.next()) {
    if (step.done === true) return { end: step.value, lastMs: Math.max(lastMs, step.value.header?.beganMs ?? 0) };
    for (let index = 0; index < step.value.count; index++) lastMs = Math.max(lastMs, timeIn(step.value, index));
  }
}

/** How an entry begins that the binary is certain of. */
const SPELLED_TIME = /^\{"seq":\d+,"timeMs":(\d+),/;
/** Bytes that hold both numbers. */
const SPELLED_BYTES = 64;

/** Time of one entry of a run. Throws 'bad-log' for one that is none. */
function timeIn(run: Run, index: number): number {
  const payload = payloadIn(run, index);
  if (run.kinds[index] === 0) return parseEnvelope(payload).timeMs;
  return Number((SPELLED_TIME.exec(payload.toString('latin1', 0, SPELLED_BYTES)) as RegExpExecArray)[1]);
}

function cutTail(files: LogFiles, dir: string, name: string, end: LogEnd): void {
  const source = files.openSync(join(dir, name), 'r+');
  try {
    const tail = Buffer.alloc(files.sizeSync(source) - end.offset);
    assert(tail.length > 0, `torn tail of ${tail.length} bytes in ${name} at ${end.offset}`);
    readWhole(files, source, tail, end.offset);
    writeSynced(join(dir, freeName(files, dir, name)), tail, 'wx', files);
    syncFolder(dir, files);
    files.ftruncateSync(source, end.offset);
    files.fsyncSync(source);
  } finally {
    files.closeSync(source);
  }
}

/**
 * A dead writer may have left entries, and the name of the segment, in the cache alone; and where a sync failed under
 * it, the cache may show bytes that no later sync will write. So the last segment is written again as it is, and
 * synced; those before it were synced before it was begun.
 */
function settle(files: LogFiles, dir: string, end: LogEnd): void {
  const fd = files.openSync(join(dir, segmentName(end.segment)), 'r+');
  try {
    const room = Buffer.allocUnsafe(Math.min(end.offset, SETTLE_BYTES));
    for (let at = 0; at < end.offset; at += room.length) {
      const part = room.subarray(0, Math.min(room.length, end.offset - at));
      readWhole(files, fd, part, at);
      writeWhole(fd, part, at, files);
    }
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
  syncFolder(dir, files);
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

function fileBytes(files: LogFiles, path: string): number {
  const fd = files.openSync(path, 'r');
  try {
    return files.sizeSync(fd);
  } finally {
    files.closeSync(fd);
  }
}
