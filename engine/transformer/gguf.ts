/**
 * GGUF versions 2 and 3: magic, counts, key–value metadata, tensor descriptions, aligned data. Little-endian.
 * Every count and length is compared with the remaining bytes before anything is allocated for it. An impossible number
 * throws KvError 'bad-file'; a valid file that is not supported throws 'unsupported'.
 */
import { KvError, padded, plural, show } from '../../native/index.ts';
import { type ByteSource, FileBytes } from './bytes.ts';
import { ELEMENT_TYPES, type ElementType, READABLE_TYPES } from './dequant.ts';
import {
  GAP_BYTES_MAX,
  GGUF_ENTRIES_MAX,
  GGUF_HEADER_BYTES_MAX,
  GGUF_STRING_BYTES_MAX,
  MERGES_MAX,
  TENSORS_MAX,
} from './limits.ts';
import { type Checkpoint, elementCount, StoredTensor } from './stored-tensor.ts';

const KEY_BYTES_MAX = 65535;
const TENSOR_NAME_BYTES_MAX = 255;
const DIMENSIONS_MAX = 4;
/** What tensors are aligned to where a file does not say it. */
export const ALIGNMENT_DEFAULT = 32;
const ALIGNMENT_MAX = 1 << 20;
/** Bytes read ahead while the header is parsed. */
const WINDOW_BYTES = 1 << 18;
/**
 * Bytes of the smallest entries: key (length, one byte), type, one byte; name (length, one byte), rank, one size, type,
 * offset.
 */
const ENTRY_BYTES_MIN = 8 + 1 + 4 + 1;
const TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8;

/** Types by their number in a GGUF file; missing numbers were withdrawn or are unknown. */
const TYPE_NAMES: Readonly<Record<number, string>> = {
  0: 'F32', 1: 'F16', 2: 'Q4_0', 3: 'Q4_1', 6: 'Q5_0', 7: 'Q5_1', 8: 'Q8_0', 9: 'Q8_1', 10: 'Q2_K', 11: 'Q3_K',
  12: 'Q4_K', 13: 'Q5_K', 14: 'Q6_K', 15: 'Q8_K', 16: 'IQ2_XXS', 17: 'IQ2_XS', 18: 'IQ3_XXS', 19: 'IQ1_S',
  20: 'IQ4_NL', 21: 'IQ3_S', 22: 'IQ2_S', 23: 'IQ4_XS', 24: 'I8', 25: 'I16', 26: 'I32', 27: 'I64', 28: 'F64',
  29: 'IQ1_M', 30: 'BF16', 34: 'TQ1_0', 35: 'TQ2_0', 39: 'MXFP4', 40: 'NVFP4',
  41: 'Q1_0',
}; // biome-ignore format: a table

/** Their numbers by their names. */
export const TYPE_NUMBERS: Readonly<Record<string, number>> = Object.fromEntries(
  Object.entries(TYPE_NAMES).map(([number, name]) => [name, Number(number)]),
);

export type GgufArray = readonly string[] | Float64Array | Float32Array | Int32Array | Uint8Array;
export type GgufValue = number | boolean | string | GgufArray;

export interface GgufFile extends Checkpoint {
  readonly version: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  /** What a person should know of how it is laid out. */
  readonly remarks: readonly string[];
}

/** Bytes that belong to no tensor and are more than padding. */
interface Gap {
  /** Before or behind which tensor they are. */
  readonly where: string;
  readonly from: number;
  readonly to: number;
}

/**
 * Opens and checks a file; tensor data is read later. Shapes are given rows first, the reverse of the order in the
 * file.
 */
export function openGguf(path: string): GgufFile {
  const file = FileBytes.open(path);
  try {
    const { gaps, ...header } = readGguf(file);
    checkGaps(file, gaps);
    return { ...header, remarks: gaps.map((gap) => emptyGap(file, gap)), files: [file], close: () => file.close() };
  } catch (error) {
    file.close();
    throw error;
  }
}

/** Bytes of a gap that are looked at together. */
const GAP_CHUNK_BYTES = 1 << 20;

function checkGaps(file: FileBytes, gaps: readonly Gap[]): void {
  const bytes = gaps.reduce((sum, { from, to }) => sum + to - from, 0);
  if (bytes <= GAP_BYTES_MAX) return;
  const { where } = gaps.reduce((a, b) => (b.to - b.from > a.to - a.from ? b : a));
  throw new KvError('bad-file', `${file.path}: ${bytes} bytes belong to no tensor, most of them ${where}`, {
    values: { path: file.path, bytes, bytesMax: GAP_BYTES_MAX },
    hint: 'the file is damaged, or was cut and filled up: fetch it again',
  });
}

/** Zeros between tensors and behind the last one are harmless; whatever else is there may be weights out of place. */
function emptyGap(file: FileBytes, { where, from, to }: Gap): string {
  for (let at = from; at < to; at += GAP_CHUNK_BYTES) {
    const found = file.read(at, Math.min(GAP_CHUNK_BYTES, to - at)).findIndex((byte) => byte !== 0);
    if (found !== -1)
      throw new KvError('bad-file', `${file.path}: ${to - from} bytes ${where} are not all zeros`, {
        values: { path: file.path, from, to, at: at + found },
        hint: 'the file is damaged, or its tensors are aligned otherwise than it says',
      });
  }
  return `${plural(to - from, 'byte')} ${where} are zeros that belong to no tensor`;
}

/** Reads the header alone. */
export function readGguf(
  file: ByteSource,
): Pick<GgufFile, 'version' | 'metadata' | 'tensors'> & { readonly gaps: readonly Gap[] } {
  const reader = new HeaderReader(file);
  const version = readVersion(reader);
  const tensorCount = reader.count('tensors', TENSOR_BYTES_MIN, TENSORS_MAX);
  const entryCount = reader.count('metadata entries', ENTRY_BYTES_MIN, GGUF_ENTRIES_MAX);
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < entryCount; i++) {
    const key = reader.string('a key', KEY_BYTES_MAX);
    if (key === '' || metadata.has(key))
      throw reader.bad(`key '${key.slice(0, 80)}' is empty or occurs twice`, { key });
    metadata.set(key, readValue(reader, key));
  }
  const alignment = readAlignment(reader, metadata);
  const described = new Map<string, Description>();
  for (let i = 0; i < tensorCount; i++) {
    const description = readDescription(reader);
    if (described.has(description.name))
      throw reader.bad(`tensor ${description.name} occurs twice`, { tensor: description.name });
    described.set(description.name, description);
  }
  return { version, metadata, ...placeTensors(reader, described, alignment) };
}

function readVersion(reader: HeaderReader): number {
  if (reader.u32() !== 0x46554747) throw reader.bad('it does not begin with GGUF', {});
  const version = reader.u32();
  if (version === 2 || version === 3) return version;
  const swapped = version === 0x02000000 || version === 0x03000000;
  const known = swapped || version === 1 || (version > 3 && version < 64);
  throw new KvError(
    known ? 'unsupported' : 'bad-file',
    `${reader.file.path}: GGUF ${swapped ? 'in big-endian order' : `version ${version}`}`,
    {
      values: { path: reader.file.path, version },
      hint: 'versions 2 and 3, little-endian, are read',
    },
  );
}

function readAlignment(reader: HeaderReader, metadata: ReadonlyMap<string, GgufValue>): number {
  const alignment = metadata.get('general.alignment') ?? ALIGNMENT_DEFAULT;
  const sound =
    typeof alignment === 'number' && Number.isInteger(alignment) && alignment >= 1 && alignment <= ALIGNMENT_MAX;
  if (!sound || (alignment & (alignment - 1)) !== 0) {
    throw reader.bad(`general.alignment is ${show(alignment).slice(0, 40)}`, { alignmentMax: ALIGNMENT_MAX });
  }
  return alignment;
}

const STRING = 8;
const ARRAY = 9;

function readValue(reader: HeaderReader, key: string): GgufValue {
  const type = reader.u32();
  if (type === STRING) return reader.string(key, GGUF_STRING_BYTES_MAX);
  if (type !== ARRAY) return readScalar(reader, type, key);
  const elementType = reader.u32();
  if (elementType === ARRAY)
    throw new KvError('unsupported', `${reader.file.path}: ${key} is an array of arrays`, { values: { key } });
  if (elementType === STRING) {
    const count = reader.count(`strings in ${key}`, 8, MERGES_MAX);
    const strings: string[] = [];
    for (let i = 0; i < count; i++) strings.push(reader.string(key, GGUF_STRING_BYTES_MAX));
    return strings;
  }
  const count = reader.count(`values in ${key}`, scalarBytes(reader, elementType, key), MERGES_MAX);
  const values = typedArray(elementType, count);
  for (let i = 0; i < count; i++) values[i] = Number(readScalar(reader, elementType, key));
  return values;
}

/** Stored as narrowly as the values allow: a large array may take at most twice as many bytes as it has in the file. */
function typedArray(elementType: number, count: number): Float64Array | Float32Array | Int32Array | Uint8Array {
  if (elementType === 0 || elementType === 7) return new Uint8Array(count);
  if (elementType === 1 || elementType === 2 || elementType === 3 || elementType === 5) return new Int32Array(count);
  return elementType === 6 ? new Float32Array(count) : new Float64Array(count);
}

const SCALAR_BYTES: readonly (number | undefined)[] = [1, 1, 2, 2, 4, 4, 4, 1, undefined, undefined, 8, 8, 8];

function scalarBytes(reader: HeaderReader, type: number, key: string): number {
  const bytes = SCALAR_BYTES[type];
  if (bytes === undefined) throw reader.bad(`${key} has the value type ${type}`, { key, type });
  return bytes;
}

function readScalar(reader: HeaderReader, type: number, key: string): number | boolean {
  const { view, at } = reader.take(scalarBytes(reader, type, key));
  switch (type) {
    case 0: return view.getUint8(at);
    case 1: return view.getInt8(at);
    case 2: return view.getUint16(at, true);
    case 3: return view.getInt16(at, true);
    case 4: return view.getUint32(at, true);
    case 5: return view.getInt32(at, true);
    case 6: return view.getFloat32(at, true);
    case 7: {
      const flag = view.getUint8(at);
      if (flag > 1) throw reader.bad(`${key} is neither true nor false`, { key, value: flag });
      return flag === 1;
    }
    case 10: return Number(view.getBigUint64(at, true));
    case 11: return Number(view.getBigInt64(at, true));
    default: return view.getFloat64(at, true);
  } // biome-ignore format: a table
}

interface Description {
  readonly name: string;
  readonly shape: readonly number[];
  readonly type: ElementType;
  /** From the start of the data section. */
  readonly offset: number;
  readonly bytes: number;
}

function readDescription(reader: HeaderReader): Description {
  const name = reader.string('a tensor name', TENSOR_NAME_BYTES_MAX);
  if (name === '') throw reader.bad('a tensor has no name', {});
  const rank = reader.u32();
  if (rank < 1 || rank > DIMENSIONS_MAX)
    throw reader.bad(`tensor ${name} has ${rank} dimensions`, { tensor: name, dimensionsMax: DIMENSIONS_MAX });
  const sizes: number[] = [];
  for (let i = 0; i < rank; i++) {
    const size = reader.u64(`a size of tensor ${name}`);
    if (size < 1) throw reader.bad(`tensor ${name} has a dimension of 0`, { tensor: name });
    sizes.push(size);
  }
  const typeNumber = reader.u32();
  const type = ELEMENT_TYPES.get(TYPE_NAMES[typeNumber] ?? '');
  if (type === undefined)
    throw reader.bad(
      `tensor ${name} has the type number ${typeNumber}, which no type that is known here has`,
      { tensor: name, type: typeNumber },
      `the file is damaged, or its type is newer than this program, which reads ${READABLE_TYPES.join(', ')}`,
    );
  if (sizes[0]! % type.blockValues !== 0) {
    throw reader.bad(`rows of tensor ${name} have ${sizes[0]} values, which blocks of ${type.name} do not divide`, {
      tensor: name,
      blockValues: type.blockValues,
    });
  }
  const bytes = (elementCount(sizes, name) / type.blockValues) * type.blockBytes;
  return { name, shape: sizes.reverse(), type, offset: reader.u64(`the offset of tensor ${name}`), bytes };
}

/**
 * Tensors follow one another in the order of their descriptions, each padded to the alignment. Some writers pad to
 * more, or fill the file up behind the last one.
 */
function placeTensors(
  reader: HeaderReader,
  described: ReadonlyMap<string, Description>,
  alignment: number,
): { tensors: Map<string, StoredTensor>; gaps: Gap[] } {
  const { file } = reader;
  const dataStart = padded(reader.position, alignment);
  const tensors = new Map<string, StoredTensor>();
  const gaps: Gap[] = [];
  let expected = 0;
  for (const { name, shape, type, offset, bytes } of described.values()) {
    if (offset < expected || offset % alignment !== 0)
      throw reader.bad(`tensor ${name} is said to begin at ${offset}, where ${expected} was expected`, {
        tensor: name,
        offset,
        expected,
      });
    if (!Number.isSafeInteger(dataStart + offset + bytes) || dataStart + offset + bytes > file.size) {
      throw reader.bad(`tensor ${name} reaches beyond the end of the file`, {
        tensor: name,
        end: dataStart + offset + bytes,
        fileBytes: file.size,
      });
    }
    if (offset > expected)
      gaps.push({ where: `before tensor ${name}`, from: dataStart + expected, to: dataStart + offset });
    tensors.set(name, new StoredTensor(name, shape, type, file, dataStart + offset));
    expected = padded(offset + bytes, alignment);
  }
  if (file.size > dataStart + expected)
    gaps.push({ where: 'behind the last tensor', from: dataStart + expected, to: file.size });
  return { tensors, gaps };
}

/** Reads forward through the header, holding a window of the file and never more than one value beyond it. */
class HeaderReader {
  readonly file: ByteSource;
  position = 0;
  #window: Uint8Array = new Uint8Array(0);
  #view: DataView = new DataView(new ArrayBuffer(0));
  #windowStart = 0;
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });

  constructor(file: ByteSource) {
    this.file = file;
  }

  /** The next bytes, as a position in a view that is valid until the next call. */
  take(bytes: number): { view: DataView; at: number } {
    const at = this.#advance(bytes);
    return { view: this.#view, at };
  }

  u32(): number {
    const at = this.#advance(4);
    return this.#view.getUint32(at, true);
  }

  u64(what: string): number {
    const at = this.#advance(8);
    const value = this.#view.getBigUint64(at, true);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw this.bad(`${what} is ${value}`, {});
    return Number(value);
  }

  /** A count of things of at least `bytesEach`. Refused beyond `most` or what the rest of the file could hold. */
  count(what: string, bytesEach: number, most: number): number {
    const count = this.u64(`the number of ${what}`);
    if (count > most)
      throw this.bad(`it announces ${count} ${what}, and at most ${most} are plausible`, { count, most });
    const remaining = this.file.size - this.position;
    if (count > remaining / bytesEach)
      throw this.bad(`it announces ${count} ${what}, and ${remaining} bytes are left`, { count, remaining });
    return count;
  }

  /** UTF-8. Vocabularies also hold words that are not valid UTF-8; these get U+FFFD, as everywhere else. */
  string(what: string, bytesMax: number): string {
    const length = this.u64(`the length of ${what}`);
    if (length > bytesMax || length > this.file.size - this.position) {
      throw this.bad(`${what} is said to have ${length} bytes`, {
        length,
        bytesMax,
        remaining: this.file.size - this.position,
      });
    }
    const at = this.#advance(length);
    return this.#decoder.decode(this.#window.subarray(at, at + length));
  }

  bad(what: string, values: Record<string, unknown>, hint?: string): KvError {
    return new KvError('bad-file', `${this.file.path}: ${what}`, {
      values: { path: this.file.path, at: this.position, ...values },
      ...(hint !== undefined && { hint }),
    });
  }

  /** Makes sure the window holds the next bytes and moves past them. Returns where they begin in the window. */
  #advance(bytes: number): number {
    const start = this.position;
    const remaining = this.file.size - start;
    if (bytes > remaining) throw this.bad(`the file ends inside its header`, { needed: bytes, remaining });
    if (start + bytes > GGUF_HEADER_BYTES_MAX)
      throw this.bad(`the header is longer than ${GGUF_HEADER_BYTES_MAX} bytes`, {
        headerBytesMax: GGUF_HEADER_BYTES_MAX,
      });
    if (start + bytes > this.#windowStart + this.#window.length) {
      this.#window = this.file.read(start, Math.min(remaining, Math.max(bytes, WINDOW_BYTES)));
      this.#view = new DataView(this.#window.buffer);
      this.#windowStart = start;
    }
    this.position = start + bytes;
    return start - this.#windowStart;
  }
}
