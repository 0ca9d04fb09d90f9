/**
 * Entries that follow each other in a segment, checked together: by the binary in one call where one runs, else one by
 * one.
 */
import { assert, type EntryForms, type FollowedEntries, followEntries } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { chainState, stateHash, stateTree } from './chain-state.ts';
import { ENTRY_EXTRA_BYTES, ENTRY_HEAD_BYTES } from './entry.ts';
import type { SegmentHeader } from './segment.ts';
import type { Frontier } from './tree.ts';

/** Entries of one call. With what a window of a segment holds that is hardly ever the limit. */
const ENTRIES_MAX = 4096;
/** Bytes of a segment that are looked at together: enough that waking a thread takes less time than it saves. */
const THREADED_BYTES = 1 << 20;
const PAIR_BYTES = 2 * HASH_BYTES;

/** Everything here but `segment`, `hash` and `header` is valid until the next step of the walk. */
export interface Run {
  readonly segment: string;
  readonly logId: string;
  /** The header of its segment. */
  readonly header: SegmentHeader;
  /** The offset of the first entry. */
  readonly offset: number;
  readonly seq: number;
  readonly count: number;
  /** The entries as they are stored. */
  readonly bytes: Buffer;
  /** Where each ends in `bytes`. */
  readonly ends: Uint32Array;
  /**
   * For each 1 + the index in FORM_KINDS where envelope, spelling and body are certain, KIND_UNOPENED where envelope
   * and spelling are and nobody has the key, 0 where somebody has to look.
   */
  readonly kinds: Uint8Array;
  /** Leaf and chain hash of each; null: not asked for. */
  readonly hashes: Buffer | null;
  /** What stands before the first one. */
  readonly before: RunStart;
  /** Chain hash and tree after the last one; the tree is null unless it was asked for and is known. */
  readonly hash: Uint8Array;
  readonly tree: Frontier | null;
}

/** Payload of one entry of a run. */
export function payloadIn({ bytes, ends }: Run, index: number): Buffer {
  const start = index === 0 ? 0 : (ends[index - 1] as number);
  return bytes.subarray(start + ENTRY_HEAD_BYTES, (ends[index] as number) - HASH_BYTES);
}

/** Offset of one entry of a run in its segment. */
export const offsetIn = ({ offset, ends }: Run, index: number): number =>
  index === 0 ? offset : offset + (ends[index - 1] as number);

/** Chain hash and tree after the first entries of a run, which the binary has followed. */
export function stateWithin({ bytes, header, before }: Run, count: number): Pick<RunStart, 'hash' | 'tree'> {
  const tree = before.tree?.copy() ?? null;
  const followed = new RunReader(null, false).follow(bytes, header.version, { ...before, tree }, count);
  assert(count === 0 || followed?.count === count, `${count} entries of a run were followed once, and not again`);
  return { hash: followed?.hash ?? before.hash, tree };
}

/** What stands before entries that are to be followed. */
export interface RunStart {
  readonly seq: number;
  readonly hash: Uint8Array;
  /** Becomes the tree after them. null: not wanted. */
  readonly tree: Frontier | null;
}

/** What of a run the binary says. */
export type Followed = Pick<Run, 'count' | 'bytes' | 'ends' | 'kinds' | 'hashes' | 'hash'>;

export class RunReader {
  readonly #forms: EntryForms | null;
  readonly #withHashes: boolean;
  readonly #threads: number;
  #out: FollowedEntries;

  /** `forms`: kinds are wanted. */
  constructor(forms: EntryForms | null, withHashes: boolean, threads = 1) {
    this.#threads = threads;
    this.#forms = forms;
    this.#withHashes = withHashes;
    this.#out = this.#room();
  }

  #room(): FollowedEntries {
    return {
      ends: new Uint32Array(ENTRIES_MAX),
      kinds: new Uint8Array(ENTRIES_MAX),
      hashes: Buffer.allocUnsafeSlow(this.#withHashes ? ENTRIES_MAX * PAIR_BYTES : 0),
    };
  }

  /** Bytes that it should be given at once; undefined: it does not matter. */
  get windowBytes(): number | undefined {
    return this.#threads > 1 ? THREADED_BYTES : undefined;
  }

  /**
   * Follows entries at the beginning of `bytes`, at most `most`. → null where the first one is not whole, not right, or
   * not for the binary: the caller looks at it.
   */
  follow(bytes: Buffer, version: number, { seq, hash, tree }: RunStart, most: number): Followed | null {
    if (version === 1 || bytes.length < ENTRY_EXTRA_BYTES || most < 1) return null;
    const room = Math.min(most, ENTRIES_MAX);
    const { ends, kinds, hashes } = this.#out;
    const state = chainState(hash, tree);
    const out =
      room === ENTRIES_MAX
        ? this.#out
        : {
            ends: ends.subarray(0, room),
            kinds: kinds.subarray(0, room),
            hashes: hashes.subarray(0, this.#withHashes ? room * PAIR_BYTES : 0),
          };
    const count = followEntries(bytes, state, seq, this.#forms, out, this.#threads);
    if (count === null || count === 0) return null;
    if (tree !== null) {
      const { leaves, peaks } = stateTree(state);
      tree.set(leaves, peaks);
    }
    return {
      ...{ count, ends, kinds, bytes: bytes.subarray(0, ends[count - 1]) },
      hashes: this.#withHashes ? Buffer.from(hashes.buffer, hashes.byteOffset, count * PAIR_BYTES) : null,
      hash: stateHash(state),
    };
  }
}
