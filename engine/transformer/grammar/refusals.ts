/** What is said where a schema cannot be followed. */
import { KvError } from '../../../native/index.ts';

export const cannot = (what: string, where: string): KvError =>
  new KvError('unsupported', `the schema has ${what} at ${where}, which cannot be followed`, {
    values: { where },
    hint: 'docs/library.md lists what can: leave it out and check the answer, or say it in another way',
  });
