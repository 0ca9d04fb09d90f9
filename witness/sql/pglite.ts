/**
 * The embedded database: PGlite in a worker thread, on a folder that only one process may open (PGlite itself locks
 * nothing, and two openers lose each other's rows). It survives a killed process but never calls fsync: after a power
 * cut its folder may be broken, and then the index is built again from the log.
 */
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { KvError, show, startThread } from '../../native/index.ts';
import { lockWriter, type WriterLock } from '../lock.ts';
import type { Rows, SqlConnection, SqlFault, SqlReply, SqlRequest, Statement } from './connection.ts';
import { missingPackages } from './missing.ts';

/** A folder that takes longer to open is broken; a whole one takes under three seconds, on a busy machine perhaps ten. */
const OPEN_MS_MAX = 90_000;

class PgliteConnection implements SqlConnection {
  readonly kind = 'pglite';
  readonly where: string;
  readonly #worker: Worker;
  readonly #lock: WriterLock | null;
  readonly #statementMsMax: number;
  readonly #waiting = new Map<number, { resolve: (results: Rows[]) => void; reject: (error: Error) => void }>();
  #nextId = 1;
  #ended: string | null = null;
  #closing: Promise<void> | null = null;

  constructor(where: string, worker: Worker, lock: WriterLock | null, statementMsMax: number) {
    this.where = where;
    this.#worker = worker;
    this.#lock = lock;
    this.#statementMsMax = statementMsMax;
    worker.on('message', (reply: SqlReply) => {
      const waiting = this.#waiting.get(reply.id);
      this.#waiting.delete(reply.id);
      if (this.#waiting.size === 0) worker.unref();
      if (reply.error === undefined) waiting?.resolve(reply.results ?? []);
      else waiting?.reject(this.#refusal(reply.error));
    });
    worker.on('error', (error) => this.#end(error.message));
    worker.on('exit', () => this.#end('its thread ended'));
    worker.unref();
  }

  #refusal(cause: SqlFault): KvError {
    return new KvError('database', `the SQL database in ${this.where} refused: ${cause.message}`, {
      values: { where: this.where },
      cause,
    });
  }

  #end(what: string): void {
    this.#ended ??= what;
    for (const { reject } of this.#waiting.values()) reject(this.#refusal({ message: what }));
    this.#waiting.clear();
  }

  async #send(statements: SqlRequest['statements'], readOnly: boolean): Promise<Rows[]> {
    if (this.#ended !== null) throw this.#refusal({ message: this.#ended });
    const id = this.#nextId++;
    // A database in WebAssembly cannot be interrupted: its thread is ended, and the next opener finds what was committed.
    const timer = setTimeout(() => {
      this.#end(`it took longer than ${this.#statementMsMax / 1000} s`);
      void this.#worker.terminate();
    }, this.#statementMsMax);
    try {
      return await new Promise((resolve, reject) => {
        this.#waiting.set(id, { resolve, reject });
        // A question keeps the process alive until it is answered; an idle database does not.
        this.#worker.ref();
        const request: SqlRequest = { id, statements, readOnly };
        this.#worker.postMessage(request);
      });
    } finally {
      clearTimeout(timer);
    }
  }

  #live(): void {
    if (this.#closing !== null) throw new KvError('closed', 'the SQL index was closed');
  }

  async ask(sql: string, params: readonly unknown[] = []): Promise<Rows> {
    this.#live();
    return (await this.#send([{ sql, params }], true))[0]!;
  }

  async transaction(statements: readonly Statement[]): Promise<Rows[]> {
    this.#live();
    return this.#send(statements, false);
  }

  close(): Promise<void> {
    this.#closing ??= this.#shut();
    return this.#closing;
  }

  async #shut(): Promise<void> {
    try {
      await this.#send(null, false);
    } catch {
      // A database that cannot be closed any more has nothing left to lose: the log is the truth.
    } finally {
      await this.#worker.terminate();
      this.#lock?.release();
    }
  }
}

async function opened(worker: Worker): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`it did not open within ${OPEN_MS_MAX / 1000} s`)), OPEN_MS_MAX);
    const done = (error: string | undefined): void => {
      clearTimeout(timer);
      if (error === undefined) resolve();
      else reject(new Error(error));
    };
    worker.once('message', (reply: SqlReply) => done(reply.error?.message));
    worker.once('error', (error) => done(error.message));
    worker.once('exit', () => done('its thread ended'));
  });
}

const dataDir = (dir: string): string => join(dir, 'pglite');

/** The thread could not say that the package is missing from a database that is broken. */
function checkInstalled(): void {
  try {
    createRequire(import.meta.url).resolve('@electric-sql/pglite');
  } catch (cause) {
    throw missingPackages(cause);
  }
}

/** Opens or creates the database in `dir`, or one in memory. Throws 'missing-dependency', 'locked', 'database' (the folder is broken), 'io'. */
export async function openPglite(dir: string | null, statementMsMax: number): Promise<SqlConnection> {
  checkInstalled();
  const lock = dir === null ? null : lockFolder(dir);
  const where = dir ?? 'memory';
  let worker: Worker | null = null;
  try {
    worker = startThread(new URL('./pglite-worker.ts', import.meta.url), {
      dir: dir === null ? 'memory://' : dataDir(dir),
    });
    await opened(worker);
    return new PgliteConnection(where, worker, lock, statementMsMax);
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
