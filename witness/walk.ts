/**
 * The one walk over a log that reading, verifying and recovering share: headers linked to each other, lengths, CRCs and
 * the hash chain. It ends at the last whole entry and says what stands behind it.
 */
import { KvError } from '../native/index.ts';
import { entryHash, HASH_BYTES } from './chain.ts';
import type { LogFiles } from './files.ts';
import { badLog, type Fault, isTornHeader, SegmentFile } from './scan.ts';
import { encodeHeader, type SegmentHeader, segmentHash, segmentNumbers } from './segment.ts';

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

/**
 * Walks from the segment that holds `fromSeq` (Infinity: the last one) to the end. What a crash leaves at the end is no
 * error. Throws 'not-found' without a log, 'bad-log' (segment, offset, seq) at the first thing that is wrong.
 */
export function* walkLog(files: LogFiles, dir: string, fromSeq = 0): Generator<RawEntry, LogEnd, undefined> {
  const numbers = listSegments(files, dir);
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
      nextSeq: 0,
      headHash: Buffer.alloc(HASH_BYTES),
      tornBytes: first.size,
      tornSegment: 0,
    };
  }
  let start = 0;
  while (start + 1 < whole && ((heads[start + 1] as Head).header as SegmentHeader).firstSeq <= fromSeq) start++;
  let end: SegmentEnd | null = null;
  for (let index = start; index < heads.length; index++) {
    const segment = new SegmentFile(files, dir, numbers[index] as number);
    try {
      const { header } = heads[index] as Head;
      const expected = {
        logId: first.header.logId,
        number: index,
        firstSeq: end?.seq ?? 0,
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
      checkLink(segment.name, header, expected, index > start || index === 0);
      end = yield* walkSegment(segment, header, index === heads.length - 1);
    } finally {
      segment.close();
    }
  }
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

/** Numbers of the segments there are, ascending; throws 'not-found' without any. */
export function listSegments(files: LogFiles, dir: string): number[] {
  let names: string[] = [];
  try {
    names = files.listSync(dir);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code !== 'ENOENT' && code !== 'ENOTDIR')
      throw new KvError('io', `${dir} cannot be read: ${code}`, { values: { dir }, cause });
  }
  const numbers = segmentNumbers(names);
  if (numbers.length === 0)
    throw new KvError('not-found', `there is no witness log in ${dir}`, {
      values: { dir },
      hint: 'run something first, or name the right state folder',
    });
  return numbers;
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

/** A header must continue what the segment before it ended with. */
function checkLink(name: string, header: SegmentHeader, expected: SegmentHeader, isKnown: boolean): void {
  if (header.number !== expected.number)
    throw badLog(name, 32, null, `segment ${header.number} stands where segment ${expected.number} must be`);
  if (header.logId !== expected.logId)
    throw badLog(name, 16, null, `it belongs to log ${header.logId}, the segments before it to ${expected.logId}`);
  if (!isKnown) return;
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
