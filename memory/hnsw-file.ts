/**
 * The layout of an hnswlib index file, checked from outside. The library itself trusts every count and link in the
 * file and writes out of bounds on a wrong one, so it never sees a file that did not pass here.
 *
 * Header, little-endian: u64 offsetLevel0, maxElements, count, elementBytes, labelOffset, dataOffset · i32 maxLevel ·
 * u32 entryPoint · u64 maxM, maxM0, M · f64 mult · u64 efConstruction; then `count` elements of level 0
 * (u32 link count and maxM0 links, dim float32, u64 label); then per element u32 bytes of its upper links and those
 * (per level: u32 link count and maxM links).
 */
import { KvError } from '../native/index.ts';

const HEADER_BYTES = 6 * 8 + 4 + 4 + 3 * 8 + 8 + 8;

export interface HnswShape {
  readonly dim: number;
  readonly m: number;
  readonly count: number;
  readonly efConstruction: number;
  /** Most room for vectors that a file of this count may ask for: the library allocates it unasked. */
  readonly capacityMax: number;
}

/** Throws 'bad-index' unless `bytes` is a whole hnswlib file of this shape whose links and labels stay inside. → labels */
export function checkHnswFile(bytes: Uint8Array, shape: HnswShape): number[] {
  const refuse = (what: string, values: Readonly<Record<string, unknown>>): never => {
    throw new KvError('bad-index', `the vector index file is damaged: ${what}`, {
      values,
      hint: 'rebuild it with: palimpsest audit reindex',
    });
  };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < HEADER_BYTES) refuse('shorter than its header', { bytes: bytes.length });
  const u64 = (offset: number): number => Number(view.getBigUint64(offset, true));
  const u32 = (offset: number): number => view.getUint32(offset, true);

  const { dim, m, count, efConstruction, capacityMax } = shape;
  const maxM0 = 2 * m;
  const linkBytes0 = 4 + 4 * maxM0;
  const elementBytes = linkBytes0 + 4 * dim + 8;
  const linkBytes = 4 + 4 * m;
  const expected: [string, number, number][] = [
    ['offsetLevel0', u64(0), 0],
    ['count', u64(16), count],
    ['elementBytes', u64(24), elementBytes],
    ['labelOffset', u64(32), linkBytes0 + 4 * dim],
    ['dataOffset', u64(40), linkBytes0],
    ['maxM', u64(56), m],
    ['maxM0', u64(64), maxM0],
    ['M', u64(72), m],
    ['mult', view.getFloat64(80, true), 1 / Math.log(m)],
    ['efConstruction', u64(88), efConstruction],
  ];
  for (const [name, found, wanted] of expected) {
    if (found !== wanted) refuse(`${name} is ${found}, expected ${wanted}`, { name, found, wanted });
  }
  const maxElements = u64(8);
  if (maxElements < count || maxElements > capacityMax) refuse('room for too few or too many', { maxElements, count });
  const maxLevel = view.getInt32(48, true);
  const entryPoint = u32(52);
  if (count === 0 ? maxLevel !== -1 : maxLevel < 0 || maxLevel > 64 || entryPoint >= count) {
    refuse('no legal entry point', { maxLevel, entryPoint, count });
  }
  if (bytes.length < HEADER_BYTES + count * (elementBytes + 4)) refuse('truncated', { bytes: bytes.length, count });

  const labels: number[] = [];
  const seen = new Set<number>();
  for (let i = 0; i < count; i++) {
    const start = HEADER_BYTES + i * elementBytes;
    // The upper bytes of the first word hold flags (deleted); nothing is deleted here.
    const links = u32(start);
    if (links > maxM0) refuse('too many links', { element: i, links });
    for (let j = 0; j < links; j++) {
      if (u32(start + 4 + 4 * j) >= count) refuse('a link to nowhere', { element: i });
    }
    for (let j = 0; j < dim; j++) {
      if (!Number.isFinite(view.getFloat32(start + linkBytes0 + 4 * j, true)))
        refuse('a number not finite', { element: i });
    }
    const label = u64(start + linkBytes0 + 4 * dim);
    if (label > 2 ** 32 - 1 || seen.has(label)) refuse('a label out of range or twice', { element: i, label });
    seen.add(label);
    labels.push(label);
  }
  // Upper levels: remember how high each element reaches, then check that links on a level lead to elements of that level.
  const levels = new Uint8Array(count);
  const starts = new Float64Array(count);
  let at = HEADER_BYTES + count * elementBytes;
  for (let i = 0; i < count; i++) {
    if (at + 4 > bytes.length) refuse('truncated', { element: i });
    const size = u32(at);
    at += 4;
    if (size % linkBytes !== 0 || size / linkBytes > maxLevel || at + size > bytes.length) {
      refuse('upper links of a wrong size', { element: i, size });
    }
    levels[i] = size / linkBytes;
    starts[i] = at;
    at += size;
  }
  if (at !== bytes.length) refuse('bytes after its end', { at, bytes: bytes.length });
  if (count > 0 && levels[entryPoint] !== maxLevel) refuse('an entry point below the top', { entryPoint });
  for (let i = 0; i < count; i++) {
    for (let level = 1; level <= levels[i]!; level++) {
      const start = starts[i]! + (level - 1) * linkBytes;
      const links = u32(start);
      if (links > m) refuse('too many upper links', { element: i, links });
      for (let j = 0; j < links; j++) {
        const target = u32(start + 4 + 4 * j);
        if (target >= count || levels[target]! < level) refuse('an upper link to nowhere', { element: i, level });
      }
    }
  }
  return labels;
}
