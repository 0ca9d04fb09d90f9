/**
 * Every key of a log wrapped by a new master key. Each key file is replaced as a whole, and only when the new one is on
 * disk are the bytes of the old one overwritten, so whatever ends this in between leaves every key readable, by the old
 * master key or the new one, and the same call finishes it.
 */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { KvError, syncFolder, writeWhole } from '../native/index.ts';
import { KEY_BYTES } from './encryption.ts';
import { nodeFiles as files } from './files.ts';
import {
  destroyFile,
  fileName,
  firstMaster,
  keyIn,
  keysDir,
  keyText,
  type MasterKey,
  nameMaster,
  partsOf,
  readSmall,
  writeAside,
} from './keys.ts';
import { lockWriter } from './lock.ts';
import { readLogId } from './read.ts';

/** What wrapping the keys of a log anew did. */
export interface RewrapReport {
  /** Id of the master key that wraps all of them now. */
  readonly master: string;
  /** Keys that something else wrapped before, or nothing. */
  readonly rewrapped: number;
  /** Keys that it wrapped already. */
  readonly already: number;
}

interface KeyFile {
  readonly path: string;
  readonly session: string;
  /** Id of the master key that wraps it; null: none does. */
  readonly master: string | null;
  /** null: that master key was not given. */
  readonly bytes: Uint8Array | null;
}

/**
 * Wraps every key of the log in `dir` by the first of the master keys that `useMasterKeys` was given; the others are
 * those that wrap keys now. `onStep` is told before each step, for tests that end the process there. Throws 'not-found'
 * without a log, 'bad-argument' without a master key, 'bad-config' when a key is wrapped by one that was not given
 * (then nothing was changed), 'bad-file', 'locked' while another process does the same, 'io'.
 */
export function rewrapLogKeys(dir: string, onStep: (step: string) => void = () => {}): RewrapReport {
  readLogId(dir);
  const master = firstMaster();
  if (master === undefined)
    throw new KvError('bad-argument', 'no master key was named', {
      hint: 'name the new one first and the present one behind it: --master-key NEW OLD',
    });
  files.mkdirSync(keysDir(dir));
  const lock = lockWriter(keysDir(dir));
  try {
    forgetErased(dir);
    const all = keyFiles(dir);
    checkOpen(dir, all);
    onStep('name');
    nameMaster(files, dir, master.id);
    const old = all.filter((one) => one.master !== master.id);
    for (const one of old) rewrap(dir, one, master, onStep);
    onStep('end');
    return { master: master.id, rewrapped: old.length, already: all.length - old.length };
  } finally {
    lock.release();
  }
}

function rewrap(
  dir: string,
  { path, session, bytes }: KeyFile,
  master: MasterKey,
  onStep: (step: string) => void,
): void {
  onStep('write');
  const fresh = writeAside(files, path, keyText(master, session, bytes as Uint8Array));
  onStep('rename');
  replaceKey(dir, path, fresh, onStep);
  // Who erases marks the session first and destroys the key then: either that comes after the new file, or the mark is
  // there.
  if (isErased(path)) for (const name of [path, fresh]) destroyFile(files, name);
}

function replaceKey(dir: string, path: string, fresh: string, onStep: (step: string) => void): void {
  const old = unlessGone(() => files.openSync(path, 'r+'));
  if (old === null) return;
  try {
    if (unlessGone(() => files.renameSync(fresh, path)) === null) return;
    syncFolder(keysDir(dir), files);
    onStep('overwrite');
    // It has no name any more. What the old master key could open goes now, not when the disk needs the place.
    writeWhole(old, randomBytes(files.sizeSync(old)), 0, files);
    files.fsyncSync(old);
  } finally {
    files.closeSync(old);
  }
}

/** null: the file is gone, for the session was erased meanwhile. */
function unlessGone<T>(work: () => T): T | null {
  try {
    return work();
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw cause;
  }
}

/** A key file, or what was written aside for one. */
const KEY_FILE = /\.key((?:\.\d{1,10})?\.tmp)?$/;

const isErased = (path: string): boolean => readSmall(files, path.replace(KEY_FILE, '.erased')) !== null;

/**
 * What was broken off left files that are no keys any more: of sessions that were erased, and beside keys that are
 * whole.
 */
function forgetErased(dir: string): void {
  const names = files.listSync(keysDir(dir));
  for (const name of names) {
    const path = join(keysDir(dir), name);
    const aside = KEY_FILE.exec(name)?.[1];
    const isAside = aside !== undefined && names.includes(name.slice(0, -aside.length));
    if (isAside || (KEY_FILE.test(name) && isErased(path))) destroyFile(files, path);
  }
}

function keyFiles(dir: string): KeyFile[] {
  const names = files.listSync(keysDir(dir)).filter((name) => name.endsWith('.key'));
  return names.flatMap((name) => {
    const path = join(keysDir(dir), name);
    const text = readSmall(files, path);
    if (text === null) return [];
    const parts = partsOf(text);
    const [session, master] = [textOrNull(parts['session']), textOrNull(parts['master'])];
    const isOwn = session !== null && name === `${fileName(session)}.key`;
    const bytes = isOwn ? keyIn(text, session) : null;
    // Without its master key nobody knows whether it is one.
    if (isOwn && (bytes === null || bytes.length === KEY_BYTES)) return [{ path, session, master, bytes }];
    throw new KvError('bad-file', `${path} is not the key of a session`, {
      values: { path },
      hint: 'nothing was changed; put a copy of that file back, or erase its session',
    });
  });
}

const textOrNull = (value: unknown): string | null => (typeof value === 'string' ? value : null);

/** Throws 'bad-config' when not every key can be opened. */
function checkOpen(dir: string, all: readonly KeyFile[]): void {
  const locked = all.filter(({ bytes }) => bytes === null);
  if (locked.length === 0) return;
  const unknown = [...new Set(locked.map(({ master }) => master))];
  throw new KvError(
    'bad-config',
    `${locked.length} keys of the log in ${dir} are wrapped by a master key that was not given`,
    {
      values: { dir, keys: locked.length, masters: unknown },
      hint: 'nothing was changed; name that one too, behind the new one',
    },
  );
}
