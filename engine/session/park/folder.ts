/**
 * Parked sessions as files. Those of a state folder lie in `parked`, each under the id of its session, readable for the
 * owner alone (mode 0600). Erasing a session removes every file of the state folder that names it, and so these; what
 * was written elsewhere is the caller's to remove.
 */
import fs from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import {
  KvError,
  openRegular,
  parseJson,
  readRegular,
  readWhole,
  refusedFile,
  removeLeftovers,
  syncFolder,
  temporaryFor,
  temporaryName,
  writeSynced,
} from '../../../native/index.ts';
import { makeFolder } from '../../state/folder.ts';
import { FIXED_BYTES, headBytes, parseParked, type ReadParked } from './parked-file.ts';
import { parkedHead } from './parked-head.ts';

const ENDING = '.parked';
/** 8,192 tokens of a model of 70 billion weights in f16 take 2.7 GB; on Node 20 a buffer holds 4 GiB at most. */
const BYTES_MAX = 2 ** 32 - 1;

function checkReadableAgain(path: string, bytes: number): void {
  if (bytes <= BYTES_MAX) return;
  throw new KvError('unsupported', `${path} would have ${bytes} bytes; at most ${BYTES_MAX} could be read again`, {
    values: { path, bytes, bytesMax: BYTES_MAX },
    hint: 'nothing was written; park with predict, or under a lower kvBudget',
  });
}

/** The folder of parked sessions in a state folder. */
export const parkedDir = (stateDir: string): string => join(stateDir, 'parked');

/** Where a session is parked that nobody named a file for. */
export const parkedPath = (stateDir: string, session: string): string =>
  join(parkedDir(stateDir), `${session}${ENDING}`);

/**
 * Writes and syncs a file for its owner alone, and only then puts it in place. Throws 'io', and 'unsupported' for more
 * than could be read again.
 */
export function writeParked(path: string, bytes: Uint8Array): void {
  checkReadableAgain(path, bytes.length);
  const temporary = temporaryName(path);
  // Another session's park may have been killed here: names with this ending are ours.
  removeLeftovers(dirname(path), (name) => name.endsWith(ENDING));
  try {
    makeFolder(dirname(resolve(path)));
    temporaryFor(path);
    writeSynced(temporary, bytes, 'wx', { ...fs, openSync: (name, flags) => fs.openSync(name, flags, 0o600) });
    fs.renameSync(temporary, path);
    syncFolder(dirname(resolve(path)));
  } catch (cause) {
    try {
      fs.rmSync(temporary, { force: true });
    } catch {
      // Where nothing could be written nothing can be removed either; what matters is why it could not be written.
    }
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
}

/** Removes a file that writeParked made; one that is gone is not missed. Throws 'io'. */
export function removeParked(path: string): void {
  try {
    fs.rmSync(path, { force: true });
  } catch (cause) {
    throw new KvError('io', `cannot remove ${path}: ${(cause as Error).message}`, {
      values: { path },
      hint: 'it holds what the session was told: remove it yourself',
      cause,
    });
  }
}

/** Throws 'not-found', 'io', and what parseParked throws. */
export const readParked = (path: string): ReadParked => parseParked(readRegular(path, { bytesMax: BYTES_MAX }), path);

/** A parked session in a list; `trouble` says why it cannot be resumed by its pages, or at all. */
export interface ParkedSession {
  /** Where it is. */
  readonly path: string;
  /** How large the file is. */
  readonly fileBytes: number;
  /** The id that it had; null, as what follows: its head cannot be read. */
  readonly session: string | null;
  /** The name of its model. */
  readonly model: string | null;
  /** Tokens that it holds. */
  readonly tokens: number | null;
  /** Bytes of the cache in memory when it was parked. */
  readonly kvBytes: number | null;
  /** Bytes of a cache of f16 of that length. */
  readonly kvBytesF16: number | null;
  /** When it was parked, milliseconds since the epoch. */
  readonly parkedMs: number | null;
  /** What is wrong with it; null: nothing. */
  readonly trouble: string | null;
}

/** The parked sessions of a state folder, newest first, each read and verified. Throws 'io'. */
export function parkedSessions(stateDir: string): ParkedSession[] {
  const dir = parkedDir(stateDir);
  return parkedNames(stateDir)
    .map((name) => listed(join(dir, name)))
    .sort((a, b) => (b.parkedMs ?? 0) - (a.parkedMs ?? 0));
}

/**
 * Digests of the kernel packs in whose codec parked sessions of a state folder have pages. What makes no sense has
 * none: nobody can resume it by its pages either. Throws 'io' where a folder or a file cannot be read.
 */
export function parkedPacks(stateDir: string): ReadonlySet<string> {
  return new Set(parkedNames(stateDir).flatMap((name) => packOf(join(parkedDir(stateDir), name)) ?? []));
}

/** Of a file, whose head alone is read; null: none, no parked session, or gone by now. Throws 'io'. */
function packOf(path: string): string | null {
  try {
    const { fd } = openRegular(path, { bytesMax: BYTES_MAX });
    try {
      const begin = Buffer.alloc(FIXED_BYTES);
      const known = readWhole(fd, begin, 0);
      const head = Buffer.alloc(headBytes(begin.subarray(0, known), path));
      const read = readWhole(fd, head, FIXED_BYTES);
      return parkedHead(parseJson(head.subarray(0, read), { what: path, code: 'bad-file' }), path).pack?.digest ?? null;
    } finally {
      fs.closeSync(fd);
    }
  } catch (cause) {
    const error = cause instanceof KvError ? cause : refusedFile(path, cause);
    // A disk that fails now says nothing of the file.
    if (error.code === 'io') throw error;
    return null;
  }
}

function parkedNames(stateDir: string): string[] {
  const dir = parkedDir(stateDir);
  try {
    return fs.readdirSync(dir).filter((name) => name.endsWith(ENDING));
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw refusedFile(dir, cause);
  }
}

function listed(path: string): ParkedSession {
  try {
    const { head, fault, tokens } = readParked(path);
    const { session, model, kvBytes, kvBytesF16, parkedMs } = head;
    const fileBytes = fs.statSync(path).size;
    return {
      path,
      fileBytes,
      session,
      model: model.name,
      tokens: tokens.length,
      kvBytes,
      kvBytesF16,
      parkedMs,
      trouble: fault,
    };
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    const unknown = { session: null, model: null, tokens: null, kvBytes: null, kvBytesF16: null, parkedMs: null };
    return {
      path,
      fileBytes: fs.statSync(path, { throwIfNoEntry: false })?.size ?? 0,
      ...unknown,
      trouble: error.message,
    };
  }
}

/**
 * The file of a parked session: a path, or the beginning or the end of an id that is parked in the state folder. Throws
 * 'not-found', 'bad-argument' for several.
 */
export function findParked(stateDir: string | null, pathOrId: string): string {
  if (fs.existsSync(pathOrId)) return pathOrId;
  const dir = stateDir === null ? null : parkedDir(stateDir);
  const names = dir === null || !fs.existsSync(dir) ? [] : fs.readdirSync(dir).filter((name) => name.endsWith(ENDING));
  const found = names.filter((name) => name.startsWith(pathOrId) || name.slice(0, -ENDING.length).endsWith(pathOrId));
  if (found.length === 1 && pathOrId !== '') return join(dir!, found[0]!);
  if (found.length > 1 && pathOrId !== '')
    throw new KvError('bad-argument', `${found.length} parked sessions have ids like ${pathOrId}`, {
      values: { given: pathOrId, found: found.slice(0, 8).join(', ') },
    });
  throw new KvError('not-found', `there is no file and no parked session ${pathOrId}`, {
    values: { given: pathOrId, dir },
    hint: 'palimpsest sessions list shows those that are parked',
  });
}
