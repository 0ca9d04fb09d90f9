/**
 * safetensors: u64 length of a JSON header, the header, then the data. Header: name → { dtype, shape, data_offsets }.
 * Nothing is trusted before it is checked: the length against the file and a limit, duplicate keys, types, products,
 * and that the tensors fill the data exactly, without holes or overlap, as the format demands.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { asRecord, KvError, parseJson, readJson } from '../../native/index.ts';
import { type ByteSource, FileBytes } from './bytes.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { TENSOR_INDEX_BYTES_MAX, TENSORS_MAX } from './limits.ts';
import { type Checkpoint, elementCount, StoredTensor } from './stored-tensor.ts';

const DIMENSIONS_MAX = 8;
const SHARDS_MAX = 1000;

/**
 * model.safetensors, or the shards that model.safetensors.index.json names. Throws KvError 'not-found', 'bad-file',
 * 'io'.
 */
export function openSafetensorsFolder(dir: string): Checkpoint {
  const indexPath = join(dir, 'model.safetensors.index.json');
  const single = join(dir, 'model.safetensors');
  const weightMap = existsSync(indexPath) && !existsSync(single) ? readIndex(indexPath) : null;
  const names = weightMap === null ? ['model.safetensors'] : shardNames(weightMap);
  const files: FileBytes[] = [];
  const tensors = new Map<string, StoredTensor>();
  const close = (): void => {
    for (const file of files) file.close();
  };
  try {
    for (const name of names) {
      const file = FileBytes.open(join(dir, name));
      files.push(file);
      for (const [tensor, stored] of readSafetensors(file)) {
        if (tensors.has(tensor)) throw bad(file.path, `tensor ${tensor} is in two shards`, { tensor });
        if (weightMap !== null && weightMap.get(tensor) !== name) {
          throw bad(indexPath, `tensor ${tensor} is in ${name}, the index says otherwise`, { tensor, shard: name });
        }
        tensors.set(tensor, stored);
      }
      if (tensors.size > TENSORS_MAX) throw bad(dir, `${tensors.size} tensors`, { tensorsMax: TENSORS_MAX });
    }
    for (const [tensor, shard] of weightMap ?? []) {
      if (!tensors.has(tensor)) throw bad(indexPath, `tensor ${tensor} is missing from ${shard}`, { tensor, shard });
    }
  } catch (error) {
    close();
    throw error;
  }
  return { tensors, files, close };
}

/** The files that an index names, in order. Throws what reading the index throws. */
export const shardsOf = (path: string): string[] => shardNames(readIndex(path));

const shardNames = (weightMap: ReadonlyMap<string, string>): string[] => [...new Set(weightMap.values())].sort();

/** Tensor → shard. Shards must be plain file names, so that an index cannot point outside its folder. */
function readIndex(path: string): Map<string, string> {
  return parseIndex(path, readJson(path, { code: 'bad-file', bytesMax: TENSOR_INDEX_BYTES_MAX }));
}

/** The files that the content of an index names. path: for messages. */
export const shardsIn = (path: string, content: unknown): string[] => shardNames(parseIndex(path, content));

function parseIndex(path: string, content: unknown): Map<string, string> {
  const index = asRecord(content);
  const map = asRecord(index?.weight_map);
  if (map === undefined) throw bad(path, 'the index has no weight_map', {});
  const shards = new Map<string, string>();
  for (const [tensor, shard] of Object.entries(map)) {
    if (typeof shard !== 'string' || !/^[\w.-]+\.safetensors$/.test(shard) || shard.startsWith('.')) {
      throw bad(path, `shard ${JSON.stringify(shard)?.slice(0, 80)} is not a plain file name`, { tensor });
    }
    shards.set(tensor, shard);
  }
  const count = new Set(shards.values()).size;
  if (count === 0 || count > SHARDS_MAX) throw bad(path, `the index names ${count} shards`, { shards: count });
  return shards;
}

/** The tensors of one file, by name. Throws KvError 'bad-file', or 'unsupported' for a type of unknown size. */
export function readSafetensors(file: ByteSource): Map<string, StoredTensor> {
  if (file.size < 8)
    throw bad(file.path, `${file.size} bytes are too few for a safetensors file`, { bytes: file.size });
  const length = new DataView(file.read(0, 8).buffer).getBigUint64(0, true);
  if (length > BigInt(file.size - 8) || length > TENSOR_INDEX_BYTES_MAX) {
    throw bad(file.path, `the header is said to have ${length} bytes`, {
      headerBytes: String(length),
      fileBytes: file.size,
      headerBytesMax: TENSOR_INDEX_BYTES_MAX,
    });
  }
  const headerBytes = Number(length);
  const header = asRecord(parseJson(file.read(8, headerBytes), { what: file.path, code: 'bad-file' }));
  if (header === undefined) throw bad(file.path, 'the header is not an object', {});
  const entries = Object.entries(header).filter(([name]) => name !== '__metadata__');
  if (entries.length > TENSORS_MAX) throw bad(file.path, `${entries.length} tensors`, { tensorsMax: TENSORS_MAX });
  const dataStart = 8 + headerBytes;
  const ranges = entries.map(([name, entry]) => readEntry(file, name, entry, dataStart));
  checkLayout(file, ranges, file.size - dataStart);
  return new Map(ranges.map(({ tensor }) => [tensor.name, tensor]));
}

interface Range {
  readonly tensor: StoredTensor;
  readonly begin: number;
  readonly end: number;
}

function readEntry(file: ByteSource, name: string, entry: unknown, dataStart: number): Range {
  const record = asRecord(entry);
  const { dtype, shape, data_offsets: offsets } = record ?? {};
  if (
    typeof dtype !== 'string' ||
    !isSizes(shape) ||
    shape.length > DIMENSIONS_MAX ||
    !isSizes(offsets) ||
    offsets.length !== 2
  ) {
    throw bad(file.path, `the entry of tensor ${name} needs dtype, shape and data_offsets`, { tensor: name });
  }
  const type = ELEMENT_TYPES.get(dtype);
  if (type === undefined || type.blockValues !== 1) {
    throw new KvError('unsupported', `tensor ${name} has the type ${dtype.slice(0, 40)}`, {
      values: { tensor: name, dtype },
    });
  }
  const [begin, end] = offsets as [number, number];
  const bytes = elementCount(shape, name) * type.blockBytes;
  if (end < begin || end - begin !== bytes) {
    throw bad(file.path, `tensor ${name} is said to have ${end - begin} bytes, its shape needs ${bytes}`, {
      tensor: name,
      shape,
      dtype,
    });
  }
  return { tensor: new StoredTensor(name, shape, type, file, dataStart + begin), begin, end };
}

function checkLayout(file: ByteSource, ranges: readonly Range[], dataBytes: number): void {
  let at = 0;
  for (const { tensor, begin, end } of [...ranges].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== at) {
      throw bad(file.path, `tensor ${tensor.name} begins at ${begin}, where ${at} was expected`, {
        tensor: tensor.name,
        begin,
        expected: at,
      });
    }
    at = end;
  }
  if (at !== dataBytes)
    throw bad(file.path, `the tensors take ${at} bytes, the file has ${dataBytes} of data`, {
      tensorBytes: at,
      dataBytes,
    });
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}

function bad(path: string, what: string, values: Record<string, unknown>): KvError {
  return new KvError('bad-file', `${path}: ${what}`, { values: { path, ...values } });
}
