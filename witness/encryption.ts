/**
 * An encrypted body: AES-256-GCM under the key of its session (NIST SP 800-38D; node:crypto computes it). seq, session
 * and kind are bound to it, so that it opens in its own place only. Nonces are the writer's four random bytes and the
 * seq, which a writer gives once. What is encrypted is the packed form of the body (`pack.ts`) or its text. On disk:
 * {"committed":"<base64 of nonce, commitment, ciphertext and tag>"}, a body like any other to whoever follows the
 * chain. Before format 3 there was no commitment, "sealed" in the place of "committed", and texts alone: such bodies
 * are read, and nothing of them can be disclosed.
 */
import { isUtf8 } from 'node:buffer';
import { createCipheriv, createDecipheriv, type KeyObject } from 'node:crypto';
import { jsonOf, KvError } from '../native/index.ts';
import { canonicalJson, isInOrder } from './canonical.ts';
import { COMMITMENT_BYTES, commitmentOf, saltKeyOf, saltOf } from './commitment.ts';
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
const BODY_BYTES_MIN = 2;

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
  const { committed, sealed } = body as { committed?: unknown; sealed?: unknown };
  return (
    mustEncrypt(session, kind) && typeof (committed ?? sealed) === 'string' && Object.keys(body as object).length === 1
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
export const ENCRYPTED_HEAD = '{"committed":"';
/** The beginning of an encrypted body before format 3. */
export const SEALED_HEAD = '{"sealed":"';
export const ENCRYPTED_TAIL = '"}}';

/** More than an encrypted payload takes beyond four thirds of its body. */
export const ENCRYPTED_EXTRA_BYTES = 128;

/** Characters of an encrypted text of so many bytes. */
export const encryptedChars = (bytes: number): number =>
  4 * Math.ceil((NONCE_BYTES + COMMITMENT_BYTES + bytes + TAG_BYTES) / 3);

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
  const commitment = commitmentOf(saltFor(key, nonce), bytes);
  const cipher = createCipheriv(CIPHER, key, nonce).setAAD(boundTo(place));
  const parts = [nonce, commitment, cipher.update(bytes), cipher.final(), cipher.getAuthTag()];
  return Buffer.concat(parts).toString('base64');
}

const saltFor = (key: KeyObject, nonce: Uint8Array): Buffer => saltOf(saltKeyOf(key.export()), nonce);

/** An encrypted text, taken apart. */
interface EncryptedText {
  readonly nonce: Buffer;
  /** null: it is of before format 3. */
  readonly commitment: Buffer | null;
  /** With the tag behind it. */
  readonly ciphertext: Buffer;
}

/** null: it is no encrypted text. */
function partsOf({ body }: Envelope): EncryptedText | null {
  const { committed, sealed } = body as { readonly committed?: string; readonly sealed: string };
  const text = committed ?? sealed;
  const bodyAt = NONCE_BYTES + (committed === undefined ? 0 : COMMITMENT_BYTES);
  const bytes = Buffer.from(text, 'base64');
  if (bytes.length < bodyAt + BODY_BYTES_MIN + TAG_BYTES || bytes.toString('base64') !== text) return null;
  const commitment = committed === undefined ? null : bytes.subarray(NONCE_BYTES, bodyAt);
  return { nonce: bytes.subarray(0, NONCE_BYTES), commitment, ciphertext: bytes.subarray(bodyAt) };
}

function noText({ kind }: Envelope): never {
  throw new KvError('bad-log', `the ${kind} entry has no encrypted body`, { values: { kind } });
}

/** What was encrypted says, where it is the one form of an object, packed or as text; undefined: it is not. */
export function bodyOf(bytes: Buffer): object | undefined {
  const value = bytes[0] === PACKED_MARK ? unpackBody(bytes) : textBody(bytes);
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined;
}

function textBody(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) return undefined;
  const text = bytes.toString('utf8');
  const value = jsonOf(text);
  return typeof value === 'object' && value !== null && isOnlySpelling(text, value) ? value : undefined;
}

function isOnlySpelling(text: string, value: object): boolean {
  if (isInOrder(value)) return text === JSON.stringify(value);
  try {
    return text === canonicalJson(value);
  } catch {
    // No writer spells what is nested so deep.
    return false;
  }
}

/**
 * The body of an encrypted entry; null without a key, when only its form is checked. Throws 'bad-log' for what was not
 * encrypted so, or does not say what it committed to.
 */
export function openText(key: KeyObject | null, envelope: Envelope): unknown {
  const parts = partsOf(envelope) ?? noText(envelope);
  return key === null ? null : (bodyOf(plainBytes(key, envelope, parts)) ?? notOurs(envelope));
}

function plainBytes(key: KeyObject, envelope: Envelope, { nonce, commitment, ciphertext }: EncryptedText): Buffer {
  const bytes = opened(key, boundTo(envelope), nonce, ciphertext) ?? notOurs(envelope);
  const { kind, session } = envelope;
  if (commitment !== null && !commitmentOf(saltFor(key, nonce), bytes).equals(commitment))
    throw new KvError('bad-log', `the ${kind} entry says another body than it committed to`, {
      values: { kind, session },
    });
  return bytes;
}

function notOurs({ kind, session }: Envelope): never {
  throw new KvError(
    'bad-log',
    `the ${kind} entry was not encrypted with the key of its session, or not in this place`,
    { values: { kind, session } },
  );
}

/** What shows somebody without a key what an encrypted entry says. */
export interface Disclosure {
  /** Base64 of the 32 bytes that the commitment of this entry was made with, and of no other. */
  readonly salt: string;
  /** Base64 of the body as it was encrypted: packed, or its text. */
  readonly body: string;
}

/** Discloses one encrypted entry. Throws 'unsupported' where it commits to nothing, and what `openText` throws. */
export function disclose(key: KeyObject, envelope: Envelope): Disclosure {
  const parts = partsOf(envelope) ?? noText(envelope);
  const { kind, session } = envelope;
  if (parts.commitment === null)
    throw new KvError(
      'unsupported',
      `the ${kind} entry cannot be disclosed: formats of the log before 3 commit to no body`,
      {
        values: { kind, session },
        hint: 'prove it without --disclose; entries that are written from now on can be disclosed',
      },
    );
  const body = plainBytes(key, envelope, parts);
  if (bodyOf(body) === undefined) notOurs(envelope);
  return { salt: saltFor(key, parts.nonce).toString('base64'), body: body.toString('base64') };
}

/** True if an encrypted entry committed to this body with this salt. */
export const isDisclosed = (envelope: Envelope, { salt, body }: Disclosure): boolean =>
  partsOf(envelope)?.commitment?.equals(commitmentOf(Buffer.from(salt, 'base64'), Buffer.from(body, 'base64'))) ??
  false;

/** Bytes bound to a name → base64. */
export function encryptBox(key: KeyObject, nonce: Uint8Array, name: string, bytes: Uint8Array): string {
  const cipher = createCipheriv(CIPHER, key, nonce).setAAD(Buffer.from(name));
  return Buffer.concat([nonce, cipher.update(bytes), cipher.final(), cipher.getAuthTag()]).toString('base64');
}

/** What `encryptBox` encrypted; null where key or name are others. */
export function openBox(key: KeyObject, name: string, box: string): Uint8Array | null {
  const bytes = Buffer.from(box, 'base64');
  return opened(key, Buffer.from(name), bytes.subarray(0, NONCE_BYTES), bytes.subarray(NONCE_BYTES));
}

/** `bytes`: what was encrypted, with the tag behind it. */
function opened(key: KeyObject, bound: Uint8Array, nonce: Uint8Array, bytes: Uint8Array): Buffer | null {
  if (bytes.length < TAG_BYTES) return null;
  const end = bytes.length - TAG_BYTES;
  const decipher = createDecipheriv(CIPHER, key, nonce, { authTagLength: TAG_BYTES });
  decipher.setAAD(bound).setAuthTag(bytes.subarray(end));
  try {
    return Buffer.concat([decipher.update(bytes.subarray(0, end)), decipher.final()]);
  } catch {
    return null;
  }
}
