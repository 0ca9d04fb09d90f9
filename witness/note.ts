/**
 * Signed notes (C2SP signed-note): a text, an empty line, and lines that each begin with a dash, name a key and hold
 * its signature. With Ed25519 (RFC 8032) a signature is that of the text, and its line has base64 of a key hash of four
 * bytes and the signature.
 */
import { createPublicKey, type KeyObject } from 'node:crypto';
import { isSignedBy, keyIdOf, readTrustedKey, signBytes, writeKeyPair } from '../memory/index.ts';
import { KvError } from '../native/index.ts';
import { sha256 } from './chain.ts';

/** Name of the keys that are made here: keys that are given as PEM files sign and are trusted under it. */
export const KEY_NAME = 'palimpsest';
/** Type of a signature algorithm: Ed25519. */
const ED25519 = 0x01;
const HASH_BYTES = 4;
const NAME = /^[^\s+]{1,255}$/u;
const DASH = '\u2014';

/** A key whose signatures of notes count. */
export interface VerifierKey {
  /** The name as signature lines have it. */
  readonly name: string;
  /** The raw public key, hex. */
  readonly publicKey: string;
}

const rawOf = (key: VerifierKey): Buffer => Buffer.from(key.publicKey, 'hex');

const keyHash = (key: VerifierKey): Buffer =>
  sha256(Buffer.concat([Buffer.from(`${key.name}\n`), Buffer.of(ED25519), rawOf(key)])).subarray(0, HASH_BYTES);

/** The form in which verifier keys are passed on: name+hash+base64 of the algorithm and the key. */
export const verifierText = (key: VerifierKey): string =>
  `${key.name}+${keyHash(key).toString('hex')}+${Buffer.concat([Buffer.of(ED25519), rawOf(key)]).toString('base64')}`;

/**
 * Writes a new pair of keys for checkpoints: the private one to `path`, which only its owner may read, and the public
 * one to `path`.pub. Neither may exist. → the public one. Throws 'bad-argument' where one exists, 'io'.
 */
export const makeCheckpointKeys = (path: string): VerifierKey => ({
  name: KEY_NAME,
  publicKey: writeKeyPair(path).publicKey,
});

/** The public half of a private key. */
export const verifierOf = (key: KeyObject): VerifierKey => ({
  name: KEY_NAME,
  publicKey: Buffer.from(createPublicKey(key).export({ format: 'jwk' }).x as string, 'base64url').toString('hex'),
});

/** What the header of a segment says of the key: its id, 16 hex digits. */
export const headerKeyId = (key: VerifierKey): string => keyIdOf(key.publicKey);

/**
 * A key that was typed: in the form name+hash+base64, or the path of a PEM file with a public key, which is trusted as
 * 'palimpsest'. Throws 'bad-signature' for what is neither, 'not-found', 'io'.
 */
export function readVerifier(typed: string): VerifierKey {
  const match = /^([^+\s]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)$/.exec(typed.trim());
  if (match === null) return { name: KEY_NAME, publicKey: readTrustedKey(typed).publicKey };
  const [name, hash, base64] = match.slice(1) as [string, string, string];
  const bytes = Buffer.from(base64, 'base64');
  const key = { name, publicKey: bytes.subarray(1).toString('hex') };
  if (bytes.length !== 33 || bytes[0] !== ED25519 || keyHash(key).toString('hex') !== hash)
    throw new KvError('bad-signature', `${typed} is no verifier key of Ed25519, or one of its characters is wrong`, {
      values: { key: typed },
      hint: 'copy what `audit keygen` printed, or name the .pub file',
    });
  return key;
}

/** Text that ends with a line feed → signed note. */
export function signNote(text: string, key: KeyObject): string {
  const verifier = verifierOf(key);
  const signature = Buffer.from(signBytes(Buffer.from(text), key).value, 'hex');
  const blob = Buffer.concat([keyHash(verifier), signature]).toString('base64');
  return `${text}\n${DASH} ${verifier.name} ${blob}\n`;
}

export interface Note {
  /** What was signed: ends with a line feed. */
  readonly text: string;
  readonly signatures: readonly { readonly name: string; readonly bytes: Buffer }[];
}

/** One signed note, to its last byte; null for what is none. */
export function parseNote(bytes: string): Note | null {
  const split = bytes.lastIndexOf('\n\n');
  if (split < 0 || !bytes.endsWith('\n')) return null;
  const signatures: { name: string; bytes: Buffer }[] = [];
  for (const line of bytes.slice(split + 2, -1).split('\n')) {
    const [dash, name = '', base64 = '', ...rest] = line.split(' ');
    const blob = Buffer.from(base64, 'base64');
    const isSound = dash === DASH && NAME.test(name) && rest.length === 0 && blob.toString('base64') === base64;
    if (!isSound || blob.length <= HASH_BYTES) return null;
    signatures.push({ name, bytes: blob });
  }
  return { text: bytes.slice(0, split + 1), signatures };
}

/**
 * The first of the keys that signed the note; null: none. A signature that names one of them and is not its own makes
 * the note worthless.
 */
export function signerOfNote({ text, signatures }: Note, keys: readonly VerifierKey[]): VerifierKey | null {
  let signer: VerifierKey | null = null;
  for (const { name, bytes } of signatures) {
    const key = keys.find((one) => one.name === name && keyHash(one).equals(bytes.subarray(0, HASH_BYTES)));
    if (key === undefined) continue;
    const value = bytes.toString('hex', HASH_BYTES);
    if (!isSignedBy(Buffer.from(text), { algorithm: 'ed25519', publicKey: key.publicKey, value })) return null;
    signer ??= key;
  }
  return signer;
}
