/**
 * A disk in memory that fails on command. It keeps apart what was written and what was synced: a power cut keeps the
 * synced bytes and an accidental part of the rest, and a failed sync forgets the unsynced bytes, as kernels do.
 */
import { basename } from 'node:path';
import type { LogFiles } from '../../../witness/index.ts';

interface File {
  cached: Buffer;
  durable: Buffer;
  dirty: { position: number; bytes: Buffer }[];
  isNameDurable: boolean;
}

/** 'ok', an errno, or how many bytes of a write are taken. */
export type Answer = 'ok' | 'ENOSPC' | 'EIO' | number;
export type Plan = (operation: 'write' | 'sync' | 'open' | 'truncate' | 'unlink', count: number) => Answer;

const DIRECTORY = -1;

export class SimulatedDisk implements LogFiles {
  plan: Plan = () => 'ok';
  /** Operations asked so far. */
  count = 0;
  readonly files = new Map<string, File>();
  readonly #open = new Map<number, File>();
  #nextFd = 10;

  #answer(operation: Parameters<Plan>[0]): Answer {
    const answer = this.plan(operation, this.count++);
    if (answer === 'ENOSPC' || answer === 'EIO')
      throw Object.assign(new Error(`${answer}: simulated ${operation}`), { code: answer });
    return answer;
  }

  openSync(path: string, flags: string): number {
    const name = basename(path);
    let file = this.files.get(name);
    if (file === undefined && !name.includes('.wal')) return DIRECTORY;
    if (flags.startsWith('wx')) {
      this.#answer('open');
      if (file !== undefined) throw Object.assign(new Error(`EEXIST ${name}`), { code: 'EEXIST' });
      file = { cached: Buffer.alloc(0), durable: Buffer.alloc(0), dirty: [], isNameDurable: false };
      this.files.set(name, file);
    }
    if (file === undefined) throw Object.assign(new Error(`ENOENT ${name}`), { code: 'ENOENT' });
    this.#open.set(this.#nextFd, file);
    return this.#nextFd++;
  }

  closeSync(fd: number): void {
    this.#open.delete(fd);
  }

  #file(fd: number): File {
    const file = this.#open.get(fd);
    if (file === undefined) throw Object.assign(new Error(`EBADF ${fd}`), { code: 'EBADF' });
    return file;
  }

  readSync(fd: number, target: Uint8Array, offset: number, length: number, position: number): number {
    const bytes = this.#file(fd).cached.subarray(position, position + length);
    target.set(bytes, offset);
    return bytes.length;
  }

  writeSync(fd: number, source: Uint8Array, offset: number, length: number, position: number): number {
    const file = this.#file(fd);
    const answer = this.#answer('write');
    const taken = typeof answer === 'number' ? Math.min(answer, length) : length;
    const bytes = Buffer.from(source.subarray(offset, offset + taken));
    file.cached = overlay(file.cached, position, bytes);
    file.dirty.push({ position, bytes });
    return taken;
  }

  write(
    fd: number,
    source: Uint8Array,
    offset: number,
    length: number,
    position: number,
    done: (error: Error | null, written: number) => void,
  ): void {
    setImmediate(() => {
      let written = 0;
      try {
        written = this.writeSync(fd, source, offset, length, position);
      } catch (error) {
        done(error as Error, 0);
        return;
      }
      done(null, written);
    });
  }

  fdatasyncSync(fd: number): void {
    const file = this.#file(fd);
    try {
      this.#answer('sync');
    } catch (error) {
      file.dirty = [];
      throw error;
    }
    for (const { position, bytes } of file.dirty) file.durable = overlay(file.durable, position, bytes);
    file.dirty = [];
  }

  fdatasync(fd: number, done: (error: Error | null) => void): void {
    setImmediate(() => {
      try {
        this.fdatasyncSync(fd);
      } catch (error) {
        done(error as Error);
        return;
      }
      done(null);
    });
  }

  fsyncSync(fd: number): void {
    if (fd !== DIRECTORY) {
      this.fdatasyncSync(fd);
      return;
    }
    this.#answer('sync');
    for (const file of this.files.values()) file.isNameDurable = true;
  }

  ftruncateSync(fd: number, length: number): void {
    const file = this.#file(fd);
    this.#answer('truncate');
    file.cached = file.cached.subarray(0, length);
    file.durable = file.durable.subarray(0, length);
    file.dirty = [];
  }

  sizeSync(fd: number): number {
    return this.#file(fd).cached.length;
  }

  listSync(): string[] {
    return [...this.files.keys()];
  }

  mkdirSync(): void {}

  renameSync(from: string, to: string): void {
    const file = this.files.get(basename(from));
    if (file === undefined) throw Object.assign(new Error(`ENOENT ${from}`), { code: 'ENOENT' });
    this.files.delete(basename(from));
    this.files.set(basename(to), file);
  }

  unlinkSync(path: string): void {
    this.#answer('unlink');
    this.files.delete(basename(path));
  }

  /**
   * What is found after a power cut. `random`: [0, 1). Unsynced writes survive in order up to some byte, then perhaps
   * as zeros.
   */
  afterPowerCut(random: () => number): SimulatedDisk {
    const disk = new SimulatedDisk();
    for (const [name, file] of this.files) {
      if (!file.isNameDurable && random() < 0.5) continue;
      let bytes = file.durable;
      for (const write of file.dirty) {
        const kept = random() < 0.5 ? write.bytes.length : Math.floor(random() * write.bytes.length);
        bytes = overlay(bytes, write.position, write.bytes.subarray(0, kept));
        if (kept === write.bytes.length) continue;
        const end = write.position + kept;
        if (random() < 0.3 && end > 0) bytes = zeroTail(bytes, end, file.durable.length);
        break;
      }
      disk.files.set(name, { cached: bytes, durable: bytes, dirty: [], isNameDurable: true });
    }
    return disk;
  }
}

function overlay(base: Buffer, position: number, bytes: Buffer): Buffer {
  const result = Buffer.alloc(Math.max(base.length, position + bytes.length));
  base.copy(result);
  bytes.copy(result, position);
  return result;
}

/** The last sector of a torn write was allotted and never written: what was not durable in it reads as zeros. */
function zeroTail(bytes: Buffer, end: number, durable: number): Buffer {
  const from = Math.max(durable, Math.floor((end - 1) / 512) * 512);
  const result = Buffer.from(bytes);
  if (from < result.length) result.fill(0, from);
  return result;
}
