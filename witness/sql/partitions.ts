/**
 * Tables that grow without end are partitioned by time, a month each, so that a question about some days looks at few
 * rows and old months can be dropped.
 */
import { getTableName } from 'drizzle-orm';
import { PARTITIONED } from '../../migrations/schema.ts';
import type { Statement } from './connection.ts';

/**
 * Times before and from then on have one partition each, made by the migration: a forged log must not be able to ask
 * for a million.
 */
const FIRST_YEAR = 2020;
const END_YEAR = 2100;

const isMonthly = (date: Date): boolean => date.getUTCFullYear() >= FIRST_YEAR && date.getUTCFullYear() < END_YEAR;
const monthOf = (date: Date): string => date.toISOString().slice(0, 7).replace('-', '_');

/** Names of the partitions that rows from `fromMs` to `toMs` may be in, whether they are there or not. */
export function partitionsOf(fromMs: number, toMs: number): string[] {
  const ends = new Set<string>();
  const [first, last] = [Math.max(fromMs, Date.UTC(FIRST_YEAR)), Math.min(toMs, Date.UTC(END_YEAR) - 1)];
  if (fromMs < first) ends.add(`before_${FIRST_YEAR}`);
  if (toMs > last) ends.add(`from_${END_YEAR}`);
  for (
    let at = new Date(first);
    at.getTime() <= last;
    at = new Date(Date.UTC(at.getUTCFullYear(), at.getUTCMonth() + 1))
  )
    ends.add(monthOf(at));
  return PARTITIONED.flatMap((table) => [...ends].map((end) => `${getTableName(table)}_${end}`));
}

/** Which partitions are known to be there. */
export class Partitions {
  readonly #known = new Set<string>();

  /** Statements that make the partitions that rows of these times need, as far as they were not asked for before. */
  missing(timesMs: readonly number[]): Statement[] {
    const months = new Map<string, Date>();
    for (const timeMs of timesMs) {
      const date = new Date(timeMs);
      if (!isMonthly(date)) continue;
      const month = monthOf(date);
      if (this.#known.has(month)) continue;
      this.#known.add(month);
      months.set(month, new Date(Date.UTC(date.getUTCFullYear(), date.getUTCMonth())));
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
