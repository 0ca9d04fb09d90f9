// Writes safetensors files by hand, true ones and ones that lie, and asks the reader for values or for its refusal.
import { afterAll, describe, expect, test } from 'vitest';
import { FileBytes } from '../../../../engine/transformer/bytes.ts';
import { openSafetensorsFolder, readSafetensors } from '../../../../engine/transformer/safetensors.ts';
import type { KvErrorCode } from '../../../../native/index.ts';
import { codeOf } from '../../../refusal.ts';
import { floats, type RawTensor, safetensors, temporaryFolder } from './model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

let files = 0;
function open(content: Uint8Array): ReturnType<typeof readSafetensors> {
  return readSafetensors(FileBytes.open(folder.write(`${files++}.safetensors`, content)));
}

const f32 = (values: readonly number[], shape: readonly number[] = [values.length]): RawTensor => ({
  dtype: 'F32',
  shape,
  bytes: floats(values),
});
const two = { a: f32([1, 2, 3, 4, 5, 6], [3, 2]), b: f32([7, 8]) };
const headerOf = (a: Record<string, unknown>, b: Record<string, unknown> = {}): string =>
  JSON.stringify({
    a: { dtype: 'F32', shape: [3, 2], data_offsets: [0, 24], ...a },
    b: { dtype: 'F32', shape: [2], data_offsets: [24, 32], ...b },
  });

describe('a true file', () => {
  test('gives tensors whole and by rows', () => {
    const tensors = open(safetensors(two));
    expect([...tensors.get('a')!.readFloat32()]).toEqual([1, 2, 3, 4, 5, 6]);
    expect([...tensors.get('a')!.readFloat32(1, 2)]).toEqual([3, 4]);
    expect([...tensors.get('a')!.readFloat32(3)]).toEqual([]);
    expect([...tensors.get('b')!.readFloat32(1)]).toEqual([8]);
    expect(tensors.get('a')!.shape).toEqual([3, 2]);
  });

  test('gives f16 and bf16 exactly', () => {
    const bytes = (words: readonly number[]): Uint8Array => new Uint8Array(Uint16Array.from(words).buffer);
    const tensors = open(
      safetensors({
        half: { dtype: 'F16', shape: [5], bytes: bytes([0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000]) },
        brain: { dtype: 'BF16', shape: [3], bytes: bytes([0x3f80, 0xc049, 0x0001]) },
      }),
    );
    expect([...tensors.get('half')!.readFloat32()]).toEqual([1, -2, 2 ** -24, 65504, -0]);
    expect([...tensors.get('brain')!.readFloat32()]).toEqual([1, -3.140625, 2 ** -133]);
  });

  test('may hold metadata, and types that are refused by name when they are read', () => {
    const header = '{"__metadata__":{"format":"pt"},"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}';
    const tensors = open(safetensors({ ids: { dtype: 'I64', shape: [1], bytes: new Uint8Array(8) } }, header));
    expect(() => tensors.get('ids')!.readFloat32()).toThrow(/ids is stored as I64/);
    expect(codeOf(() => tensors.get('ids')!.readFloat32())).toBe('unsupported');
  });

  test('with a weight that is not finite is reported with its place', () => {
    const tensors = open(safetensors({ a: f32([1, 2, Number.NaN, 4], [2, 2]) }));
    expect([...tensors.get('a')!.readFloat32(0, 1)]).toEqual([1, 2]);
    expect(() => tensors.get('a')!.readFloat32(1)).toThrow(/NaN at element 2/);
    expect(codeOf(() => tensors.get('a')!.readFloat32())).toBe('bad-model');
  });

  test('refuses rows that are not there', () => {
    const a = open(safetensors(two)).get('a')!;
    for (const [from, to] of [
      [-1, 1],
      [0, 4],
      [2, 1],
      [0.5, 1],
      [Number.NaN, 2],
    ] as const) {
      expect(codeOf(() => a.readFloat32(from, to))).toBe('bad-argument');
    }
  });
});

describe('a file that lies', () => {
  const lies: readonly (readonly [string, Uint8Array, KvErrorCode])[] = [
    ['is empty', Buffer.alloc(0), 'bad-file'],
    ['is shorter than its length field', Buffer.alloc(7), 'bad-file'],
    [
      'announces a header of 2^63 bytes',
      Buffer.concat([Buffer.from('0000000000000080', 'hex'), Buffer.from('{}')]),
      'bad-file',
    ],
    ['announces a header beyond its end', safetensors(two).subarray(0, 40), 'bad-file'],
    ['has a header that is not JSON', safetensors(two, '{"a":'), 'bad-file'],
    ['has a list for a header', safetensors({}, '[]'), 'bad-file'],
    [
      'names a tensor twice',
      safetensors(
        { a: f32([1]) },
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
      ),
      'bad-file',
    ],
    [
      'names a tensor twice, once with an escape',
      safetensors(
        { a: f32([1]) },
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\\u0061":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}',
      ),
      'bad-file',
    ],
    [
      'has a key of an entry twice',
      safetensors({ a: f32([1]) }, '{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}'),
      'bad-file',
    ],
    [
      'names a tensor __proto__',
      safetensors({ a: f32([1]) }, '{"__proto__":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'),
      'bad-file',
    ],
    ['nests a thousand levels deep', safetensors({}, `${'['.repeat(1000)}${']'.repeat(1000)}`), 'bad-file'],
    ['has an entry that is no object', safetensors(two, '{"a":3}'), 'bad-file'],
    ['has a negative size', safetensors(two, headerOf({ shape: [-3, -2] })), 'bad-file'],
    ['has a fractional size', safetensors(two, headerOf({ shape: [1.5, 4] })), 'bad-file'],
    ['has a shape whose product overflows', safetensors(two, headerOf({ shape: [2 ** 40, 2 ** 40] })), 'bad-file'],
    ['has nine dimensions', safetensors(two, headerOf({ shape: [1, 1, 1, 1, 1, 1, 1, 3, 2] })), 'bad-file'],
    ['has a type nobody knows', safetensors(two, headerOf({ dtype: 'F7' })), 'unsupported'],
    ['has a quantized type that the format has not', safetensors(two, headerOf({ dtype: 'Q8_0' })), 'unsupported'],
    ['has offsets that disagree with the shape', safetensors(two, headerOf({ data_offsets: [0, 20] })), 'bad-file'],
    ['has offsets in the wrong order', safetensors(two, headerOf({ data_offsets: [24, 0] })), 'bad-file'],
    ['has tensors that overlap', safetensors(two, headerOf({}, { data_offsets: [16, 24] })), 'bad-file'],
    [
      'has a hole between tensors',
      safetensors({ ...two, c: f32([9]) }, headerOf({}, { data_offsets: [28, 36] })),
      'bad-file',
    ],
    ['has data that no tensor claims', Buffer.concat([safetensors(two), Buffer.alloc(4)]), 'bad-file'],
    ['ends inside its last tensor', safetensors(two).subarray(0, -1), 'bad-file'],
    [
      'is not UTF-8',
      Buffer.concat([Buffer.from('0400000000000000', 'hex'), Buffer.from('7b22ff22', 'hex')]),
      'bad-file',
    ],
  ];
  test.each(lies)('%s', (_, content, code) => {
    expect(codeOf(() => open(content))).toBe(code);
  });
});

describe('shards', () => {
  const shard = (dir: string, index: unknown): void => {
    folder.write(`${dir}/one.safetensors`, safetensors({ a: two.a }));
    folder.write(`${dir}/two.safetensors`, safetensors({ b: two.b }));
    folder.write(`${dir}/model.safetensors.index.json`, JSON.stringify(index));
  };

  test('are read as one model', () => {
    shard('sound', { weight_map: { a: 'one.safetensors', b: 'two.safetensors' } });
    const checkpoint = openSafetensorsFolder(`${folder.dir}/sound`);
    expect([...checkpoint.tensors.keys()].sort()).toEqual(['a', 'b']);
    expect([...checkpoint.tensors.get('b')!.readFloat32()]).toEqual([7, 8]);
    checkpoint.close();
    expect(codeOf(() => checkpoint.tensors.get('b')!.readFloat32())).toBe('closed');
  });

  test.each([
    ['a shard outside the folder', { weight_map: { a: '../sound/one.safetensors' } }, 'bad-file'],
    ['an absolute path', { weight_map: { a: '/dev/zero.safetensors' } }, 'bad-file'],
    ['a shard that is not there', { weight_map: { a: 'three.safetensors' } }, 'not-found'],
    [
      'a tensor that its shard has not',
      { weight_map: { a: 'one.safetensors', b: 'two.safetensors', c: 'two.safetensors' } },
      'bad-file',
    ],
    [
      'a tensor in another shard than it says',
      { weight_map: { a: 'two.safetensors', b: 'one.safetensors' } },
      'bad-file',
    ],
    ['no map', {}, 'bad-file'],
    ['an empty map', { weight_map: {} }, 'bad-file'],
  ] as const)('an index with %s is refused', (_, index, code) => {
    shard('lying', index);
    expect(codeOf(() => openSafetensorsFolder(`${folder.dir}/lying`))).toBe(code);
  });
});

test('what is no regular file is refused at once', () => {
  expect(codeOf(() => FileBytes.open(folder.dir))).toBe('bad-file');
  expect(codeOf(() => FileBytes.open('/dev/null'))).toBe('bad-file');
  expect(codeOf(() => FileBytes.open(`${folder.dir}/nothing`))).toBe('not-found');
});
