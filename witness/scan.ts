/**
 * Walking over the bytes of one segment without holding the file in memory, and telling a torn tail from damage.
 * Every length is compared with what remains and with the cap before anything is allocated.
 */
import { join } from 'node:path';
import { KvError } from '../native/index.ts';
import { chained, ENTRY_EXTRA_BYTES, ENTRY_HEAD_BYTES, entryCrc, PAYLOAD_BYTES_MAX, PAYLOAD_START } from './entry.ts';
import type { LogFiles } from './files.ts';
import {
  decodeHeader,
  HEADER_BYTES_MAX,
  headerBytes,
  isHeaderStart,
  type SegmentHeader,
  segmentName,
} from './segment.ts';

const READ_BYTES = 256 * 1024;
/** What a disk loses at once when the power fails. */
const SECTOR_BYTES = 512;
/** So many zeros at the end of a sector were never written: payloads are text, and no hash ends with as many. */
const ZEROS_LOST = 16;
/**
 * Largest segment that is read. Writers begin a new one at 16 MiB; a sparse file of terabytes would be searched for
 * hours.
 */
export const SEGMENT_FILE_BYTES_MAX = 256 * 1024 * 1024;
/** Bytes looked at again while searching for whole entries behind a fault; a file made to exceed it is no torn tail. */
const SEARCH_BYTES_MAX = 8 * 1024 * 1024;

export interface Frame {
  /** All of it. */
  readonly bytes: Buffer;
  readonly payload: Buffer;
  readonly hash: Buffer;
  /** Offset of the next frame. */
  readonly end: number;
}

/** A place where an entry is missing or is not as it was written. */
export interface Fault {
  readonly offset: number;
  readonly what: string;
  /** The file ends before the entry does. */
  readonly cut: boolean;
}

/** One open segment file, of the size it had when it was opened; a writer may be adding to it. */
export class SegmentFile {
  readonly name: string;
  readonly size: number;
  readonly #files: LogFiles;
  readonly #fd: number;
  #window = Buffer.alloc(0);
  /** What windows are cut from. */
  #room = Buffer.alloc(0);
  #windowStart = 0;

  constructor(files: LogFiles, dir: string, number: number) {
    this.name = segmentName(number);
    this.#files = files;
    this.#fd = readable(this.name, () => files.openSync(join(dir, this.name), 'r'));
    try {
      this.size = readable(this.name, () => files.sizeSync(this.#fd));
      if (this.size > SEGMENT_FILE_BYTES_MAX)
        throw badLog(this.name, 0, null, `it has ${this.size} bytes, at most ${SEGMENT_FILE_BYTES_MAX} are possible`);
    } catch (error) {
      files.closeSync(this.#fd);
      throw error;
    }
  }

  close(): void {
    this.#files.closeSync(this.#fd);
  }

  /** Bytes [offset, offset + length), fewer at the end of the file. Valid until the next call. */
  bytes(offset: number, length: number): Buffer {
    const wanted = Math.min(length, this.size - offset);
    if (offset < this.#windowStart || offset + wanted > this.#windowStart + this.#window.length)
      this.#fill(offset, wanted);
    const start = offset - this.#windowStart;
    return this.#window.subarray(start, start + Math.min(wanted, this.#window.length - start));
  }

  #fill(offset: number, wanted: number): void {
    const bytes = Math.min(Math.max(wanted, READ_BYTES), this.size - offset);
    if (bytes > this.#room.length) this.#room = Buffer.allocUnsafe(bytes);
    const window = this.#room.subarray(0, bytes);
    let filled = 0;
    while (filled < window.length) {
      const read = readable(this.name, () =>
        this.#files.readSync(this.#fd, window, filled, window.length - filled, offset + filled),
      );
      if (read === 0) break;
      filled += read;
    }
    this.#window = window.subarray(0, filled);
    this.#windowStart = offset;
  }

  /** So many bytes from here on, fewer at the end of the file. Valid until the next call. */
  window(offset: number, bytes = READ_BYTES): Buffer {
    return this.bytes(offset, bytes);
  }

  header(): SegmentHeader | string {
    return decodeHeader(this.bytes(0, HEADER_BYTES_MAX));
  }

  /** The frame at `offset`: length and CRC hold. null at the end of the file. */
  frame(version: number, offset: number): Frame | Fault | null {
    const remaining = this.size - offset;
    if (remaining === 0) return null;
    // Also where the file became shorter since: a writer cuts off what it gives up.
    const head = this.bytes(offset, ENTRY_HEAD_BYTES);
    if (head.length < ENTRY_HEAD_BYTES) return { offset, what: 'the file ends inside the head of an entry', cut: true };
    const length = head.readUInt32LE(0);
    if (length === 0 || length > PAYLOAD_BYTES_MAX) {
      return {
        offset,
        what: `an entry says it has ${length} bytes, 1 to ${PAYLOAD_BYTES_MAX} are possible`,
        cut: false,
      };
    }
    if (length + ENTRY_EXTRA_BYTES > remaining) {
      return { offset, what: `an entry needs ${length + ENTRY_EXTRA_BYTES} bytes, ${remaining} remain`, cut: true };
    }
    const bytes = this.bytes(offset, length + ENTRY_EXTRA_BYTES);
    const payload = bytes.subarray(ENTRY_HEAD_BYTES, ENTRY_HEAD_BYTES + length);
    if (
      bytes.length < length + ENTRY_EXTRA_BYTES ||
      bytes.readUInt32LE(4) !== entryCrc(version, bytes.subarray(0, 4), payload)
    ) {
      return { offset, what: 'the checksum of an entry is wrong', cut: false };
    }
    return { bytes, payload, hash: bytes.subarray(ENTRY_HEAD_BYTES + length), end: offset + bytes.length };
  }

  /**
   * Is the fault what a crash leaves: an entry that was not written to its end? Then the file stops inside it, or a
   * sector of it was not written to its end and reads as zeros there, and nothing whole follows. A changed byte of a
   * whole entry is damage, also in the last one.
   */
  isTorn(version: number, fault: Fault, seq: number, previousHash: Uint8Array): boolean {
    if (this.#isWholeButHead(version, fault.offset, seq, previousHash) || this.#hasFrameAfter(version, fault.offset))
      return false;
    if (this.#hasLostSector(fault.offset) || this.#isCutInHash(version, fault.offset, seq, previousHash)) return true;
    if (!fault.cut) return false;
    const start = this.bytes(fault.offset + ENTRY_HEAD_BYTES, PAYLOAD_START.length).toString('latin1');
    return PAYLOAD_START.startsWith(start);
  }

  /** Only length or CRC differ: payload and hash stand there, up to the end of the file. */
  #isWholeButHead(version: number, offset: number, seq: number, previousHash: Uint8Array): boolean {
    const length = this.size - offset - ENTRY_EXTRA_BYTES;
    if (length < 1 || length > PAYLOAD_BYTES_MAX) return false;
    const bytes = this.bytes(offset, length + ENTRY_EXTRA_BYTES);
    const payload = bytes.subarray(ENTRY_HEAD_BYTES, ENTRY_HEAD_BYTES + length);
    return chained(version, previousHash, seq, payload).hash.equals(bytes.subarray(ENTRY_HEAD_BYTES + length));
  }

  #hasFrameAfter(version: number, offset: number): boolean {
    let checked = 0;
    for (let at = offset + ENTRY_HEAD_BYTES + 1; at < this.size; ) {
      const found = this.bytes(at, READ_BYTES).indexOf(PAYLOAD_START, 0, 'latin1');
      if (found < 0) {
        at += Math.max(1, Math.min(READ_BYTES, this.size - at) - PAYLOAD_START.length + 1);
        continue;
      }
      const frame = this.frame(version, at + found - ENTRY_HEAD_BYTES);
      if (frame !== null && 'payload' in frame) return true;
      checked += Math.min(PAYLOAD_BYTES_MAX, this.size - at);
      if (checked > SEARCH_BYTES_MAX) return true;
      at += found + 1;
    }
    return false;
  }

  /** The hash alone was not written to its end: what of it stands there is right, and only zeros stand behind. */
  #isCutInHash(version: number, offset: number, seq: number, previousHash: Uint8Array): boolean {
    // The file does not end here, or there would be no fault.
    const frame = this.frame(version, offset) as Frame | Fault;
    if (!('payload' in frame)) return false;
    const { payload, hash, end } = frame;
    const written = hash.findLastIndex((byte) => byte !== 0) + 1;
    const expected = chained(version, previousHash, seq, payload).hash;
    return expected.subarray(0, written).equals(hash.subarray(0, written)) && this.#isZeroFrom(end);
  }

  #isZeroFrom(offset: number): boolean {
    for (let at = offset; at < this.size; at += READ_BYTES)
      if (!this.bytes(at, READ_BYTES).every((byte) => byte === 0)) return false;
    return true;
  }

  /** A sector may also have been written once, when a part of the entry was not in it yet. */
  #hasLostSector(offset: number): boolean {
    for (let at = offset; at < this.size; ) {
      const end = Math.min(this.size, Math.floor(at / SECTOR_BYTES) * SECTOR_BYTES + SECTOR_BYTES);
      const zeros = Math.min(end - at, ZEROS_LOST);
      if (this.bytes(end - zeros, zeros).every((byte) => byte === 0)) return true;
      at = end;
    }
    return false;
  }
}

function readable<T>(name: string, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    throw new KvError('io', `${name} cannot be read: ${message}`, { values: { segment: name, code }, cause });
  }
}

/**
 * True for a segment whose file was created but whose header never reached the disk whole: it holds the beginning of a
 * header and behind that at most zeros, which were allotted and not written. A header is on disk before an entry
 * follows it, so a longer file is damaged.
 */
export function isTornHeader(segment: SegmentFile, expected: Parameters<typeof isHeaderStart>[1]): boolean {
  if (segment.size > headerBytes(2, expected.leaves)) return false;
  const bytes = segment.bytes(0, HEADER_BYTES_MAX);
  return isHeaderStart(bytes.subarray(0, bytes.findLastIndex((byte) => byte !== 0) + 1), expected);
}

/** The error for a damaged log: it names the place and what is wrong there. */
export function badLog(segment: string, offset: number, seq: number | null, what: string): KvError {
  return new KvError('bad-log', `${segment} at byte ${offset}${seq === null ? '' : ` (entry ${seq})`}: ${what}`, {
    values: { segment, offset, seq },
    hint: 'the log was damaged or changed: keep the folder for examination and start a new one',
  });
}
