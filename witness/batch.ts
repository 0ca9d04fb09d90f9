/** Entries that wait together for one write and one fsync: consecutive bytes of one segment. */
import { assert } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { ENTRY_EXTRA_BYTES, ENTRY_HEAD_BYTES, joinedCrc } from './entry.ts';

const FIRST_BYTES = 16 * 1024;

export interface ChainEnd {
  readonly nextSeq: number;
  readonly headHash: Uint8Array;
}

export class Batch {
  readonly segment: number;
  /** Where its bytes go in the segment file. */
  readonly position: number;
  /** The file does not exist yet; the bytes begin with its header. */
  readonly isFirst: boolean;
  /** State after the entry before this batch: the chain continues from here if the batch is given up. */
  readonly before: ChainEnd;
  /** Entries that somebody will miss, by session. */
  readonly sessions = new Map<string, number>();
  length = 0;
  entries = 0;
  lastSeq = -1;
  done = false;
  #bytes: Buffer = Buffer.allocUnsafe(FIRST_BYTES);

  constructor(segment: number, position: number, isFirst: boolean, before: ChainEnd) {
    this.before = before;
    this.segment = segment;
    this.position = position;
    this.isFirst = isFirst;
  }

  get bytes(): Buffer {
    return this.#bytes.subarray(0, this.length);
  }

  get end(): number {
    return this.position + this.length;
  }

  addHeader(header: Uint8Array): void {
    assert(this.isFirst && this.length === 0, `header at byte ${this.length} of a batch`);
    this.#reserve(header.length);
    this.#bytes.set(header, 0);
    this.length = header.length;
  }

  /** Lays out length, CRC, payload and hash; `hashOf` gets the payload bytes. → the hash */
  add(seq: number, payload: string, hashOf: (payload: Uint8Array) => Uint8Array): Uint8Array {
    // UTF-8 takes at most three bytes per UTF-16 unit.
    this.#reserve(payload.length * 3 + ENTRY_EXTRA_BYTES);
    const start = this.length + ENTRY_HEAD_BYTES;
    const bytes = this.#bytes.write(payload, start, 'utf8');
    // The CRC covers the length and then the payload, so the length is first written right before the payload.
    this.#bytes.writeUInt32LE(bytes, start - 4);
    const crc = joinedCrc(this.#bytes.subarray(start - 4, start + bytes));
    this.#bytes.writeUInt32LE(bytes, start - 8);
    this.#bytes.writeUInt32LE(crc, start - 4);
    const hash = hashOf(this.#bytes.subarray(start, start + bytes));
    this.#bytes.set(hash, start + bytes);
    this.length = start + bytes + HASH_BYTES;
    this.entries++;
    this.lastSeq = seq;
    return hash;
  }

  #reserve(bytes: number): void {
    if (this.length + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.length + bytes));
    this.#bytes.copy(larger, 0, 0, this.length);
    this.#bytes = larger;
  }
}
