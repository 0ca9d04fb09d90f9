/**
 * Erasing a session from a state folder: its key, its rows in the SQL tables, what it taught, and every file of the
 * folder that names it. At the end an entry of the log says that it was erased. Each step can be taken again, so what
 * broke off is finished by erasing once more.
 */
import { closeSync, existsSync, lstatSync, openSync, readdirSync, readSync, rmSync } from 'node:fs';
import { join, relative } from 'node:path';
import { forgetShared, type QdrantOptions } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import {
  checkMasterKey,
  destroyUnlessHeld,
  findErasable,
  forgetEmbedded,
  forgetOnServer,
  holdSession as holdInLog,
  type RewrapReport,
  readLogId,
  recordDone,
  rewrapLogKeys,
} from '../../witness/index.ts';
import { forgetSession, logDir, memoryDir, sqlDir } from './folder.ts';

/** Options of eraseSession. */
export interface EraseOptions {
  /** A PostgreSQL server that has the rows of this log too. Default: none. */
  readonly database?: string;
  /** A Qdrant server that was told of this log's sessions. Default: none. */
  readonly qdrant?: QdrantOptions;
  /** What the log says who erased. Default 'eraseSession'. */
  readonly by?: string;
  /** @internal told before every step, for tests that end the process there */
  readonly onStep?: (step: string) => void;
}

/** What erasing a session did. */
export interface Erasure {
  /** Its id. */
  readonly session: string;
  /** Entries that nobody can read any more. */
  readonly entries: number;
  /** When it had been erased before, milliseconds since the epoch; null: it had not. */
  readonly erasedMs: number | null;
  /** Other files of the state folder that named it and were removed. */
  readonly files: readonly string[];
  /** Rows that the PostgreSQL server had of it; null: none was named. */
  readonly databaseRows: number | null;
  /** Points that the Qdrant server had of it; null: none was named. */
  readonly qdrantPoints: number | null;
}

/** What a step of erasing rids of the session, for people. */
const PLACES = {
  key: 'the log',
  sql: 'the SQL index of the state folder',
  database: 'the PostgreSQL server',
  experience: 'what the state folder has learned',
  qdrant: 'the Qdrant server',
  files: 'other files of the state folder',
} as const;

/**
 * Erases what is known of a session: nobody can read its entries, it is in no table and no index, and it teaches
 * nothing any more. Its envelopes (seq, time, id, kind) stay in the hash chain. What it has taught already stays in
 * what was measured of many sessions and written elsewhere: threshold files. session: its id, or the beginning or the
 * end of it. Throws 'not-found', 'bad-argument', 'bad-config' (a master key is missing), 'held', 'busy' (it runs),
 * 'unsupported' (written unsealed), and 'locked', 'database', 'network' or 'io' for what could not be done yet: then
 * everything else is done, `values.remains` says what is left, and the same call finishes.
 */
export async function eraseSession(stateDir: string, session: string, options: EraseOptions = {}): Promise<Erasure> {
  const { database, qdrant, by = 'eraseSession', onStep = () => {} } = options;
  const log = logDir(stateDir);
  checkMasterKey(log);
  const found = findErasable(log, session);
  const { entries, erasedMs } = found;
  const id = found.session;
  const logId = readLogId(log) ?? '';
  const { firstMs: fromMs, lastMs: toMs } = found;
  let files: string[] = [];
  let databaseRows: number | null = null;
  let qdrantPoints: number | null = null;
  const failures: { readonly place: string; readonly error: KvError }[] = [];
  const steps: Readonly<Record<keyof typeof PLACES, () => Promise<void> | void>> = {
    key: () => destroyUnlessHeld(log, id),
    sql: () => forgetEmbedded(sqlDir(stateDir)),
    database: async () => {
      if (database !== undefined) databaseRows = await forgetOnServer(database, { logId, session: id, fromMs, toMs });
    },
    experience: () => forgetSession(stateDir, id),
    qdrant: async () => {
      if (qdrant !== undefined) qdrantPoints = await forgetShared(qdrant, logId, id);
    },
    files: () => {
      files = removeNaming(stateDir, id);
    },
  };
  for (const [name, step] of Object.entries(steps) as [keyof typeof PLACES, () => Promise<void> | void][]) {
    onStep(name);
    try {
      await step();
    } catch (error) {
      // A key that is still there is all of the session; without it the rest is worth doing.
      if (name === 'key' || !(error instanceof KvError)) throw error;
      failures.push({ place: PLACES[name], error });
    }
  }
  onStep('entry');
  if (failures.length > 0) throw remainsError(id, failures);
  if (erasedMs === null) await recordDone(log, id, 'erase', by);
  return { session: id, entries, erasedMs, files, databaseRows, qdrantPoints };
}

/** The key is destroyed, but something else is not done. */
function remainsError(
  session: string,
  failures: readonly { readonly place: string; readonly error: KvError }[],
): KvError {
  const { code } = failures[0]!.error;
  const remains = failures.map(({ place, error }) => ({ place, code: error.code, message: error.message }));
  const told = remains.map(({ place, message }) => `${place} (${message})`).join('; ');
  return new KvError(
    code,
    `nobody can read the entries of session ${session} any more, but it is not erased from ${told}`,
    {
      values: { session, remains },
      hint: `erase it again when this can be done${failures.map(({ error }) => (error.hint === undefined ? '' : `: ${error.hint}`))[0]}`,
      cause: failures[0]!.error,
    },
  );
}

/** Options of holdSession. */
export interface HoldOptions {
  /** End the hold instead of beginning it. Default false. */
  readonly release?: boolean;
  /** What the log says who did it. Default 'holdSession'. */
  readonly by?: string;
}

/**
 * Begins a legal hold on a session, or ends it: while it lasts, neither eraseSession nor retention touches the session.
 * session: its id, or the beginning or the end of it. → its id, and whether anything changed. Throws 'not-found',
 * 'bad-argument', 'sealed' for one that was erased.
 */
export function holdSession(
  stateDir: string,
  session: string,
  { release = false, by = 'holdSession' }: HoldOptions = {},
): Promise<{ readonly session: string; readonly changed: boolean }> {
  return holdInLog(logDir(stateDir), session, { release, by });
}

/**
 * Wraps the keys of all sessions by a new master key, the first of those that `useMasterKeys` was given; behind it
 * stand those that wrap them now. Keys that lay there unwrapped are wrapped too. Whatever ends it in between loses
 * nothing, and the same call finishes it. Engines that run must have been given the new key first, or they go on with
 * the old one. Throws 'not-found', 'bad-argument' (no master key), 'bad-config' (one is missing, and nothing was
 * changed), 'bad-file', 'locked', 'io'.
 */
export function rewrapKeys(stateDir: string): RewrapReport {
  return rewrapLogKeys(logDir(stateDir));
}

const CHUNK_BYTES = 1 << 20;

/**
 * Removes files of the state folder that contain the id: reports, exports, and what a killed process left. → their
 * names
 */
function removeNaming(stateDir: string, id: string): string[] {
  // These were dealt with: envelopes of the log keep the id, and the other two were made anew.
  const apart = [logDir(stateDir), sqlDir(stateDir), join(memoryDir(stateDir), 'experiences')];
  const removed: string[] = [];
  const visit = (dir: string): void => {
    for (const name of readdirSync(dir)) {
      const path = join(dir, name);
      const stat = lstatSync(path, { throwIfNoEntry: false });
      if (stat?.isDirectory() === true && !apart.includes(path)) visit(path);
      if (stat?.isFile() !== true || !contains(path, id)) continue;
      rmSync(path, { force: true });
      removed.push(relative(stateDir, path));
    }
  };
  if (existsSync(stateDir)) visit(stateDir);
  return removed;
}

function contains(path: string, text: string): boolean {
  const sought = Buffer.from(text);
  const chunk = Buffer.alloc(CHUNK_BYTES + sought.length);
  const fd = openSync(path, 'r');
  try {
    for (let at = 0, kept = 0; ; ) {
      const read = readSync(fd, chunk, kept, CHUNK_BYTES, at);
      if (read === 0) return false;
      const filled = kept + read;
      if (chunk.subarray(0, filled).includes(sought)) return true;
      at += read;
      // The id may stand across two chunks.
      kept = Math.min(sought.length - 1, filled);
      chunk.copyWithin(0, filled - kept, filled);
    }
  } finally {
    closeSync(fd);
  }
}
