/** What the system keeps of files that were read, and whether they are read again as they were. */
import { createCipheriv } from 'node:crypto';
import { integer } from './arguments.ts';
import { check, codeOf, loadBinary } from './load.ts';

/**
 * Tells the system that bytes of an open file need not stay in its cache. They can still be read, from the disk.
 * Answers whether the system takes such advice; Linux does. Throws 'bad-argument' for a descriptor that is not that of
 * an open file.
 */
export function forgetFileBytes(fd: number, offset: number, bytes: number): boolean {
  integer(fd, 'fd', 0, 2 ** 30);
  integer(offset, 'offset', 0, 2 ** 52);
  integer(bytes, 'bytes', 0, 2 ** 52);
  const status = loadBinary().forgetFileBytes(fd, offset, bytes);
  if (codeOf(status) === 'unsupported') return false;
  check(status, 'give back the cached bytes of a file', { fd, offset, bytes });
  return true;
}

/** Bytes of the key of tags. */
export const TAG_KEY_BYTES = 32;
/** Bytes of a tag. */
export const TAG_BYTES = 16;
/** Nothing is encrypted, and no tag leaves the process: one nonce serves for all. */
const NONCE = new Uint8Array(12);

/**
 * Writes a tag of each chunk of bytes to `tags`: its GMAC under the key, without which nobody finds other bytes with
 * the same tag. The last chunk may be shorter. By the OpenSSL of the process, without an object of node:crypto for each
 * chunk, where there is one.
 */
export function tagChunks(key: Uint8Array, bytes: Uint8Array, chunkBytes: number, tags: Uint8Array): void {
  const status = loadBinary().tagChunks(key, bytes, chunkBytes, tags);
  if (codeOf(status) !== 'unsupported') {
    check(status, 'tag chunks of a file', { chunkBytes, bytes: bytes.length, tags: tags.length });
    return;
  }
  for (let from = 0; from < bytes.length; from += chunkBytes) {
    const mac = createCipheriv('aes-256-gcm', key, NONCE).setAAD(bytes.subarray(from, from + chunkBytes));
    mac.final();
    tags.set(mac.getAuthTag(), (from / chunkBytes) * TAG_BYTES);
  }
}
