/**
 * What servers keep beyond one process: responses, and conversations with their caches. What is kept under a key never
 * changes its meaning (the key of a conversation is a digest of all that was said in it), so any number of servers read
 * and write the same store, none owns anything, and one that was killed leaves nothing that others would wait for.
 */
import { createHash } from 'node:crypto';
import { KvError } from '../../native/index.ts';

export const KINDS = ['response', 'conversation'] as const;
export type Kind = (typeof KINDS)[number];

/** What was found: under which of the keys, and its bytes, which are those that were put there. */
export interface Found {
  readonly key: string;
  readonly bytes: Buffer;
  /** Those that it holds something of. */
  readonly sessions: readonly string[];
}

/** All methods throw 'database' or 'io' where the place is away. */
export interface Store {
  /**
   * Keeps bytes under a key, in place of others, with the ids of the sessions that they hold something of. When this
   * resolves they are there for every server; or nothing is, where one of these sessions was erased meanwhile.
   */
  put(kind: Kind, key: string, bytes: Uint8Array, sessions?: readonly string[]): Promise<void>;
  /** What is kept under the first of these keys that is known; null: none is. Throws 'checksum-mismatch'. */
  first(kind: Kind, keys: readonly string[]): Promise<Found | null>;
  remove(kind: Kind, key: string): Promise<void>;
  /**
   * Removes all of a kind that holds something of a session, and whatever servers that have not heard of it put there
   * later. → how many there were
   */
  erase(kind: Kind, session: string): Promise<number>;
  close(): Promise<void>;
}

/** What was put there longer ago is removed: OpenAI keeps responses as long. */
export const KEPT_DAYS = 30;
export const oldestMs = (): number => Date.now() - KEPT_DAYS * 24 * 3_600_000;

/** On Node 20 a buffer holds 4 GiB at most. */
export const BYTES_MAX = 2 ** 32 - 1;

export const digestOf = (bytes: Uint8Array | string): Buffer => createHash('sha256').update(bytes).digest();

/** Throws 'unsupported' for more than could be read again. */
export function checkKeepable(bytes: Uint8Array): void {
  if (bytes.length <= BYTES_MAX) return;
  throw new KvError('unsupported', `${bytes.length} bytes cannot be kept: ${BYTES_MAX} could be read again`, {
    values: { bytes: bytes.length, bytesMax: BYTES_MAX },
  });
}

export const changed = (where: string): KvError =>
  new KvError('checksum-mismatch', `what is kept in ${where} does not have the checksum that it was put there with`, {
    values: { where },
    hint: 'send the whole conversation: it is read again',
  });

/** What stands for an erased session: it says whether an id is erased, and not which ids are. */
export const erasedKey = (kind: Kind, session: string): string => digestOf(`${kind} ${session}`).toString('hex');

/** Ids of sessions in one text; they have no blank. */
export const sessionsText = (sessions: readonly string[]): string => sessions.join(' ');
export const sessionsIn = (text: string): readonly string[] => text.split(' ').filter((id) => id !== '');
