/** A store on a PostgreSQL server (`kept` and `kept_chunks` of migrations/schema.ts), for servers of many machines. */
import type { SqlConnection, Statement } from '../../witness/index.ts';
import {
  BYTES_MAX,
  changed,
  checkKeepable,
  digestOf,
  erasedKey,
  type Found,
  type Kind,
  oldestMs,
  type Store,
  sessionsIn,
  sessionsText,
} from './store.ts';

/** Bytes of a row: what one statement carries. */
const CHUNK_BYTES = 2 ** 20;
/** The kind of a row of `kept` that stands for an erased session: it goes with what is as old. */
const ERASED = 'erased';

export class PostgresStore implements Store {
  readonly #connection: SqlConnection;
  /** What is put may take long, and whoever looks something up does not wait for it. */
  readonly #putting: SqlConnection;

  /** Of one server; both are closed with it. */
  constructor(connection: SqlConnection, putting: SqlConnection) {
    this.#connection = connection;
    this.#putting = putting;
  }

  async put(kind: Kind, key: string, bytes: Uint8Array, sessions: readonly string[] = []): Promise<void> {
    checkKeepable(bytes);
    const chunks: Statement[] = [];
    for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
      const chunk = Buffer.from(bytes.subarray(at, at + CHUNK_BYTES));
      chunks.push({
        sql: `insert into kept_chunks (kind, key, place, bytes)
              select $1, $2, $3::int, $4::bytea where exists (select from kept where kind = $1 and key = $2)`,
        params: [kind, key, at / CHUNK_BYTES, chunk],
      });
    }
    await this.#putting.transaction([
      // Two servers may put the same at once.
      { sql: 'select pg_advisory_xact_lock(hashtext($1), hashtext($2))', params: [kind, key] },
      ...removal(kind, key),
      {
        sql: `insert into kept (kind, key, kept_ms, bytes, digest, sessions)
              select $1, $2, $3::bigint, $4::bigint, $5, $6 where not exists
                (select from kept where kind = $7 and key in (select json_array_elements_text(($8::text)::json)))`,
        params: [
          ...[kind, key, Date.now(), bytes.length, digestOf(bytes).toString('hex'), sessionsText(sessions)],
          ...[ERASED, JSON.stringify(sessions.map((session) => erasedKey(kind, session)))],
        ],
      },
      ...chunks,
    ]);
    await this.#removeOld();
  }

  async first(kind: Kind, keys: readonly string[]): Promise<Found | null> {
    const { rows } = await this.#connection.ask(
      `select k.key, k.bytes, k.digest, k.sessions from json_array_elements_text(($2::text)::json) with ordinality as asked (key, place)
       join kept k on k.kind = $1 and k.key = asked.key order by asked.place limit 1`,
      [kind, JSON.stringify(keys)],
    );
    if (rows.length === 0) return null;
    const [key, size, digest, sessions] = rows[0] as [string, number, string, string | null];
    if (!(size <= BYTES_MAX)) throw changed(this.#connection.where);
    const chunks: Uint8Array[] = [];
    // One after the other: an answer to a statement is bounded.
    for (let place = 0; place * CHUNK_BYTES < size; place++) {
      const sql = 'select bytes from kept_chunks where kind = $1 and key = $2 and place = $3::int';
      const [row] = (await this.#connection.ask(sql, [kind, key, place])).rows;
      if (row === undefined) throw changed(this.#connection.where);
      chunks.push(row[0] as Uint8Array);
    }
    const bytes = Buffer.concat(chunks);
    if (bytes.length !== size || digestOf(bytes).toString('hex') !== digest) throw changed(this.#connection.where);
    return { key, bytes, sessions: sessionsIn(sessions ?? '') };
  }

  async remove(kind: Kind, key: string): Promise<void> {
    await this.#connection.transaction(removal(kind, key));
  }

  async erase(kind: Kind, session: string): Promise<number> {
    const [, , erased] = await this.#connection.transaction([
      // A row that is just put is there when this looks, or finds the session erased.
      { sql: 'lock table kept in share row exclusive mode' },
      {
        sql: `insert into kept (kind, key, kept_ms, bytes, digest, sessions) values ($1, $2, $3::bigint, 0, '', '')
              on conflict (kind, key) do update set kept_ms = excluded.kept_ms`,
        params: [ERASED, erasedKey(kind, session), Date.now()],
      },
      {
        sql: `with gone as (delete from kept where kind = $1 and string_to_array(sessions, ' ') @> array[$2::text] returning kind, key),
                chunks as (delete from kept_chunks c using gone where c.kind = gone.kind and c.key = gone.key)
              select count(*) from gone`,
        params: [kind, session],
      },
    ]);
    return Number(erased!.rows[0]![0]);
  }

  async close(): Promise<void> {
    await this.#putting.close();
    await this.#connection.close();
  }

  async #removeOld(): Promise<void> {
    await this.#putting.transaction([
      {
        sql: `with gone as (delete from kept where kept_ms < $1::bigint returning kind, key)
              delete from kept_chunks c using gone where c.kind = gone.kind and c.key = gone.key`,
        params: [oldestMs()],
      },
    ]);
  }
}

const removal = (kind: Kind, key: string): Statement[] =>
  ['kept_chunks', 'kept'].map((table) => ({
    sql: `delete from ${table} where kind = $1 and key = $2`,
    params: [kind, key],
  }));
