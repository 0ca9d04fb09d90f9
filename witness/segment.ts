/**
 * The head of a segment file, 84 bytes, all numbers little endian:
 *
 *      0  8  'PALIMLOG'
 *      8  4  format version, 1
 *     12  4  zero
 *     16 16  log id, random at creation, the same in every segment
 *     32  8  segment number, counts from 0
 *     40  8  seq of the first entry
 *     48 32  head hash of the segment before; zeros in segment 0
 *     80  4  CRC-32 over bytes 0…79
 */
import { crc32 } from 'node:zlib';
import { HASH_BYTES, headerHash } from './chain.ts';

export const SEGMENT_HEADER_BYTES = 84;
export const FORMAT_VERSION = 1;
export const LOG_ID_BYTES = 16;
const MAGIC = 'PALIMLOG';
const CRC_OFFSET = 80;
const SEGMENT_NAME = /^(\d{8,15})\.wal$/;

export interface SegmentHeader {
  /** Hex. */
  readonly logId: string;
  readonly number: number;
  readonly firstSeq: number;
  readonly previousHash: Uint8Array;
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

export function encodeHeader(header: SegmentHeader): Buffer {
  const bytes = Buffer.alloc(SEGMENT_HEADER_BYTES);
  bytes.write(MAGIC, 0, 'latin1');
  bytes.writeUInt32LE(FORMAT_VERSION, 8);
  bytes.set(Buffer.from(header.logId, 'hex'), 16);
  bytes.writeBigUInt64LE(BigInt(header.number), 32);
  bytes.writeBigUInt64LE(BigInt(header.firstSeq), 40);
  bytes.set(header.previousHash, 48);
  bytes.writeUInt32LE(crc32(bytes.subarray(0, CRC_OFFSET)), CRC_OFFSET);
  return bytes;
}

/** → the header, or a sentence that says what is wrong with these bytes. */
export function decodeHeader(bytes: Buffer): SegmentHeader | string {
  if (bytes.length < SEGMENT_HEADER_BYTES) return `the header has ${bytes.length} of ${SEGMENT_HEADER_BYTES} bytes`;
  if (bytes.toString('latin1', 0, 8) !== MAGIC) return 'this is not a segment of a witness log';
  if (bytes.readUInt32LE(CRC_OFFSET) !== crc32(bytes.subarray(0, CRC_OFFSET)))
    return 'the checksum of the header is wrong';
  const version = bytes.readUInt32LE(8);
  if (version !== FORMAT_VERSION) return `format version ${version} is unknown, this build reads ${FORMAT_VERSION}`;
  if (bytes.readUInt32LE(12) !== 0) return 'the reserved bytes of the header are not zero';
  const number = bytes.readBigUInt64LE(32);
  const firstSeq = bytes.readBigUInt64LE(40);
  if (number > Number.MAX_SAFE_INTEGER || firstSeq > Number.MAX_SAFE_INTEGER)
    return 'a count in the header is out of range';
  return {
    logId: bytes.toString('hex', 16, 16 + LOG_ID_BYTES),
    number: Number(number),
    firstSeq: Number(firstSeq),
    previousHash: Buffer.from(bytes.subarray(48, 48 + HASH_BYTES)),
  };
}

/** The hash on which the first entry of this segment builds: it covers everything of the header but the CRC. */
export const segmentHash = (header: SegmentHeader): Buffer => headerHash(encodeHeader(header).subarray(0, CRC_OFFSET));
