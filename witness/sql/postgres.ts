/** A PostgreSQL server (15 or later) by URL, over one connection. */
import { connect, type Socket } from 'node:net';
import postgres from 'postgres';
import { given, KvError } from '../../native/index.ts';
import type { Rows, SqlConnection, Statement } from './connection.ts';

const CONNECT_SECONDS_MAX = 15;
/** How much longer than the server's own limit a statement may take: for connecting, and for its answer to come. */
const ANSWER_MS_MAX = 20_000;
/** A statement without a limit on the server, such as one that writes a table of many GB anew. Chosen. */
const ALONE_MS_MAX = 3_600_000;
/** The answer to a statement. A thousand rows with bodies of entries have some hundred KB; chosen. */
const ANSWER_BYTES_MAX = 256 * 2 ** 20;
/** How often it is looked at how much has come: on loopback 100 MB may come in between. */
const LOOK_MS = 50;

type UnsafeParameters = NonNullable<Parameters<postgres.Sql['unsafe']>[1]>;

/** What the driver tells whoever makes its sockets; `host` is missing in its declarations. */
interface Place {
  readonly host: readonly string[];
  readonly port: readonly number[];
  /** Of a socket of the file system. */
  readonly path: string | false;
}

/**
 * A connection of the driver. Once it is lost nothing more may be sent over it, not even the end of a transaction: the
 * driver would write to a socket that is no longer there, outside of any promise, and that ends the process
 * (postgres.js 3.4.9, its issue 1208; its own `begin` does so). Nor does the driver bound anything but the time until a
 * server has let it in: an answer may take for ever and have any size, and a server that hangs up behind the log-in is
 * asked again at once, for ever. So the sockets are made here, one for each host that the address names, and
 * statements have an end here.
 */
class Line {
  readonly #sql: postgres.Sql;
  readonly #answerMsMax: number;
  #isLost = false;
  #socket: Socket | null = null;
  #sockets = 0;
  #lose: (error: Error) => void = () => {};
  /** Rejected when the connection is lost, so that no query waits for the driver's own word. */
  readonly #lost: Promise<never>;

  constructor(url: string, statementMsMax: number, answerMsMax: number) {
    this.#answerMsMax = answerMsMax;
    this.#lost = new Promise((_, reject) => {
      this.#lose = reject;
    });
    this.#lost.catch(() => {});
    const options: postgres.Options<Record<string, postgres.PostgresType>> & { socket: (place: Place) => Socket } = {
      max: 1,
      connect_timeout: CONNECT_SECONDS_MAX,
      idle_timeout: 0,
      max_lifetime: null,
      onnotice: () => {},
      // The driver's own query for types is one more promise that nobody holds when the connection is lost.
      fetch_types: false,
      onclose: () => this.#end(new Error('the connection was lost')),
      types: { bigint: INT8, ...ARRAYS },
      connection: { application_name: 'palimpsest', statement_timeout: statementMsMax },
      socket: (place) => this.#connect(place),
    };
    this.#sql = postgres(url, options);
  }

  get isLost(): boolean {
    return this.#isLost;
  }

  #connect({ host, port, path }: Place): Socket {
    const n = this.#sockets++;
    if (this.#isLost || n >= Math.max(1, host.length)) {
      const error = new Error('the server hung up before it let us in');
      this.#end(error);
      throw error;
    }
    this.#socket = path === false ? connect(port[n]!, host[n]) : connect(path);
    // The driver reads the name for certificates from here.
    return Object.assign(this.#socket, { host: host[n], port: port[n] });
  }

  #end(error: Error): void {
    this.#isLost = true;
    this.#lose(error);
    this.#socket?.destroy();
  }

  /** Never by the simple protocol, which would take several statements for one. */
  async send({ sql, params = [] }: Statement): Promise<Rows> {
    if (this.#isLost) return this.#lost;
    const untilMs = performance.now() + this.#answerMsMax;
    const before = this.#socket?.bytesRead ?? 0;
    const look = setInterval(() => {
      if ((this.#socket?.bytesRead ?? 0) - before > ANSWER_BYTES_MAX)
        this.#end(new Error(`it answers with more than ${ANSWER_BYTES_MAX / 2 ** 20} MiB`));
      else if (performance.now() > untilMs) this.#end(new Error(`it did not answer for ${this.#answerMsMax / 1000} s`));
    }, LOOK_MS);
    try {
      const options = { simple: false } as postgres.UnsafeQueryOptions;
      const query = this.#sql.unsafe(sql, [...params] as UnsafeParameters, options).values();
      const rows = await Promise.race([query, this.#lost]);
      return { columns: (rows.columns ?? []).map(({ name }) => String(name)), rows: [...rows] };
    } finally {
      clearInterval(look);
    }
  }

  async end(): Promise<void> {
    await this.#sql.end({ timeout: this.#isLost ? 0 : 5 }).catch(() => {});
    // A server that keeps its end open would keep this process.
    this.#socket?.destroy();
  }
}

class PostgresConnection implements SqlConnection {
  readonly kind = 'postgres';
  readonly where: string;
  readonly #open: () => Line;
  #line: Line;
  /** One transaction after the other: they share the connection. */
  #last: Promise<unknown> = Promise.resolve();
  #closed = false;

  constructor(where: string, open: () => Line) {
    this.where = where;
    this.#open = open;
    this.#line = open();
  }

  #run(begin: string, statements: readonly Statement[]): Promise<Rows[]> {
    const turn = this.#last.then(() => this.#transact(begin, statements));
    this.#last = turn.catch(() => {});
    return turn;
  }

  async #transact(begin: string, statements: readonly Statement[]): Promise<Rows[]> {
    if (this.#closed) throw new KvError('closed', 'the SQL index was closed');
    if (this.#line.isLost) {
      await this.#line.end();
      this.#line = this.#open();
    }
    const line = this.#line;
    try {
      await line.send({ sql: begin });
      const results: Rows[] = [];
      for (const statement of statements) results.push(await line.send(statement));
      await line.send({ sql: 'commit' });
      return results;
    } catch (cause) {
      if (!line.isLost) await line.send({ sql: 'rollback' }).catch(() => {});
      throw refusal(this.where, cause);
    }
  }

  async ask(sql: string, params: readonly unknown[] = []): Promise<Rows> {
    return (await this.#run('begin read only', [{ sql, params }]))[0]!;
  }

  transaction(statements: readonly Statement[]): Promise<Rows[]> {
    return this.#run('begin', statements);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#line.end();
  }
}

/** Whole numbers of 64 bits as numbers, as text beyond 2^53. */
const wholeOf = (text: string): number | string => (Number.isSafeInteger(Number(text)) ? Number(text) : text);
const INT8 = { to: 20, from: [20], serialize: String, parse: wholeOf };

/** Array types by their numbers in PostgreSQL's catalogue, and what their elements are. */
const ELEMENTS: readonly (readonly [oid: number, parse: (text: string) => unknown])[] = [
  [1000, (text) => text === 't'],
  ...[1005, 1007, 1021, 1022].map((oid) => [oid, Number] as const),
  [1016, wholeOf],
  ...[1002, 1003, 1009, 1014, 1015, 1231, 2951].map((oid) => [oid, String] as const),
];
const ARRAYS = Object.fromEntries(
  ELEMENTS.map(([oid, parse]) => [
    `array${oid}`,
    { to: oid, from: [oid], serialize: String, parse: (text: string) => arrayOf(text, parse) },
  ]),
);

/** PostgreSQL's text of an array, such as {1,NULL} or {"a b",{c}} → its elements. */
function arrayOf(text: string, parse: (element: string) => unknown): unknown[] {
  const tokens = text.slice(text.indexOf('{')).matchAll(/[{}]|"((?:[^"\\]|\\.)*)"|[^,{}"]+/gs);
  const open: unknown[][] = [[]];
  for (const [token, quoted] of tokens) {
    if (token === '{') open.push([]);
    else if (token === '}') open.at(-2)!.push(open.pop());
    else if (quoted !== undefined) open.at(-1)!.push(parse(quoted.replace(/\\(.)/gs, '$1')));
    else open.at(-1)!.push(token === 'NULL' ? null : parse(token));
  }
  return open[0]![0] as unknown[];
}

function refusal(where: string, cause: unknown): KvError {
  const { message, code } = cause as { message?: string; code?: string };
  // A refused connection to several addresses has no message of its own.
  return new KvError('database', `the SQL database at ${where} refused: ${message || code || String(cause)}`, {
    values: given({ where, code }),
    hint: 'check the URL, the server and the rights of its user',
    cause,
  });
}

/** 'postgres://user:secret@host/base' → 'host/base'. Throws 'bad-config'. */
function addressOf(url: string): string {
  try {
    const { protocol, host, pathname } = new URL(url);
    if (protocol === 'postgres:' || protocol === 'postgresql:') return `${host}${pathname}`;
  } catch {
    // Said below.
  }
  throw new KvError('bad-config', 'the database URL is not of the form postgres://user@host:5432/base');
}

/**
 * Statements one by one, each by itself and without a time limit, as those that rewrite tables need it; none waits
 * longer than ten seconds for others. Throws 'database', 'bad-config'.
 */
export async function runAlone(url: string, statements: readonly string[]): Promise<void> {
  const where = addressOf(url);
  const line = new Line(url, 0, ALONE_MS_MAX);
  try {
    for (const sql of ["set lock_timeout = '10s'", ...statements]) await line.send({ sql });
  } catch (cause) {
    throw refusal(where, cause);
  } finally {
    await line.end();
  }
}

/**
 * Connects. `statementMsMax` is the server's limit of a statement, `answerMsMax` that of waiting for its answer. Throws
 * 'bad-config' for a URL that is none, 'database' when the server refuses or cannot be reached.
 */
export async function openPostgres(
  url: string,
  statementMsMax: number,
  answerMsMax = statementMsMax + ANSWER_MS_MAX,
): Promise<SqlConnection> {
  const connection = new PostgresConnection(addressOf(url), () => new Line(url, statementMsMax, answerMsMax));
  try {
    await connection.ask('select 1');
    return connection;
  } catch (error) {
    await connection.close();
    throw error;
  }
}
