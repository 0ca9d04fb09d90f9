/**
 * The embedded database: PGlite in a worker thread, on a folder that only one process may open (PGlite itself locks
 * nothing, and two openers lose each other's rows). It survives a killed process but never calls fsync: after a power
 * cut its folder may be broken, and then the index is built again from the log.
 */
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { KvError, show, startThread, ThreadClient } from '../../native/index.ts';
import { lockWriter, type WriterLock } from '../lock.ts';
import type { Rows, SqlConnection, SqlFault, Statement } from './connection.ts';
import { missingPackages } from './missing.ts';
import type { PgliteCalls, PgliteProgram } from './pglite-worker.ts';

/**
 * A folder that takes longer to open is broken; a whole one takes under three seconds, on a busy machine perhaps ten.
 */
const OPEN_MS_MAX = 90_000;

type Calls = ThreadClient<PgliteCalls>;

class PgliteConnection implements SqlConnection {
  readonly kind = 'pglite';
  readonly where: string;
  readonly #worker: Worker;
  readonly #calls: Calls;
  readonly #lock: WriterLock | null;
  readonly #statementMsMax: number;
  #closing: Promise<void> | null = null;

  constructor(where: string, worker: Worker, calls: Calls, lock: WriterLock | null, statementMsMax: number) {
    this.where = where;
    this.#worker = worker;
    this.#calls = calls;
    this.#lock = lock;
    this.#statementMsMax = statementMsMax;
    worker.unref();
  }

  #refusal(error: unknown): KvError {
    const cause = faultOf(error);
    return new KvError('database', `the SQL database in ${this.where} refused: ${cause.message}`, {
      values: { where: this.where },
      cause,
    });
  }

  /** Waits for an answer of the thread. Throws 'database', also when it takes too long. */
  async #answer<T>(call: () => Promise<T>): Promise<T> {
    // A database in WebAssembly cannot be interrupted: its thread is ended, and the next opener finds what was
    // committed.
    const timer = setTimeout(() => {
      this.#calls.end(new Error(`it took longer than ${this.#statementMsMax / 1000} s`));
      void this.#worker.terminate();
    }, this.#statementMsMax);
    // A question keeps the process alive until it is answered; an idle database does not.
    this.#worker.ref();
    try {
      return await call();
    } catch (error) {
      throw this.#refusal(error);
    } finally {
      clearTimeout(timer);
      if (this.#calls.waiting === 0) this.#worker.unref();
    }
  }

  #live(): void {
    if (this.#closing !== null) throw new KvError('closed', 'the SQL index was closed');
  }

  async ask(sql: string, params: readonly unknown[] = []): Promise<Rows> {
    this.#live();
    const statements = [{ sql, params }];
    return (await this.#answer(() => this.#calls.call('run', { statements, readOnly: true })))[0]!;
  }

  async transaction(statements: readonly Statement[]): Promise<Rows[]> {
    this.#live();
    return this.#answer(() => this.#calls.call('run', { statements, readOnly: false }));
  }

  close(): Promise<void> {
    this.#closing ??= this.#shut();
    return this.#closing;
  }

  async #shut(): Promise<void> {
    try {
      await this.#answer(() => this.#calls.call('close', undefined));
    } catch {
      // A database that cannot be closed any more has nothing left to lose: the log is the truth.
    } finally {
      await this.#worker.terminate();
      this.#lock?.release();
    }
  }
}

/** What a thread says of a fault, or what ended it. */
function faultOf(error: unknown): SqlFault {
  const { message } = error as Error;
  return error instanceof KvError && error.code === 'database' ? { message, ...error.values } : { message };
}

async function opened(calls: Calls): Promise<void> {
  const timer = setTimeout(() => calls.end(new Error(`it did not open within ${OPEN_MS_MAX / 1000} s`)), OPEN_MS_MAX);
  try {
    await calls.call('opened', undefined);
  } finally {
    clearTimeout(timer);
  }
}

const dataDir = (dir: string): string => join(dir, 'pglite');

/**
 * The folder of PGlite's package. The thread could not tell a package that is missing from a database that is broken.
 * Throws 'missing-dependency'.
 */
function packageDir(): string {
  try {
    return dirname(createRequire(import.meta.url).resolve('@electric-sql/pglite'));
  } catch (cause) {
    throw missingPackages(cause);
  }
}

/** The types of Node lack it. */
const { compile } = Reflect.get(globalThis, 'WebAssembly') as {
  compile(code: Uint8Array): Promise<PgliteProgram['pgliteWasmModule']>;
};

async function read(dir: string): Promise<PgliteProgram> {
  const [code, files] = await Promise.all([readFile(join(dir, 'pglite.wasm')), readFile(join(dir, 'pglite.data'))]);
  return { pgliteWasmModule: await compile(code), fsBundle: new Blob([files]) };
}

/**
 * What all threads of a process are given, so that only the first database that it opens waits for code to be compiled:
 * two thirds of what opening one costs.
 */
let program: PgliteProgram | null = null;

/**
 * Opens or creates the database in `dir`, or one in memory. Throws 'missing-dependency', 'locked', 'database' (the
 * folder is broken), 'io'.
 */
export async function openPglite(dir: string | null, statementMsMax: number): Promise<SqlConnection> {
  const programDir = packageDir();
  const lock = dir === null ? null : lockFolder(dir);
  const where = dir ?? 'memory';
  let worker: Worker | null = null;
  try {
    program ??= await read(programDir);
    worker = startThread(new URL('./pglite-worker.ts', import.meta.url), {
      dir: dir === null ? 'memory://' : dataDir(dir),
      program,
    });
    const calls: Calls = new ThreadClient(worker, {
      thread: 'the thread of the database',
      ended: () => new Error('its thread ended'),
    });
    await opened(calls);
    return new PgliteConnection(where, worker, calls, lock, statementMsMax);
  } catch (cause) {
    await worker?.terminate();
    lock?.release();
    throw new KvError('database', `the SQL database in ${where} does not open: ${(cause as Error).message}`, {
      values: { dir },
      hint: 'rebuild it with: palimpsest audit reindex',
      cause,
    });
  }
}

function lockFolder(dir: string): WriterLock {
  try {
    mkdirSync(dir, { recursive: true });
    return lockWriter(dir);
  } catch (cause) {
    if (cause instanceof KvError && cause.code === 'locked') {
      throw new KvError('locked', `the SQL index in ${dir} is in use by process ${show(cause.values['pid'])}`, {
        values: cause.values,
        hint: 'wait for it, or use another state folder',
        cause,
      });
    }
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `cannot use ${dir}: ${(cause as Error).message}`, { values: { dir }, cause });
  }
}

/** The same, once nobody has it open. Throws 'locked', 'io'. */
export function discardLocked(dir: string): void {
  const lock = lockFolder(dir);
  try {
    discardPglite(dir);
  } finally {
    lock.release();
  }
}

/** Removes the database, nothing else, from `dir`. The caller has no connection open. */
export function discardPglite(dir: string): void {
  if (existsSync(dataDir(dir))) rmSync(dataDir(dir), { recursive: true, force: true });
}
