/**
 * One entry as bytes: u32 length, u32 CRC-32C (in format 1 CRC-32) over (length ‖ payload), payload, 32 bytes of chain
 * hash. All numbers little endian. The payload is the envelope {seq, timeMs, session, kind, body} in this order, its
 * body canonical JSON.
 */
import { crc32 } from 'node:zlib';
import { ENTRY_PAYLOAD_MAX, KvError } from '../native/index.ts';
import { canonicalJson, canonicalNumber, canonicalText, isInOrder } from './canonical.ts';
import { entryHash, HASH_BYTES, linkHash } from './chain.ts';
import { crc32c } from './crc32c.ts';
import { leafHash } from './tree.ts';
import { ENTRY_KINDS, type Entry, type EntryKind } from './types.ts';

/** Length and CRC. */
export const ENTRY_HEAD_BYTES = 8;
/** Everything of an entry that is not payload. */
export const ENTRY_EXTRA_BYTES = ENTRY_HEAD_BYTES + HASH_BYTES;
/** A situation with 10,000 trial reports is about 1 MiB; no honest entry is larger. */
export const PAYLOAD_BYTES_MAX = ENTRY_PAYLOAD_MAX;
/** How every payload begins. A quote inside a JSON string is escaped, so this does not occur inside one. */
export const PAYLOAD_START = '{"seq":';

/** CRC of length ‖ payload. */
export const entryCrc = (version: number, lengthBytes: Uint8Array, payload: Uint8Array): number =>
  version === 1 ? crc32(payload, crc32(lengthBytes)) : crc32c(payload, crc32c(lengthBytes));

/** Chain hash of an entry, and in format 2 the hash of its leaf, on which it builds. */
export function chained(
  version: number,
  previous: Uint8Array,
  seq: number,
  payload: Uint8Array,
): { readonly hash: Buffer; readonly leaf: Buffer | null } {
  if (version === 1) return { hash: entryHash(previous, seq, payload), leaf: null };
  const leaf = leafHash(payload);
  return { hash: linkHash(previous, leaf), leaf };
}

/** What stands before the body in a payload. Throws 'bad-value' for a time that is no number. */
export const payloadHead = (seq: number, timeMs: number, session: string, kind: EntryKind): string =>
  `${PAYLOAD_START}${seq},"timeMs":${canonicalNumber(timeMs)},"session":${canonicalText(session)},"kind":"${kind}","body":`;

/** The payload text of a body that is spelled already. Throws what payloadHead throws. */
export function payloadText(seq: number, timeMs: number, session: string, kind: EntryKind, bodyText: string): string {
  return `${payloadHead(seq, timeMs, session, kind)}${bodyText}}`;
}

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Latest time that a calendar holds. */
const TIME_MS_MAX = 8.64e15;
const SESSION_CHARS_MAX = 200;

/** An entry whose body nobody has looked at: it may be encrypted, or make no sense. */
export type Envelope = Omit<Entry, 'body'> & { readonly body: unknown };

/**
 * Payload bytes → envelope. Throws 'bad-log' when they are none. What the body says is for `SessionKeys.open` to read;
 * the canonical spelling is checked by `verifyLog` alone.
 */
export function parseEnvelope(payload: Uint8Array): Envelope {
  let value: unknown;
  try {
    value = JSON.parse(decoder.decode(payload));
  } catch (cause) {
    throw new KvError('bad-log', 'an entry is not JSON', { cause });
  }
  if (typeof value !== 'object' || value === null) throw new KvError('bad-log', 'an entry is not an object');
  const { seq, timeMs, session, kind, body } = value as Record<string, unknown>;
  const sound =
    Number.isSafeInteger(seq) &&
    (seq as number) >= 0 &&
    Number.isSafeInteger(timeMs) &&
    (timeMs as number) >= 0 &&
    (timeMs as number) <= TIME_MS_MAX &&
    typeof session === 'string' &&
    session.length <= SESSION_CHARS_MAX &&
    (ENTRY_KINDS as readonly unknown[]).includes(kind) &&
    typeof body === 'object' &&
    body !== null;
  if (!sound) throw new KvError('bad-log', 'an entry lacks seq, timeMs, session, kind or body, or one of them is none');
  return { seq, timeMs, session, kind, body } as Envelope;
}

/** True when the payload is spelled the one way that the writer spells it. */
export function isCanonical(payload: Uint8Array, entry: Envelope): boolean {
  try {
    const { seq, timeMs, session, kind, body } = entry;
    const text = isInOrder(body) ? JSON.stringify(entry) : payloadText(seq, timeMs, session, kind, canonicalJson(body));
    return Buffer.from(text, 'utf8').equals(payload);
  } catch {
    // Nested too deep for the writer to have spelled it.
    return false;
  }
}
