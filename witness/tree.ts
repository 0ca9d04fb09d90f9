/**
 * The Merkle tree over the entries of a series, as RFC 6962 §2.1 defines it for certificates, so that its roots and
 * proofs can be checked with the tools that exist for them. A leaf is the payload of an entry, as it is stored. Of the
 * tree only its frontier is kept: the roots of the full subtrees that the leaves so far make, largest first, one for
 * each 1 in the binary number of leaves. That is all that is needed to add leaves, and to say what the root is.
 */
import { HASH_BYTES, sha256 } from './chain.ts';

const LEAF_BYTE = 0x00;
const NODE_BYTE = 0x01;

const node = Buffer.alloc(1 + 2 * HASH_BYTES, NODE_BYTE);

/** SHA-256(0x00 ‖ payload). */
export function leafHash(payload: Uint8Array): Buffer {
  const message = Buffer.allocUnsafe(1 + payload.length);
  message[0] = LEAF_BYTE;
  message.set(payload, 1);
  return sha256(message);
}

/** SHA-256(0x01 ‖ left ‖ right). */
export function nodeHash(left: Uint8Array, right: Uint8Array): Buffer {
  node.set(left, 1);
  node.set(right, 1 + HASH_BYTES);
  return sha256(node);
}

/** Ones in the binary number of leaves: hashes that a frontier has. */
export function peakCount(leaves: number): number {
  let count = 0;
  for (let rest = leaves; rest > 0; rest = Math.floor(rest / 2)) count += rest % 2;
  return count;
}

export class Frontier {
  #leaves: number;
  readonly #peaks: Uint8Array[];

  /** `peaks`: largest first, `peakCount(leaves)` of them. */
  constructor(leaves = 0, peaks: readonly Uint8Array[] = []) {
    this.#leaves = leaves;
    this.#peaks = [...peaks];
  }

  get leaves(): number {
    return this.#leaves;
  }

  get peaks(): readonly Uint8Array[] {
    return this.#peaks;
  }

  copy(): Frontier {
    return new Frontier(this.#leaves, this.#peaks);
  }

  /** Becomes that over other leaves. */
  set(leaves: number, peaks: readonly Uint8Array[]): void {
    this.#leaves = leaves;
    this.#peaks.splice(0, this.#peaks.length, ...peaks);
  }

  /** Adds the leaf with this hash. */
  add(leaf: Uint8Array): void {
    let hash = leaf;
    // Two full subtrees of one size become one of twice the size, as in a binary number a carry runs over the ones at
    // its end.
    for (let rest = this.#leaves; rest % 2 === 1; rest = Math.floor(rest / 2))
      hash = nodeHash(this.#peaks.pop() as Uint8Array, hash);
    this.#peaks.push(hash);
    this.#leaves++;
  }

  /** Root of the tree; of an empty one SHA-256 of nothing. */
  root(): Uint8Array {
    if (this.#leaves === 0) return sha256(Buffer.alloc(0));
    return this.#peaks.reduceRight((right, left) => nodeHash(left, right));
  }

  equals(other: { readonly leaves: number; readonly peaks: readonly Uint8Array[] }): boolean {
    return (
      this.#leaves === other.leaves &&
      this.#peaks.length === other.peaks.length &&
      this.#peaks.every((peak, index) => Buffer.compare(peak, other.peaks[index] as Uint8Array) === 0)
    );
  }
}
