/**
 * Reads a file by position. Nothing is mapped or read whole. The file is one thing for as long as it is open: whoever
 * reads a part of it again gets the same bytes, or an error where somebody wrote to the file, or cut it.
 */
import { createHash } from 'node:crypto';
import { closeSync, fstatSync } from 'node:fs';
import { forgetFileBytes, KvError, type KvErrorCode, openRegular, readWhole, refusedFile } from '../../native/index.ts';
import { WEIGHT_BYTES_MAX } from './limits.ts';
import { CHUNK_BYTES, SameBytes } from './same-bytes.ts';

/** Bytes read at once when a file is digested. */
const DIGEST_CHUNK_BYTES = 1 << 20;
/**
 * Files of at least this size must not be mostly holes: half their bytes must be on disk, which still allows for
 * compression.
 */
const HOLLOW_BYTES = 2 ** 30;
const DISK_BLOCK_BYTES = 512;
/**
 * The system keeps what was read of a file in memory, where the next start finds it. A file that would take more than
 * this share of the memory that is available gives its bytes back once they are packed.
 */
const KEPT_SHARE = 1 / 8;
/** Between two words about how far the digest is. */
const TOLD_BYTES = 32 * DIGEST_CHUNK_BYTES;

/** Bytes by position: a file, or the part of one that is known so far. */
export interface ByteSource {
  /** The path of the file, for messages. */
  readonly path: string;
  /** The bytes of the whole file. */
  readonly size: number;
  readInto(offset: number, target: Uint8Array): void;
  /** In a buffer of their own. */
  read(offset: number, length: number): Uint8Array;
  /** Throws KvError 'bad-file' where the file has no such range. */
  checkRange(offset: number, length: number): void;
  /** Says that a range is not read again soon. */
  giveBack?(offset: number, length: number): void;
}

export class FileBytes implements ByteSource {
  readonly path: string;
  readonly size: number;
  readonly #descriptor: number;
  readonly #same = new SameBytes();
  /** The chunk that was read last in part, and its number. */
  #chunk = new Uint8Array(0);
  #chunkIndex = -1;
  #open = true;

  private constructor(path: string, descriptor: number, size: number) {
    this.path = path;
    this.#descriptor = descriptor;
    this.size = size;
  }

  /** Throws what openRegular throws. `bytesMax` defaults to the limit for all weights of a model. */
  static open(path: string, bytesMax = WEIGHT_BYTES_MAX, code: KvErrorCode = 'bad-file'): FileBytes {
    const { fd, size } = openRegular(path, { bytesMax, code });
    return new FileBytes(path, fd, size);
  }

  /** Changes whenever the file is written to or replaced. */
  get stamp(): string {
    const { size, mtimeNs, ctimeNs, ino } = fstatSync(this.#descriptor, { bigint: true });
    return [size, mtimeNs, ctimeNs, ino].join('-');
  }

  /**
   * Fills `target` from `offset`. Throws KvError 'bad-file' when the file has fewer bytes, 'checksum-mismatch' when
   * they are not those that were read before.
   */
  readInto(offset: number, target: Uint8Array): void {
    if (!this.#open) throw new KvError('closed', `${this.path} was closed`, { values: { path: this.path } });
    this.checkRange(offset, target.byteLength);
    for (let done = 0; done < target.byteLength; ) {
      const at = offset + done;
      const left = target.byteLength - done;
      const index = Math.floor(at / CHUNK_BYTES);
      const from = at - index * CHUNK_BYTES;
      const isWhole = from === 0 && left >= this.#chunkBytes(index);
      // Of whole chunks as many as there are; the last one of a file is shorter.
      const whole = at + left === this.size ? left : left - (left % CHUNK_BYTES);
      const part = target.subarray(done, done + (isWhole ? whole : Math.min(this.#chunkBytes(index) - from, left)));
      if (isWhole) this.#readChunks(index, part);
      else part.set(this.#heldChunk(index).subarray(from, from + part.length));
      done += part.length;
    }
  }

  #chunkBytes(index: number): number {
    return Math.min(CHUNK_BYTES, this.size - index * CHUNK_BYTES);
  }

  /** A whole chunk, of which only a part is wanted; the next part of it is often asked for next. */
  #heldChunk(index: number): Uint8Array {
    if (this.#chunkIndex === index) return this.#chunk;
    this.#chunkIndex = -1;
    if (this.#chunk.length !== this.#chunkBytes(index)) this.#chunk = new Uint8Array(this.#chunkBytes(index));
    this.#readChunks(index, this.#chunk);
    this.#chunkIndex = index;
    return this.#chunk;
  }

  #readChunks(index: number, chunks: Uint8Array): void {
    const offset = index * CHUNK_BYTES;
    const read = attempt(this.path, () => readWhole(this.#descriptor, chunks, offset));
    if (read < chunks.length) throw this.#short(offset, chunks.length);
    const other = this.#same.firstOther(index, chunks);
    if (other === null) return;
    throw new KvError('checksum-mismatch', `${this.path} was changed while it is in use`, {
      values: { path: this.path, offset: other * CHUNK_BYTES },
      hint: 'open the model again; put another file in its place by renaming it, not by writing into it',
    });
  }

  /** Checked against the file's size before anything is allocated. */
  read(offset: number, length: number): Uint8Array {
    this.checkRange(offset, length);
    const bytes = new Uint8Array(length);
    this.readInto(offset, bytes);
    return bytes;
  }

  checkRange(offset: number, length: number): void {
    const sound = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
    if (!sound || length > this.size - offset) throw this.#short(offset, length);
  }

  /** Lets the system forget a range of a large file, whose bytes were read and packed. */
  giveBack(offset: number, length: number): void {
    this.checkRange(offset, length);
    if (this.#open && this.size > process.availableMemory() * KEPT_SHARE)
      forgetFileBytes(this.#descriptor, offset, length);
  }

  /**
   * SHA-256 of the whole file, hex. onBytes: told now and then how many were read. Throws KvError 'bad-file' for a
   * large file that is mostly a hole.
   */
  digest(onBytes: (bytes: number) => void = () => {}): string {
    // Not every file system reports this.
    const diskBytes = (fstatSync(this.#descriptor).blocks || Number.POSITIVE_INFINITY) * DISK_BLOCK_BYTES;
    if (this.size >= HOLLOW_BYTES && diskBytes < this.size / 2) {
      throw new KvError('bad-file', `${this.path} has ${this.size} bytes, of which the disk holds ${diskBytes}`, {
        values: { path: this.path, bytes: this.size, diskBytes },
        hint: 'the file was not fetched completely',
      });
    }
    const hash = createHash('sha256');
    const chunk = new Uint8Array(Math.min(DIGEST_CHUNK_BYTES, Math.max(1, this.size)));
    for (let offset = 0; offset < this.size; offset += chunk.length) {
      const part = chunk.subarray(0, Math.min(chunk.length, this.size - offset));
      this.readInto(offset, part);
      hash.update(part);
      if (offset % TOLD_BYTES === 0) onBytes(offset + part.length);
    }
    return hash.digest('hex');
  }

  close(): void {
    if (!this.#open) return;
    this.#open = false;
    closeSync(this.#descriptor);
  }

  #short(offset: number, length: number): KvError {
    return new KvError('bad-file', `${this.path} ends before the data it announces`, {
      values: { path: this.path, offset, length, size: this.size },
      hint: 'the file is damaged or was not fetched completely',
    });
  }
}

/** Runs a file operation and turns errors of the operating system into a KvError. */
export function attempt<T>(path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw refusedFile(path, cause);
  }
}

/** Adds the path to an error that does not name its file, as errors from readers of a single section do not. */
export function namingFile(path: string, error: unknown): unknown {
  if (!(error instanceof KvError)) return error;
  const said = [error.message, ...Object.values(error.values)];
  if (said.some((text) => typeof text === 'string' && text.includes(path))) return error;
  return new KvError(error.code, error.message, {
    values: { path, ...error.values },
    hint: error.hint,
    cause: error,
  });
}
