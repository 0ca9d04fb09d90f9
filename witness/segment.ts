/**
 * The head of a segment file, all numbers little endian:
 *
 *      0  8  'PALIMLOG'
 *      8  4  format version, 3; 2 is the same with bodies that are encrypted as text
 *     12  4  bytes of this head: 116 + 32 · p
 *     16 16  log id, random at creation, the same in every segment
 *     32  8  segment number, counts from 0
 *     40  8  seq of the first entry
 *     48 32  chain hash before it; zeros in segment 0
 *     80  8  when the segment began, milliseconds since the epoch
 *     88  8  id of the key that signed checkpoints then; zeros: none
 *     96  8  number of the first segment that the series then had: retention had removed those before it
 *    104  8  entries of the series before this segment: leaves of its tree
 *    112 32p roots of the full subtrees over them, largest first; p is the number of ones in the binary number of
 *    leaves
 *      …  4  CRC-32C of all bytes before
 *
 * Format 1 had 84 bytes: version 1, zeros in the place of the length, no bytes 80…, and a CRC-32.
 */
import { crc32 } from 'node:zlib';
import { HASH_BYTES, headerHash } from './chain.ts';
import { crc32c } from './crc32c.ts';
import { peakCount } from './tree.ts';

/** The version that is written. All are read. */
export const FORMAT_VERSION = 3;
const VERSIONS = [1, 2, FORMAT_VERSION] as const;
export type Version = (typeof VERSIONS)[number];
const isVersion = (version: number): version is Version => (VERSIONS as readonly number[]).includes(version);
export const LOG_ID_BYTES = 16;
export const KEY_ID_BYTES = 8;
export const NO_KEY = '0'.repeat(2 * KEY_ID_BYTES);
const MAGIC = 'PALIMLOG';
const CRC_BYTES = 4;
const HEADER_BYTES_1 = 84;
const PEAKS_OFFSET = 112;
/** A series has at most 2^32 entries. */
const PEAKS_MAX = 32;
export const HEADER_BYTES_MIN = HEADER_BYTES_1;
export const HEADER_BYTES_MAX = PEAKS_OFFSET + PEAKS_MAX * HASH_BYTES + CRC_BYTES;
const SEGMENT_NAME = /^(\d{8,15})\.wal$/;

export interface SegmentHeader {
  readonly version: Version;
  /** Hex. */
  readonly logId: string;
  readonly number: number;
  readonly firstSeq: number;
  readonly previousHash: Uint8Array;
  /** Milliseconds since the epoch; 0 in format 1. */
  readonly beganMs: number;
  /** Hex; `NO_KEY`: none. */
  readonly keyId: string;
  /** Number of the first segment that the series had when this one began. */
  readonly firstSegment: number;
  /** Entries of the series before this segment; 0 in format 1. */
  readonly leaves: number;
  /** Frontier of the tree over them; empty in format 1. */
  readonly peaks: readonly Uint8Array[];
}

export const segmentName = (number: number): string => `${String(number).padStart(8, '0')}.wal`;

/** Numbers of the segment files among these names, ascending. A name that is not one of ours is no segment. */
export function segmentNumbers(names: readonly string[]): number[] {
  const numbers: number[] = [];
  for (const name of names) {
    const digits = SEGMENT_NAME.exec(name)?.[1];
    if (digits !== undefined && segmentName(Number(digits)) === name) numbers.push(Number(digits));
  }
  return numbers.sort((a, b) => a - b);
}

/** Bytes of a header of this version over so many leaves. */
export const headerBytes = (version: Version, leaves: number): number =>
  version === 1 ? HEADER_BYTES_1 : PEAKS_OFFSET + peakCount(leaves) * HASH_BYTES + CRC_BYTES;

export function encodeHeader(header: SegmentHeader): Buffer {
  const { version, leaves, peaks } = header;
  const bytes = Buffer.alloc(headerBytes(version, leaves));
  const end = bytes.length - CRC_BYTES;
  bytes.write(MAGIC, 0, 'latin1');
  bytes.writeUInt32LE(version, 8);
  bytes.set(Buffer.from(header.logId, 'hex'), 16);
  bytes.writeBigUInt64LE(BigInt(header.number), 32);
  bytes.writeBigUInt64LE(BigInt(header.firstSeq), 40);
  bytes.set(header.previousHash, 48);
  if (version === 1) {
    bytes.writeUInt32LE(crc32(bytes.subarray(0, end)), end);
    return bytes;
  }
  bytes.writeUInt32LE(bytes.length, 12);
  bytes.writeBigUInt64LE(BigInt(header.beganMs), 80);
  bytes.set(Buffer.from(header.keyId, 'hex'), 88);
  bytes.writeBigUInt64LE(BigInt(header.firstSegment), 96);
  bytes.writeBigUInt64LE(BigInt(leaves), 104);
  for (const [index, peak] of peaks.entries()) bytes.set(peak, PEAKS_OFFSET + index * HASH_BYTES);
  bytes.writeUInt32LE(crc32c(bytes.subarray(0, end)), end);
  return bytes;
}

/** → the header, or a sentence that says what is wrong with these bytes. They may be more than the header. */
export function decodeHeader(bytes: Buffer): SegmentHeader | string {
  if (bytes.length < HEADER_BYTES_MIN)
    return `the header has ${bytes.length} bytes, at least ${HEADER_BYTES_MIN} are needed`;
  if (bytes.toString('latin1', 0, 8) !== MAGIC) return 'this is not a segment of a witness log';
  const version = bytes.readUInt32LE(8);
  if (!isVersion(version)) return `format version ${version} is unknown, this build reads ${VERSIONS.join(', ')}`;
  const said = bytes.readUInt32LE(12);
  const length = version > 1 ? said : HEADER_BYTES_1;
  if (length < HEADER_BYTES_MIN || length > HEADER_BYTES_MAX || length > bytes.length)
    return `the header says it has ${length} bytes, ${HEADER_BYTES_MIN} to ${Math.min(bytes.length, HEADER_BYTES_MAX)} are possible`;
  const end = length - CRC_BYTES;
  const crc = version > 1 ? crc32c(bytes.subarray(0, end)) : crc32(bytes.subarray(0, end));
  if (bytes.readUInt32LE(end) !== crc) return 'the checksum of the header is wrong';
  if (version === 1 && said !== 0) return 'the reserved bytes of the header are not zero';
  const count = (offset: number): number => Number(bytes.readBigUInt64LE(offset));
  const [beganMs, firstSegment, leaves] = version === 1 ? [0, 0, 0] : [count(80), count(96), count(104)];
  const counts = [count(32), count(40), beganMs, firstSegment, leaves] as const;
  if (!counts.every(Number.isSafeInteger)) return 'a count in the header is out of range';
  if (length !== headerBytes(version, leaves))
    return `the header has ${length} bytes, over ${leaves} leaves it has ${headerBytes(version, leaves)}`;
  const hashAt = (offset: number): Buffer => Buffer.from(bytes.subarray(offset, offset + HASH_BYTES));
  return {
    version,
    logId: bytes.toString('hex', 16, 16 + LOG_ID_BYTES),
    number: counts[0],
    firstSeq: counts[1],
    previousHash: hashAt(48),
    beganMs,
    keyId: version === 1 ? NO_KEY : bytes.toString('hex', 88, 88 + KEY_ID_BYTES),
    firstSegment,
    leaves,
    peaks: Array.from({ length: peakCount(leaves) }, (_, n) => hashAt(PEAKS_OFFSET + n * HASH_BYTES)),
  };
}

/** The hash on which the first entry of this segment builds: it covers everything of the header but the CRC. */
export function segmentHash(header: SegmentHeader): Buffer {
  const bytes = encodeHeader(header);
  return headerHash(header.version, bytes.subarray(0, bytes.length - CRC_BYTES));
}

/** Bytes whose values cannot be known before the header is read: time, key and first segment. */
const UNKNOWN_FROM = 80;
const UNKNOWN_TO = 104;

/**
 * True if `bytes` are the beginning of a header, of any version, that could follow what stands before it: everything
 * that is known beforehand is as expected. `previous.peaks` null: the tree is not known here.
 */
export function isHeaderStart(
  bytes: Buffer,
  expected: Pick<SegmentHeader, 'logId' | 'number' | 'firstSeq' | 'previousHash' | 'leaves'> & {
    readonly peaks: readonly Uint8Array[] | null;
  },
): boolean {
  return VERSIONS.some((version) => {
    const { leaves } = expected;
    const peaks = expected.peaks ?? [];
    const whole = encodeHeader({ ...expected, version, peaks, beganMs: 0, keyId: NO_KEY, firstSegment: 0 });
    if (bytes.length >= whole.length) return false;
    const unknownTo = expected.peaks === null ? headerBytes(2, leaves) : UNKNOWN_TO;
    if (version > 1) {
      const end = whole.length - CRC_BYTES;
      whole.set(bytes.subarray(UNKNOWN_FROM, Math.min(unknownTo, end)), UNKNOWN_FROM);
      whole.writeUInt32LE(crc32c(whole.subarray(0, end)), end);
    }
    return bytes.equals(whole.subarray(0, bytes.length));
  });
}
