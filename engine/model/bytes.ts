/** A file read by position: nothing is mapped, nothing is read whole, and a file that shrinks meanwhile is noticed. */
import { createHash } from 'node:crypto';
import { type BigIntStats, closeSync, constants, fstatSync, openSync, readSync } from 'node:fs';
import { KvError } from '../../native/index.ts';

/** Bytes read at once when a file is digested. */
const DIGEST_CHUNK_BYTES = 1 << 20;

export class FileBytes {
  readonly path: string;
  readonly size: number;
  /** Changes whenever the file is written to or another one takes its place. */
  readonly stamp: string;
  readonly #descriptor: number;
  #open = true;

  private constructor(path: string, descriptor: number, { size, mtimeNs, ctimeNs, ino }: BigIntStats) {
    this.path = path;
    this.#descriptor = descriptor;
    this.size = Number(size);
    this.stamp = [size, mtimeNs, ctimeNs, ino].join('-');
  }

  /** Throws KvError 'not-found', 'io', or 'bad-file' for anything that is no regular file (a pipe is not waited for). */
  static open(path: string): FileBytes {
    const descriptor = attempt(path, () => openSync(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0)));
    const stat = fstatSync(descriptor, { bigint: true });
    if (!stat.isFile()) {
      closeSync(descriptor);
      throw new KvError('bad-file', `${path} is not a regular file`, { values: { path } });
    }
    return new FileBytes(path, descriptor, stat);
  }

  /** Fills `target` from `offset`. Throws KvError 'bad-file' when the file has fewer bytes. */
  readInto(offset: number, target: Uint8Array): void {
    if (!this.#open) throw new KvError('closed', `${this.path} was closed`, { values: { path: this.path } });
    this.checkRange(offset, target.byteLength);
    for (let done = 0; done < target.byteLength; ) {
      const read = attempt(this.path, () =>
        readSync(this.#descriptor, target, done, target.byteLength - done, offset + done),
      );
      if (read === 0) throw this.#short(offset, target.byteLength);
      done += read;
    }
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

  /** SHA-256 of the whole file, hex. */
  digest(): string {
    const hash = createHash('sha256');
    const chunk = new Uint8Array(Math.min(DIGEST_CHUNK_BYTES, Math.max(1, this.size)));
    for (let offset = 0; offset < this.size; offset += chunk.length) {
      const part = chunk.subarray(0, Math.min(chunk.length, this.size - offset));
      this.readInto(offset, part);
      hash.update(part);
    }
    return hash.digest('hex');
  }

  close(): void {
    if (!this.#open) return;
    this.#open = false;
    closeSync(this.#descriptor);
  }

  #short(offset: number, length: number): KvError {
    return new KvError('bad-file', `${this.path} ends before what it announces`, {
      values: { path: this.path, offset, length, size: this.size },
      hint: 'the file is damaged or was not fetched completely',
    });
  }
}

/** Runs a file operation; what the operating system refuses becomes a KvError. */
export function attempt<T>(path: string, operation: () => T): T {
  try {
    return operation();
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    const code = (cause as NodeJS.ErrnoException).code;
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      throw new KvError('not-found', `${path} does not exist`, { values: { path }, cause });
    }
    throw new KvError('io', `${path}: ${(cause as Error).message}`, { values: { path, code }, cause });
  }
}

/** The readers of one section name the section: an error that does not say which file it is about is given its path. */
export function namingFile(path: string, error: unknown): unknown {
  if (!(error instanceof KvError)) return error;
  const said = [error.message, ...Object.values(error.values)];
  if (said.some((text) => typeof text === 'string' && text.includes(path))) return error;
  return new KvError(error.code, error.message, {
    values: { path, ...error.values },
    ...(error.hint === undefined ? {} : { hint: error.hint }),
    cause: error,
  });
}
