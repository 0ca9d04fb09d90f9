/** What all files of this folder have: a name and a version at the beginning, and SHA-256 of what stands before it. */
import { createHash } from 'node:crypto';
import { KvError } from '../../../native/index.ts';

export const DIGEST_BYTES = 32;
/** The longest head in JSON that is read. */
export const HEAD_BYTES_MAX = 2 ** 24;

export const sha256 = (...parts: readonly Uint8Array[]): Buffer => {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest();
};

/** A kind of file. */
export interface Container {
  /** Eight letters, of which the last two are the version. */
  readonly magic: string;
  /** The noun of the message 'FILE is no …'. */
  readonly noun: string;
  /** What to do with a file of another version. */
  readonly hint: string;
}

/**
 * Throws 'unsupported' for another version, 'bad-file' for what is no such file or has fewer bytes than one has at
 * least.
 */
export function checkContainer(file: Buffer, what: string, { magic, noun, hint }: Container, bytesLeast: number): void {
  const found = file.toString('latin1', 0, magic.length);
  const name = magic.slice(0, -2);
  if (found !== magic && found.startsWith(name))
    throw new KvError('unsupported', `${what} is a ${noun} of another version`, {
      values: { file: what, version: found.slice(name.length), known: magic.slice(name.length) },
      hint,
    });
  if (found !== magic || file.length < bytesLeast)
    throw new KvError('bad-file', `${what} is no ${noun}`, { values: { file: what, bytes: file.length } });
}
