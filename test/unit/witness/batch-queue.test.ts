// The queue between `append` and the disk, by itself: what waits in it and how many bytes that is, in which order it
// goes, and whose memory is used again.
import { beforeEach, expect, it } from 'vitest';
import { Batch, type ChainEnd } from '../../../witness/batch.ts';
import { BatchQueue } from '../../../witness/batch-queue.ts';
import { NO_KEY, type SegmentHeader } from '../../../witness/segment.ts';
import { Frontier } from '../../../witness/tree.ts';

let queue: BatchQueue;
let seq = 0;
beforeEach(() => {
  seq = 0;
  queue = new BatchQueue(new Batch(0, 200, { nextSeq: 0, headHash: Buffer.alloc(32), tree: new Frontier() }));
});

const add = (): void => queue.open.add(seq, `{"seq":${seq++}}`);
/** Appends one entry and seals it. → the batch that has it */
function sealed(): Batch {
  const batch = queue.open;
  add();
  queue.finish();
  return batch;
}
const header = (number: number, { nextSeq, headHash, tree }: ChainEnd): SegmentHeader => ({
  ...{ version: 2, logId: 'ab'.repeat(16), number, firstSeq: nextSeq, previousHash: headHash, beganMs: 1 },
  ...{ keyId: NO_KEY, firstSegment: 0, leaves: tree.leaves, peaks: tree.peaks },
});
const isSameMemory = (a: Buffer, b: Buffer): boolean => a.buffer === b.buffer && a.byteOffset === b.byteOffset;

it('is empty until something is appended, and seals nothing then', () => {
  const { open } = queue;
  expect([queue.isEmpty, queue.bytes, queue.first, queue.oldestSegment]).toEqual([true, 0, undefined, 0]);
  queue.finish();
  expect(queue.open).toBe(open);
  expect(queue.all()).toEqual([open]);
});

it('counts what waits, sealed or not, and is not empty while anything does', () => {
  add();
  expect([queue.isEmpty, queue.bytes]).toEqual([false, queue.open.length]);
  const first = queue.open;
  const end = queue.finish();
  expect(end.nextSeq).toBe(1);
  expect([queue.isEmpty, queue.bytes, queue.first]).toEqual([false, first.length, first]);
  expect([queue.open.position, queue.open.length]).toEqual([first.end, 0]);
  add();
  expect(queue.bytes).toBe(first.length + queue.open.length);
  expect(queue.all()).toEqual([first, queue.open]);
});

it('goes in order, and takes nothing out of turn', () => {
  const [one, two] = [sealed(), sealed()];
  expect(() => queue.take(two)).toThrow(`batch of segment 0 at ${two.position} finished out of turn`);
  queue.take(one);
  expect([queue.first, queue.bytes]).toEqual([two, two.length]);
  queue.take(two);
  expect([queue.isEmpty, queue.bytes]).toEqual([true, 0]);
});

it('begins segments behind what waits, and leaves no empty batch before them', () => {
  const unused = queue.open;
  queue.beginSegment(header);
  expect(queue.all()).toEqual([queue.open]);
  expect(queue.open).not.toBe(unused);
  expect([queue.oldestSegment, queue.open.segment, queue.open.position]).toEqual([1, 1, 0]);
  add();
  const full = queue.open;
  const made = queue.beginSegment(header);
  expect([made.number, made.firstSeq, made.leaves]).toEqual([2, 1, 1]);
  expect(queue.all()).toEqual([full, queue.open]);
  expect([queue.oldestSegment, queue.open.segment]).toEqual([1, 2]);
  // A header waits to be written, too.
  expect([queue.isEmpty, queue.bytes]).toEqual([false, full.length + queue.open.length]);
});

it('uses the memory of a batch that is on disk once more, and of several that of the first', () => {
  const [one, two] = [sealed(), sealed()];
  const memory = one.bytes;
  for (const batch of [one, two]) {
    queue.take(batch);
    queue.reuse(batch);
  }
  add();
  queue.finish();
  expect(isSameMemory(queue.open.bytes, memory)).toBe(true);
  add();
  queue.finish();
  expect(isSameMemory(queue.open.bytes, memory)).toBe(false);
});

it('gives up all that was sealed, and keeps what was not', () => {
  const [one, two] = [sealed(), sealed()];
  add();
  expect(queue.takeAll()).toEqual([one, two]);
  expect([queue.first, queue.bytes]).toEqual([undefined, queue.open.length]);
});

it('keeps no memory that long entries made large', () => {
  const large = queue.open;
  for (let n = 0; n < 9; n++) queue.open.add(seq++, 'x'.repeat(500_000));
  queue.finish();
  const memory = large.bytes;
  expect(memory.length).toBeGreaterThan(4 << 20);
  queue.take(large);
  queue.reuse(large);
  add();
  queue.finish();
  expect(isSameMemory(queue.open.bytes, memory)).toBe(false);
});
