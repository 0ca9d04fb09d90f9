/**
 * Whether the chunks of a file are what they were when they were first read. Of each chunk a tag is kept: GMAC under a
 * key that this process has drawn and tells nobody, so that whoever writes to the file cannot find other bytes with the
 * same tag. It takes a fraction of the time of SHA-256 (measured: 5.8 against 14 µs for 16 KiB), and rows of an
 * embedding are read at every step.
 */
import { createCipheriv, randomBytes } from 'node:crypto';

/** A row of an embedding has some kilobytes; the tags of a file take 1/1,024 of its bytes. */
export const CHUNK_BYTES = 2 ** 14;
const TAG_BYTES = 16;
/** Chunks whose tags lie in one buffer, which is made when the first of them is read. */
const GROUP_CHUNKS = 4096;

/** Nothing is encrypted, and no tag leaves the process: one nonce serves for all. */
const NONCE = new Uint8Array(12);

export class SameBytes {
  readonly #key = randomBytes(16);
  readonly #groups = new Map<number, Uint8Array>();

  /** True if this chunk was not asked about before, or has the bytes that it had then. */
  are(index: number, chunk: Uint8Array): boolean {
    const group = Math.floor(index / GROUP_CHUNKS);
    let tags = this.#groups.get(group);
    if (tags === undefined) {
      tags = new Uint8Array(GROUP_CHUNKS * TAG_BYTES);
      this.#groups.set(group, tags);
    }
    const at = (index - group * GROUP_CHUNKS) * TAG_BYTES;
    const known = tags.subarray(at, at + TAG_BYTES);
    const tag = this.#tagOf(chunk);
    // A tag of zeros, which stands for none, is as likely as to guess the key.
    if (known.every((byte) => byte === 0)) {
      known.set(tag);
      return true;
    }
    return tag.equals(known);
  }

  #tagOf(chunk: Uint8Array): Buffer {
    const mac = createCipheriv('aes-128-gcm', this.#key, NONCE).setAAD(chunk);
    mac.final();
    return mac.getAuthTag();
  }
}
