/** What tests ask of work that must be refused: with a KvError, and with which. */
import { expect } from 'vitest';
import { KvError, type KvErrorCode } from '../native/index.ts';

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

/** The KvError that `work` must end in; what else is thrown goes on. */
export function refusal(work: () => unknown): KvError {
  try {
    work();
  } catch (error) {
    if (error instanceof KvError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** The KvError that a promise must end in. */
export async function refused(promise: Promise<unknown>, what = ''): Promise<KvError> {
  const error = await promise.then(
    () => new Error('was not refused'),
    (reason: unknown) => reason,
  );
  expect(error, `${what}: ${String(error)}`).toBeInstanceOf(KvError);
  return error as KvError;
}

/** The same of work that may end at once or later. */
export const refusedLater = (work: () => unknown, what = ''): Promise<KvError> => refused((async () => work())(), what);
