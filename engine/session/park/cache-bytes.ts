/**
 * The cache of a parked session as bytes. First come the sealed pages, page by page and in each by layer, so that a
 * layer comes behind the one below it: u32 bytes of what follows, a byte that says whether the page is as it is stored
 * (0, native/stored.ts) or predicted (2, page-predictor.ts), and the page. Then come the rows of the open page, layer
 * by layer, keys before values: each row begins with a byte that says how it is written. Beside stored pages each way
 * gives back the same float32 numbers; beside predicted ones rows are in 8 bits.
 */
import {
  type CacheShape,
  type FormatName,
  fromHalf,
  isForeign,
  type KvCache,
  KvError,
  openRows,
  type PageRecord,
  ROW_MOST,
  SIDES,
  type Side,
  sealedPages,
  toHalf,
} from '../../../native/index.ts';
import type { PackPages } from '../../cache/pack-pages.ts';
import { formatOf, type PagePredictor } from './page-predictor.ts';

/** How a row of the open page is written: as float32, as f16, or in 8 bits with an f16 scale per head. */
const ROW = { f32: 0, f16: 1, q8: 2 } as const;

/** What pages are read by that are not as they are stored. */
interface Readers {
  readonly predicted?: PagePredictor | null;
  readonly packs?: Pick<PackPages, 'check'> | null;
}

/** 1 was a predicted page of an earlier version. */
const PAGE = { stored: 0, earlier: 1, predicted: 2 } as const;

/**
 * The bytes of a cache of `tokens` tokens. With `predicted` its pages lose what residuals lose; without, nothing is
 * lost.
 */
export function cacheBytes(kv: KvCache, tokens: number, predicted: PagePredictor | null = null): Buffer {
  const { layers } = kv.shape;
  const parts: Uint8Array[] = [];
  const pages = sealedPages(tokens);
  for (let page = 0; page < pages; page++) {
    for (let layer = 0; layer < layers; layer++) {
      const stored = kv.exportPage(layer, page);
      const shorter = predicted?.encode(kv, layer, page, stored.length) ?? null;
      const head = Buffer.alloc(5);
      head.writeUInt32LE(1 + (shorter ?? stored).length);
      head[4] = shorter === null ? PAGE.stored : PAGE.predicted;
      parts.push(head, shorter ?? stored);
    }
  }
  for (let layer = 0; layer < layers && tokens > 0; layer++)
    for (const side of SIDES)
      parts.push(...packRows(kv.decode(layer, pages, side), kv.shape, predicted === null || pages === 0));
  return Buffer.concat(parts);
}

/**
 * Puts them into a cache that is empty, or has the first of these pages already, which it then keeps. packs: what reads
 * those in the codec of a pack. Throws what importPages and append throw, and 'bad-file'; the cache may then hold the
 * pages, without the rows.
 */
export function fillCache(
  kv: KvCache,
  tokens: number,
  bytes: Uint8Array,
  { predicted = null, packs = null }: Readers = {},
): void {
  const { layers, kvHeads, headDim } = kv.shape;
  const reader = new Reader(bytes);
  const pages = sealedPages(tokens);
  const held = layers * kv.table(0).pages;
  const records: PageRecord[] = [];
  for (let i = 0; i < pages * layers; i++) {
    const end = reader.u32() + reader.at;
    const tag = reader.u8();
    if (tag === PAGE.earlier) throw cutOff('its pages were predicted in the way of an earlier version');
    const formats = tag === PAGE.stored ? null : reader.formats();
    if (formats !== null && (tag !== PAGE.predicted || predicted === null))
      throw cutOff(`a page is written in way ${tag}`);
    const length = end - reader.at;
    if (length < 0) throw cutOff('a page is too short');
    const at = reader.pass(length);
    if (i >= held) records.push({ at, length, formats });
  }
  kv.importPages({ bytes, records, predicted: predicted?.packed(pages) ?? null });
  if (packs !== null) packs.check();
  else if (hasForeign(kv)) throw cutOff('pages of it are in a pack that its session has not');
  const rows = openRows(tokens);
  if (rows * layers * 2 * (1 + Math.min(kvHeads * (2 + headDim), 2 * kvHeads * headDim)) > reader.left)
    throw cutOff('rows are missing');
  const [k, v] = SIDES.map(() => new Float32Array(rows * kvHeads * headDim)) as [Float32Array, Float32Array];
  for (let layer = 0; layer < layers && rows > 0; layer++) {
    for (const side of [k, v]) unpackRows(reader, rows, kv.shape, side);
    kv.append(layer, k, v);
  }
  if (reader.left > 0) throw cutOff(`${reader.left} bytes are left over`);
}

/** True if nobody but a pack understands some of the pages. */
const hasForeign = (kv: KvCache): boolean =>
  Array.from({ length: kv.shape.layers }, (_, layer) => kv.table(layer)).some((table) =>
    table.kind.some((_, page) => isForeign(table, page)),
  );

const cutOff = (why: string): KvError => new KvError('bad-file', `the parked cache cannot be read: ${why}`);

/** Hands out bytes, never more than there are. */
class Reader {
  readonly bytes: Buffer;
  readonly levels: Int8Array;
  at = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    this.levels = new Int8Array(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get left(): number {
    return this.bytes.length - this.at;
  }

  /** → where so many bytes begin */
  pass(count: number): number {
    if (count > this.left) throw cutOff(`${count} bytes are said to follow, and ${this.left} are left`);
    this.at += count;
    return this.at - count;
  }

  u32(): number {
    return this.bytes.readUInt32LE(this.pass(4));
  }

  u8(): number {
    return this.bytes[this.pass(1)]!;
  }

  u16s(to: Uint16Array): void {
    const at = this.pass(2 * to.length);
    new Uint8Array(to.buffer, to.byteOffset, to.byteLength).set(this.bytes.subarray(at, this.at));
  }

  f32s(to: Float32Array): void {
    const at = this.pass(4 * to.length);
    new Uint8Array(to.buffer, to.byteOffset, to.byteLength).set(this.bytes.subarray(at, this.at));
  }

  formats(): Readonly<Record<Side, FormatName>> {
    return { k: formatOf(this.u8()), v: formatOf(this.u8()) };
  }
}

function packRows(rows: Float32Array, { kvHeads, headDim }: CacheShape, isExact: boolean): Buffer[] {
  const width = kvHeads * headDim;
  const halves = toHalf(rows);
  const exact = fromHalf(halves);
  return Array.from({ length: rows.length / width }, (_, t) => {
    const row = rows.subarray(t * width, (t + 1) * width);
    if (!isExact) return packCodes(row, headDim).bytes;
    if (row.every((value, i) => value === exact[t * width + i]))
      return tagged(ROW.f16, halves.slice(t * width, (t + 1) * width));
    const coded = packCodes(row, headDim);
    return coded.isExact ? coded.bytes : tagged(ROW.f32, row.slice());
  });
}

const tagged = (tag: number, { buffer }: Uint16Array | Float32Array): Buffer =>
  Buffer.concat([Buffer.of(tag), Buffer.from(buffer)]);

/**
 * The scale of a row in 8 bits is rounded, so that its largest numbers may lie beyond what a row may hold, and end
 * there.
 */
const within = (value: number): number => Math.max(-ROW_MOST, Math.min(ROW_MOST, value));

/** A row in 8 bits; those of a row that was in 8 bits are the same. */
function packCodes(row: Float32Array, headDim: number): { readonly bytes: Buffer; readonly isExact: boolean } {
  const heads = row.length / headDim;
  const most = new Float32Array(heads);
  for (let i = 0; i < row.length; i++) {
    const head = Math.floor(i / headDim);
    most[head] = Math.max(most[head]!, Math.abs(row[i]!));
  }
  const halves = toHalf(most.map((value) => value / 127));
  const scales = fromHalf(halves);
  const codes = new Int8Array(row.length);
  let isExact = true;
  for (let i = 0; i < row.length; i++) {
    const [value, scale] = [row[i]!, scales[Math.floor(i / headDim)]!];
    if (scale !== 0) codes[i] = Math.max(-127, Math.min(127, Math.round(value / scale)));
    isExact &&= value === within(Math.fround(codes[i]! * scale));
  }
  return { bytes: Buffer.concat([Buffer.of(ROW.q8), Buffer.from(halves.buffer), Buffer.from(codes.buffer)]), isExact };
}

/** rows: [count, width], where they go. */
function unpackRows(reader: Reader, count: number, { kvHeads, headDim }: CacheShape, rows: Float32Array): void {
  const width = kvHeads * headDim;
  const [halves, scaleBits] = [new Uint16Array(width), new Uint16Array(count * kvHeads)];
  // Where the codes of each row begin; −1: it has none.
  const codesAt = new Int32Array(count).fill(-1);
  for (let t = 0; t < count; t++) {
    const tag = reader.u8();
    const row = rows.subarray(t * width, (t + 1) * width);
    if (tag === ROW.f32) reader.f32s(row);
    else if (tag === ROW.f16) {
      reader.u16s(halves);
      row.set(fromHalf(halves));
    } else if (tag === ROW.q8) {
      reader.u16s(scaleBits.subarray(t * kvHeads, (t + 1) * kvHeads));
      codesAt[t] = reader.pass(width);
    } else throw cutOff(`a row is written in way ${tag}`);
  }
  const [scales, { levels }] = [fromHalf(scaleBits), reader];
  for (let t = 0; t < count; t++)
    for (let head = 0, from = codesAt[t]!; from >= 0 && head < kvHeads; head++) {
      const [scale, to] = [scales[t * kvHeads + head]!, t * width + head * headDim];
      for (let c = 0; c < headDim; c++) rows[to + c] = within(levels[from++]! * scale);
    }
}
