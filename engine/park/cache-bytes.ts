/**
 * The cache of a parked session as bytes. First come the sealed pages, page by page and in each by layer, so that a layer comes behind the one below it: u32
 * bytes of what follows, a byte that says whether the page is as it is stored (0, native/stored.ts) or predicted (1, page-predictor.ts), and the page. Then
 * come the rows of the open page, layer by layer, keys before values: each row begins with a byte that says how it is written. Beside stored pages
 * each way gives back the same float32 numbers; beside predicted ones rows are in 8 bits.
 */
import {
  type CacheShape,
  fromHalf,
  type KvCache,
  KvError,
  openRows,
  SIDES,
  sealedPages,
  toHalf,
} from '../../native/index.ts';
import type { PagePredictor, ReturnedPage } from './page-predictor.ts';

/** How a row of the open page is written: as float32, as f16, or in 8 bits with an f16 scale per head. */
const ROW = { f32: 0, f16: 1, q8: 2 } as const;

const PAGE = { stored: 0, predicted: 1 } as const;

/** Of a cache of `tokens` tokens. With `predicted` its pages lose what residuals lose; without, nothing is lost. */
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

/** Puts them into an empty cache. Throws what importPage and append throw, and 'bad-file'; the cache may then hold a part. */
export function fillCache(
  kv: KvCache,
  tokens: number,
  bytes: Uint8Array,
  predicted: PagePredictor | null = null,
): void {
  const { layers, kvHeads, headDim } = kv.shape;
  const reader = new Reader(bytes);
  const pages = sealedPages(tokens);
  // A page that was appended is sealed when the next one comes, and only then it can go to the formats that it had.
  const waiting = new Array<ReturnedPage['formats'] | null>(layers).fill(null);
  const settle = (layer: number, page: number): void => {
    const formats = waiting[layer];
    waiting[layer] = null;
    for (const side of SIDES)
      if (formats != null && kv.format(layer, page, side) !== formats[side])
        kv.transcode(layer, page, side, formats[side]);
  };
  for (let page = 0; page < pages; page++)
    for (let layer = 0; layer < layers; layer++) {
      const record = reader.take(reader.u32());
      const content = record.subarray(1);
      let formats: ReturnedPage['formats'] | null = null;
      if (record[0] === PAGE.stored) {
        kv.importPage(layer, new Uint8Array(content));
        predicted?.pass(kv, layer, page);
      } else {
        if (record[0] !== PAGE.predicted || predicted === null) throw cutOff(`a page is written in way ${record[0]}`);
        const returned = predicted.decode(layer, page, content);
        kv.append(layer, returned.k, returned.v);
        formats = returned.formats;
      }
      if (page > 0) settle(layer, page - 1);
      waiting[layer] = formats;
    }
  const rows = openRows(tokens);
  if (rows * layers * 2 * (1 + Math.min(kvHeads * (2 + headDim), 2 * kvHeads * headDim)) > reader.left)
    throw cutOff('rows are missing');
  for (let layer = 0; layer < layers && rows > 0; layer++) {
    const [k, v] = SIDES.map(() => unpackRows(reader, rows, kv.shape)) as [Float32Array, Float32Array];
    kv.append(layer, k, v);
    if (pages > 0) settle(layer, pages - 1);
  }
  if (reader.left > 0) throw cutOff(`${reader.left} bytes are left over`);
}

const cutOff = (why: string): KvError => new KvError('bad-file', `the parked cache cannot be read: ${why}`);

/** Hands out bytes, never more than there are. */
class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  get left(): number {
    return this.#bytes.length - this.#at;
  }

  take(count: number): Buffer {
    if (count > this.left) throw cutOff(`${count} bytes are said to follow, and ${this.left} are left`);
    this.#at += count;
    return this.#bytes.subarray(this.#at - count, this.#at);
  }

  u32(): number {
    return this.take(4).readUInt32LE();
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

/** A row in 8 bits; those of a row that was in 8 bits are the same. */
function packCodes(row: Float32Array, headDim: number): { readonly bytes: Buffer; readonly isExact: boolean } {
  const heads = row.length / headDim;
  const most = Float32Array.from({ length: heads }, (_, head) =>
    row.subarray(head * headDim, (head + 1) * headDim).reduce((max, value) => Math.max(max, Math.abs(value)), 0),
  );
  const halves = toHalf(most.map((value) => value / 127));
  const scales = fromHalf(halves);
  const codes = Int8Array.from(row, (value, i) => {
    const scale = scales[Math.floor(i / headDim)]!;
    return scale === 0 ? 0 : Math.max(-127, Math.min(127, Math.round(value / scale)));
  });
  const isExact = row.every((value, i) => value === Math.fround(codes[i]! * scales[Math.floor(i / headDim)]!));
  return { bytes: Buffer.concat([Buffer.of(ROW.q8), Buffer.from(halves.buffer), Buffer.from(codes.buffer)]), isExact };
}

function unpackRows(reader: Reader, count: number, { kvHeads, headDim }: CacheShape): Float32Array {
  const width = kvHeads * headDim;
  const rows = new Float32Array(count * width);
  for (let t = 0; t < count; t++) rows.set(unpackRow(reader, kvHeads, headDim), t * width);
  return rows;
}

function unpackRow(reader: Reader, heads: number, headDim: number): Float32Array {
  const width = heads * headDim;
  const halvesOf = (length: number): Float32Array => {
    const bytes = reader.take(2 * length);
    return fromHalf(Uint16Array.from({ length }, (_, i) => bytes.readUInt16LE(2 * i)));
  };
  const [tag] = reader.take(1);
  if (tag === ROW.f16) return halvesOf(width);
  if (tag === ROW.f32) {
    const bytes = reader.take(4 * width);
    return Float32Array.from({ length: width }, (_, i) => bytes.readFloatLE(4 * i));
  }
  if (tag !== ROW.q8) throw cutOff(`a row is written in way ${tag}`);
  const scales = halvesOf(heads);
  const codes = reader.take(width);
  return Float32Array.from({ length: width }, (_, i) => codes.readInt8(i) * scales[Math.floor(i / headDim)]!);
}
