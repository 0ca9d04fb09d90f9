/**
 * A store in a folder, for servers of one machine, or of a file system that they share. Each file is for its owner
 * alone: 'KVKEPT01', SHA-256 of the rest, the rest. Its name is a digest of its key.
 */
import fs from 'node:fs';
import { dirname, join } from 'node:path';
import { KvError, readRegular, syncFolder, temporaryFor, writeSynced } from '../../native/index.ts';
import { makeFolder } from '../state/folder.ts';
import {
  BYTES_MAX,
  changed,
  checkKeepable,
  digestOf,
  type Found,
  KINDS,
  type Kind,
  oldestMs,
  type Store,
} from './store.ts';

const MAGIC = Buffer.from('KVKEPT01');
const HEAD_BYTES = MAGIC.length + 32;
const ENDING = '.kept';

export class FolderStore implements Store {
  readonly #dir: string;

  /** Makes the folder, and removes what is older than it may be. Throws 'io'. */
  constructor(dir: string) {
    this.#dir = dir;
    for (const kind of KINDS) {
      makeFolder(join(dir, kind));
      removeOld(join(dir, kind));
    }
  }

  async put(kind: Kind, key: string, bytes: Uint8Array): Promise<void> {
    checkKeepable(bytes);
    const path = this.#path(kind, key);
    try {
      const temporary = temporaryFor(path);
      const owned = { ...fs, openSync: (name: string, flags: string) => fs.openSync(name, flags, 0o600) };
      writeSynced(temporary, Buffer.concat([MAGIC, digestOf(bytes), bytes]), 'wx', owned);
      fs.renameSync(temporary, path);
      syncFolder(dirname(path));
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
    }
  }

  async first(kind: Kind, keys: readonly string[]): Promise<Found | null> {
    for (const key of keys) {
      const path = this.#path(kind, key);
      if (!fs.existsSync(path)) continue;
      const file = readRegular(path, { bytesMax: BYTES_MAX });
      const bytes = file.subarray(HEAD_BYTES);
      const [magic, digest] = [file.subarray(0, MAGIC.length), file.subarray(MAGIC.length, HEAD_BYTES)];
      if (!magic.equals(MAGIC) || !digest.equals(digestOf(bytes))) throw changed(path);
      return { key, bytes };
    }
    return null;
  }

  async remove(kind: Kind, key: string): Promise<void> {
    fs.rmSync(this.#path(kind, key), { force: true });
  }

  async close(): Promise<void> {}

  #path(kind: Kind, key: string): string {
    return join(this.#dir, kind, `${digestOf(key).toString('hex')}${ENDING}`);
  }
}

function removeOld(dir: string): void {
  for (const name of fs.readdirSync(dir)) {
    const path = join(dir, name);
    const mtimeMs = fs.statSync(path, { throwIfNoEntry: false })?.mtimeMs;
    if (name.endsWith(ENDING) && mtimeMs !== undefined && mtimeMs < oldestMs()) fs.rmSync(path, { force: true });
  }
}
