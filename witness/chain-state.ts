/** Chain and tree after an entry as the bytes in which the binary reads and writes them (native/log/entries.h). */
import { CHAIN_STATE_BYTES } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { Frontier, peakCount } from './tree.ts';

const PEAKS_OFFSET = HASH_BYTES + 8;

/** `tree` null: only the chain is followed. */
export function chainState(hash: Uint8Array, tree: Frontier | null): Buffer {
  if (tree === null) return Buffer.from(hash);
  const bytes = Buffer.alloc(CHAIN_STATE_BYTES);
  bytes.set(hash);
  bytes.writeBigUInt64LE(BigInt(tree.leaves), HASH_BYTES);
  for (const [index, peak] of tree.peaks.entries()) bytes.set(peak, PEAKS_OFFSET + index * HASH_BYTES);
  return bytes;
}

/** Chain hash of a state. */
export const stateHash = (state: Buffer): Buffer => Buffer.from(state.subarray(0, HASH_BYTES));

/** Tree of a state that has one. */
export function stateTree(state: Buffer): Frontier {
  const leaves = Number(state.readBigUInt64LE(HASH_BYTES));
  const peaks = Array.from({ length: peakCount(leaves) }, (_, index) =>
    Buffer.from(state.subarray(PEAKS_OFFSET + index * HASH_BYTES, PEAKS_OFFSET + (index + 1) * HASH_BYTES)),
  );
  return new Frontier(leaves, peaks);
}
