// Writes GGUF files by hand, true ones and one for every way of lying, and asks the reader for values or for its
// refusal.
import { afterAll, describe, expect, test } from 'vitest';
import { READABLE_TYPES } from '../../../../engine/transformer/dequant.ts';
import { type GgufFile, openGguf } from '../../../../engine/transformer/gguf.ts';
import type { KvErrorCode } from '../../../../native/index.ts';
import { codeOf } from '../../../refusal.ts';
import {
  floats,
  type GgufParts,
  gguf,
  hasSharedData,
  type RawValue,
  sharedData,
  temporaryFolder,
  u64,
} from './model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

let files = 0;
function open(content: Uint8Array): GgufFile {
  return openGguf(folder.write(`${files++}.gguf`, content));
}

const a = { name: 'a', sizes: [2, 3], type: 0, bytes: floats([1, 2, 3, 4, 5, 6]) };
const b = { name: 'b', sizes: [2], type: 0, bytes: floats([7, 8]) };
const sound: GgufParts = { metadata: [], tensors: [a, b] };
const raw = (...parts: readonly Uint8Array[]): RawValue => ({ type: 'raw', value: Buffer.concat(parts) });
const word = (value: number): Buffer => Buffer.from(Uint32Array.of(value).buffer);

/** A hint that lists the types that can be read. */
const READS = expect.stringContaining(READABLE_TYPES.join(', ')) as unknown;

describe('a true file', () => {
  test.each([2, 3])('of version %i gives metadata and tensors, rows first', (version) => {
    const metadata: GgufParts['metadata'] = [
      ['text', { type: 'string', value: 'größe 🦙' }],
      ['count', { type: 'u32', value: 2 ** 32 - 1 }],
      ['long', { type: 'u64', value: 2 ** 50 }],
      ['ratio', { type: 'f32', value: 0.5 }],
      ['flag', { type: 'bool', value: 1 }],
      ['words', { type: 'strings', value: ['', 'a', 'ü'] }],
      ['numbers', { type: 'i32s', value: [1, 2, 3] }],
      ['__proto__', { type: 'u32', value: 1 }],
    ];
    const file = open(gguf({ ...sound, version, metadata }));
    expect(file.version).toBe(version);
    expect(Object.fromEntries([...file.metadata].filter(([key]) => key !== '__proto__'))).toEqual({
      text: 'größe 🦙',
      count: 2 ** 32 - 1,
      long: 2 ** 50,
      ratio: 0.5,
      flag: true,
      words: ['', 'a', 'ü'],
      numbers: Int32Array.of(1, 2, 3),
    });
    expect(file.metadata.get('__proto__')).toBe(1);
    expect(file.tensors.get('a')!.shape).toEqual([3, 2]);
    expect([...file.tensors.get('a')!.readFloat32(1, 2)]).toEqual([3, 4]);
    expect([...file.tensors.get('b')!.readFloat32()]).toEqual([7, 8]);
    file.close();
  });

  test('may choose another alignment', () => {
    const file = open(
      gguf({ ...sound, alignment: 128, metadata: [['general.alignment', { type: 'u32', value: 128 }]] }),
    );
    expect([...file.tensors.get('b')!.readFloat32()]).toEqual([7, 8]);
  });

  test('may have metadata larger than the window it is read through', () => {
    const long = 'x'.repeat(700_000);
    const file = open(
      gguf({
        ...sound,
        metadata: [
          ['long', { type: 'string', value: long }],
          ['after', { type: 'strings', value: Array.from({ length: 50_000 }, (_, i) => `word ${i}`) }],
        ],
      }),
    );
    expect(file.metadata.get('long')).toBe(long);
    expect((file.metadata.get('after') as readonly string[])[49_999]).toBe('word 49999');
    expect([...file.tensors.get('b')!.readFloat32()]).toEqual([7, 8]);
  });

  test('may hold types that are refused by name when they are read', () => {
    const file = open(
      gguf({ metadata: [], tensors: [{ name: 'odd', sizes: [256], type: 16, bytes: new Uint8Array(66) }] }),
    );
    const read = () => file.tensors.get('odd')!.readFloat32();
    expect(read).toThrow(/odd is stored as IQ2_XXS/);
    expect(read).toThrow(expect.objectContaining({ code: 'unsupported', hint: READS }));
  });

  test('may be of a type that is newer than this program, which says what it reads', () => {
    const newer = gguf({ metadata: [], tensors: [{ name: 'new', sizes: [256], type: 99, bytes: new Uint8Array(84) }] });
    expect(() => open(newer)).toThrow(expect.objectContaining({ code: 'bad-file', hint: READS }));
  });
});

describe('a file that lies', () => {
  const entry = (key: string, value: RawValue): Uint8Array => gguf({ ...sound, metadata: [[key, value]] });
  const tensor = (change: Partial<(typeof sound.tensors)[number]>): Uint8Array =>
    gguf({ metadata: [], tensors: [{ ...a, ...change }] });
  const lies: readonly (readonly [string, Uint8Array, KvErrorCode])[] = [
    ['is empty', Buffer.alloc(0), 'bad-file'],
    ['has another magic', gguf({ ...sound, magic: 'GGML' }), 'bad-file'],
    ['is of version 1', gguf({ ...sound, version: 1 }), 'unsupported'],
    ['is of version 4', gguf({ ...sound, version: 4 }), 'unsupported'],
    ['is of version 0', gguf({ ...sound, version: 0 }), 'bad-file'],
    ['is big-endian', gguf({ ...sound, version: 0x03000000 }), 'unsupported'],
    ['announces 2^63 tensors', gguf({ ...sound, tensorCount: 2n ** 63n }), 'bad-file'],
    ['announces 2^40 tensors', gguf({ ...sound, tensorCount: 2 ** 40 }), 'bad-file'],
    ['announces more tensors than it has', gguf({ ...sound, tensorCount: 3 }), 'bad-file'],
    ['announces 2^63 entries', gguf({ ...sound, entryCount: 2n ** 63n }), 'bad-file'],
    ['has an empty key', entry('', { type: 'u32', value: 1 }), 'bad-file'],
    [
      'has a key twice',
      gguf({
        ...sound,
        metadata: [
          ['k', { type: 'u32', value: 1 }],
          ['k', { type: 'u32', value: 1 }],
        ],
      }),
      'bad-file',
    ],
    ['has a string of 2^63 bytes', entry('k', raw(word(8), u64(2n ** 63n))), 'bad-file'],
    ['has a string beyond its end', entry('k', raw(word(8), u64(10_000), Buffer.from('abc'))), 'bad-file'],
    ['has an array of 2^63 numbers', entry('k', raw(word(9), word(0), u64(2n ** 63n))), 'bad-file'],
    ['has an array of 2^63 strings', entry('k', raw(word(9), word(8), u64(2n ** 63n))), 'bad-file'],
    [
      'has an array of more doubles than bytes',
      entry('k', raw(word(9), word(12), u64(100), Buffer.alloc(100))),
      'bad-file',
    ],
    ['has an array of an unknown type', entry('k', raw(word(9), word(13), u64(1), Buffer.alloc(8))), 'bad-file'],
    ['has an array of arrays', entry('k', raw(word(9), word(9), u64(0))), 'unsupported'],
    ['has a value of an unknown type', entry('k', raw(word(0xffffffff), Buffer.alloc(8))), 'bad-file'],
    ['has a flag that is 2', entry('k', { type: 'bool', value: 2 }), 'bad-file'],
    ['has an alignment of 0', entry('general.alignment', { type: 'u32', value: 0 }), 'bad-file'],
    ['has an alignment of 48', entry('general.alignment', { type: 'u32', value: 48 }), 'bad-file'],
    ['has an alignment of 2^31', entry('general.alignment', { type: 'u32', value: 2 ** 31 }), 'bad-file'],
    ['has a text for an alignment', entry('general.alignment', { type: 'string', value: '32' }), 'bad-file'],
    ['has a tensor without a name', tensor({ name: '' }), 'bad-file'],
    ['has a tensor twice', gguf({ metadata: [], tensors: [a, a] }), 'bad-file'],
    ['has a tensor without dimensions', tensor({ sizes: [] }), 'bad-file'],
    ['has a tensor of five dimensions', tensor({ sizes: [2, 3, 1, 1, 1] }), 'bad-file'],
    ['has a dimension of 0', tensor({ sizes: [2, 0] }), 'bad-file'],
    ['has a dimension of 2^60', tensor({ sizes: [2, 2 ** 60] }), 'bad-file'],
    ['has a shape whose product overflows', tensor({ sizes: [2 ** 30, 2 ** 30] }), 'bad-file'],
    ['has a withdrawn type', tensor({ type: 4 }), 'bad-file'],
    ['has a type nobody knows', tensor({ type: 1000 }), 'bad-file'],
    ['has rows that blocks do not divide', tensor({ type: 8, sizes: [48], bytes: new Uint8Array(51) }), 'bad-file'],
    ['has an offset beyond its end', tensor({ offset: 2 ** 40 }), 'bad-file'],
    ['has an offset out of step', gguf({ metadata: [], tensors: [a, { ...b, offset: 0 }] }), 'bad-file'],
    ['has an offset that is not aligned', gguf({ metadata: [], tensors: [a, { ...b, offset: 24 }] }), 'bad-file'],
    ['ends inside its last tensor', gguf(sound).subarray(0, -26), 'bad-file'],
    ['ends inside its header', gguf(sound).subarray(0, 60), 'bad-file'],
  ];
  test.each(lies)('%s', (_, content, code) => {
    expect(codeOf(() => open(content))).toBe(code);
  });
});

describe.skipIf(!hasSharedData)('vocabulary files of other makers (needs ../shared/data)', () => {
  test.each([
    ['llama-spm', 'llama', 32000],
    ['gpt-2', 'gpt2', 50257],
    ['deepseek-coder', 'gpt2', 32256],
  ])('%s', (name, model, words) => {
    const file = openGguf(`${sharedData}/tokenizer-vectors/ggml-vocab-${name}.gguf`);
    expect(file.metadata.get('tokenizer.ggml.model')).toBe(model);
    expect((file.metadata.get('tokenizer.ggml.tokens') as readonly string[]).length).toBe(words);
    expect(file.tensors.size).toBe(0);
    file.close();
  });
});
