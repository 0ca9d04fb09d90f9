/**
 * A store in a folder, for servers of one machine, or of a file system that they share. Each file is for its owner
 * alone: 'KVKEPT02', SHA-256 of the rest, u32 bytes of the ids of the sessions that it holds something of, those with a
 * blank between each two, and what is kept. Its name is a digest of its key.
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
  erasedKey,
  type Found,
  KINDS,
  type Kind,
  oldestMs,
  type Store,
  sessionsIn,
  sessionsText,
} from './store.ts';

const MAGIC = Buffer.from('KVKEPT02');
const DIGEST_END = MAGIC.length + 32;
const HEAD_BYTES = DIGEST_END + 4;
/** More ids than sessions that one conversation went through. */
const SESSIONS_BYTES_MAX = 2 ** 20;
const ENDING = '.kept';
/** Of empty files, one for each session that was erased. */
const ERASED = 'erased';

export class FolderStore implements Store {
  readonly #dir: string;

  /** Makes the folder, and removes what is older than it may be. Throws 'io'. */
  constructor(dir: string) {
    this.#dir = dir;
    for (const name of [...KINDS, ERASED]) {
      makeFolder(join(dir, name));
      removeOld(join(dir, name));
    }
  }

  async put(kind: Kind, key: string, bytes: Uint8Array, sessions: readonly string[] = []): Promise<void> {
    checkKeepable(bytes);
    const path = this.#path(kind, key);
    try {
      const temporary = temporaryFor(path);
      const owned = { ...fs, openSync: (name: string, flags: string) => fs.openSync(name, flags, 0o600) };
      const rest = Buffer.concat([sessionsHead(sessions), bytes]);
      writeSynced(temporary, Buffer.concat([MAGIC, digestOf(rest), rest]), 'wx', owned);
      fs.renameSync(temporary, path);
      syncFolder(dirname(path));
      // Whoever erases says so first, and looks for files then.
      if (sessions.some((session) => fs.existsSync(this.#erased(kind, session)))) fs.rmSync(path, { force: true });
    } catch (cause) {
      throw unwritten(path, cause);
    }
  }

  async first(kind: Kind, keys: readonly string[]): Promise<Found | null> {
    for (const key of keys) {
      const path = this.#path(kind, key);
      if (!fs.existsSync(path)) continue;
      const file = readRegular(path, { bytesMax: BYTES_MAX });
      const [magic, digest] = [file.subarray(0, MAGIC.length), file.subarray(MAGIC.length, DIGEST_END)];
      if (!magic.equals(MAGIC) || !digest.equals(digestOf(file.subarray(DIGEST_END)))) throw changed(path);
      const end = HEAD_BYTES + file.readUInt32LE(DIGEST_END);
      return { key, bytes: file.subarray(end), sessions: sessionsIn(file.toString('utf8', HEAD_BYTES, end)) };
    }
    this.#checkThere(kind);
    return null;
  }

  async remove(kind: Kind, key: string): Promise<void> {
    this.#checkThere(kind);
    this.#removeFile(this.#path(kind, key));
  }

  async erase(kind: Kind, session: string): Promise<number> {
    const path = this.#erased(kind, session);
    try {
      fs.writeFileSync(path, '', { mode: 0o600, flush: true });
      syncFolder(dirname(path));
    } catch (cause) {
      throw unwritten(path, cause);
    }
    let erased = 0;
    for (const name of this.#namesOf(kind)) {
      const path = join(this.#dir, kind, name);
      if (!name.endsWith(ENDING) || !sessionsOf(path).includes(session)) continue;
      this.#removeFile(path);
      erased++;
    }
    return erased;
  }

  async close(): Promise<void> {}

  /** Throws 'io' where the folder is gone: what is not in it is then not known to be nowhere. */
  #checkThere(kind: Kind): void {
    const dir = join(this.#dir, kind);
    try {
      fs.opendirSync(dir).closeSync();
    } catch (cause) {
      throw unread(dir, cause);
    }
  }

  #namesOf(kind: Kind): readonly string[] {
    const dir = join(this.#dir, kind);
    try {
      return fs.readdirSync(dir);
    } catch (cause) {
      throw unread(dir, cause);
    }
  }

  #removeFile(path: string): void {
    try {
      fs.rmSync(path, { force: true });
    } catch (cause) {
      throw new KvError('io', `cannot remove ${path}: ${(cause as Error).message}`, { values: { path }, cause });
    }
  }

  #erased(kind: Kind, session: string): string {
    return join(this.#dir, ERASED, `${erasedKey(kind, session)}${ENDING}`);
  }

  #path(kind: Kind, key: string): string {
    return join(this.#dir, kind, `${digestOf(key).toString('hex')}${ENDING}`);
  }
}

const unwritten = (path: string, cause: unknown): KvError =>
  cause instanceof KvError
    ? cause
    : new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });

const unread = (dir: string, cause: unknown): KvError =>
  new KvError('io', `cannot look into ${dir}: ${(cause as Error).message}`, {
    values: { dir },
    hint: 'the folder of the store was moved, removed or closed: put it back, or start the server again',
    cause,
  });

function removeOld(dir: string): void {
  for (const name of fs.readdirSync(dir)) {
    const path = join(dir, name);
    const mtimeMs = fs.statSync(path, { throwIfNoEntry: false })?.mtimeMs;
    if (name.endsWith(ENDING) && mtimeMs !== undefined && mtimeMs < oldestMs()) fs.rmSync(path, { force: true });
  }
}

function sessionsHead(sessions: readonly string[]): Buffer {
  const ids = Buffer.from(sessionsText(sessions));
  const length = Buffer.alloc(HEAD_BYTES - DIGEST_END);
  length.writeUInt32LE(ids.length);
  return Buffer.concat([length, ids]);
}

/** The sessions that a file says it is of; none for one that is gone, or is no such file. */
function sessionsOf(path: string): readonly string[] {
  let file: number;
  try {
    file = fs.openSync(path, 'r');
  } catch {
    return [];
  }
  try {
    const head = Buffer.alloc(HEAD_BYTES);
    if (fs.readSync(file, head) < HEAD_BYTES || !head.subarray(0, MAGIC.length).equals(MAGIC)) return [];
    const ids = Buffer.alloc(Math.min(head.readUInt32LE(DIGEST_END), SESSIONS_BYTES_MAX));
    return sessionsIn(ids.toString('utf8', 0, fs.readSync(file, ids, 0, ids.length, HEAD_BYTES)));
  } finally {
    fs.closeSync(file);
  }
}
