/**
 * Ed25519 signatures (RFC 8032, from node:crypto) and the files of their keys: PEM as other programs write it, PKCS #8
 * for the private key and SPKI for the public one. A signature says who vouches for a file, and that no byte of its
 * content was changed since. It does not say that the content is good.
 */
import {
  createHash,
  createPrivateKey,
  createPublicKey,
  sign as edSign,
  verify as edVerify,
  generateKeyPairSync,
  type KeyObject,
} from 'node:crypto';
import fs from 'node:fs';
import { KvError, openRegular, readRegular } from '../native/index.ts';

/** A signature as it stands in a file. Both texts are hex in lower case, so they have one spelling. */
export interface Signature {
  readonly algorithm: 'ed25519';
  /** The raw public key, 32 bytes. */
  readonly publicKey: string;
  /** 64 bytes. */
  readonly value: string;
}

/** A public key that somebody trusts. */
export interface TrustedKey {
  readonly publicKey: string;
  /** The file it was read from, for messages. */
  readonly path: string;
}

/** PEM files of Ed25519 have 119 and 113 bytes; comments may stand around them. */
const KEY_BYTES_MAX = 16 * 1024;
const KEY_HINT = 'make a pair of keys with: palimpsest thresholds keygen KEY';

/** What people compare: the first 16 hex digits of the SHA-256 of the raw public key. */
export const keyIdOf = (publicKey: string): string =>
  createHash('sha256').update(Buffer.from(publicKey, 'hex')).digest('hex').slice(0, 16);

const rawOf = (key: KeyObject): string =>
  Buffer.from(
    (key.type === 'private' ? createPublicKey(key) : key).export({ format: 'jwk' }).x as string,
    'base64url',
  ).toString('hex');

const refused = (path: string, what: string, cause?: unknown): KvError =>
  new KvError('bad-signature', `${path} ${what}`, { values: { path }, hint: KEY_HINT, cause });

/**
 * Writes a new pair of keys: the private one to `path`, which only its owner may read, and the public one to
 * `path`.pub. Neither may exist. → the public key. Throws 'bad-argument' where one exists, 'io'.
 */
export function writeKeyPair(path: string): TrustedKey {
  const pair = generateKeyPairSync('ed25519');
  const publicPath = `${path}.pub`;
  writeNew(path, pair.privateKey.export({ type: 'pkcs8', format: 'pem' }), 0o600);
  try {
    writeNew(publicPath, pair.publicKey.export({ type: 'spki', format: 'pem' }), 0o644);
  } catch (error) {
    fs.rmSync(path, { force: true });
    throw error;
  }
  return { publicKey: rawOf(pair.publicKey), path: publicPath };
}

function writeNew(path: string, text: string | Buffer, mode: number): void {
  try {
    fs.writeFileSync(path, text, { flag: 'wx', mode, flush: true });
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    if (code === 'EEXIST')
      throw new KvError('bad-argument', `${path} exists, and a key is never overwritten`, {
        values: { path },
        hint: 'name another file, or remove this one yourself',
        cause,
      });
    // A full disk leaves a part, which is no key, and would stand in the way of the next one.
    fs.rmSync(path, { force: true });
    throw new KvError('io', `cannot write ${path}: ${message}`, { values: { path }, cause });
  }
}

/**
 * Reads a private key. Throws 'not-found', 'io', 'bad-signature' for what is none, or for a file that others may read.
 */
export function readPrivateKey(path: string): KeyObject {
  const { fd } = openRegular(path, { bytesMax: KEY_BYTES_MAX, code: 'bad-signature' });
  const mode = fs.fstatSync(fd).mode & 0o777;
  fs.closeSync(fd);
  if (process.platform !== 'win32' && (mode & 0o077) !== 0)
    throw new KvError('bad-signature', `${path} can be read or written by others (mode ${mode.toString(8)})`, {
      values: { path, mode: mode.toString(8) },
      hint: `chmod 600 ${path}, or a new key if somebody may have read it`,
    });
  const text = readRegular(path, { bytesMax: KEY_BYTES_MAX, code: 'bad-signature' });
  return ofEd25519(path, 'private', () => createPrivateKey({ key: text, format: 'pem' }));
}

/** Reads a public key. Throws 'not-found', 'io', 'bad-signature' for what is none. */
export function readTrustedKey(path: string): TrustedKey {
  const text = readRegular(path, { bytesMax: KEY_BYTES_MAX, code: 'bad-signature' });
  // The library would make the public key of a private one, and nobody would learn that the wrong file is being passed
  // around.
  if (text.includes('PRIVATE KEY'))
    throw new KvError('bad-signature', `${path} is a private key, which stays with its owner`, {
      values: { path },
      hint: `the public key of the pair is what others trust: ${path}.pub`,
    });
  const key = ofEd25519(path, 'public', () => createPublicKey({ key: text, format: 'pem' }));
  return { publicKey: rawOf(key), path };
}

function ofEd25519(path: string, kind: string, read: () => KeyObject): KeyObject {
  let key: KeyObject;
  try {
    key = read();
  } catch (cause) {
    throw refused(path, `is no ${kind} key in PEM`, cause);
  }
  if (key.asymmetricKeyType !== 'ed25519')
    throw refused(path, `is a key for ${key.asymmetricKeyType}, and ed25519 is wanted`);
  return key;
}

export const signBytes = (bytes: Uint8Array, key: KeyObject): Signature => ({
  algorithm: 'ed25519',
  publicKey: rawOf(key),
  value: edSign(null, bytes, key).toString('hex'),
});

/** True if the owner of the key that stands in the signature signed these bytes. */
export function isSignedBy(bytes: Uint8Array, { publicKey, value }: Signature): boolean {
  const x = Buffer.from(publicKey, 'hex').toString('base64url');
  try {
    const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
    return edVerify(null, bytes, key, Buffer.from(value, 'hex'));
  } catch {
    return false; // 32 bytes that are no point of the curve.
  }
}
