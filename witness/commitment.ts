/**
 * What binds an encrypted entry to the one body that it says: SHA-256(0x04 ‖ salt ‖ body), which stands in front of the
 * ciphertext. Whoever is given salt and body can compare them with the entry, without any key, and nobody finds a
 * second body for it; AES-GCM alone promises neither. The salt is made of the key of the session and the nonce of the
 * entry (HKDF, RFC 5869), so it is not stored, says nothing of other entries, and goes with the key: what is left of an
 * erased session lets nobody try out what a body may have been.
 */
import { createHmac } from 'node:crypto';
import { HASH_BYTES, sha256 } from './chain.ts';

export const COMMITMENT_BYTES = HASH_BYTES;
export const SALT_BYTES = HASH_BYTES;
const COMMITMENT_BYTE = Buffer.of(0x04);
/** What HKDF is told a salt is for, before the nonce. */
const SALT_NAME = Buffer.from('palimpsest salt');
const FIRST_BLOCK = Buffer.of(1);

const hmac = (key: Uint8Array, ...parts: readonly Uint8Array[]): Buffer =>
  createHmac('sha256', key).update(Buffer.concat(parts)).digest();

/** HKDF-Extract of the key of a session, without a salt of its own: all salts of its entries follow from it. */
export const saltKeyOf = (secret: Uint8Array): Buffer => hmac(Buffer.alloc(HASH_BYTES), secret);

/** HKDF-Expand: the salt of the entry with this nonce. */
export const saltOf = (saltKey: Uint8Array, nonce: Uint8Array): Buffer => hmac(saltKey, SALT_NAME, nonce, FIRST_BLOCK);

/** What an entry says beside the ciphertext of a body, given the bytes of the body's text. */
export const commitmentOf = (salt: Uint8Array, body: Uint8Array): Buffer =>
  sha256(Buffer.concat([COMMITMENT_BYTE, salt, body]));
