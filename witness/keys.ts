/**
 * The keys that sessions are encrypted with: one random key for each session, in one small file of its own beside the
 * log, so that destroying the file erases what the log says of the session and nothing else. A master key, where there
 * is one, wraps them. Without it they lie there as they are, readable for the owner of the folder alone (mode 0600).
 *
 * A key file is written to a temporary name, synced and renamed before the first entry that it encrypts reaches the
 * disk. `NAME.erased` in its place says that the key was destroyed on purpose. A file that is no key any more closes
 * its own session to readers and nothing else.
 */
import { createHash, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { basename, join } from 'node:path';
import {
  asRecord,
  assert,
  jsonOf,
  KvError,
  type OpenedBodies,
  openEntries,
  privately,
  readRegular,
  syncFolder,
  temporaryName,
  writeSynced,
} from '../native/index.ts';
import { checkBody } from './body.ts';
import {
  type Disclosure,
  disclose,
  type Encryption,
  encryptBox,
  isEncrypted,
  KEY_BYTES,
  mustEncrypt,
  NONCE_BYTES,
  openBox,
  openText,
} from './encryption.ts';
import { type Envelope, parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { entryForms } from './forms.ts';
import { KeyRing } from './ring.ts';
import { payloadIn, type Run } from './run.ts';
import type { Entry, EntryKind } from './types.ts';

export const KEYS_NAME = 'keys';
/** Names the master key that wraps new keys. */
export const MASTER_NAME = 'master';
/** A session's name of 200 characters, escaped, and a wrapped key. */
const FILE_BYTES_MAX = 4096;
const OWN_NAME = /^(?:(?:[0-9a-f]{32}\.key|master)(?:(?:\.\d{1,10})?\.tmp)?|[0-9a-f]{32}\.erased|writer\.lock)$/;
/** What writing a key file leaves when it is broken off; earlier versions did not name their process. */
const ASIDE = /^(.+?)(?:\.\d{1,10})?\.tmp$/;
/** Sessions whose keys stay in memory; the key of an older one is read again. */
const KNOWN_MAX = 4096;

/**
 * Why an entry cannot be opened: its session was erased, the key is not here (or is wrapped by a master key that nobody
 * gave), or the file of the key is damaged.
 */
export type Unopened = 'erased' | 'missing' | 'damaged';

export interface MasterKey {
  readonly id: string;
  readonly bytes: Uint8Array;
  readonly key: KeyObject;
}

let masters: readonly MasterKey[] = [];

/**
 * Master keys of this thread, 32 bytes each: the first wraps the keys of new sessions, all of them open what they have
 * wrapped. A process that rotates its master key gives the new one first. Throws 'bad-argument'.
 */
export function useMasterKeys(keys: readonly Uint8Array[]): void {
  masters = keys.map((bytes) => {
    if (bytes.length !== KEY_BYTES)
      throw new KvError('bad-argument', `a master key has ${KEY_BYTES} bytes`, { values: { bytes: bytes.length } });
    const id = createHash('sha256').update('palimpsest master key').update(bytes).digest('hex').slice(0, 16);
    return { id, bytes, key: createSecretKey(bytes) };
  });
}

/** The master key that wraps the keys of new sessions; undefined: none was given. */
export const firstMaster = (): MasterKey | undefined => masters[0];

/** What `useMasterKeys` was given, for a thread that is started. */
export const masterKeysInUse = (): Uint8Array[] => masters.map(({ bytes }) => bytes);

/**
 * 64 hexadecimal digits, or the path of a file that holds them or 32 bytes → a master key. Throws 'bad-config',
 * 'not-found', 'io'.
 */
export function readMasterKey(keyOrPath: string): Uint8Array {
  const isDigits = (text: string): boolean => /^[0-9a-f]{64}$/i.test(text);
  if (isDigits(keyOrPath)) return Buffer.from(keyOrPath, 'hex');
  const bytes = readRegular(keyOrPath, { bytesMax: FILE_BYTES_MAX, code: 'bad-config' });
  if (bytes.length === KEY_BYTES) return bytes;
  const digits = bytes.toString('latin1').trim();
  if (isDigits(digits)) return Buffer.from(digits, 'hex');
  throw new KvError('bad-config', `${keyOrPath} is not a master key`, {
    values: { path: keyOrPath, bytes: bytes.length },
    hint: 'a file with 32 random bytes, or with 64 hexadecimal digits: openssl rand -hex 32',
  });
}

export const keysDir = (logDir: string): string => join(logDir, KEYS_NAME);
export const fileName = (session: string): string => createHash('sha256').update(session).digest('hex').slice(0, 32);
const keyPath = (logDir: string, session: string): string => join(keysDir(logDir), `${fileName(session)}.key`);
export const markPath = (logDir: string, session: string): string =>
  join(keysDir(logDir), `${fileName(session)}.erased`);

/** True if a file in the folder of keys may be one of ours. */
export const isKeyName = (name: string): boolean => OWN_NAME.test(name);

/** The keys of one log. One object serves one writer, or one pass of a reader. */
export class SessionKeys {
  readonly #files: LogFiles;
  readonly #dir: string;
  readonly #known = new Map<string, KeyObject | Unopened>();
  /** For the binary. */
  readonly #ring = new KeyRing();
  #asked: string | null = null;
  readonly #damaged = new Set<string>();
  /** Not on disk yet. */
  readonly #fresh = new Map<string, Uint8Array>();
  /**
   * Keys were read from the disk since the last `save`. Whoever wrote them may have failed before their folder was
   * synced, and then they are there until the power fails.
   */
  #areUnsure = false;
  /**
   * Tells the nonces of this writer from those of one that encrypted an entry of the same seq before, and whose tail
   * was cut off.
   */
  readonly #nonceStart = randomBytes(4);

  constructor(files: LogFiles, logDir: string) {
    this.#files = files;
    this.#dir = logDir;
  }

  /**
   * What an entry is to be encrypted with; null for what is not of a session. A session that is new gets a key, which
   * `save` writes. Throws 'sealed' for one that was erased, 'io'.
   */
  encryption(seq: number, session: string, kind: EntryKind): Encryption | null {
    if (!mustEncrypt(session, kind)) return null;
    let key = this.#keyOf(session);
    if (key === 'erased' || key === 'damaged') throw unopenedError(session, key);
    if (key === 'missing') {
      // One that is wrapped by a master key that was not given must not be replaced.
      if (isThere(this.#files, keyPath(this.#dir, session))) throw unopenedError(session, key);
      const bytes = randomBytes(KEY_BYTES);
      this.#fresh.set(session, bytes);
      key = createSecretKey(bytes);
      this.#known.set(session, key);
    }
    return { key, nonceStart: this.#nonceStart, place: { seq, session, kind } };
  }

  /**
   * Puts new keys on disk, and makes sure of those that were there. It must have returned before an entry that they
   * encrypt is written. Throws what the disk says.
   */
  save(): void {
    if (this.#fresh.size === 0 && !this.#areUnsure) return;
    const dir = keysDir(this.#dir);
    const [master] = masters;
    this.#files.mkdirSync(dir);
    if (master !== undefined && this.#fresh.size > 0) nameMaster(this.#files, this.#dir, master.id);
    for (const [session, bytes] of this.#fresh)
      this.#replace(keyPath(this.#dir, session), keyText(master, session, bytes));
    syncFolder(dir, this.#files);
    syncFolder(this.#dir, this.#files);
    this.#fresh.clear();
    this.#areUnsure = false;
  }

  #replace(path: string, text: string): void {
    this.#files.renameSync(writeAside(this.#files, path, text), path);
  }

  /**
   * The entry with its body; null: it is encrypted and cannot be opened. Throws 'bad-log' for a body that makes no
   * sense or was not encrypted so.
   */
  open(envelope: Envelope): Entry | null {
    const { kind, session } = envelope;
    if (!isEncrypted(envelope)) {
      checkBody(kind, envelope.body);
      return envelope as Entry;
    }
    const key = this.#keyOf(session);
    const body = openText(typeof key === 'string' ? null : key, envelope);
    if (body === null) return null;
    checkBody(kind, body);
    return { ...envelope, body } as Entry;
  }

  /**
   * What shows somebody without a key what an encrypted entry says. Throws 'sealed' where it cannot be opened here,
   * 'unsupported' where its format commits to no body, 'bad-log'.
   */
  disclose(envelope: Envelope): Disclosure {
    const key = this.#keyOf(envelope.session);
    if (typeof key === 'string') throw unopenedError(envelope.session, key);
    return disclose(key, envelope);
  }

  /**
   * Lets the binary look at the encrypted entries of a run whose kind is 0, by so many threads: `kinds` then says which
   * are certainly sound, and `bodies`, where they are wanted, what they say.
   */
  openRun(run: Run, threads: number, bodies?: OpenedBodies): void {
    const { bytes, count, seq, kinds } = run;
    for (let from = kinds.subarray(0, count).indexOf(0); from >= 0 && from < count; ) {
      const next = openEntries(bytes, from, count, seq, entryForms(), this.#ring.bytes, run, threads, bodies);
      if (next === count) return;
      // One whose session was not met before.
      const { session } = parseEnvelope(payloadIn(run, next));
      const key = this.#keyOf(session);
      this.#ring.set(session, typeof key === 'string' ? null : key);
      assert(next > from || this.#asked !== session, `the binary asks for the key of one session twice`);
      this.#asked = session;
      from = next;
    }
  }

  /** Overwrites what the binary was given. */
  wipe(): void {
    this.#ring.wipe();
    this.#asked = null;
  }

  /** True if the session's entries can be opened; null: they can. */
  unopened(session: string): Unopened | null {
    const key = this.#keyOf(session);
    return typeof key === 'string' ? key : null;
  }

  #keyOf(session: string): KeyObject | Unopened {
    let key = this.#known.get(session);
    if (key !== undefined) return key;
    key = this.#load(session);
    if (this.#known.size >= KNOWN_MAX)
      for (const known of this.#known.keys()) if (!this.#fresh.has(known)) this.#known.delete(known);
    this.#known.set(session, key);
    return key;
  }

  /** Sessions that were met and whose key files are damaged. */
  get damaged(): readonly string[] {
    return [...this.#damaged];
  }

  #load(session: string): KeyObject | Unopened {
    // The mark comes first when a session is erased, and stays.
    if (isThere(this.#files, markPath(this.#dir, session))) return 'erased';
    const text = keyTextAt(this.#files, keyPath(this.#dir, session));
    if (text === null) return 'missing';
    const bytes = keyIn(text, session);
    if (bytes === null) return 'missing';
    if (bytes.length !== KEY_BYTES) {
      this.#damaged.add(session);
      return 'damaged';
    }
    this.#areUnsure = true;
    return createSecretKey(bytes);
  }
}

/** The text of a key file, empty for what is no such file; null where there is none. Throws what the disk says. */
function keyTextAt(files: LogFiles, path: string): string | null {
  try {
    return readSmall(files, path);
  } catch (cause) {
    const { code } = cause as { readonly code?: string };
    if (code === 'bad-file' || code === 'ENOTSUP') return '';
    throw cause;
  }
}

const isThere = (files: LogFiles, path: string): boolean => keyTextAt(files, path) !== null;

/**
 * Writes the file that is to be renamed to `path`, readable for its owner alone. Its name has the number of this
 * process, so that two that write the same key do not write into one file. → its name
 */
export function writeAside(files: LogFiles, path: string, text: string): string {
  const temporary = temporaryName(path);
  writeSynced(temporary, Buffer.from(text), 'w', privately(files));
  return temporary;
}

/** Paths of what was written aside for a file in the folder of keys and never took its place. */
const asideOf = (files: LogFiles, logDir: string, name: string): string[] =>
  listKeys(logDir, files)
    .filter((one) => ASIDE.exec(one)?.[1] === name)
    .map((one) => join(keysDir(logDir), one));

/** The text of a key file: the key wrapped by the master key, or without one as it is. */
export function keyText(master: MasterKey | undefined, session: string, bytes: Uint8Array): string {
  const held =
    master === undefined
      ? { key: Buffer.from(bytes).toString('base64') }
      : { master: master.id, wrapped: encryptBox(master.key, randomBytes(NONCE_BYTES), session, bytes) };
  return `${JSON.stringify({ version: 1, session, ...held })}\n`;
}

/** Says which master key wraps new keys of the log. */
export function nameMaster(files: LogFiles, logDir: string, id: string): void {
  if (readMaster(files, logDir) === id) return;
  const path = join(keysDir(logDir), MASTER_NAME);
  files.renameSync(writeAside(files, path, `${id}\n`), path);
  syncFolder(keysDir(logDir), files);
}

/** What the text of a key file says, unchecked; nothing of a text that is no such file. */
export const partsOf = (text: string): Readonly<Record<string, unknown>> => asRecord(jsonOf(text)) ?? {};

/**
 * Bytes of the key in the text of a key file; none for a file that is no key, null where the master key that wraps it
 * was not given.
 */
export function keyIn(text: string, session: string): Uint8Array | null {
  const none = new Uint8Array(0);
  const { version, session: named, key, master, wrapped } = partsOf(text);
  if (version !== 1 || named !== session) return none;
  if (typeof key === 'string') return Buffer.from(key, 'base64');
  const by = masters.find(({ id }) => id === master);
  if (by === undefined) return typeof master === 'string' ? null : none;
  return typeof wrapped === 'string' ? (openBox(by.key, session, wrapped) ?? none) : none;
}

/**
 * Before a log is written: the master key that wrapped its newest keys must be there, or the next ones would lie beside
 * them unwrapped. Throws 'bad-config'.
 */
export function checkMasterKey(logDir: string, files: LogFiles = nodeFiles): void {
  const id = readMaster(files, logDir);
  if (id === null || masters.some((master) => master.id === id)) return;
  throw new KvError(
    'bad-config',
    `the keys of the log in ${logDir} are wrapped by master key ${id}, which was not given`,
    {
      values: { dir: logDir, master: id },
      hint: 'name it with --master-key, or in PALIMPSEST_MASTER_KEY',
    },
  );
}

/** True if a master key wraps the keys of a log that it writes now. */
export const isWrapped = (logDir: string, files: LogFiles = nodeFiles): boolean => readMaster(files, logDir) !== null;

const readMaster = (files: LogFiles, logDir: string): string | null =>
  readSmall(files, join(keysDir(logDir), MASTER_NAME))?.trim() ?? null;

/** Says that a session is being erased: from here on nobody opens its entries. */
export function markErased(files: LogFiles, logDir: string, session: string): void {
  files.mkdirSync(keysDir(logDir));
  writeSynced(markPath(logDir, session), new Uint8Array(0), 'w', privately(files));
  syncFolder(keysDir(logDir), files);
}

/** Overwrites the key and removes its files. Whatever is gone already is passed over. */
export function destroyKey(files: LogFiles, logDir: string, session: string): void {
  const path = keyPath(logDir, session);
  for (const one of [path, ...asideOf(files, logDir, basename(path))]) destroyFile(files, one);
  syncFolder(keysDir(logDir), files);
}

/** Overwrites a small file and removes it, if it is there. */
export function destroyFile(files: LogFiles, path: string): void {
  const text = keyTextAt(files, path);
  if (text === null) return;
  // In place: on a disk that writes in place this is what destroys the key, not the unlinking.
  writeSynced(path, randomBytes(text === '' ? FILE_BYTES_MAX : Buffer.byteLength(text)), 'r+', files);
  files.unlinkSync(path);
}

/** Removes every trace of keys of sessions of which the log holds nothing any more. */
export function forgetKeys(files: LogFiles, logDir: string, sessions: readonly string[]): void {
  for (const session of sessions) {
    if (isThere(files, keyPath(logDir, session))) destroyKey(files, logDir, session);
    if (isThere(files, markPath(logDir, session))) files.unlinkSync(markPath(logDir, session));
  }
}

/** Sessions of a log that nobody can read here. */
export interface Unreadable {
  /** How many were erased. */
  readonly erased: number;
  /** Of how many the key is not here, or is wrapped by a master key that was not given. */
  readonly missing: number;
  /** Those whose key files are damaged. A file that does not name its session any more stands here by its own name. */
  readonly damaged: readonly string[];
}

/** The sessions of a log that nobody can read here, by its files of keys. Keys that were removed are not counted. */
export function unreadable(logDir: string, files: LogFiles = nodeFiles): Unreadable {
  const names = listKeys(logDir, files);
  const isMarked = new Set(names.filter((name) => name.endsWith('.erased')));
  const damaged: string[] = [];
  let missing = 0;
  for (const name of names) {
    if (!name.endsWith('.key') || isMarked.has(name.replace(/key$/, 'erased'))) continue;
    const text = keyTextAt(files, join(keysDir(logDir), name));
    if (text === null) continue;
    const { session } = partsOf(text);
    const isOwn = typeof session === 'string' && name === `${fileName(session)}.key`;
    const bytes = isOwn ? keyIn(text, session) : null;
    if (isOwn && bytes === null) missing++;
    else if (bytes?.length !== KEY_BYTES) damaged.push(isOwn ? session : name);
  }
  return { erased: isMarked.size, missing, damaged };
}

/** Which sessions were erased, or are being erased; null: none was. */
export function erasedSessions(logDir: string, files: LogFiles = nodeFiles): ((session: string) => boolean) | null {
  const marks = new Set(listKeys(logDir, files).filter((name) => name.endsWith('.erased')));
  return marks.size === 0 ? null : (session) => marks.has(`${fileName(session)}.erased`);
}

/** Names in the folder of keys; none where there is no folder. */
function listKeys(logDir: string, files: LogFiles): string[] {
  try {
    return files.listSync(keysDir(logDir));
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw cause;
  }
}

/** Throws 'sealed' for a session whose entries cannot be opened, 'bad-file' where the file of its key is damaged. */
export function checkReadable(logDir: string, session: string, files: LogFiles = nodeFiles): void {
  const why = new SessionKeys(files, logDir).unopened(session);
  // A session of before bodies were encrypted has no key, and needs none.
  const isClosed = why === 'missing' ? isThere(files, keyPath(logDir, session)) : why !== null;
  if (why !== null && isClosed) throw unopenedError(session, why);
}

/** The error for a session that was asked for by name and cannot be opened. */
export function unopenedError(session: string, why: Unopened): KvError {
  if (why === 'damaged') {
    const file = `${KEYS_NAME}/${fileName(session)}.key`;
    return new KvError('bad-file', `the key of session ${session} is damaged: ${file} does not hold it`, {
      values: { session, file },
      hint: 'put a copy of that file back, or erase the session; all others can be read',
    });
  }
  return new KvError(
    'sealed',
    why === 'erased' ? `session ${session} was erased` : `the key that opens session ${session} is not here`,
    {
      values: { session },
      hint:
        why === 'erased'
          ? 'its entries stay in the hash chain, but nobody can read what they say'
          : 'keys lie in the folder keys of the log; if they are wrapped, name the master key with --master-key',
    },
  );
}

/** The text of a small file; null where there is none. Throws 'bad-file', and what the disk says. */
export function readSmall(files: LogFiles, path: string): string | null {
  let fd: number;
  try {
    fd = files.openSync(path, 'r');
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw cause;
  }
  try {
    const size = files.sizeSync(fd);
    if (size > FILE_BYTES_MAX)
      throw new KvError('bad-file', `${path} has ${size} bytes, at most ${FILE_BYTES_MAX} are plausible`, {
        values: { path, bytes: size },
      });
    const bytes = Buffer.alloc(size);
    let done = 0;
    for (let read = 1; read > 0 && done < size; done += read) read = files.readSync(fd, bytes, done, size - done, done);
    return bytes.toString('utf8', 0, done);
  } finally {
    files.closeSync(fd);
  }
}
