/**
 * The embedded database: PGlite in a worker thread, on a folder that only one process may open (PGlite itself locks
 * nothing, and two openers lose each other's rows). It survives a killed process but never calls fsync: after a power
 * cut its folder may be broken, and then the index is built again from the log.
 */
import { existsSync, mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { KvError, startThread } from '../../native/index.ts';
import { lockWriter, type WriterLock } from '../lock.ts';
import type { RowMode, SqlConnection, SqlReply, SqlRequest, Statement } from './connection.ts';

/** A folder that takes longer to open is broken; a whole one takes under three seconds, on a busy machine perhaps ten. */
const OPEN_MS_MAX = 90_000;

class PgliteConnection implements SqlConnection {
  readonly kind = 'pglite';
  readonly where: string;
  readonly #worker: Worker;
  readonly #lock: WriterLock;
  readonly #waiting = new Map<number, { resolve: (rows: unknown[]) => void; reject: (error: Error) => void }>();
  #nextId = 1;
  #ended: string | null = null;
  #closing: Promise<void> | null = null;

  constructor(where: string, worker: Worker, lock: WriterLock) {
    this.where = where;
    this.#worker = worker;
    this.#lock = lock;
    worker.on('message', (reply: SqlReply) => {
      const waiting = this.#waiting.get(reply.id);
      this.#waiting.delete(reply.id);
      if (this.#waiting.size === 0) worker.unref();
      if (reply.error === undefined) waiting?.resolve(reply.rows ?? []);
      else waiting?.reject(this.#refusal(reply.error));
    });
    worker.on('error', (error) => this.#end(error.message));
    worker.on('exit', () => this.#end('its thread ended'));
    worker.unref();
  }

  #refusal(what: string): KvError {
    return new KvError('database', `the SQL database in ${this.where} refused: ${what}`, {
      values: { where: this.where },
    });
  }

  #end(what: string): void {
    this.#ended ??= what;
    for (const { reject } of this.#waiting.values()) reject(this.#refusal(what));
    this.#waiting.clear();
  }

  #send(mode: SqlRequest['mode'], statements: readonly Statement[]): Promise<unknown[]> {
    if (this.#ended !== null) return Promise.reject(this.#refusal(this.#ended));
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      // A question keeps the process alive until it is answered; an idle database does not.
      this.#worker.ref();
      const request: SqlRequest = { id, mode, statements };
      this.#worker.postMessage(request);
    });
  }

  #live(): void {
    if (this.#closing !== null) throw new KvError('closed', 'the SQL index was closed');
  }

  async query(statement: Statement, mode: RowMode): Promise<unknown[]> {
    this.#live();
    return this.#send(mode, [statement]);
  }

  async transaction(statements: readonly Statement[]): Promise<void> {
    this.#live();
    await this.#send('transaction', statements);
  }

  close(): Promise<void> {
    this.#closing ??= this.#shut();
    return this.#closing;
  }

  async #shut(): Promise<void> {
    try {
      await this.#send('close', []);
    } catch {
      // A database that cannot be closed any more has nothing left to lose: the log is the truth.
    } finally {
      await this.#worker.terminate();
      this.#lock.release();
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
    worker.once('message', (reply: SqlReply) => done(reply.error));
    worker.once('error', (error) => done(error.message));
    worker.once('exit', () => done('its thread ended'));
  });
}

const dataDir = (dir: string): string => join(dir, 'pglite');

/** Opens or creates the database in `dir`. Throws 'locked', 'database' (the folder is broken), 'io'. */
export async function openPglite(dir: string): Promise<SqlConnection> {
  let lock: WriterLock;
  try {
    mkdirSync(dir, { recursive: true });
    lock = lockWriter(dir);
  } catch (cause) {
    if (cause instanceof KvError && cause.code === 'locked') {
      throw new KvError('locked', `the SQL index in ${dir} is in use by process ${String(cause.values['pid'])}`, {
        values: cause.values,
        hint: 'wait for it, or use another state folder',
        cause,
      });
    }
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `cannot use ${dir}: ${(cause as Error).message}`, { values: { dir }, cause });
  }
  let worker: Worker | null = null;
  try {
    worker = startThread(new URL('./pglite-worker.ts', import.meta.url), { dir: dataDir(dir) });
    await opened(worker);
    return new PgliteConnection(dir, worker, lock);
  } catch (cause) {
    await worker?.terminate();
    lock.release();
    throw new KvError('database', `the SQL database in ${dir} does not open: ${(cause as Error).message}`, {
      values: { dir },
      hint: 'rebuild it with: palimpsest audit reindex',
      cause,
    });
  }
}

/** Removes the database, nothing else, from `dir`. The caller has no connection open. */
export function discardPglite(dir: string): void {
  if (existsSync(dataDir(dir))) rmSync(dataDir(dir), { recursive: true, force: true });
}
