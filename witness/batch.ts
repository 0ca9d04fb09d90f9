/** Entries that wait together for one write and one fsync: consecutive bytes of one segment. */
import { assert, chainEntries, encryptBodies, type SpellPlan, spellEntry } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { chainState, stateHash, stateTree } from './chain-state.ts';
import {
  type Body,
  ENCRYPTED_EXTRA_BYTES,
  ENCRYPTED_HEAD,
  ENCRYPTED_TAIL,
  type Encryption,
  encryptBytes,
  encryptedChars,
} from './encryption.ts';
import { chained, ENTRY_EXTRA_BYTES, ENTRY_HEAD_BYTES, entryCrc } from './entry.ts';
import { KeyRing } from './ring.ts';
import { encodeHeader, FORMAT_VERSION, type SegmentHeader, segmentHash } from './segment.ts';
import type { Frontier } from './tree.ts';
import type { Trouble } from './trouble.ts';

const FIRST_BYTES = 16 * 1024;
/** Memory of a batch that is kept for the next one; a larger one is rare. */
const SPARE_BYTES_MAX = 4 << 20;

/** Where a series stands after an entry: what the next one builds on. */
export interface ChainEnd {
  readonly nextSeq: number;
  readonly headHash: Uint8Array;
  readonly tree: Frontier;
}

interface PlainBody {
  readonly start: number;
  readonly at: number;
  readonly bytes: number;
  readonly encryption: Encryption;
}

export class Batch {
  readonly segment: number;
  /** Where its bytes go in the segment file. */
  readonly position: number;
  /** State after the entry before this batch: the chain continues from here if the batch is given up. */
  readonly before: ChainEnd;
  /** Entries that somebody will miss, by session. */
  readonly sessions = new Map<string, number>();
  /** The bytes begin with the header of a file that does not exist yet: so many bytes of it. */
  readonly headerBytes: number;
  /** What its note tells; it must be told otherwise if the batch is given up. */
  tells: Trouble | null = null;
  length = 0;
  entries = 0;
  lastSeq = -1;
  /** Time of its last entry. */
  lastMs = 0;
  done = false;
  #bytes: Buffer;
  /** The entries before this byte have their checksums and hashes. */
  #finished: number;
  #finishedEntries = 0;
  /**
   * Bodies that lie in the room of their encrypted text, still to be read: where the payload begins, where the body,
   * how many bytes.
   */
  readonly #plain: PlainBody[] = [];
  #end: ChainEnd;

  /** `header`: the batch begins a segment with it. `spare`: memory of a batch that is on disk. */
  constructor(
    segment: number,
    position: number,
    before: ChainEnd,
    header: SegmentHeader | null = null,
    spare: Buffer | null = null,
  ) {
    this.#bytes = spare ?? Buffer.allocUnsafe(FIRST_BYTES);
    assert(header === null || position === 0, `header at byte ${position} of segment ${segment}`);
    this.before = before;
    this.segment = segment;
    this.position = position;
    const bytes = header === null ? Buffer.alloc(0) : encodeHeader(header);
    this.headerBytes = bytes.length;
    this.#bytes.set(bytes);
    this.length = bytes.length;
    this.#finished = bytes.length;
    this.#end = header === null ? before : { ...before, headHash: segmentHash(header) };
  }

  get isFirst(): boolean {
    return this.headerBytes > 0;
  }

  get bytes(): Buffer {
    assert(this.#plain.length === 0, `${this.#plain.length} bodies of a batch are not encrypted`);
    return this.#bytes.subarray(0, this.length);
  }

  /** Its memory, for another batch, once nobody reads it any more; null: it is too large to be kept. */
  giveUpMemory(): Buffer | null {
    const bytes = this.#bytes;
    this.#bytes = Buffer.alloc(0);
    this.length = 0;
    return bytes.length <= SPARE_BYTES_MAX ? bytes : null;
  }

  get end(): number {
    return this.position + this.length;
  }

  /**
   * Lays out length and payload. The rest follows in `finish`, because the chain and the tree need not be computed
   * while the caller waits.
   */
  add(seq: number, payload: string, timeMs = 0): void {
    // UTF-8 takes at most three bytes per UTF-16 unit.
    this.#reserve(payload.length * 3 + ENTRY_EXTRA_BYTES);
    const start = this.length + ENTRY_HEAD_BYTES;
    const bytes = this.#bytes.write(payload, start, 'utf8');
    this.#take(seq, bytes, timeMs);
  }

  /** The payload of so many bytes that was laid out behind the others. */
  #take(seq: number, bytes: number, timeMs: number): void {
    this.#bytes.writeUInt32LE(bytes, this.length);
    this.length += bytes + ENTRY_EXTRA_BYTES;
    this.entries++;
    this.lastSeq = seq;
    this.lastMs = timeMs;
  }

  /**
   * The same by the binary, which spells the entry of a plan of at most `bytesMax` bytes. → false: it does not, and
   * nothing was added
   */
  addPlanned(seq: number, plan: SpellPlan, bytesMax: number, timeMs: number): boolean {
    this.#reserve(bytesMax + ENTRY_EXTRA_BYTES);
    const start = this.length + ENTRY_HEAD_BYTES;
    if (!spellEntry(this.#bytes, start, plan)) return false;
    const [payloadBytes] = plan.numbers as unknown as readonly [number];
    this.#take(seq, payloadBytes, timeMs);
    return true;
  }

  /** The same of a payload in two parts. `encryption` null: as it is. */
  addParts(seq: number, head: string, body: Body, encryption: Encryption | null, timeMs: number): void {
    if (encryption === null) this.add(seq, `${head}${body}}`, timeMs);
    else this.addEncrypted(seq, head, body, encryption, timeMs);
  }

  /**
   * The same for a body that is to be encrypted: it lies where its encrypted text will stand, whose length is known.
   * `head`: what stands before it.
   */
  addEncrypted(seq: number, head: string, body: Body, encryption: Encryption, timeMs: number): void {
    this.#reserve((head.length + body.length) * 4 + ENCRYPTED_EXTRA_BYTES + ENTRY_EXTRA_BYTES);
    const start = this.length + ENTRY_HEAD_BYTES;
    const at = start + this.#bytes.write(`${head}${ENCRYPTED_HEAD}`, start, 'utf8');
    const bytes = typeof body === 'string' ? this.#bytes.write(body, at, 'utf8') : body.length;
    if (typeof body !== 'string') this.#bytes.set(body, at);
    const end = at + encryptedChars(bytes);
    const payloadEnd = end + this.#bytes.write(ENCRYPTED_TAIL, end, 'latin1');
    this.#plain.push({ start, at, bytes, encryption });
    this.#take(seq, payloadEnd - start, timeMs);
  }

  /**
   * Encrypts what is to be encrypted, and computes checksums, chain and tree of the entries that have none yet. → the
   * state after the last one
   */
  finish(): ChainEnd {
    if (this.#finished === this.length) return this.#end;
    this.#encryptBodies(this.#plain.splice(0));
    this.#end = this.#chained();
    this.#finished = this.length;
    return this.#end;
  }

  /** By the binary, in one call; one by one where it does not. */
  #encryptBodies(plain: readonly PlainBody[]): void {
    const [first] = plain;
    if (first === undefined) return;
    const ring = new KeyRing();
    for (const { encryption } of plain) ring.set(encryption.place.session, encryption.key);
    const bodies = Uint32Array.from(plain.flatMap(({ start, at, bytes }) => [start, at, bytes]));
    const done = encryptBodies(this.#bytes, bodies, ring.bytes, first.encryption.nonceStart);
    ring.wipe();
    for (const [index, { at, bytes, encryption }] of plain.entries())
      if (done[index] !== 1)
        this.#bytes.write(encryptBytes(encryption, this.#bytes.subarray(at, at + bytes)), at, 'latin1');
  }

  /** Checksums, chain and tree by the binary, in one call; or here, where none runs. */
  #chained(): ChainEnd {
    const state = chainState(this.#end.headHash, this.#end.tree);
    if (chainEntries(this.#bytes, this.#finished, this.length, state)) {
      const nextSeq = this.#end.nextSeq + this.entries - this.#finishedEntries;
      this.#finishedEntries = this.entries;
      return { nextSeq, headHash: stateHash(state), tree: stateTree(state) };
    }
    let { nextSeq, headHash } = this.#end;
    const tree = this.#end.tree.copy();
    for (let at = this.#finished; at < this.length; nextSeq++) {
      const start = at + ENTRY_HEAD_BYTES;
      const end = start + this.#bytes.readUInt32LE(at);
      const payload = this.#bytes.subarray(start, end);
      this.#bytes.writeUInt32LE(entryCrc(FORMAT_VERSION, this.#bytes.subarray(at, at + 4), payload), at + 4);
      const { hash, leaf } = chained(FORMAT_VERSION, headHash, nextSeq, payload);
      tree.add(leaf as Buffer);
      this.#bytes.set(hash, end);
      headHash = hash;
      at = end + HASH_BYTES;
    }
    return { nextSeq, headHash, tree };
  }

  #reserve(bytes: number): void {
    if (this.length + bytes <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.#bytes.length * 2, this.length + bytes));
    this.#bytes.copy(larger, 0, 0, this.length);
    this.#bytes = larger;
  }
}
