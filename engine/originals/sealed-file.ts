/**
 * A file of records that one session writes and reads while it lives, and that nobody else can read. Each record is
 * sealed with AES-256-GCM under a key that is only in memory and bound to where it stands, so that what comes back is
 * what was written or is refused. The file loses its name as soon as it is open, where the system can do that, and is
 * gone with its process; elsewhere the next one that opens a file in the same folder removes it. It never takes more
 * than was stated: where there is no room, a record is not taken. Records are written beside the steps of the session;
 * only where the disk is far behind, a step waits for it.
 */
import { createCipheriv, createDecipheriv, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import fs from 'node:fs';
import { join } from 'node:path';
import { isGone, KvError, readWhole, refusedFile, writeWhole } from '../../native/index.ts';
import type { RecordPlace, Records } from './records.ts';
import type { OriginalFiles } from './types.ts';

const CIPHER = 'aes-256-gcm';
const [KEY_BYTES, NONCE_BYTES, TAG_BYTES] = [32, 12, 16];
/** What may wait in memory to be written. */
const WAITING_BYTES_MAX = 32 * 2 ** 20;

/** What a record takes in the file: it is sealed, and its nonce stays in memory. */
const sealedBytes = (bytes: number): number => bytes + TAG_BYTES;

interface SealedPlace extends RecordPlace {
  readonly at: number;
  /** Which record of this key it is; never given twice. */
  readonly nonce: number;
  /** The sealed bytes, as long as they are not in the file. */
  waiting: Buffer | null;
}

export class SealedFile implements Records {
  readonly #files: OriginalFiles;
  readonly #fd: number;
  /** The name of the file where it still has one. */
  readonly #path: string | null;
  readonly #key: KeyObject;
  readonly #nonceStart: Buffer;
  readonly #bytesMax: number;
  readonly #onFailure: (error: KvError) => void;
  #nonces = 0;
  #end = 0;
  /** Places in the file that nobody has any more, by their bytes. */
  readonly #free = new Map<number, number[]>();
  #bytes = 0;
  #waitingBytes = 0;
  #underWay = 0;
  #isClosed = false;

  /** `onFailure` hears of a write that failed later. Throws 'io', 'not-found' where no file can be made. */
  constructor(dir: string, bytesMax: number, onFailure: (error: KvError) => void, files: OriginalFiles = fs) {
    const path = join(dir, `originals-${process.pid}-${randomBytes(8).toString('hex')}`);
    this.#files = files;
    this.#bytesMax = bytesMax;
    this.#onFailure = onFailure;
    this.#key = createSecretKey(randomBytes(KEY_BYTES));
    this.#nonceStart = randomBytes(NONCE_BYTES - 8);
    try {
      this.#fd = files.openSync(path, 'wx+', 0o600);
    } catch (cause) {
      const { code, message, values } = refusedFile(dir, cause);
      const says = code === 'not-found' ? `${dir} is no folder, where originals are to be kept` : message;
      throw new KvError(code, says, { values, hint: 'originalsDir must be a folder that can be written to', cause });
    }
    this.#path = unlinked(files, path) ? null : path;
    if (this.#path !== null) removeLeft(files, dir);
  }

  get bytes(): number {
    return this.#bytes;
  }

  put(bytes: Uint8Array): RecordPlace | null {
    const length = sealedBytes(bytes.length);
    const at = this.#place(length);
    if (at === null || this.#isClosed) return null;
    const nonce = this.#nonces++;
    const cipher = createCipheriv(CIPHER, this.#key, this.#nonce(nonce)).setAAD(boundTo(at, length));
    const sealed = Buffer.concat([cipher.update(bytes), cipher.final(), cipher.getAuthTag()]);
    const place: SealedPlace = { bytes: length, at, nonce, waiting: sealed };
    this.#bytes += length;
    this.#write(place, sealed);
    return place;
  }

  get(given: RecordPlace): Uint8Array {
    const { at, bytes, nonce, waiting } = given as SealedPlace;
    const sealed = waiting ?? Buffer.alloc(bytes);
    try {
      if (waiting === null && readWhole(this.#fd, sealed, at, this.#files as typeof fs) < bytes) throw cutOff(at);
      const decipher = createDecipheriv(CIPHER, this.#key, this.#nonce(nonce)).setAAD(boundTo(at, bytes));
      decipher.setAuthTag(sealed.subarray(bytes - TAG_BYTES));
      const opened = decipher.update(sealed.subarray(0, bytes - TAG_BYTES));
      decipher.final();
      return opened;
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      const { code } = cause as NodeJS.ErrnoException;
      if (code?.startsWith('E') === true && !code.startsWith('ERR_'))
        throw new KvError('io', 'an original cannot be read back', { values: { code, at }, cause });
      throw new KvError('checksum-mismatch', 'an original was changed in its file', { values: { at, bytes }, cause });
    }
  }

  drop(given: RecordPlace): void {
    const { at, bytes } = given as SealedPlace;
    const free = this.#free.get(bytes) ?? [];
    free.push(at);
    this.#free.set(bytes, free);
    this.#bytes -= bytes;
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#closeFile();
  }

  /** Nobody may have the number of the file while something is written to it. */
  #closeFile(): void {
    if (!this.#isClosed || this.#underWay > 0) return;
    this.#files.closeSync(this.#fd);
    if (this.#path !== null) unlinked(this.#files, this.#path);
  }

  #place(length: number): number | null {
    // Of two writes to one place, nobody knows which ends last.
    const free = this.#underWay > 0 ? undefined : this.#free.get(length)?.pop();
    if (free !== undefined) return free;
    if (this.#end + length > this.#bytesMax) return null;
    const at = this.#end;
    this.#end += length;
    return at;
  }

  #nonce(count: number): Buffer {
    const nonce = Buffer.alloc(NONCE_BYTES);
    nonce.set(this.#nonceStart);
    nonce.writeBigUInt64BE(BigInt(count), NONCE_BYTES - 8);
    return nonce;
  }

  #write(place: SealedPlace, sealed: Buffer): void {
    if (this.#waitingBytes + sealed.length > WAITING_BYTES_MAX) {
      try {
        writeWhole(this.#fd, sealed, place.at, this.#files);
        place.waiting = null;
      } catch (cause) {
        this.#failed(cause);
      }
      return;
    }
    this.#waitingBytes += sealed.length;
    this.#underWay++;
    this.#writeFrom(place, sealed, 0);
  }

  #writeFrom(place: SealedPlace, sealed: Buffer, done: number): void {
    this.#files.write(this.#fd, sealed, done, sealed.length - done, place.at + done, (error, written) => {
      const isFull = error === null && written <= 0;
      if (error === null && !isFull && done + written < sealed.length && !this.#isClosed) {
        this.#writeFrom(place, sealed, done + written);
        return;
      }
      this.#underWay--;
      this.#waitingBytes -= sealed.length;
      if (error === null && !isFull) place.waiting = null;
      else this.#failed(error ?? Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' }));
      this.#closeFile();
    });
  }

  #failed(cause: unknown): void {
    if (this.#isClosed) return;
    const { code = 'unknown', message } = cause as NodeJS.ErrnoException;
    this.#onFailure(new KvError('io', `originals cannot be written: ${message}`, { values: { code }, cause }));
  }
}

const boundTo = (at: number, bytes: number): Buffer => Buffer.from(`original ${at} ${bytes}`);

const cutOff = (at: number): KvError =>
  new KvError('checksum-mismatch', 'an original was cut off in its file', { values: { at } });

/** Removes the files of processes that ended without doing so. What cannot be removed stays for the next time. */
function removeLeft(files: OriginalFiles, dir: string): void {
  try {
    for (const name of files.readdirSync(dir)) {
      const pid = /^originals-(\d+)-[0-9a-f]{16}$/.exec(name)?.[1];
      if (pid !== undefined && isGone(Number(pid))) unlinked(files, join(dir, name));
    }
  } catch {
    // A folder that cannot be listed keeps them.
  }
}

/** Takes the name of a file that is open. → whether it has none any more */
function unlinked(files: OriginalFiles, path: string): boolean {
  try {
    files.unlinkSync(path);
    return true;
  } catch {
    return false;
  }
}
