/**
 * Writes a trace while a session runs: to a temporary name beside the target, which is renamed when all of it is on
 * disk.
 */
import { closeSync, existsSync, fsyncSync, openSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  fromHalf,
  KvError,
  pageOf,
  SKETCH_ROWS,
  syncFolder,
  temporaryFor,
  toHalf,
  writeWhole,
} from '../../native/index.ts';
import { rowNorm } from '../cache/pass.ts';
import type { LayerRows } from '../cache/types.ts';
import { type Layout, layoutOf, MAGIC, type Measured, type TraceHeader } from './header.ts';

export class TraceWriter {
  readonly #path: string;
  readonly #temporary: string;
  readonly #header: TraceHeader;
  readonly #layout: Layout;
  readonly #fd: number;
  /** Position of each sampled layer in the trace. */
  readonly #places: ReadonlyMap<number, number>;
  #blocks = 0;
  #isOpen = true;

  /** `sketches`: S·W_o of every layer of the model, [32, H·d]. Throws 'io'. */
  constructor(path: string, header: TraceHeader, sketches: readonly Float32Array[]) {
    this.#path = path;
    this.#temporary = this.#guarded(() => temporaryFor(path));
    this.#header = header;
    const json = Buffer.from(JSON.stringify(header));
    this.#layout = layoutOf(header, MAGIC.length + 4 + json.length + 4);
    this.#places = new Map(header.sampling.layers.map((layer, place) => [layer, place]));
    this.#fd = this.#guarded(() => openSync(this.#temporary, 'wx'));
    try {
      this.#put(0, [MAGIC, lengthOf(json), json, checksumOf([json])]);
      for (const [layer, place] of this.#places) this.#putSketch(place, sketches[layer]!);
    } catch (error) {
      this.abort();
      throw error;
    }
  }

  /**
   * Takes the rows of one page of a layer. Keys, values and queries are halves in the file; the queries are rounded in
   * place, so that the run asks exactly what is written. (A cache keeps keys and values as halves in any case.) Throws
   * 'io', 'unsupported'.
   */
  readonly add = (rows: LayerRows): void => {
    const { layer, position, tokens, q, k, v, x } = rows;
    const page = pageOf(position);
    fromHalf(toHalf(q), q);
    const place = this.#places.get(layer);
    if (place === undefined) return;
    if (tokens !== this.#layout.tokensOf(page))
      throw new KvError('unsupported', `a trace takes whole pages, not ${tokens} tokens at ${position}`, {
        values: { position, tokens },
      });
    const { heads } = this.#header.sampling;
    const { kvHeads, queryHeads, headDim } = this.#header.shape;
    const group = queryHeads / kvHeads;
    const all = Array.from({ length: tokens }, (_, row) => row);
    const queries = this.#layout.queriesOf(page);
    const norms = Float32Array.from(queries, (row) => rowNorm(x, row, x.length / tokens));
    const parts = [
      halvesOf(selected(k, all, heads, kvHeads * headDim, headDim)),
      halvesOf(selected(v, all, heads, kvHeads * headDim, headDim)),
      halvesOf(selected(q, queries, heads, queryHeads * headDim, group * headDim)),
      bytesOf(norms),
    ];
    this.#put(this.#layout.blockAt(page, place), [...parts, checksumOf([placeOf(page, place), ...parts])]);
    this.#blocks++;
  };

  /**
   * Writes what was measured, and gives the file its name. Throws 'io'; 'bad-argument' when rows are missing. → bytes
   * of the file
   */
  finish(measured: readonly Measured[]): number {
    const { pages, end } = this.#layout;
    const expected = pages * this.#places.size;
    if (this.#blocks !== expected)
      throw new KvError('bad-argument', `${this.#blocks} of ${expected} blocks of the trace were written`, {
        values: { blocks: this.#blocks, expected },
      });
    const json = Buffer.from(JSON.stringify(measured));
    this.#put(end, [lengthOf(json), json, checksumOf([json])]);
    this.#guarded(() => {
      fsyncSync(this.#fd);
      closeSync(this.#fd);
      this.#isOpen = false;
      renameSync(this.#temporary, this.#path);
      syncFolder(dirname(this.#path));
    });
    return end + 4 + json.length + 4;
  }

  /** Leaves nothing behind, unless finish() was called. */
  abort(): void {
    if (this.#isOpen) closeSync(this.#fd);
    this.#isOpen = false;
    if (existsSync(this.#temporary)) rmSync(this.#temporary);
  }

  #putSketch(place: number, sketch: Float32Array): void {
    const { heads } = this.#header.sampling;
    const { queryHeads, headDim } = this.#header.shape;
    const width = queryHeads * headDim;
    const headWidth = width / this.#header.shape.kvHeads;
    const rows = Array.from({ length: SKETCH_ROWS }, (_, row) => row);
    const kept = selected(sketch, rows, heads, width, headWidth);
    // The native cache scales in the same way, so it makes the same halves of what is read back.
    const largest = kept.reduce((most, one) => Math.max(most, Math.abs(one)), 0);
    const scale = Float32Array.of(largest > 0 ? largest / 1024 : 1);
    const parts = [bytesOf(scale), halvesOf(kept.map((one) => one / scale[0]!))];
    this.#put(this.#layout.sketchAt(place), [...parts, checksumOf([placeOf(-1, place), ...parts])]);
  }

  #put(at: number, parts: readonly Uint8Array[]): void {
    this.#guarded(() => writeWhole(this.#fd, Buffer.concat(parts), at));
  }

  #guarded<T>(work: () => T): T {
    try {
      return work();
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      throw new KvError('io', `cannot write ${this.#path}: ${(cause as Error).message}`, {
        values: { path: this.#path },
        cause,
      });
    }
  }
}

/** The rows and heads of [rows, width] that are asked for, each head `headWidth` wide. */
function selected(
  from: Float32Array,
  rows: readonly number[],
  heads: readonly number[],
  width: number,
  headWidth: number,
): Float32Array {
  const out = new Float32Array(rows.length * heads.length * headWidth);
  let at = 0;
  for (const row of rows) {
    for (const head of heads) {
      const start = row * width + head * headWidth;
      out.set(from.subarray(start, start + headWidth), at);
      at += headWidth;
    }
  }
  return out;
}

const bytesOf = (values: Float32Array | Uint16Array): Uint8Array =>
  new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
const halvesOf = (rows: Float32Array): Uint8Array => bytesOf(toHalf(rows));

function number(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

const lengthOf = (json: Uint8Array): Buffer => number(json.length);
const checksumOf = (parts: readonly Uint8Array[]): Buffer => number(parts.reduce((crc, part) => crc32(part, crc), 0));

/**
 * What the checksum of a block covers beside its bytes: a block in the wrong place is a wrong block. Sketches are page
 * −1.
 */
export function placeOf(page: number, layer: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeInt32LE(page, 0);
  bytes.writeInt32LE(layer, 4);
  return bytes;
}
