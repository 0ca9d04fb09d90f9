/** A tensor in a file, decoded on demand, a few megabytes at a time. */
import { assert, KvError } from '../../native/index.ts';
import type { ByteSource, FileBytes } from './bytes.ts';
import { dequantize, type ElementType, readableType } from './dequant.ts';
import type { Tensor } from './types.ts';

/** About this many bytes of the file are in memory while a tensor is decoded. */
const READ_CHUNK_BYTES = 1 << 20;

const littleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** Product of a shape; throws KvError 'bad-file' beyond 2^53, where numbers stop being exact. */
export function elementCount(shape: readonly number[], tensor: string): number {
  let count = 1;
  for (const size of shape) {
    count *= size;
    if (!Number.isSafeInteger(count)) {
      throw new KvError('bad-file', `tensor ${tensor} has a shape whose product overflows`, {
        values: { tensor, shape },
      });
    }
  }
  return count;
}

export class StoredTensor implements Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly #file: ByteSource;
  readonly #type: ElementType;
  readonly #offset: number;

  /** The caller has checked that the bytes lie inside the file. shape: rows first. */
  constructor(name: string, shape: readonly number[], type: ElementType, file: ByteSource, offset: number) {
    this.name = name;
    this.shape = shape;
    this.#type = type;
    this.#file = file;
    this.#offset = offset;
  }

  get storedType(): string {
    return this.#type.name;
  }

  get type(): ElementType {
    return this.#type;
  }

  /** The same tensor under the engine's name. */
  renamed(name: string, shape: readonly number[] = this.shape): StoredTensor {
    return new StoredTensor(name, shape, this.#type, this.#file, this.#offset);
  }

  /**
   * Rows [from, to) of a matrix as a tensor of their own. Throws KvError 'unsupported' where these do not begin where a
   * block does.
   */
  slice(from: number, to: number): StoredTensor {
    const values = elementCount([from, ...this.shape.slice(1)], this.name);
    const { blockValues, blockBytes } = this.#type;
    if (values % blockValues !== 0) throw this.#splitsBlocks(values);
    const offset = this.#offset + (values / blockValues) * blockBytes;
    return new StoredTensor(this.name, [to - from, ...this.shape.slice(1)], this.#type, this.#file, offset);
  }

  /** Throws KvError 'unsupported' for a type that cannot be read, 'bad-model' for a weight that is NaN or infinite. */
  readFloat32(fromRow = 0, toRow: number = this.shape[0] ?? 1): Float32Array {
    const rows = this.shape[0] ?? 1;
    if (!Number.isInteger(fromRow) || !Number.isInteger(toRow) || fromRow < 0 || toRow < fromRow || toRow > rows) {
      throw new KvError('bad-argument', `rows ${fromRow} to ${toRow} of tensor ${this.name}, which has ${rows}`, {
        values: { tensor: this.name, fromRow, toRow, rows },
      });
    }
    readableType(this.#type, this.name);
    const { blockValues, blockBytes } = this.#type;
    const rowValues = elementCount(this.shape.slice(1), this.name);
    const [from, to] = [fromRow * rowValues, toRow * rowValues];
    if (from % blockValues !== 0 || to % blockValues !== 0) throw this.#splitsBlocks(rowValues);
    const offset = this.#offset + (from / blockValues) * blockBytes;
    // The file must hold these bytes before memory is allocated for them.
    this.#file.checkRange(offset, ((to - from) / blockValues) * blockBytes);
    const values = new Float32Array(to - from);
    if (this.#type.name === 'F32' && littleEndian) {
      this.#file.readInto(offset, new Uint8Array(values.buffer));
    } else {
      this.#decode(offset, values);
    }
    this.#checkFinite(values, from);
    return values;
  }

  /** The caller must refuse weights that are not finite. */
  readStored(fromRow: number, target: Uint8Array): void {
    const { blockValues, blockBytes } = this.#type;
    const rowBytes = (elementCount(this.shape.slice(1), this.name) / blockValues) * blockBytes;
    const rows = target.length / rowBytes;
    assert(
      Number.isInteger(rowBytes) && Number.isInteger(rows) && fromRow + rows <= this.shape[0]!,
      `${target.length} bytes from row ${fromRow} of ${this.name}`,
    );
    this.#file.readInto(this.#offset + fromRow * rowBytes, target);
  }

  giveBack(): void {
    const { blockValues, blockBytes } = this.#type;
    this.#file.giveBack?.(this.#offset, (elementCount(this.shape, this.name) / blockValues) * blockBytes);
  }

  #splitsBlocks(rowValues: number): KvError {
    const { name, blockValues } = this.#type;
    return new KvError('unsupported', `rows of tensor ${this.name} do not end where blocks of ${name} do`, {
      values: { tensor: this.name, rowValues, blockValues },
    });
  }

  #decode(offset: number, values: Float32Array): void {
    const { blockValues, blockBytes } = this.#type;
    const chunkBlocks = Math.min(Math.ceil(READ_CHUNK_BYTES / blockBytes), values.length / blockValues);
    const buffer = new Uint8Array(chunkBlocks * blockBytes);
    for (let start = 0, at = offset; start < values.length; ) {
      const blocks = Math.min(chunkBlocks, (values.length - start) / blockValues);
      const bytes = buffer.subarray(0, blocks * blockBytes);
      this.#file.readInto(at, bytes);
      dequantize(this.#type, bytes, values.subarray(start, start + blocks * blockValues));
      start += blocks * blockValues;
      at += bytes.length;
    }
  }

  #checkFinite(values: Float32Array, from: number): void {
    // x − x is 0 for every finite x and NaN otherwise, so one sum finds any bad value.
    let zero = 0;
    for (let i = 0; i < values.length; i++) zero += values[i]! - values[i]!;
    if (zero === 0) return;
    const index = values.findIndex((value) => !Number.isFinite(value));
    throw new KvError('bad-model', `tensor ${this.name} holds ${values[index]} at element ${from + index}`, {
      values: { tensor: this.name, element: from + index },
      hint: 'the file is damaged or the checkpoint is broken',
    });
  }
}

/** Rows that lie in several places of a file, one after the other. */
export class JoinedRows implements Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly #parts: readonly StoredTensor[];

  /** parts: of one type, with rows of one length. */
  constructor(name: string, parts: readonly StoredTensor[]) {
    this.name = name;
    this.#parts = parts;
    this.shape = [parts.reduce((sum, { shape }) => sum + shape[0]!, 0), ...parts[0]!.shape.slice(1)];
  }

  get storedType(): string {
    return this.#parts[0]!.storedType;
  }

  renamed(name: string): JoinedRows {
    return new JoinedRows(name, this.#parts);
  }

  readFloat32(fromRow = 0, toRow: number = this.shape[0]!): Float32Array {
    const width = elementCount(this.shape.slice(1), this.name);
    const values = new Float32Array((toRow - fromRow) * width);
    this.#each(fromRow, toRow, (part, from, to, row) => values.set(part.readFloat32(from, to), row * width));
    return values;
  }

  readStored(fromRow: number, target: Uint8Array): void {
    const { blockValues, blockBytes } = this.#parts[0]!.type;
    const rowBytes = (elementCount(this.shape.slice(1), this.name) / blockValues) * blockBytes;
    this.#each(fromRow, fromRow + target.length / rowBytes, (part, from, to, row) =>
      part.readStored(from, target.subarray(row * rowBytes, (row + to - from) * rowBytes)),
    );
  }

  giveBack(): void {
    for (const part of this.#parts) part.giveBack();
  }

  /** Rows [from, to) of each part that has some of them, and where among those asked for the first of them is. */
  #each(
    fromRow: number,
    toRow: number,
    visit: (part: StoredTensor, from: number, to: number, row: number) => void,
  ): void {
    let start = 0;
    for (const part of this.#parts) {
      const [rows = 0] = part.shape;
      const [from, to] = [Math.max(fromRow - start, 0), Math.min(toRow - start, rows)];
      if (from < to) visit(part, from, to, start + from - fromRow);
      start += rows;
    }
  }
}

/** Opened weights of one format: tensors under the file's own names, rows first. */
export interface Checkpoint {
  readonly tensors: ReadonlyMap<string, StoredTensor>;
  readonly files: readonly FileBytes[];
  close(): void;
}
