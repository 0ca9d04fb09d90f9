/**
 * What is said where the packages of the SQL tables are not installed. They are optional peers: all other questions to
 * a log need none of them.
 */
import { KvError } from '../../native/index.ts';

/** The package of all tables, in the version that goes with this one. */
export const TABLE_PACKAGE = 'drizzle-orm@0.45.4';

export const missingPackages = (cause: unknown): KvError =>
  new KvError('missing-dependency', 'the SQL tables of a log are kept with drizzle-orm and @electric-sql/pglite', {
    hint: `npm install ${TABLE_PACKAGE} @electric-sql/pglite@0.5.14; audit list, show, explain and all others need neither`,
    cause,
  });
