/** Writes GGUF, version 3: metadata, descriptions of tensors and their places. gguf.ts reads it. */
import { padded } from '../../../native/index.ts';
import { ELEMENT_TYPES } from '../dequant.ts';
import { ALIGNMENT_DEFAULT, TYPE_NUMBERS } from '../gguf.ts';
import type { GgufEntry } from '../gguf-entries.ts';
import { elementCount } from '../stored-tensor.ts';
import type { WrittenType } from './quantize.ts';

export interface DescribedTensor {
  readonly name: string;
  /** Rows first. */
  readonly shape: readonly number[];
  readonly type: WrittenType;
}

export interface Placed<Tensor> {
  readonly tensor: Tensor;
  /** From the start of the file. */
  readonly offset: number;
  readonly bytes: number;
}

const NUMBERS = { u32: 4, i32: 5, f32: 6, bool: 7, text: 8, array: 9 } as const;

/** The header with its padding, and where each tensor goes, in their order. fileBytes: where the last one ends. */
export function layGguf<Tensor extends DescribedTensor>(
  metadata: ReadonlyMap<string, GgufEntry>,
  tensors: readonly Tensor[],
): { readonly header: Uint8Array; readonly placed: readonly Placed<Tensor>[]; readonly fileBytes: number } {
  let end = 0;
  const sized = tensors.map((tensor) => {
    const { blockValues, blockBytes } = ELEMENT_TYPES.get(tensor.type)!;
    const bytes = (elementCount(tensor.shape, tensor.name) / blockValues) * blockBytes;
    const offset = end;
    end = padded(offset + bytes, ALIGNMENT_DEFAULT);
    return { tensor, offset, bytes };
  });
  const head = Buffer.concat([
    Buffer.from('GGUF'),
    int32(3),
    int64(tensors.length),
    int64(metadata.size),
    ...[...metadata].flatMap(([key, entry]) => [string(key), ...value(entry)]),
    ...sized.map(({ tensor, offset }) => description(tensor, offset)),
  ]);
  const header = Buffer.alloc(padded(head.length, ALIGNMENT_DEFAULT));
  header.set(head);
  return {
    header,
    placed: sized.map(({ tensor, offset, bytes }) => ({ tensor, offset: header.length + offset, bytes })),
    fileBytes: header.length + end,
  };
}

function description({ name, shape, type }: DescribedTensor, offset: number): Buffer {
  const sizes = [...shape].reverse().map(int64);
  return Buffer.concat([string(name), int32(shape.length), ...sizes, int32(TYPE_NUMBERS[type]!), int64(offset)]);
}

function value(entry: GgufEntry): Buffer[] {
  switch (entry.type) {
    case 'text':
      return [int32(NUMBERS.text), string(entry.value)];
    case 'bool':
      return [int32(NUMBERS.bool), Buffer.of(entry.value ? 1 : 0)];
    case 'texts':
      return [...array(NUMBERS.text, entry.value.length), ...entry.value.map(string)];
    case 'bools':
      return [...array(NUMBERS.bool, entry.value.length), Buffer.from(entry.value.map(Number))];
    case 'i32s':
      return [...array(NUMBERS.i32, entry.value.length), ...entry.value.map(int32)];
    case 'f32s':
      return [...array(NUMBERS.f32, entry.value.length), ...entry.value.map(float32)];
    case 'f32':
      return [int32(NUMBERS.f32), float32(entry.value)];
    default:
      return [int32(NUMBERS[entry.type]), int32(entry.value)];
  }
}

const array = (type: number, count: number): Buffer[] => [int32(NUMBERS.array), int32(type), int64(count)];

function int32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(number | 0);
  return bytes;
}

function int64(number: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(number));
  return bytes;
}

function float32(number: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeFloatLE(number);
  return bytes;
}

function string(content: string): Buffer {
  const bytes = Buffer.from(content);
  return Buffer.concat([int64(bytes.length), bytes]);
}
