/** Where originals are: a place for records of bytes outside every budget of a cache, with a limit of its own. */
import { crc32 } from 'node:zlib';
import { KvError } from '../../native/index.ts';

/** A record that is kept. */
export interface RecordPlace {
  /** What it takes. */
  readonly bytes: number;
}

export interface Records {
  /** What all records take. */
  readonly bytes: number;
  /** Keeps bytes. null: there is no room for them. */
  put(bytes: Uint8Array): RecordPlace | null;
  /** The bytes that were kept. Throws 'io', 'checksum-mismatch'. */
  get(place: RecordPlace): Uint8Array;
  drop(place: RecordPlace): void;
  close(): void;
}

interface HeldPlace extends RecordPlace {
  readonly held: Uint8Array;
  readonly checksum: number;
}

/** Records in memory, as they are. What damages codes may damage them as well, so each is compared when it is read. */
export class HeldRecords implements Records {
  readonly #bytesMax: number;
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#bytes;
  }

  put(bytes: Uint8Array): RecordPlace | null {
    if (this.#bytes + bytes.length > this.#bytesMax) return null;
    this.#bytes += bytes.length;
    const place: HeldPlace = { bytes: bytes.length, held: bytes, checksum: crc32(bytes) };
    return place;
  }

  get(place: RecordPlace): Uint8Array {
    const { held, checksum, bytes } = place as HeldPlace;
    if (crc32(held) === checksum) return held;
    throw new KvError('checksum-mismatch', 'an original was changed in memory', { values: { bytes } });
  }

  drop({ bytes }: RecordPlace): void {
    this.#bytes -= bytes;
  }

  close(): void {
    this.#bytes = 0;
  }
}
