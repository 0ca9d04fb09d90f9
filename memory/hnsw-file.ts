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

/** A file that is being checked, and where things lie in it. */
interface Layout extends HnswShape {
  readonly view: DataView;
  /** Links and their count of an element on level 0, on a level above, and all of an element on level 0. */
  readonly linkBytes0: number;
  readonly linkBytes: number;
  readonly elementBytes: number;
  readonly maxLevel: number;
  readonly entryPoint: number;
}

function refuse(what: string, values: Readonly<Record<string, unknown>>): never {
  throw new KvError('bad-index', `the vector index file is damaged: ${what}`, {
    values,
    hint: 'rebuild it with: palimpsest audit reindex',
  });
}

const u64 = (view: DataView, offset: number): number => Number(view.getBigUint64(offset, true));
const u32 = (view: DataView, offset: number): number => view.getUint32(offset, true);

/**
 * Throws 'bad-index' unless `bytes` is a whole hnswlib file of this shape whose links and labels stay inside. → labels
 */
export function checkHnswFile(bytes: Uint8Array, shape: HnswShape): number[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < HEADER_BYTES) refuse('shorter than its header', { bytes: bytes.length });
  const linkBytes0 = 4 + 4 * 2 * shape.m;
  const layout: Layout = {
    ...shape,
    view,
    linkBytes0,
    linkBytes: 4 + 4 * shape.m,
    elementBytes: linkBytes0 + 4 * shape.dim + 8,
    maxLevel: view.getInt32(48, true),
    entryPoint: u32(view, 52),
  };
  checkHeader(layout);
  const labels = checkElements(layout);
  checkUpperLinks(layout, upperLevels(layout));
  return labels;
}

function checkHeader({ view, dim, m, count, efConstruction, capacityMax, ...layout }: Layout): void {
  const { linkBytes0, elementBytes, maxLevel, entryPoint } = layout;
  const expected: [string, number, number][] = [
    ['offsetLevel0', u64(view, 0), 0],
    ['count', u64(view, 16), count],
    ['elementBytes', u64(view, 24), elementBytes],
    ['labelOffset', u64(view, 32), linkBytes0 + 4 * dim],
    ['dataOffset', u64(view, 40), linkBytes0],
    ['maxM', u64(view, 56), m],
    ['maxM0', u64(view, 64), 2 * m],
    ['M', u64(view, 72), m],
    ['mult', view.getFloat64(80, true), 1 / Math.log(m)],
    ['efConstruction', u64(view, 88), efConstruction],
  ];
  for (const [name, found, wanted] of expected) {
    if (found !== wanted) refuse(`${name} is ${found}, expected ${wanted}`, { name, found, wanted });
  }
  const maxElements = u64(view, 8);
  if (maxElements < count || maxElements > capacityMax) refuse('room for too few or too many', { maxElements, count });
  if (count === 0 ? maxLevel !== -1 : maxLevel < 0 || maxLevel > 64 || entryPoint >= count) {
    refuse('no legal entry point', { maxLevel, entryPoint, count });
  }
  const bytes = view.byteLength;
  if (bytes < HEADER_BYTES + count * (elementBytes + 4)) refuse('truncated', { bytes, count });
}

/** The vectors of a file that passed, by their labels. */
export function vectorsIn(bytes: Uint8Array, { dim, m, count }: HnswShape): Map<number, number[]> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const linkBytes = 4 + 4 * 2 * m;
  const elementBytes = linkBytes + 4 * dim + 8;
  return new Map(
    Array.from({ length: count }, (_, element) => {
      const start = HEADER_BYTES + element * elementBytes + linkBytes;
      const vector = Array.from({ length: dim }, (_number, i) => view.getFloat32(start + 4 * i, true));
      return [u64(view, start + 4 * dim), vector] as const;
    }),
  );
}

/** Level 0. → the labels of its elements */
function checkElements({ view, dim, m, count, linkBytes0, elementBytes }: Layout): number[] {
  const seen = new Set<number>();
  for (let i = 0; i < count; i++) {
    const start = HEADER_BYTES + i * elementBytes;
    // The upper bytes of the first word hold flags (deleted); nothing is deleted here.
    const links = u32(view, start);
    if (links > 2 * m) refuse('too many links', { element: i, links });
    for (let j = 0; j < links; j++) {
      if (u32(view, start + 4 + 4 * j) >= count) refuse('a link to nowhere', { element: i });
    }
    for (let j = 0; j < dim; j++) {
      if (!Number.isFinite(view.getFloat32(start + linkBytes0 + 4 * j, true)))
        refuse('a number not finite', { element: i });
    }
    const label = u64(view, start + linkBytes0 + 4 * dim);
    if (label > 2 ** 32 - 1 || seen.has(label)) refuse('a label out of range or twice', { element: i, label });
    seen.add(label);
  }
  return [...seen];
}

/** How high each element reaches above level 0, and where its upper links begin. */
interface Upper {
  readonly levels: Uint8Array;
  readonly starts: Float64Array;
}

function upperLevels({ view, count, elementBytes, linkBytes, maxLevel, entryPoint }: Layout): Upper {
  const bytes = view.byteLength;
  const levels = new Uint8Array(count);
  const starts = new Float64Array(count);
  let at = HEADER_BYTES + count * elementBytes;
  for (let i = 0; i < count; i++) {
    if (at + 4 > bytes) refuse('truncated', { element: i });
    const size = u32(view, at);
    at += 4;
    if (size % linkBytes !== 0 || size / linkBytes > maxLevel || at + size > bytes) {
      refuse('upper links of a wrong size', { element: i, size });
    }
    levels[i] = size / linkBytes;
    starts[i] = at;
    at += size;
  }
  if (at !== bytes) refuse('bytes after its end', { at, bytes });
  if (count > 0 && levels[entryPoint] !== maxLevel) refuse('an entry point below the top', { entryPoint });
  return { levels, starts };
}

/** Links on a level lead to elements of that level. */
function checkUpperLinks({ view, m, count, linkBytes }: Layout, { levels, starts }: Upper): void {
  for (let i = 0; i < count; i++) {
    for (let level = 1; level <= levels[i]!; level++) {
      const start = starts[i]! + (level - 1) * linkBytes;
      const links = u32(view, start);
      if (links > m) refuse('too many upper links', { element: i, links });
      for (let j = 0; j < links; j++) {
        const target = u32(view, start + 4 + 4 * j);
        if (target >= count || levels[target]! < level) refuse('an upper link to nowhere', { element: i, level });
      }
    }
  }
}
