/** Reads a trace block by block. A block is checked each time it is read, so nothing is held but what is asked for. */
import { closeSync } from 'node:fs';
import { crc32 } from 'node:zlib';
import {
  type CacheShape,
  fromHalf,
  KvError,
  openRegular,
  printable,
  readWhole,
  refusedFile,
  SKETCH_ROWS,
} from '../../native/index.ts';
import {
  JSON_BYTES_MAX,
  type Layout,
  layoutOf,
  MAGIC,
  type Measured,
  parseHeader,
  parseMeasurements,
  sampledShape,
  type TraceHeader,
} from './header.ts';
import { placeOf } from './writer.ts';

/** 1 TiB: far more than anybody records. */
const TRACE_BYTES_MAX = 2 ** 40;

/** The rows of one page of a sampled layer. */
export interface TracePage {
  readonly tokens: number;
  /** [tokens, n, d], keys after RoPE. */
  readonly k: Float32Array;
  readonly v: Float32Array;
  /** Rows of the page whose queries follow, ascending. */
  readonly queryRows: readonly number[];
  /** [queries, H, d], after RoPE. */
  readonly q: Float32Array;
  /** ‖x‖ of the residual stream at each query. */
  readonly norms: Float32Array;
}

export class Trace {
  readonly path: string;
  readonly header: TraceHeader;
  /** The shape of a cache that holds what was sampled. */
  readonly shape: CacheShape;
  readonly measured: readonly Measured[];
  readonly bytes: number;
  readonly #fd: number;
  readonly #layout: Layout;

  private constructor(path: string, fd: number, bytes: number) {
    this.path = path;
    this.#fd = fd;
    this.bytes = bytes;
    const start = this.#read(0, MAGIC.length + 4);
    if (!start.subarray(0, MAGIC.length).equals(MAGIC)) throw this.#bad('is no trace');
    const header = this.#json(MAGIC.length);
    this.header = parseHeader(header.json, printable(path));
    this.shape = sampledShape(this.header);
    this.#layout = layoutOf(this.header, header.end);
    // Everything but the measurements has a known length: a file that is shorter is not read any further.
    if (this.#layout.end > bytes)
      throw this.#bad(`has ${bytes} bytes where its header promises ${this.#layout.end} and more`);
    const measured = this.#json(this.#layout.end);
    if (measured.end !== bytes) throw this.#bad(`goes on for ${bytes - measured.end} bytes behind its end`);
    this.measured = parseMeasurements(measured.json, printable(path));
  }

  /** Throws 'not-found', 'io', 'bad-file', 'checksum-mismatch'. Whoever opened it closes it. */
  static open(path: string): Trace {
    const { fd, size } = openRegular(path, { bytesMax: TRACE_BYTES_MAX });
    try {
      return new Trace(path, fd, size);
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  }

  get pages(): number {
    return this.#layout.pages;
  }

  /**
   * Rows of one page of a layer; both are counted in the trace. Throws 'checksum-mismatch', 'bad-file' for numbers that
   * are not finite.
   */
  page(page: number, layer: number): TracePage {
    const { kvHeads, queryHeads, headDim } = this.shape;
    const bytes = this.#block(this.#layout.blockAt(page, layer), this.#layout.blockBytes(page), page, layer);
    const tokens = this.#layout.tokensOf(page);
    const queryRows = this.#layout.queriesOf(page);
    const row = kvHeads * headDim;
    let at = 0;
    const halves = (count: number): Float32Array => {
      const found = this.#floats(bytes, at, count, page, layer);
      at += 2 * count;
      return found;
    };
    const k = halves(tokens * row);
    const v = halves(tokens * row);
    const q = halves(queryRows.length * queryHeads * headDim);
    const norms = Float32Array.from(queryRows, (_, query) => bytes.readFloatLE(at + 4 * query));
    if (!norms.every((norm) => norm >= 0 && norm < Number.POSITIVE_INFINITY)) throw this.#notFinite(page, layer);
    return { tokens, k, v, queryRows, q, norms };
  }

  /** S·W_o of a layer, [32, H·d]. Throws as page() does. */
  sketch(layer: number): Float32Array {
    const { queryHeads, headDim } = this.shape;
    const bytes = this.#block(this.#layout.sketchAt(layer), this.#layout.sketchBytes, -1, layer);
    const scale = bytes.readFloatLE(0);
    if (!(scale > 0 && scale < 1e30)) throw this.#notFinite(-1, layer);
    return this.#floats(bytes, 4, SKETCH_ROWS * queryHeads * headDim, -1, layer).map((one) => one * scale);
  }

  close(): void {
    closeSync(this.#fd);
  }

  #floats(bytes: Buffer, at: number, count: number, page: number, layer: number): Float32Array {
    // A copy, because halves must lie on even addresses.
    const halves = new Uint16Array(count);
    new Uint8Array(halves.buffer).set(bytes.subarray(at, at + 2 * count));
    for (const half of halves) if ((half & 0x7c00) === 0x7c00) throw this.#notFinite(page, layer);
    return fromHalf(halves);
  }

  /** `length` counts the checksum; what is returned does not. */
  #block(at: number, length: number, page: number, layer: number): Buffer {
    const bytes = this.#read(at, length);
    const content = bytes.subarray(0, length - 4);
    if (crc32(content, crc32(placeOf(page, layer))) !== bytes.readUInt32LE(length - 4))
      throw new KvError('checksum-mismatch', `${printable(this.path)} is damaged in layer ${layer}, page ${page}`, {
        values: { path: this.path, layer, page },
      });
    return content;
  }

  /** JSON behind its length and before its checksum. */
  #json(at: number): { readonly json: Buffer; readonly end: number } {
    const length = this.#read(at, 4).readUInt32LE(0);
    if (length > JSON_BYTES_MAX) throw this.#bad(`has a header of ${length} bytes`);
    const bytes = this.#read(at + 4, length + 4);
    const json = bytes.subarray(0, length);
    if (crc32(json) !== bytes.readUInt32LE(length))
      throw new KvError('checksum-mismatch', `${printable(this.path)} is damaged in its header`, {
        values: { path: this.path, at },
      });
    return { json, end: at + 4 + length + 4 };
  }

  /** Exactly `length` bytes. Whether they are there is known before room is made for them. */
  #read(at: number, length: number): Buffer {
    if (at + length > this.bytes) throw this.#bad(`ends at ${this.bytes} bytes in the middle of something`);
    const bytes = Buffer.allocUnsafe(length);
    try {
      if (readWhole(this.#fd, bytes, at) < length) throw this.#bad('became shorter while it was read');
    } catch (cause) {
      throw cause instanceof KvError ? cause : refusedFile(this.path, cause);
    }
    return bytes;
  }

  #bad(what: string): KvError {
    return new KvError('bad-file', `${printable(this.path)} ${what}`, {
      values: { path: this.path, bytes: this.bytes },
      hint: 'record it again with: palimpsest trace record',
    });
  }

  #notFinite(page: number, layer: number): KvError {
    return this.#bad(`holds numbers that are not finite in layer ${layer}, page ${page}`);
  }
}
