/**
 * One writer per folder. The lock is a file that names its owner: host, pid, thread, and when that thread started, so
 * that a lock left behind by a killed process or a terminated worker is known from a live one, also when the number was
 * given to somebody else. It appears complete or not at all (written aside, then linked). Readers need no lock.
 */
import { randomBytes } from 'node:crypto';
import fs from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { asRecord, jsonOf, KvError, readRegular } from '../native/index.ts';

export const LOCK_NAME = 'writer.lock';
/** Whoever removes a stale lock holds this folder while doing so, which takes microseconds. */
const GUARD_NAME = 'writer.lock.guard';
const GUARD_STALE_MS = 10_000;
/** A lock as it is written aside. Whoever is killed before it is linked leaves it; others need seconds at most. */
const ASIDE = /^writer\.lock\.[0-9a-f]{16}$/;
const ASIDE_STALE_MS = 60_000;
/** An owner is some 200 bytes. */
const LOCK_BYTES_MAX = 4096;
const ATTEMPTS = 200;
const PAUSE_MS = 10;

interface Owner {
  readonly pid: number;
  readonly host: string;
  /** Boot and pid namespace, empty where the system does not tell. */
  readonly boot: string;
  /**
   * 'pid/task/tid' below /proc, and the start time of that thread in that boot; empty where the system does not tell.
   */
  readonly thread: string;
  readonly start: string;
  readonly token: string;
}

export interface WriterLock {
  /** The lock of a writer that ended without releasing it, or what was left of one, was in its place. */
  readonly isTakenOver: boolean;
  release(): void;
}

/**
 * Throws 'locked' with the pid when a live process holds the folder, 'io' where the folder takes no lock. Takes over
 * the lock of a dead process, and one that is not whole: locks appear complete, so only a failing disk leaves such a
 * one.
 */
export function lockWriter(dir: string): WriterLock {
  try {
    return lockOrThrow(dir, join(dir, LOCK_NAME));
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `no lock can be taken in ${dir}: ${(cause as Error).message}`, {
      values: { dir, code: codeOf(cause) },
      hint: 'check the path, its permissions and the free space',
      cause,
    });
  }
}

/** True if a live process holds the folder, as far as can be seen from here. Writes nothing. Throws 'io'. */
export function isLocked(dir: string): boolean {
  const owner = readOwner(join(dir, LOCK_NAME));
  return typeof owner === 'object' && isAlive(owner, { host: hostname(), boot: bootIdentity() });
}

function lockOrThrow(dir: string, path: string): WriterLock {
  const thread = attempt(() => fs.readlinkSync('/proc/thread-self'));
  const mine: Owner = {
    pid: process.pid,
    host: hostname(),
    boot: bootIdentity(),
    thread,
    start: startOf(thread),
    token: randomBytes(8).toString('hex'),
  };
  const aside = `${path}.${mine.token}`;
  let isTakenOver = false;
  try {
    fs.writeFileSync(aside, `${JSON.stringify(mine)}\n`, { flag: 'wx' });
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      try {
        fs.linkSync(aside, path);
        removeLeft(dir);
        return { isTakenOver, release: () => release(path, mine) };
      } catch (error) {
        if (codeOf(error) !== 'EEXIST') throw error;
      }
      const owner = readOwner(path);
      if (owner === 'none') continue;
      if (owner !== 'nobody' && isAlive(owner, mine)) throw lockedBy(owner, path);
      removeStale(dir, path, mine);
      isTakenOver = true;
    }
  } finally {
    fs.rmSync(aside, { force: true });
  }
  throw new KvError('locked', `the lock ${path} could not be taken over`, {
    values: { path },
    hint: 'remove the file when no process uses the folder',
  });
}

function lockedBy(owner: Owner, path: string): KvError {
  const elsewhere = owner.host !== hostname() || owner.boot !== bootIdentity();
  return new KvError(
    'locked',
    `the log is being written by process ${owner.pid}${elsewhere ? ` on ${owner.host}` : ''}`,
    {
      values: { pid: owner.pid, host: owner.host, path },
      hint: elsewhere
        ? `that process cannot be seen from here; remove ${LOCK_NAME} when it is gone`
        : 'wait for it, or use another state folder',
    },
  );
}

function release(path: string, mine: Owner): void {
  const owner = readOwner(path);
  if (typeof owner === 'object' && owner.token === mine.token) fs.rmSync(path, { force: true });
}

/**
 * Somebody else's lock may be removed only inside this guard, so that a fresh lock is never mistaken for the stale one.
 */
function removeStale(dir: string, path: string, mine: Owner): void {
  const guard = join(dir, GUARD_NAME);
  try {
    fs.mkdirSync(guard);
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error;
    const age = Date.now() - (fs.statSync(guard, { throwIfNoEntry: false })?.mtimeMs ?? Date.now());
    if (age > GUARD_STALE_MS) fs.rmSync(guard, { recursive: true, force: true });
    else Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);
    return;
  }
  try {
    const owner = readOwner(path);
    // If there is no lock, remove nothing: somebody may make a new one at the next moment.
    if (owner !== 'none' && (owner === 'nobody' || !isAlive(owner, mine))) fs.rmSync(path, { force: true });
  } finally {
    fs.rmdirSync(guard);
  }
}

/** Removes what killed processes had written aside. What cannot be removed is tried again by the next one. */
function removeLeft(dir: string): void {
  attempt(() => {
    for (const name of fs.readdirSync(dir)) {
      const path = join(dir, name);
      const ageMs = ASIDE.test(name) ? Date.now() - (fs.statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0) : 0;
      if (ageMs > ASIDE_STALE_MS) fs.rmSync(path, { force: true });
    }
    return '';
  });
}

const OWNER_TEXTS = ['host', 'boot', 'thread', 'start', 'token'] as const;

/** True if it says all that a lock says. */
function isOwner(value: unknown): value is Owner {
  const owner = asRecord(value);
  const { pid } = owner ?? {};
  return (
    Number.isSafeInteger(pid) && (pid as number) > 0 && OWNER_TEXTS.every((name) => typeof owner?.[name] === 'string')
  );
}

/** 'none': there is no lock; 'nobody': what is there names no process. */
function readOwner(path: string): Owner | 'none' | 'nobody' {
  try {
    const text = readRegular(path, { bytesMax: LOCK_BYTES_MAX }).toString('utf8');
    const owner = jsonOf(text);
    return isOwner(owner) ? owner : 'nobody';
  } catch (error) {
    if (error instanceof KvError && error.code === 'not-found') return 'none';
    if (error instanceof KvError && error.code === 'bad-file') return 'nobody';
    throw error;
  }
}

/**
 * What cannot be judged from here (another host or container) counts as alive: two writers would be worse than none.
 */
function isAlive(owner: Owner, mine: Pick<Owner, 'host' | 'boot'>): boolean {
  if (owner.host !== mine.host) return true;
  if (owner.boot !== mine.boot) return owner.boot.split('/')[0] === mine.boot.split('/')[0];
  try {
    process.kill(owner.pid, 0);
  } catch (error) {
    if (codeOf(error) === 'ESRCH') return false;
  }
  return owner.start === startOf(owner.thread);
}

/** 'boot id/pid namespace' on Linux, else '/'. */
function bootIdentity(): string {
  return `${attempt(() => fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim())}/${attempt(() => fs.readlinkSync('/proc/self/ns/pid'))}`;
}

/** Field 22 of the thread's stat; the name in field 2 may hold spaces and brackets, so count from its last bracket. */
function startOf(thread: string): string {
  if (!/^\d+\/task\/\d+$/.test(thread)) return '';
  return attempt(() => {
    const stat = fs.readFileSync(`/proc/${thread}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
  });
}

function attempt(read: () => string): string {
  try {
    return read();
  } catch {
    return '';
  }
}

const codeOf = (error: unknown): unknown => (error as NodeJS.ErrnoException).code;
