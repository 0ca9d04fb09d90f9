import { KvError, type KvErrorCode } from '../../native/index.ts';

/** Code of the KvError that `work` ends in; what else is thrown goes on. */
export function codeOf(work: () => unknown): KvErrorCode | 'no error' {
  try {
    work();
  } catch (error) {
    if (error instanceof KvError) return error.code;
    throw error;
  }
  return 'no error';
}
