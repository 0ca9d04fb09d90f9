// Runs of entries, followed by the binary: what it says of the first few is what it says of a log that ends there, with
// a tree or without, and a run that is no run is nobody's to follow.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { HASH_BYTES } from '../../../witness/chain.ts';
import { ENTRY_HEAD_BYTES } from '../../../witness/entry.ts';
import { openWitnessLog } from '../../../witness/index.ts';
import { offsetIn, payloadIn, type Run, RunReader, type RunStart, stateWithin } from '../../../witness/run.ts';
import { decodeHeader, headerBytes, type SegmentHeader, segmentHash } from '../../../witness/segment.ts';
import { Frontier, leafHash } from '../../../witness/tree.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();
const ENTRIES = 12;

let segment: Buffer;
beforeAll(async () => {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  await fill(log, ENTRIES);
  await log.close();
  segment = readFileSync(join(dir, '00000000.wal'));
});

/** The entries of a small log as one run, and what stands before them. */
function followed(withTree: boolean, withHashes: boolean, most: number): { run: Run; bytes: Buffer } {
  const header = decodeHeader(segment) as SegmentHeader;
  const offset = headerBytes(2, 0);
  const bytes = segment.subarray(offset);
  const tree = withTree ? new Frontier() : null;
  const start: RunStart = { seq: 0, hash: segmentHash(header), tree };
  const before: RunStart = { ...start, tree: tree?.copy() ?? null };
  const found = new RunReader(null, withHashes).follow(bytes, header.version, start, most);
  if (found === null) throw new Error('there is no binary');
  const run: Run = {
    ...found,
    ...{ segment: '00000000.wal', logId: header.logId, header, offset, seq: 0, before, tree },
  };
  return { run, bytes };
}

describe.each([true, false])('with a tree: %s', (withTree) => {
  it('has after its first entries the state of a log that ends there', () => {
    const { run, bytes } = followed(withTree, true, ENTRIES);
    expect(run.count).toBe(ENTRIES);
    const tree = new Frontier();
    for (let count = 0; count <= ENTRIES; count++) {
      const end = count === 0 ? 0 : run.ends[count - 1]!;
      const hash = count === 0 ? run.before.hash : bytes.subarray(end - HASH_BYTES, end);
      const within = stateWithin(run, count);
      expect(Buffer.compare(within.hash, hash), `${count} entries`).toBe(0);
      expect(within.tree?.equals(tree) ?? null).toBe(withTree ? true : null);
      if (count === ENTRIES) break;
      expect(offsetIn(run, count)).toBe(run.offset + end);
      const payload = bytes.subarray(end + ENTRY_HEAD_BYTES, run.ends[count]! - HASH_BYTES);
      expect(payloadIn(run, count)).toEqual(payload);
      tree.add(leafHash(payload));
    }
    // It began where it began: asking changed nothing.
    if (withTree) expect(run.before.tree!.equals(new Frontier())).toBe(true);
  });
});

it('is as long as asked, and has hashes where they were asked for', () => {
  const [whole, few, bare] = [followed(true, true, 1 << 20), followed(true, true, 3), followed(true, false, 3)];
  expect([whole.run.count, few.run.count, bare.run.count]).toEqual([ENTRIES, 3, 3]);
  expect(few.run.hashes).toHaveLength(3 * 2 * HASH_BYTES);
  expect(few.run.hashes).toEqual(whole.run.hashes!.subarray(0, 3 * 2 * HASH_BYTES));
  expect(bare.run.hashes).toBeNull();
  expect([few.run.bytes.length, bare.run.bytes]).toEqual([few.run.ends[2], few.run.bytes]);
});

it('is none where nothing was asked for, and where the first entry is not whole, not right, or of an old format', () => {
  const { run, bytes } = followed(false, false, 1);
  const follow = (content: Buffer, version: number, most: number) =>
    new RunReader(null, false).follow(content, version, { ...run.before, tree: null }, most);
  expect(follow(bytes, 2, 1)?.count).toBe(1);
  expect(follow(bytes, 2, 0)).toBeNull();
  expect(follow(bytes, 1, 1)).toBeNull();
  expect(follow(bytes.subarray(0, run.ends[0]! - 1), 2, 1)).toBeNull();
  expect(follow(bytes.subarray(0, 10), 2, 1)).toBeNull();
  const changed = Buffer.from(bytes);
  changed[20]! ^= 1;
  expect(follow(changed, 2, 1)).toBeNull();
});
