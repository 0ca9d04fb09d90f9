/**
 * Batches on their way to the segment files: opening, writing, syncing, and taking back what a refused write may have
 * left.
 */
import { join } from 'node:path';
import { syncFolder, writeWhole } from '../native/index.ts';
import type { Batch } from './batch.ts';
import type { LogFiles } from './files.ts';
import type { SessionKeys } from './keys.ts';
import { segmentName } from './segment.ts';

export class BatchFiles {
  readonly #files: LogFiles;
  readonly #folder: string;
  /** Keys of the sessions in the batches; null: nothing is encrypted. */
  readonly #keys: SessionKeys | null;
  readonly #fds = new Map<number, number>();

  /** `folder`: where the segments lie. */
  constructor(files: LogFiles, folder: string, keys: SessionKeys | null) {
    this.#keys = keys;
    this.#files = files;
    this.#folder = folder;
  }

  /**
   * Writes a batch and syncs it, beside the caller. A new segment's header is on disk, and its name too, before the
   * first entry is written: only a header alone can be torn.
   */
  async write(batch: Batch): Promise<void> {
    const fd = this.#fd(batch);
    if (batch.isFirst) {
      await this.#writePart(batch, fd, 0, batch.headerBytes);
      // Once per segment, about every 20,000 entries: not worth a second way of syncing.
      if (!batch.done) syncFolder(this.#folder, this.#files);
    }
    await this.#writePart(batch, fd, batch.headerBytes, batch.length);
  }

  async #writePart(batch: Batch, fd: number, from: number, to: number): Promise<void> {
    for (let done = from; done < to && !batch.done; ) {
      done += await new Promise<number>((resolve, reject) => {
        this.#files.write(fd, batch.bytes, done, to - done, batch.position + done, (error, written) => {
          if (error !== null) reject(error);
          else if (written <= 0) reject(Object.assign(new Error('the disk took no bytes'), { code: 'ENOSPC' }));
          else resolve(written);
        });
      });
    }
    if (batch.done) return;
    await new Promise<void>((resolve, reject) =>
      this.#files.fdatasync(fd, (error) => (error === null ? resolve() : reject(error))),
    );
  }

  /** The same while the caller waits. */
  writeSync(batch: Batch): void {
    const fd = this.#fd(batch);
    const { headerBytes, bytes, position } = batch;
    if (batch.isFirst) {
      writeWhole(fd, bytes.subarray(0, headerBytes), 0, this.#files);
      this.#files.fdatasyncSync(fd);
      syncFolder(this.#folder, this.#files);
    }
    writeWhole(fd, bytes.subarray(headerBytes), position + headerBytes, this.#files);
    this.#files.fdatasyncSync(fd);
  }

  /** File of a batch; made when the batch begins a segment, kept until the segment is behind us. */
  #fd(batch: Batch): number {
    // Every write begins here: what a new key encrypts is never on disk without the key.
    this.#keys?.save();
    let fd = this.#fds.get(batch.segment);
    if (fd === undefined) {
      fd = this.#files.openSync(join(this.#folder, segmentName(batch.segment)), batch.isFirst ? 'wx+' : 'r+');
      this.#fds.set(batch.segment, fd);
    }
    return fd;
  }

  /** True if the file of this segment was opened here. */
  has(segment: number): boolean {
    return this.#fds.has(segment);
  }

  /**
   * Closes the files of all segments before this one. Must not be called while a write to one of them is on its way.
   */
  closeBefore(segment: number): void {
    for (const number of this.#fds.keys()) if (number < segment) this.close(number);
  }

  /** Everything in the file is synced or given up: a refusal to close it changes nothing. */
  close(segment: number): void {
    const fd = this.#fds.get(segment);
    if (fd === undefined) return;
    this.#fds.delete(segment);
    try {
      this.#files.closeSync(fd);
    } catch {
      // Nothing left to save.
    }
  }

  /** Takes back what a refused write may have left, for good. → false: nothing may be written behind it */
  undo({ segment, position, isFirst }: Batch): boolean {
    const fd = this.#fds.get(segment);
    try {
      if (isFirst) {
        this.#files.unlinkSync(join(this.#folder, segmentName(segment)));
        syncFolder(this.#folder, this.#files);
      } else if (fd !== undefined) {
        this.#files.ftruncateSync(fd, position);
        this.#files.fdatasyncSync(fd);
      }
      return true;
    } catch {
      // The disk refuses this too: the next start recovers the tail or finds whole entries, both are honest.
      return false;
    }
  }
}
