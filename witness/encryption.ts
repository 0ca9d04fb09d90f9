/**
 * An encrypted body: AES-256-GCM under the key of its session (NIST SP 800-38D; node:crypto computes it). seq, session
 * and kind are bound to it, so that it opens in its own place only. Nonces are the writer's four random bytes and the
 * seq, which a writer gives once. What is encrypted is the packed form of the body (`pack.ts`), before format 3 its
 * text. On disk: {"sealed":"<base64 of nonce, ciphertext and tag>"}, a body like any other to whoever follows the
 * chain.
 */
import { createCipheriv, createDecipheriv, type KeyObject } from 'node:crypto';
import { jsonOf, KvError } from '../native/index.ts';
import { canonicalJson, isInOrder } from './canonical.ts';
import { ENTRIES } from './entries/index.ts';
import { type Envelope, PAYLOAD_BYTES_MAX, payloadHead } from './entry.ts';
import { PACKED_MARK, unpackBody } from './pack.ts';
import { type EntryKind, NO_SESSION } from './types.ts';

export const KEY_BYTES = 32;
export const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const CIPHER = 'aes-256-gcm';
const TWO_32 = 2 ** 32;
/** No body is shorter than '{}', packed or not. */
const ENCRYPTED_BYTES_MIN = NONCE_BYTES + 2 + TAG_BYTES;

interface Place {
  readonly seq: number;
  readonly session: string;
  readonly kind: EntryKind;
}

/**
 * True if entries of this session and kind are encrypted when they are written. What was done to a session from outside
 * holds nothing of it, and must be readable when it is erased.
 */
export const mustEncrypt = (session: string, kind: EntryKind): boolean =>
  session !== NO_SESSION && ENTRIES[kind].owner !== 'done to a session';

/** True if the body of an entry that was read is encrypted. */
export function isEncrypted({ session, kind, body }: Envelope): boolean {
  return (
    mustEncrypt(session, kind) &&
    typeof (body as { sealed?: unknown }).sealed === 'string' &&
    Object.keys(body as object).length === 1
  );
}

const boundTo = ({ seq, session, kind }: Place): Buffer => Buffer.from(`${seq} ${kind} ${session}`);

/** Everything that encrypting a body needs but the body. */
export interface Encryption {
  readonly key: KeyObject;
  /** 4 bytes. */
  readonly nonceStart: Uint8Array;
  readonly place: Place;
}

/** What stands around the encrypted text in a payload; the last bracket ends the envelope. */
export const ENCRYPTED_HEAD = '{"sealed":"';
export const ENCRYPTED_TAIL = '"}}';

/** More than an encrypted payload takes beyond four thirds of its body. */
export const ENCRYPTED_EXTRA_BYTES = 64;

/** Characters of an encrypted text of so many bytes. */
export const encryptedChars = (bytes: number): number => 4 * Math.ceil((NONCE_BYTES + bytes + TAG_BYTES) / 3);

/** A body as it is encrypted: its text, or its packed form. */
export type Body = string | Uint8Array;

/**
 * The payload of a body in two parts, where it will be encrypted too. Throws 'bad-argument' for one that takes
 * more bytes than an entry may have.
 */
export function payloadParts(
  { seq, session, kind }: Place,
  timeMs: number,
  body: Body,
  isEncrypted: boolean,
): { readonly head: string; readonly body: Body } {
  const head = payloadHead(seq, timeMs, session, kind);
  const bytesMax = PAYLOAD_BYTES_MAX;
  const chars = head.length + body.length;
  if (chars * 4 + ENCRYPTED_EXTRA_BYTES <= bytesMax) return { head, body };
  const bodyBytes = Buffer.byteLength(body);
  const bytes =
    Buffer.byteLength(head) + (isEncrypted ? encryptedChars(bodyBytes) + ENCRYPTED_EXTRA_BYTES : bodyBytes + 1);
  if (bytes <= bytesMax) return { head, body };
  throw new KvError('bad-argument', `an entry of ${chars} characters is over the ${bytesMax} bytes that one may have`, {
    values: { kind, session, length: chars, bytesMax },
  });
}

/** Bytes of a body → its encrypted text. */
export function encryptBytes({ key, nonceStart, place }: Encryption, bytes: Uint8Array): string {
  const nonce = Buffer.allocUnsafe(NONCE_BYTES);
  nonce.set(nonceStart);
  nonce.writeUInt32BE(Math.floor(place.seq / TWO_32), 4);
  nonce.writeUInt32BE(place.seq % TWO_32, 8);
  const cipher = createCipheriv(CIPHER, key, nonce).setAAD(boundTo(place));
  return Buffer.concat([nonce, cipher.update(bytes), cipher.final(), cipher.getAuthTag()]).toString('base64');
}

/**
 * The body of an encrypted entry; null without a key, when only its form is checked. Throws 'bad-log' for what was not
 * encrypted so.
 */
export function openText(key: KeyObject | null, { seq, session, kind, body }: Envelope): unknown {
  const { sealed } = body as { readonly sealed: string };
  const bytes = Buffer.from(sealed, 'base64');
  if (bytes.length < ENCRYPTED_BYTES_MIN || bytes.toString('base64') !== sealed)
    throw new KvError('bad-log', `the ${kind} entry has no encrypted body`, { values: { kind } });
  if (key === null) return null;
  const plain = opened(key, boundTo({ seq, session, kind }), bytes);
  const value = plain?.[0] === PACKED_MARK ? unpackBody(plain) : textBody(plain);
  if (typeof value !== 'object' || value === null)
    throw new KvError(
      'bad-log',
      `the ${kind} entry was not encrypted with the key of its session, or not in this place`,
      {
        values: { kind, session },
      },
    );
  return value;
}

/** What a body's text says; undefined: it is none, or not spelled as the log spells it. */
function textBody(bytes: Buffer | null): unknown {
  const text = bytes?.toString('utf8');
  const value = text === undefined ? undefined : jsonOf(text);
  if (typeof value !== 'object' || value === null) return undefined;
  return text === (isInOrder(value) ? JSON.stringify(value) : canonicalJson(value)) ? value : undefined;
}

/** Bytes bound to a name → base64. */
export function encryptBox(key: KeyObject, nonce: Uint8Array, name: string, bytes: Uint8Array): string {
  const cipher = createCipheriv(CIPHER, key, nonce).setAAD(Buffer.from(name));
  return Buffer.concat([nonce, cipher.update(bytes), cipher.final(), cipher.getAuthTag()]).toString('base64');
}

/** What `encryptBox` encrypted; null where key or name are others. */
export const openBox = (key: KeyObject, name: string, box: string): Uint8Array | null =>
  opened(key, Buffer.from(name), Buffer.from(box, 'base64'));

function opened(key: KeyObject, bound: Uint8Array, bytes: Uint8Array): Buffer | null {
  if (bytes.length < NONCE_BYTES + TAG_BYTES) return null;
  const end = bytes.length - TAG_BYTES;
  const decipher = createDecipheriv(CIPHER, key, bytes.subarray(0, NONCE_BYTES), { authTagLength: TAG_BYTES });
  decipher.setAAD(bound).setAuthTag(bytes.subarray(end));
  try {
    return Buffer.concat([decipher.update(bytes.subarray(NONCE_BYTES, end)), decipher.final()]);
  } catch {
    return null;
  }
}
