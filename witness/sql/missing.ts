/**
 * What is said where the packages of the SQL tables are not installed. They are optional peers: all other questions to
 * a log need none of them.
 */
import { KvError } from '../../native/index.ts';

export const missingPackages = (cause: unknown): KvError =>
  new KvError('missing-dependency', 'the SQL tables of a log are kept with drizzle-orm and @electric-sql/pglite', {
    hint: 'npm install drizzle-orm@0.45.4 @electric-sql/pglite@0.5.14; audit list, show, explain and all others need neither',
    cause,
  });
