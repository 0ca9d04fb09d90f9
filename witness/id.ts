/**
 * Ids of sessions: UUIDs of version 7 (RFC 9562), which do not collide and sort by the time at which they were made.
 */
import { randomBytes } from 'node:crypto';
import { KvError } from '../native/index.ts';

let lastMs = 0;
let counter = 0;
const COUNTER_MAX = 0xfff;

/**
 * 48 bits of milliseconds, a counter of 12 bits so that ids of one process sort within a millisecond too, 62 random
 * bits.
 */
export function newId(nowMs = Date.now()): string {
  if (nowMs > lastMs) {
    lastMs = nowMs;
    counter = 0;
  } else if (++counter > COUNTER_MAX) {
    lastMs++;
    counter = 0;
  }
  const bytes = randomBytes(16);
  bytes.writeUIntBE(lastMs, 0, 6);
  bytes.writeUInt16BE(0x7000 | counter, 6);
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** Who asks a pool for bytes and is no session: an adapter that is loaded. */
export const adapterAsker = (digest: string): string => `adapter ${digest.slice(0, 12)}`;

/** Whoever asked a pool for bytes, in words. */
export const askerText = (id: string): string => (id.startsWith('adapter ') ? id : `session ${id}`);

/**
 * What a narrow column shows: the end of a UUID, because ids made within the same minute begin alike. `findId` accepts
 * it.
 */
export const shortId = (id: string): string => (UUID.test(id) ? id.slice(-8) : id);

/**
 * The one of `ids` that is `typed`, or begins with it, or ends with it. Throws 'not-found', and 'bad-argument' with the
 * candidates when several do.
 */
export function findId(ids: Iterable<string>, typed: string, what: string): string {
  const found = new Set<string>();
  for (const id of ids) {
    if (id === typed) return id;
    if (typed !== '' && (id.startsWith(typed) || id.endsWith(typed))) found.add(id);
  }
  const [first, second] = found;
  if (first === undefined)
    throw new KvError('not-found', `the log has no ${what} ${typed}`, {
      values: { typed },
      hint: `\`audit ${what}s\` lists them`,
    });
  if (second === undefined) return first;
  const candidates = [...found].slice(0, 8);
  throw new KvError('bad-argument', `'${typed}' may be ${found.size} ${what}s`, {
    values: { candidates: candidates.join(' ') },
    hint: 'type more of its id',
  });
}
