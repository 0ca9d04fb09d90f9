/**
 * The one walk over a log that reading, verifying and recovering share: headers linked to each other, lengths, CRCs and
 * the hash chain. It ends at the last whole entry and says what stands behind it.
 */
import { basename } from 'node:path';
import { entryHash, HASH_BYTES } from './chain.ts';
import type { LogFiles } from './files.ts';
import { badLog, type Fault, isTornHeader, SegmentFile } from './scan.ts';
import { encodeHeader, type SegmentHeader, segmentHash, segmentName, segmentNumbers } from './segment.ts';
import { firstSeqOf, listFolder, listSeries, noLog, seriesDir } from './series.ts';

export interface RawEntry {
  readonly segment: string;
  readonly offset: number;
  readonly seq: number;
  /** Valid until the next step of the walk. */
  readonly payload: Uint8Array;
  readonly logId: string;
  /** Chain hash of this entry: stands for everything up to and including it. */
  readonly hash: Uint8Array;
}

export interface LogEnd {
  /** null: the very first header was never completed; nothing was ever in this log. */
  readonly logId: string | null;
  /** Segment files there are. */
  readonly segments: number;
  /** Segment and offset behind the last whole entry: where the next one goes. */
  readonly segment: number;
  readonly offset: number;
  readonly nextSeq: number;
  readonly headHash: Uint8Array;
  /** Bytes behind `offset` that a crash left: in this segment, or all of a next segment whose header is incomplete. */
  readonly tornBytes: number;
  readonly tornSegment: number | null;
}

/** Walks one series of a log. One whose writer has not made its first segment yet has no entries. Throws 'bad-log'. */
export function* walkSeries(
  files: LogFiles,
  logDir: string,
  series: number,
  fromSeq = 0,
): Generator<RawEntry, LogEnd | null, undefined> {
  const dir = seriesDir(logDir, series);
  if (series > 0 && listSegments(files, dir).length === 0) return null;
  return yield* walkLog(files, dir, fromSeq);
}

/** Walks every series of a log, one after the other: all entries in order of seq. Throws 'not-found' without a log, 'bad-log'. */
export function* walkAll(files: LogFiles, logDir: string): Generator<RawEntry, void, undefined> {
  const logId = logIdOf(files, logDir);
  for (const series of listSeries(files, logDir)) {
    for (const raw of walkSeries(files, logDir, series)) {
      checkLogId(raw, logId);
      yield raw;
    }
  }
}

/** A series that was copied here from another log is none of this one. Throws 'bad-log'. */
export function checkLogId({ segment, logId }: RawEntry, expected: string | null): void {
  if (logId !== expected) throw badLog(segment, 16, null, `it belongs to log ${logId}, the folder to ${expected}`);
}

/**
 * Walks one series, the one that lies in `dir`, from the segment that holds `fromSeq` (Infinity: the last one) to the end. What a
 * crash leaves at the end is no error. Throws 'not-found' without segments, 'bad-log' (segment, offset, seq) at the first thing that is wrong.
 */
export function* walkLog(files: LogFiles, dir: string, fromSeq = 0): Generator<RawEntry, LogEnd, undefined> {
  const { own: numbers, behind } = segmentsIn(files, dir);
  if (numbers.length === 0) refuseStray(files, dir, 0, behind);
  if (numbers.length === 0) throw noLog(dir);
  const firstSeq = firstSeqOf(Number(/^writer-(\d{4})$/.exec(basename(dir))?.[1] ?? 0));
  const heads = numbers.map((number) => readHead(files, dir, number));
  const headless = heads.findIndex((head) => head.header === null);
  if (headless >= 0 && headless < heads.length - 1) {
    const { name, what } = heads[headless] as Head;
    throw badLog(name, 0, null, what);
  }
  const whole = headless < 0 ? heads.length : headless;
  const first = heads[0] as Head;
  if (first.header === null) {
    if (!first.mayBeTorn) throw badLog(first.name, 0, null, first.what);
    return {
      logId: null,
      segments: 1,
      segment: 0,
      offset: 0,
      nextSeq: firstSeq,
      headHash: Buffer.alloc(HASH_BYTES),
      tornBytes: first.size,
      tornSegment: 0,
    };
  }
  // Every header, also of segments that are not walked: a file that was given another number is found before anything is read or written.
  for (const [index, { name, header }] of heads.slice(0, whole).entries()) {
    checkPlace(name, header as SegmentHeader, first.header.logId, index);
    if (index > 0 && (header as SegmentHeader).firstSeq < ((heads[index - 1] as Head).header as SegmentHeader).firstSeq)
      throw badLog(name, 40, null, 'its first entry stands before that of the segment before it');
  }
  let start = 0;
  while (start + 1 < whole && ((heads[start + 1] as Head).header as SegmentHeader).firstSeq <= fromSeq) start++;
  let end: SegmentEnd | null = null;
  for (let index = start; index < heads.length; index++) {
    const segment = new SegmentFile(files, dir, numbers[index] as number);
    try {
      // A writer may have completed the header since the heads were read.
      const now = (heads[index] as Head).header ?? segment.header();
      const header = typeof now === 'string' ? null : now;
      const expected = {
        logId: first.header.logId,
        number: index,
        firstSeq: end?.seq ?? firstSeq,
        previousHash: end?.hash ?? Buffer.alloc(HASH_BYTES),
      };
      if (header === null) {
        // Only the last can be headless here, and then the one before it was walked.
        if (end === null || end.fault !== null || !isTornHeader(segment, encodeHeader(expected)))
          throw badLog(segment.name, 0, null, (heads[index] as Head).what);
        return {
          logId: expected.logId,
          segments: heads.length,
          segment: index - 1,
          offset: end.offset,
          nextSeq: end.seq,
          headHash: end.hash,
          tornBytes: segment.size,
          tornSegment: index,
        };
      }
      checkPlace(segment.name, header, expected.logId, index);
      if (index > start || index === 0) checkLink(segment.name, header, expected);
      end = yield* walkSegment(segment, header, index === heads.length - 1);
    } finally {
      segment.close();
    }
  }
  refuseStray(files, dir, heads.length, behind);
  const last = end as SegmentEnd;
  return {
    logId: first.header.logId,
    segments: heads.length,
    segment: heads.length - 1,
    offset: last.offset,
    nextSeq: last.seq,
    headHash: last.hash,
    tornBytes: last.fault === null ? 0 : last.size - last.offset,
    tornSegment: last.fault === null ? null : heads.length - 1,
  };
}

/**
 * Numbers of the segments of a series, from 0 without gaps. A file with a number behind a gap that has no header is not of the log
 * (`verifyLog` names it); one that has a header says that segments before it are missing, which is found at the end of the walk.
 * Throws 'not-found' for what is no folder, 'bad-log' where the first segment is missing.
 */
export function listSegments(files: LogFiles, dir: string): number[] {
  const { own, behind } = segmentsIn(files, dir);
  if (own.length === 0) refuseStray(files, dir, 0, behind);
  return own;
}

function segmentsIn(files: LogFiles, dir: string): { readonly own: number[]; readonly behind: number[] } {
  const numbers = segmentNumbers(listFolder(files, dir));
  const own = numbers.filter((number, index) => number === index);
  return { own, behind: numbers.slice(own.length) };
}

/** Throws 'bad-log' when one of the segments behind the gap at `missing` is of a log. */
function refuseStray(files: LogFiles, dir: string, missing: number, behind: readonly number[]): void {
  const stray = behind.find((number) => hasHeader(files, dir, number));
  // A writer may have been making segments while the folder was listed.
  if (stray !== undefined && !segmentNumbers(listFolder(files, dir)).includes(missing))
    throw badLog(segmentName(stray), 0, null, `${segmentName(missing)} is missing before it`);
}

function hasHeader(files: LogFiles, dir: string, number: number): boolean {
  try {
    return readHead(files, dir, number).header !== null;
  } catch {
    // What cannot even be opened as a file is no segment.
    return false;
  }
}

/** Id of the log in `dir`; null while its first header is not complete. Throws 'not-found', 'bad-log'. */
export function logIdOf(files: LogFiles, dir: string): string | null {
  if (listSegments(files, dir).length === 0) throw noLog(dir);
  return readHead(files, dir, 0).header?.logId ?? null;
}

interface Head {
  readonly name: string;
  readonly size: number;
  readonly header: SegmentHeader | null;
  /** Why there is no header. */
  readonly what: string;
  readonly mayBeTorn: boolean;
}

function readHead(files: LogFiles, dir: string, number: number): Head {
  const segment = new SegmentFile(files, dir, number);
  try {
    const header = segment.header();
    const { name, size } = segment;
    if (typeof header !== 'string') return { name, size, header, what: '', mayBeTorn: false };
    const magic = encodeHeader({ logId: '', number: 0, firstSeq: 0, previousHash: Buffer.alloc(HASH_BYTES) }).subarray(
      0,
      16,
    );
    return {
      name,
      size,
      header: null,
      what: header,
      mayBeTorn: isTornHeader(segment, Buffer.concat([magic, segment.bytes(0, size).subarray(16)])),
    };
  } finally {
    segment.close();
  }
}

/** The number in the header is that of the file, and all segments are of one log. */
function checkPlace(name: string, header: SegmentHeader, logId: string, number: number): void {
  if (header.number !== number)
    throw badLog(name, 32, null, `segment ${header.number} stands where segment ${number} must be`);
  if (header.logId !== logId)
    throw badLog(name, 16, null, `it belongs to log ${header.logId}, the segments before it to ${logId}`);
}

/** A header must continue what the segment before it ended with. */
function checkLink(name: string, header: SegmentHeader, expected: SegmentHeader): void {
  if (header.firstSeq !== expected.firstSeq)
    throw badLog(name, 40, null, `its first entry is ${header.firstSeq}, expected ${expected.firstSeq}`);
  if (!expected.previousHash.every((byte, index) => byte === header.previousHash[index])) {
    throw badLog(name, 48, null, 'it does not continue the hash chain of the segment before');
  }
}

interface SegmentEnd {
  readonly offset: number;
  readonly seq: number;
  readonly hash: Uint8Array;
  readonly size: number;
  readonly fault: Fault | null;
}

function* walkSegment(
  segment: SegmentFile,
  header: SegmentHeader,
  isLast: boolean,
): Generator<RawEntry, SegmentEnd, undefined> {
  let offset = encodeHeader(header).length;
  let seq = header.firstSeq;
  let hash: Uint8Array = segmentHash(header);
  for (;;) {
    const frame = segment.frame(offset);
    if (frame === null) return { offset, seq, hash, size: segment.size, fault: null };
    let fault: Fault | null = null;
    if ('payload' in frame) {
      const expected = entryHash(hash, seq, frame.payload);
      if (expected.equals(frame.hash)) {
        yield { segment: segment.name, offset, seq, payload: frame.payload, logId: header.logId, hash: expected };
        hash = expected;
        offset = frame.end;
        seq++;
        continue;
      }
      fault = { offset, what: 'it does not continue the hash chain', cut: false };
    } else {
      fault = frame;
    }
    if (!isLast || !segment.isTorn(fault, seq, hash)) throw badLog(segment.name, offset, seq, fault.what);
    return { offset, seq, hash, size: segment.size, fault };
  }
}
