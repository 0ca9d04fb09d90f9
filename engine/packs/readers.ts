/**
 * Who has pages that a pack wrote: such pages are in the memory of processes, so each process that may have some says
 * so in the store, and what a killed one said counts no more. Whoever takes the last page of a pack that is draining
 * away looks here whether others have any (PackKeeper.retire).
 *
 *   packs/readers/SHA256/ID/writer.lock     one for each thread that has sessions with the pack
 */
import { randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { KvError, refusedFile } from '../../native/index.ts';
import { isLocked, lockWriter } from '../../witness/index.ts';
import { packsDir } from './store.ts';

/** Somebody removes what nobody holds between two calls of whoever begins to hold it. */
const ATTEMPTS = 8;

export class PackReaders {
  readonly #dir: string;

  constructor(stateDir: string) {
    this.#dir = join(packsDir(stateDir), 'readers');
  }

  /** This thread may have pages of a pack until it says otherwise. → says it. Throws 'io'. */
  hold(digest: string): () => void {
    const folder = join(this.#dir, digest, randomBytes(8).toString('hex'));
    for (let left = ATTEMPTS; ; left--) {
      try {
        mkdirSync(folder, { recursive: true });
        const lock = lockWriter(folder);
        return () => {
          lock.release();
          rmSync(folder, { recursive: true, force: true });
        };
      } catch (error) {
        if (left === 1) throw error instanceof KvError ? error : refusedFile(folder, error);
      }
    }
  }

  /** True if a live thread may have pages of the pack. Throws 'io'. */
  has(digest: string): boolean {
    const dir = join(this.#dir, digest);
    try {
      let isRead = false;
      for (const name of readdirSync(dir)) {
        if (isLocked(join(dir, name))) isRead = true;
        else rmSync(join(dir, name), { recursive: true, force: true });
      }
      return isRead;
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return false;
      throw cause instanceof KvError ? cause : refusedFile(dir, cause);
    }
  }
}
