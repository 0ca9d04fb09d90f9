/** Tables that grow without end are partitioned by time, a month each, so that a question about some days looks at few rows and old months can be dropped. */
import { getTableName } from 'drizzle-orm';
import { PARTITIONED } from '../../migrations/schema.ts';
import type { Statement } from './connection.ts';

/** Times before and from then on have one partition each, made by the migration: a forged log must not be able to ask for a million. */
const FIRST_YEAR = 2020;
const END_YEAR = 2100;

/** Which partitions are known to be there. */
export class Partitions {
  readonly #known = new Set<string>();

  /** Statements that make the partitions that rows of these times need, as far as they were not asked for before. */
  missing(timesMs: readonly number[]): Statement[] {
    const months = new Map<string, Date>();
    for (const timeMs of timesMs) {
      const date = new Date(timeMs);
      const year = date.getUTCFullYear();
      if (!(year >= FIRST_YEAR && year < END_YEAR)) continue;
      const month = date.toISOString().slice(0, 7).replace('-', '_');
      if (this.#known.has(month)) continue;
      this.#known.add(month);
      months.set(month, new Date(Date.UTC(year, date.getUTCMonth())));
    }
    if (months.size === 0) return [];
    const statements = [...months].flatMap(([month, begin]) => {
      const end = Date.UTC(begin.getUTCFullYear(), begin.getUTCMonth() + 1);
      return PARTITIONED.map((table) => ({
        sql: `create table if not exists ${getTableName(table)}_${month} partition of ${getTableName(table)} for values from (${begin.getTime()}) to (${end})`,
      }));
    });
    // Indexers of several logs may come to a new month at once.
    return [{ sql: "select pg_advisory_xact_lock(hashtext('palimpsest partitions'))" }, ...statements];
  }
}
