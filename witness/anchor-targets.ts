/** Where checkpoints go while a log is written: a file, standard output, an HTTP server, a table of PostgreSQL. */
import fs from 'node:fs/promises';
import { dirname, resolve, sep } from 'node:path';
import { KvError } from '../native/index.ts';
import { CUT_END } from './checkpoint.ts';
import type { SqlConnection } from './sql/connection.ts';

const HTTP_MS_MAX = 10_000;
const STATEMENT_MS_MAX = 10_000;
const TABLE = `create table if not exists palimpsest_checkpoints (
  origin text not null, size bigint not null, note text not null, written timestamptz not null default now(),
  primary key (origin, size, note))`;
const ROW =
  'insert into palimpsest_checkpoints (origin, size, note) values ($1, $2, $3) on conflict (origin, size, note) do nothing';

export interface AnchorTarget {
  /** What the log may say of it: never an address. */
  readonly kind: 'file' | 'stdout' | 'http' | 'postgres';
  /** Resolves when the checkpoint is kept there. Rejects with whatever went wrong; it is tried again. */
  write(note: string): Promise<void>;
  close(): Promise<void>;
}

/**
 * 'stdout', a URL of http, https or postgres, or a path → the target. `logDir`: a file below it or beside it would be
 * no evidence. Throws 'bad-config'.
 */
export function anchorTarget(where: string, logDir: string): AnchorTarget {
  if (where === 'stdout') return toStdout;
  const [, scheme] = /^([a-z]+):\/\//.exec(where) ?? [];
  if (scheme === 'http' || scheme === 'https') return toHttp(new URL(where));
  if (scheme === 'postgres' || scheme === 'postgresql') return toPostgres(where);
  const path = resolve(where);
  const state = dirname(resolve(logDir));
  if (scheme !== undefined || where === '' || path.startsWith(`${state}${sep}`))
    throw new KvError('bad-config', `checkpoints cannot be anchored in '${scheme === undefined ? where : scheme}'`, {
      values: { where: scheme ?? where },
      hint: 'name a file outside of the state folder, stdout, or a URL of http, https or postgres',
    });
  return toFile(path);
}

const toStdout: AnchorTarget = {
  kind: 'stdout',
  write: (note) =>
    new Promise((done, fail) => {
      process.stdout.write(note, (error) => (error ? fail(error) : done()));
    }),
  close: async () => {},
};

/** A file that only grows. What a crash left of a checkpoint is marked as cut off. */
function toFile(path: string): AnchorTarget {
  return {
    kind: 'file',
    write: async (note) => {
      const file = await fs.open(path, 'a+');
      try {
        const { size } = await file.stat();
        const last = Buffer.alloc(1, '\n');
        if (size > 0) await file.read(last, 0, 1, size - 1);
        await file.appendFile(`${last.toString() === '\n' ? '' : CUT_END}${note}`);
        await file.datasync();
      } finally {
        await file.close();
      }
    },
    close: async () => {},
  };
}

function toHttp(url: URL): AnchorTarget {
  return {
    kind: 'http',
    write: async (note) => {
      const headers: Record<string, string> = { 'content-type': 'text/plain; charset=utf-8' };
      // Credentials may not stand in the address of a request.
      if (url.username !== '')
        headers['authorization'] =
          `Basic ${Buffer.from(`${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`).toString('base64')}`;
      const plain = new URL(url);
      plain.username = plain.password = '';
      const signal = AbortSignal.timeout(HTTP_MS_MAX);
      const answer = await fetch(plain, { method: 'POST', body: note, headers, signal, redirect: 'error' });
      await answer.body?.cancel();
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    },
    close: async () => {},
  };
}

function toPostgres(url: string): AnchorTarget {
  let connection: SqlConnection | null = null;
  return {
    kind: 'postgres',
    write: async (note) => {
      connection ??= await openTable(url);
      const [origin = '', size = ''] = note.split('\n');
      await connection.transaction([{ sql: ROW, params: [origin, Number(size), note] }]);
    },
    close: async () => connection?.close(),
  };
}

/** A connection to a server that has the table. Only who anchors there loads what it takes. */
async function openTable(url: string): Promise<SqlConnection> {
  const { openPostgres } = await import('./sql/postgres.ts');
  const connection = await openPostgres(url, STATEMENT_MS_MAX);
  try {
    await connection.transaction([{ sql: TABLE }]);
    return connection;
  } catch (error) {
    await connection.close();
    throw error;
  }
}
