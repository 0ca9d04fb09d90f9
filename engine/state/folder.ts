/**
 * The state folder of an engine: the witness log, and what earlier sessions taught. Any number of processes write and
 * read it at once. Each has a series of its own in the log; the book is kept by the first of them, and the others read
 * it, for whatever it lacks stands in the log.
 */
import { existsSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  type BookOptions,
  checkQdrantOptions,
  openThresholdBook,
  type QdrantOptions,
  type SharedStatus,
  type ThresholdBook,
} from '../../memory/index.ts';
import { given, KvError, removeLeftovers } from '../../native/index.ts';
import {
  type AnchorOptions,
  checkMasterKey,
  type Entry,
  erasedSessions,
  type FailureMode,
  isKeyName,
  isLogDir,
  keysDir,
  type LogNews,
  type LogRule,
  lockWriter,
  NO_SESSION,
  openWitnessLog,
  RemovalAnswers,
  readLog,
  readLogId,
  retain,
  type WitnessLog,
  type WriterLock,
} from '../../witness/index.ts';
import { type TellEvent, untold } from '../events/event.ts';
import type { LogRetention } from '../options/types.ts';
import { LogKeeper, segmentBytesOf, tellRetained } from './log-keeper.ts';
import { prefixKey } from './prefix-key.ts';
import { policyOf } from './retention-policy.ts';

export interface State {
  readonly dir: string;
  readonly log: WitnessLog;
  readonly book: ThresholdBook;
  /** Beginnings of texts are told apart under it. */
  readonly prefixKey: Uint8Array;
  close(): Promise<void>;
}

export const logDir = (stateDir: string): string => join(stateDir, 'log');
export const memoryDir = (stateDir: string): string => join(stateDir, 'memory');
export const sqlDir = (stateDir: string): string => join(stateDir, 'sql');

/**
 * Makes one level after the other, because Node's recursive form never returns where a parent exists but refuses
 * (/proc).
 */
export function makeFolder(dir: string): void {
  const attempt = <T>(work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      throw new KvError('io', `the state folder ${dir} cannot be made: ${(cause as Error).message}`, {
        values: { dir },
        hint: 'check the path, its permissions and the free space, or name another folder',
        cause,
      });
    }
  };
  const found = attempt(() => statSync(dir, { throwIfNoEntry: false }));
  if (found?.isDirectory() === true) return;
  if (found !== undefined)
    throw new KvError('io', `${dir} is a file, and there must be a folder`, {
      values: { dir },
      hint: 'move the file away, or name another state folder',
    });
  makeFolder(dirname(dir));
  attempt(() => {
    try {
      mkdirSync(dir);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  });
}

/** A key is in its place within milliseconds. */
const KEY_UNUSED_MS = 60_000;

/**
 * Keys that were written aside and never put in their place: their process was killed before it encrypted with them.
 * What cannot be removed stays for the next one.
 */
function removeUnusedKeys(log: string): void {
  try {
    removeLeftovers(keysDir(log), isKeyName);
    for (const name of readdirSync(keysDir(log))) {
      const path = join(keysDir(log), name);
      // Earlier versions did not name the process.
      if (!/^[^.]+(?:\.key)?\.tmp$/.test(name) || !isKeyName(name)) continue;
      const { mtimeMs } = statSync(path);
      if (Date.now() - mtimeMs > KEY_UNUSED_MS) rmSync(path, { force: true });
    }
  } catch {
    // There is no log yet, or it is not ours to change: opening it says so.
  }
}

/** What happens to the log, as the engine tells it. */
function tellNews(news: LogNews, tell: TellEvent): void {
  if (news.what === 'taken-over') tell('state-taken-over', { part: 'log' });
  else if (news.what === 'repaired') tell('log-repaired', { droppedBytes: news.droppedBytes });
  else if (news.what === 'refused') tell('log-refused', { code: news.code });
  else if (news.what === 'written-again') tell('log-written-again', { lostEntries: news.lostEntries });
  else tell(news.isAway ? 'anchor-away' : 'anchor-back', { place: news.place });
}

/** 'open' and 'close' entries, without those that the book has. */
const lessons =
  (dir: string) =>
  (known: readonly number[]): Iterable<Entry> =>
    readLog(logDir(dir), { from: known, kinds: ['open', 'close'] });

/** How a state folder is opened. */
export interface OpenStateOptions {
  /** What a log that cannot be written means. */
  readonly mode: FailureMode;
  readonly qdrant?: QdrantOptions | undefined;
  readonly rules?: readonly LogRule[] | undefined;
  readonly retention?: LogRetention | undefined;
  readonly anchor?: AnchorOptions | undefined;
  /** Told of events. Default: nobody is. */
  readonly tell?: TellEvent;
}

export async function openState(dir: string, options: OpenStateOptions): Promise<State> {
  const { mode, qdrant, rules = [], retention, anchor, tell = untold } = options;
  if (qdrant !== undefined) checkQdrantOptions(qdrant);
  makeFolder(dir);
  removeUnusedKeys(logDir(dir));
  let writer: WitnessLog | null = null;
  const keeper = retention === undefined ? null : new LogKeeper(logDir(dir), retention, tell);
  const log = await openWitnessLog({
    dir: logDir(dir),
    mode,
    encrypt: true,
    rules,
    ...given({ anchor, segmentBytesMax: retention && segmentBytesOf(retention) }),
    // While the log is opened it has no writer yet, and retention follows anyway.
    onSegment: () => writer !== null && keeper?.segmentEnded(writer),
    onNews: (news) => tellNews(news, tell),
  });
  const onShared = ({ trouble, waiting }: SharedStatus): void => {
    tell(trouble === null ? 'qdrant-back' : 'qdrant-away', {});
    // What a server says of its trouble may hold anything, and its address is nobody's business.
    log.append(NO_SESSION, 'note', { what: 'qdrant', isAway: trouble !== null, waiting });
  };
  const answers = new RemovalAnswers(log);
  try {
    if (retention !== undefined)
      tellRetained(await retain(logDir(dir), policyOf(retention, Date.now()), { open: log }), tell);
    writer = log;
    const { book, lock } = await keepBook(dir, log.id, given<Shared>({ shared: qdrant, onShared }));
    if (lock?.isTakenOver === true) tell('state-taken-over', { part: 'memory' });
    return {
      dir,
      log,
      book,
      prefixKey: prefixKey(memoryDir(dir), qdrant?.prefixKey),
      close: async () => {
        try {
          // What it says of its server still goes into the log.
          await book.close();
        } finally {
          // Who waits for another writer is waited for, and may itself be asked meanwhile.
          await keeper?.close();
          await answers.close();
          await log.close();
          lock?.release();
        }
      },
    };
  } catch (error) {
    await answers.close();
    await log.close();
    throw error;
  }
}

/** Opens the book to keep it, or to read it while another process keeps it: then `lock` is null. */
type Shared = Pick<BookOptions, 'shared' | 'onShared'>;

async function keepBook(
  dir: string,
  logId: string,
  shared: Shared,
): Promise<{ book: ThresholdBook; lock: WriterLock | null }> {
  // Without the keys of its sessions the log would seem to lack them.
  checkMasterKey(logDir(dir));
  makeFolder(memoryDir(dir));
  let lock: WriterLock | null = null;
  try {
    lock = lockWriter(memoryDir(dir));
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'locked') throw error;
  }
  try {
    const book = await openThresholdBook({
      dir: memoryDir(dir),
      logId,
      entries: lessons(dir),
      erased: () => erasedSessions(logDir(dir)),
      readOnly: lock === null,
      ...shared,
    });
    return { book, lock };
  } catch (error) {
    lock?.release();
    throw error;
  }
}

/**
 * The book as the next session would find it, for reading only: nothing in the folder changes, and nobody is locked
 * out. → null where nothing was written, imported or shared. Throws 'bad-log'.
 */
export async function findBook(dir: string, qdrant?: QdrantOptions): Promise<ThresholdBook | null> {
  const logId = isLogDir(logDir(dir)) ? readLogId(logDir(dir)) : null;
  const isKept = existsSync(memoryDir(dir));
  if (logId === null && !isKept && qdrant === undefined) return null;
  return openThresholdBook({
    dir: logId !== null || isKept ? memoryDir(dir) : null,
    logId: logId ?? '',
    entries: logId === null ? () => [] : lessons(dir),
    erased: () => erasedSessions(logDir(dir)),
    readOnly: true,
    ...given<Shared>({ shared: qdrant && { ...qdrant, send: false } }),
  });
}

/** As findBook. Throws 'not-found' where there is none. */
export async function readBook(dir: string, qdrant?: QdrantOptions): Promise<ThresholdBook> {
  const book = await findBook(dir, qdrant);
  if (book === null) throw new KvError('not-found', `the log in ${dir} has no entry yet`, { values: { dir } });
  return book;
}

/**
 * Forgets what a session taught here. Throws 'locked' while another process keeps the book: that one forgets it when
 * its next session ends.
 */
export async function forgetSession(dir: string, session: string): Promise<void> {
  if (!existsSync(memoryDir(dir))) return;
  const { book, lock } = await keepBook(dir, readLogId(logDir(dir)) ?? '', {});
  try {
    if (lock === null)
      throw new KvError('locked', `another process keeps what the session taught in ${memoryDir(dir)}`, {
        values: { dir, session },
        hint: 'it forgets the session when its next session ends; then erase once more',
      });
    await book.forget(session);
  } finally {
    await book.close();
    lock?.release();
  }
}

/** Makes the book again from the log. → experiences. Throws 'locked' while another process keeps it. */
export async function rebuildBook(dir: string, qdrant?: QdrantOptions): Promise<number> {
  const logId = readLogId(logDir(dir));
  if (logId === null) return 0;
  const { book, lock } = await keepBook(dir, logId, given<Shared>({ shared: qdrant }));
  try {
    if (lock === null)
      throw new KvError('locked', `another process keeps the book in ${memoryDir(dir)}`, {
        values: { dir },
        hint: 'wait for it to end',
      });
    return await book.rebuildFrom(lessons(dir)([]));
  } finally {
    await book.close();
    lock?.release();
  }
}
