/**
 * Files as they broke other loaders, rebuilt from what was published about them: one for each bug, named after what it
 * shows. All of them must be refused. The advisories and pull requests stand beside them.
 */

import { seeded } from '../random.ts';
import {
  floats,
  gguf,
  type RawGgufTensor,
  type RawValue,
  safetensors,
  tinyGguf,
  tinyHfConfig,
  tinyTokenizerJson,
  u64,
} from '../unit/engine/transformer/model-files.ts';
import { repairParked, repairSegment, traceHeader } from './parsers.ts';

export interface Broken {
  readonly name: string;
  /** The name of one of PARSERS. */
  readonly parser: string;
  /** The file that is replaced; made from the sound one. */
  readonly file: string;
  readonly make: (sound: Buffer) => Buffer;
}

const u32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};

/** A value of a GGUF key: type 9, an array of this many elements of a type. */
const array = (type: number, count: bigint, rest = Buffer.alloc(0)): RawValue => ({
  type: 'raw',
  value: Buffer.concat([u32(9), u32(type), u64(count), rest]),
});
const withKey = (key: string, value: RawValue) => (): Buffer =>
  tinyGguf(seeded(1), (metadata) => metadata.set(key, value));
const TENSOR: RawGgufTensor = {
  name: 'token_embd.weight',
  sizes: [8, 24],
  type: 0,
  bytes: floats(Array.from({ length: 192 }, () => 0.5)),
};
/** A file of one tensor, or of the same one several times. */
const withTensor =
  (...changes: Partial<RawGgufTensor>[]) =>
  (): Buffer =>
    gguf({
      metadata: [['general.architecture', { type: 'string', value: 'llama' }]],
      tensors: changes.map((change) => ({ ...TENSOR, ...change })),
    });
const ofGguf = (name: string, make: () => Buffer): Broken => ({ name, parser: 'gguf', file: 'model.gguf', make });

const GGUF: readonly Broken[] = [
  // CVE-2024-23496 (TALOS-2024-1913), CVE-2024-21802, -21825, -21836, -23605: counts and lengths that overflow when
  // they are multiplied
  ofGguf('2^63 keys', () => tinyGguf(seeded(1), undefined, { entryCount: 2n ** 63n })),
  ofGguf('2^64 - 1 tensors', () => tinyGguf(seeded(1), undefined, { tensorCount: 2n ** 64n - 1n })),
  ofGguf('2^61 tensors, whose descriptions would take 2^64 bytes and more', () =>
    tinyGguf(seeded(1), undefined, { tensorCount: 2n ** 61n }),
  ),
  ofGguf(
    'a text of 2^64 - 1 bytes',
    withKey('general.name', { type: 'raw', value: Buffer.concat([u32(8), u64(2n ** 64n - 1n)]) }),
  ),
  ofGguf(
    'a text that is longer than the file',
    withKey('general.name', { type: 'raw', value: Buffer.concat([u32(8), u64(100_000)]) }),
  ),
  // ggml-org/llama.cpp pull request 27188: 43 bytes, and a reader that hangs while its memory grows
  ofGguf('an array of 2^63 bytes in a file of 43 bytes', () =>
    Buffer.concat([
      Buffer.from('GGUF'),
      u32(3),
      u64(0),
      u64(1),
      u64(3),
      Buffer.from('a.b'),
      u32(9),
      u32(0),
      u64(2n ** 63n),
    ]).subarray(0, 43),
  ),
  ofGguf('an array of 2^63 elements', withKey('general.tags', array(8, 2n ** 63n))),
  ofGguf('an array of 2^61 numbers of eight bytes, 2^64 in all', withKey('general.tags', array(10, 2n ** 61n))),
  // pull request 26690: the type of the elements is used before it is checked
  ofGguf('an array of a type that there is not', withKey('general.tags', array(13, 1n, Buffer.alloc(8)))),
  ofGguf('an array of type 2^32 - 1', withKey('general.tags', array(2 ** 32 - 1, 1n, Buffer.alloc(8)))),
  ofGguf('an array of arrays', withKey('general.tags', array(9, 1n, Buffer.concat([u32(4), u64(1), u32(1)])))),
  ofGguf(
    'a value of a type that there is not',
    withKey('general.name', { type: 'raw', value: Buffer.concat([u32(99), u64(1)]) }),
  ),
  // pull request 19856: duplicates, alignment
  ofGguf('a key that is there twice', () =>
    gguf({
      metadata: [
        ['general.architecture', { type: 'string', value: 'llama' }],
        ['general.architecture', { type: 'string', value: 'llama' }],
      ],
      tensors: [TENSOR],
    }),
  ),
  ofGguf('two tensors of one name', withTensor({}, {})),
  ofGguf('an alignment of 0', withKey('general.alignment', { type: 'u32', value: 0 })),
  ofGguf('an alignment that is no power of two', withKey('general.alignment', { type: 'u32', value: 33 })),
  ofGguf(
    'an alignment of 2^31, with which rounding up wraps (pull request 24759)',
    withKey('general.alignment', { type: 'u32', value: 2 ** 31 }),
  ),
  ofGguf('an alignment that is a text', withKey('general.alignment', { type: 'string', value: '32' })),
  // CVE-2025-53630, CVE-2026-27940: products and sums of sizes
  ofGguf('2^32 columns and 2^32 rows', withTensor({ sizes: [2 ** 32, 2 ** 32] })),
  ofGguf('2^62 columns, 2^64 bytes', withTensor({ sizes: [2 ** 62] })),
  ofGguf('a tensor without elements', withTensor({ sizes: [0, 24] })),
  ofGguf('five dimensions', withTensor({ sizes: [8, 24, 1, 1, 1] })),
  ofGguf('2^31 dimensions', () => {
    const bytes = withTensor({})();
    bytes.writeUInt32LE(2 ** 31, bytes.indexOf('token_embd.weight') + 17);
    return bytes;
  }),
  ofGguf('a tensor type that there is not', withTensor({ type: 200 })),
  ofGguf('a tensor type below zero', withTensor({ type: -1 })),
  ofGguf('rows that are no whole blocks', withTensor({ sizes: [8, 24], type: 8 })),
  // CVE-2026-7482: an offset beyond the file
  ofGguf('an offset behind the end of the file', withTensor({ offset: 1 << 20 })),
  ofGguf('an offset that wraps when the size is added', withTensor({ offset: 2 ** 63 })),
  ofGguf('an offset that is not aligned', withTensor({ offset: 1 })),
  ofGguf('bytes that end before the tensor does', () => withTensor({})().subarray(0, -64)),
  ofGguf('version 0', () => tinyGguf(seeded(1), undefined, { version: 0 })),
  ofGguf('a version of the other byte order', () => tinyGguf(seeded(1), undefined, { version: 3 << 24 })),
  ofGguf('a version of later times', () => tinyGguf(seeded(1), undefined, { version: 99 })),
  // GHSA-7rxv-5jhh-j6xx: ids of tokens beyond the vocabulary
  ofGguf(
    'an id of a token that there is not',
    withKey('tokenizer.ggml.bos_token_id', { type: 'u32', value: 2 ** 32 - 1 }),
  ),
  ofGguf('no layers', withKey('llama.block_count', { type: 'u32', value: 0 })),
  ofGguf('2^32 - 1 layers', withKey('llama.block_count', { type: 'u32', value: 2 ** 32 - 1 })),
  ofGguf('no heads to divide by', withKey('llama.attention.head_count', { type: 'u32', value: 0 })),
];

const row = (change: object): string =>
  JSON.stringify({ a: { dtype: 'F32', shape: [2, 2], data_offsets: [0, 16], ...change } });
const withHeader =
  (header: string, bytes = 16) =>
  (): Buffer =>
    safetensors({ a: { dtype: 'F32', shape: [2, 2], bytes: new Uint8Array(bytes) } }, header);
const ofSafetensors = (name: string, make: (sound: Buffer) => Buffer): Broken => ({
  name,
  parser: 'safetensors',
  file: 'model.safetensors',
  make,
});
const withLength =
  (length: bigint) =>
  (sound: Buffer): Buffer =>
    Buffer.concat([u64(length), sound.subarray(8)]);

const SAFETENSORS: readonly Broken[] = [
  ofSafetensors('a header of 2^63 bytes', withLength(2n ** 63n)),
  ofSafetensors('a header of 2^64 - 8 bytes, whose end wraps', withLength(2n ** 64n - 8n)),
  ofSafetensors('a header of 101 MB', withLength(101_000_000n)),
  ofSafetensors('a header that is longer than the file', withLength(1_000_000n)),
  ofSafetensors('a file of seven bytes', (sound) => sound.subarray(0, 7)),
  // the published overflow of safetensors-cpp: the product of a shape wraps to what the offsets say
  ofSafetensors('a shape whose product is 2^64 + 4', withHeader(row({ shape: [4_294_967_296, 4_294_967_296] }))),
  ofSafetensors('a shape whose product is beyond 2^53', withHeader(row({ shape: [2 ** 53 + 2, 1] }))),
  ofSafetensors('a shape below zero', withHeader(row({ shape: [-2, -2] }))),
  ofSafetensors('a shape of halves', withHeader(row({ shape: [0.5, 8] }))),
  ofSafetensors('a shape that is an object', withHeader(row({ shape: { length: 2 } }))),
  ofSafetensors('offsets behind the end', withHeader(row({ data_offsets: [0, 1 << 30] }))),
  ofSafetensors('offsets in the wrong order', withHeader(row({ data_offsets: [16, 0] }))),
  ofSafetensors('offsets below zero', withHeader(row({ data_offsets: [-16, 0] }))),
  ofSafetensors('offsets of another length than the shape', withHeader(row({ data_offsets: [0, 12] }))),
  ofSafetensors(
    'tensors that overlap',
    withHeader(
      `{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`,
    ),
  ),
  ofSafetensors('bytes that belong to no tensor', withHeader(row({}), 32)),
  ofSafetensors('a type that there is not', withHeader(row({ dtype: 'F31' }))),
  ofSafetensors(
    'a name that is there twice',
    withHeader(
      `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`,
    ),
  ),
  ofSafetensors(
    'a tensor called __proto__',
    withHeader(`{"__proto__":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}`),
  ),
  ofSafetensors('a header that is a list', withHeader('[]')),
];

/** One text in the place of another. */
const swapped =
  (from: string | RegExp, to: string) =>
  (sound: Buffer): Buffer => {
    const text = sound.toString('utf8');
    const changed = text.replace(from, () => to);
    if (changed === text) throw new Error(`${String(from)} is not in the sound file`);
    return Buffer.from(changed);
  };
const config = (name: string, change: object): Broken => ({
  ...{ name: `a config with ${name}`, parser: 'config', file: 'config.json' },
  make: () => Buffer.from(JSON.stringify({ ...tinyHfConfig, ...change })),
});
const tokenizer = (name: string, vocab: object): Broken => ({
  ...{ name: `a tokenizer with ${name}`, parser: 'tokenizer', file: 'tokenizer.json' },
  make: () =>
    Buffer.from(JSON.stringify({ ...tinyTokenizerJson, model: { ...(tinyTokenizerJson['model'] as object), vocab } })),
});
const thresholds = (name: string, from: string | RegExp, to: string): Broken => ({
  ...{ name: `thresholds with ${name}`, parser: 'thresholds', file: 'thresholds.json' },
  make: swapped(from, to),
});

const JSON_FILES: readonly Broken[] = [
  // CVE-2026-21869: a count below zero reaches an index
  config('layers below zero', { num_hidden_layers: -1 }),
  config('a thousand million layers', { num_hidden_layers: 1e9 }),
  config('heads below zero', { num_attention_heads: -2 }),
  config('no heads', { num_attention_heads: 0 }),
  config('more KV heads than heads can share', { num_key_value_heads: 3 }),
  config('a head of half a channel', { head_dim: 0.5 }),
  config('a vocabulary of 2^53 words', { vocab_size: 2 ** 53 }),
  config('a context below zero', { max_position_embeddings: -64 }),
  tokenizer('ids below zero', { '<s>': -1, '</s>': 1, a: 2 }),
  tokenizer('ids of 2^53', { '<s>': 0, '</s>': 1, a: 2 ** 53 }),
  tokenizer('words that share an id', { '<s>': 0, '</s>': 1, a: 1 }),
  tokenizer('a list for a vocabulary', ['a', 'b']),
  // CVE-2019-10744 and its like: names that reach the prototype
  thresholds('a member called __proto__', '{', '{"__proto__":{"polluted":1},'),
  thresholds('a member called constructor', '{', '{"constructor":{"prototype":{"polluted":1}},'),
  thresholds('a member that nobody knows', '{', '{"extra":1,'),
  thresholds('a number beyond all doubles', /:\s*\d+\.\d+/, ':1e999'),
  thresholds('a count of sessions below zero', /"sessions":\s*\d+/, '"sessions":-1'),
  thresholds('NaN', /:\s*\d+\.\d+/, ':NaN'),
];

const u64At =
  (place: number, value: bigint) =>
  (sound: Buffer): Buffer => {
    const bytes = Buffer.from(sound);
    bytes.writeBigUInt64LE(value, place);
    return bytes;
  };
const OTHERS: readonly Broken[] = [
  ...(
    [
      [
        'a header of 2^32 - 1 bytes',
        (sound) => Buffer.concat([sound.subarray(0, 12), u32(2 ** 32 - 1), sound.subarray(16)]),
      ],
      ['a number of the segment beyond 2^53', u64At(32, 2n ** 63n)],
      ['a first entry beyond 2^53', u64At(40, 2n ** 64n - 1n)],
      ['2^63 leaves of the tree before it', u64At(104, 2n ** 63n)],
      [
        'an entry of 2^32 - 1 bytes',
        (sound) => Buffer.concat([sound.subarray(0, 116), u32(2 ** 32 - 1), sound.subarray(120)]),
      ],
      ['an entry of no bytes', (sound) => Buffer.concat([sound.subarray(0, 116), u32(0), sound.subarray(120)])],
    ] as [string, (sound: Buffer) => Buffer][]
  ).map(([name, make]) => ({
    name: `a segment with ${name}`,
    parser: 'segment',
    file: '00000000.wal',
    make: (sound: Buffer) => repairSegment(make(sound)),
  })),
  ...(
    [
      ['a head of 2^32 - 1 bytes', 8],
      ['2^32 - 1 tokens', 12],
      ['a last row of 2^32 - 1 channels', 16],
      ['a cache of other than its bytes', 24],
    ] as const
  ).map(([name, at]) => ({
    name: `a parked session with ${name}`,
    parser: 'parked',
    file: 'a.parked',
    make: (sound: Buffer) =>
      repairParked(Buffer.concat([sound.subarray(0, at), u32(2 ** 32 - 1), sound.subarray(at + 4)])),
  })),
  {
    name: 'a parked session with a page of 2^32 - 1 bytes',
    parser: 'parked',
    file: 'a.parked',
    make: (sound) => {
      const at = 64 + sound.readUInt32LE(8) + 4 * sound.readUInt32LE(12) + 4 * sound.readUInt32LE(16);
      return repairParked(Buffer.concat([sound.subarray(0, at), u32(2 ** 32 - 1), sound.subarray(at + 4)]));
    },
  },
  {
    name: 'a checkpoint of 9,999,999,999 entries',
    parser: 'checkpoint',
    file: 'notes',
    make: swapped('\n1234\n', '\n9999999999\n'),
  },
  {
    name: 'a checkpoint of entries below zero',
    parser: 'checkpoint',
    file: 'notes',
    make: swapped('\n1234\n', '\n-1\n'),
  },
  {
    name: 'a checkpoint whose number of entries is spelled in another way',
    parser: 'checkpoint',
    file: 'notes',
    make: swapped('\n1234\n', '\n01234\n'),
  },
  {
    name: 'a trace whose header is longer than the file',
    parser: 'trace',
    file: 'a.trace',
    make: (sound) => Buffer.concat([sound.subarray(0, 8), u32(2 ** 32 - 1), sound.subarray(12)]),
  },
  {
    name: 'a trace of a billion tokens',
    parser: 'trace',
    file: 'a.trace',
    make: (sound) => traceHeader(sound, swapped('"tokens":150', '"tokens":1e9')),
  },
];

export const CORPUS: readonly Broken[] = [...GGUF, ...SAFETENSORS, ...JSON_FILES, ...OTHERS];

/** Sound files that are too small for a model: what is refused like them was not looked at. */
export const SMALL: readonly Broken[] = [
  ofGguf('one tensor', withTensor({})),
  ofSafetensors('one tensor', withHeader(row({}))),
];
