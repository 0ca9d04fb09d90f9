/**
 * Whether the chunks of a file are what they were when they were first read. Of each chunk a tag is kept: GMAC under a
 * key that this process has drawn and tells nobody, so that whoever writes to the file cannot find other bytes with the
 * same tag. It takes a fraction of the time of SHA-256, and rows of an embedding are read at every step.
 */
import { randomBytes } from 'node:crypto';
import { TAG_BYTES, TAG_KEY_BYTES, tagChunks } from '../../native/index.ts';

/** A row of an embedding has some kilobytes; the tags of a file take 1/1,024 of its bytes. */
export const CHUNK_BYTES = 2 ** 14;
const TAG_WORDS = TAG_BYTES / 4;
/** Chunks whose tags lie in one buffer, which is made when the first of them is read. */
const GROUP_CHUNKS = 4096;

export class SameBytes {
  readonly #key = new Uint8Array(randomBytes(TAG_KEY_BYTES));
  readonly #groups = new Map<number, Uint32Array>();
  #tags = new Uint8Array(0);

  /**
   * Which of these chunks, from number `index` on, does not have the bytes that it had when it was first asked about;
   * null if all have. The last one may be shorter.
   */
  firstOther(index: number, chunks: Uint8Array): number | null {
    const count = Math.ceil(chunks.length / CHUNK_BYTES);
    if (this.#tags.length < count * TAG_BYTES) this.#tags = new Uint8Array(count * TAG_BYTES);
    tagChunks(this.#key, chunks, CHUNK_BYTES, this.#tags.subarray(0, count * TAG_BYTES));
    const tags = new Uint32Array(this.#tags.buffer, 0, count * TAG_WORDS);
    for (let chunk = 0; chunk < count; chunk++)
      if (!this.#isAsKnown(index + chunk, tags.subarray(chunk * TAG_WORDS, (chunk + 1) * TAG_WORDS)))
        return index + chunk;
    return null;
  }

  #isAsKnown(index: number, tag: Uint32Array): boolean {
    const group = Math.floor(index / GROUP_CHUNKS);
    let known = this.#groups.get(group);
    if (known === undefined) {
      known = new Uint32Array(GROUP_CHUNKS * TAG_WORDS);
      this.#groups.set(group, known);
    }
    const at = (index - group * GROUP_CHUNKS) * TAG_WORDS;
    let [isNew, isSame] = [true, true];
    for (let word = 0; word < TAG_WORDS; word++) {
      isNew &&= known[at + word] === 0;
      isSame &&= known[at + word] === tag[word];
    }
    // A tag of zeros, which stands for none, is as likely as to guess the key.
    if (isNew) known.set(tag, at);
    return isNew || isSame;
  }
}
