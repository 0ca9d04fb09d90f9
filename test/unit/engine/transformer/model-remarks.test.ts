// Loads files as others write them: without the name of a pre-tokenizer, with a vision tower, with lists of other
// number types, with zeros where nothing belongs. What is right is served, what a person should know is said, and
// nonsense is refused by its key.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { inspectModel } from '../../../../engine/transformer/inspect-model.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { nameByMerges } from '../../../../engine/transformer/pre-tokenizers.ts';
import { RandomNumbers } from '../../../../engine/transformer/sampling/random.ts';
import type { LoadedModel } from '../../../../engine/transformer/types.ts';
import { refused } from '../../../refusal.ts';
import {
  floats,
  type GgufParts,
  gguf,
  type RawValue,
  TINY,
  temporaryFolder,
  tinyGguf,
  tinyGgufParts,
  tinyMerges,
  tinyWords,
  u64,
} from './model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());
const random = (): (() => number) => {
  const numbers = new RandomNumbers(7);
  return () => numbers.uniform();
};

type Change = (metadata: Map<string, RawValue>) => void;
let files = 0;
const write = (content: Uint8Array): string => folder.write(`${files++}.gguf`, content);

async function load(content: Uint8Array): Promise<LoadedModel> {
  const model = await loadModel(write(content));
  model.weights.close();
  return model;
}

describe('a file without the name of its pre-tokenizer', () => {
  test('is read as it is said by default, and says so', async () => {
    const { remarks, tokenizer } = await load(tinyGguf(random(), (m) => m.delete('tokenizer.ggml.pre')));
    expect(remarks).toEqual([expect.stringContaining('does not name its pre-tokenizer (tokenizer.ggml.pre)')]);
    expect(tokenizer.encode('hello')).toEqual([tinyWords.indexOf('hello')]);
    const named = await load(tinyGguf(random()));
    expect(named.remarks).toEqual([]);
  });

  test('is known by its first merges', async () => {
    const first = ['Ġ Ġ', 'ĠĠ ĠĠ', 'i n', 'Ġ t', 'ĠĠĠĠ ĠĠĠĠ', 'e r', 'ĠĠ Ġ', 'o n'];
    const merges = [...first, ...new Array<string>(151387 - first.length).fill('a b')];
    expect(nameByMerges(merges)).toBe('qwen2');
    // The vocabulary that this one goes on from has as many as 100,000.
    expect(nameByMerges(merges.slice(0, 100_000))).toBeNull();
    expect(nameByMerges(['x y', ...merges.slice(1)])).toBeNull();
    for (const said of [undefined, 'default']) {
      const { remarks, summary } = await load(
        tinyGguf(random(), (m) => {
          m.delete('tokenizer.ggml.pre');
          if (said !== undefined) m.set('tokenizer.ggml.pre', { type: 'string', value: said });
          m.set('tokenizer.ggml.merges', { type: 'strings', value: merges });
        }),
      );
      expect(summary['tokenizer']).toBe('byte-level BPE (qwen2)');
      expect(remarks).toEqual([expect.stringContaining("by its merges it is 'qwen2'")]);
    }
  });

  test('is said where it is inspected and where it is run', () => {
    const path = write(tinyGguf(random(), (m) => m.delete('tokenizer.ggml.pre')));
    const cli = join(import.meta.dirname, '..', '..', '..', '..', 'engine', 'cli', 'main.ts');
    const palimpsest = (...args: string[]): string =>
      execFileSync(process.execPath, ['--import', 'tsx', cli, ...args], { encoding: 'utf8' });
    expect(palimpsest('inspect', path)).toContain('does not name its pre-tokenizer');
    expect(palimpsest('doctor', '-m', path)).toContain('does not name its pre-tokenizer');
  });
});

describe('a file with a vision tower', () => {
  const tower = ['v.blk.0.attn_q.weight', 'mm.mm_input_projection.weight'].map((name) => ({
    ...{ name, sizes: [4], type: 0, bytes: floats([1, 2, 3, 4]) },
  }));
  const withTower = (parts: GgufParts): Buffer => gguf({ ...parts, tensors: [...parts.tensors, ...tower] });

  test('serves its text and names what is left out', async () => {
    const plain = await loadModel(write(tinyGguf(random())));
    const path = write(withTower(tinyGgufParts(random())));
    const model = await loadModel(path);
    expect(model.remarks).toEqual([
      'text alone is served: 2 tensors of other parts are left out (v.blk.0.attn_q.weight …)',
    ]);
    expect(model.summary).toEqual(plain.summary);
    expect(model.weights.tensor('0.q').readFloat32()).toEqual(plain.weights.tensor('0.q').readFloat32());
    expect((await inspectModel(path)).remarks).toEqual(model.remarks);
    for (const { weights } of [plain, model]) weights.close();
  });

  test('may have tokens for pictures that its embedding has no row for, and no words', async () => {
    const beyond = (type: number): Change => {
      const pad = Array.from({ length: TINY.vocab - tinyWords.length }, (_, i) => `<pad${i}>`);
      const words = [...tinyWords, ...pad, '<image_soft_token>'];
      const types = words.map((_, id) => (id < 2 ? 3 : id < tinyWords.length ? 1 : id < TINY.vocab ? 5 : type));
      return (m) => {
        m.set('tokenizer.ggml.tokens', { type: 'strings', value: words });
        m.set('tokenizer.ggml.token_type', { type: 'i32s', value: types });
      };
    };
    const { remarks, tokenizer } = await load(tinyGguf(random(), beyond(3)));
    expect(remarks).toEqual(['1 token without a row of the embedding are left out (<image_soft_token> …)']);
    expect(tokenizer.encode('hello<image_soft_token>', { special: true }).every((id) => id < TINY.vocab)).toBe(true);
    expect((await refused(loadModel(write(tinyGguf(random(), beyond(1)))))).code).toBe('bad-tokenizer');
  });
});

/** Numbers as an array of any type: its number in the file, and how one is written. */
const list = (type: number, values: readonly number[], bytes: number, put: (to: Buffer, value: number) => void) => {
  const each = values.map((value) => {
    const to = Buffer.alloc(bytes);
    put(to, value);
    return to;
  });
  const head = Buffer.from(Uint32Array.of(9, type).buffer);
  return { type: 'raw', value: Buffer.concat([head, u64(values.length), ...each]) } as const;
};

describe('a list of numbers', () => {
  const TYPES = tinyWords.map((_, id) => (id < 2 ? 3 : 1));
  const WRITERS: Readonly<Record<string, (values: readonly number[]) => RawValue>> = {
    u8: (values) => list(0, values, 1, (to, value) => to.writeUInt8(value)),
    i8: (values) => list(1, values, 1, (to, value) => to.writeInt8(value)),
    u16: (values) => list(2, values, 2, (to, value) => to.writeUInt16LE(value)),
    i16: (values) => list(3, values, 2, (to, value) => to.writeInt16LE(value)),
    u32: (values) => list(4, values, 4, (to, value) => to.writeUInt32LE(value)),
    f32: (values) => list(6, values, 4, (to, value) => to.writeFloatLE(value)),
    u64: (values) => list(10, values, 8, (to, value) => to.writeBigUInt64LE(BigInt(value))),
    i64: (values) => list(11, values, 8, (to, value) => to.writeBigInt64LE(BigInt(value))),
    f64: (values) => list(12, values, 8, (to, value) => to.writeDoubleLE(value)),
  };
  const withTypes = (value: RawValue): Buffer => tinyGguf(random(), (m) => m.set('tokenizer.ggml.token_type', value));

  test.each(Object.entries(WRITERS))('of type %s means what it means as i32', async (_, write_) => {
    const { tokenizer } = await load(withTypes(write_(TYPES)));
    expect(tokenizer.encode('<s>hello</s>', { special: true })).toEqual([0, tinyWords.indexOf('hello'), 1]);
    const scores = write_([...TYPES.keys()]);
    const spm: Change = (m) => {
      m.set('tokenizer.ggml.model', { type: 'string', value: 'llama' });
      m.set('tokenizer.ggml.scores', scores);
    };
    expect((await load(tinyGguf(random(), spm))).tokenizer.encode('hell')).toContain(tinyWords.indexOf('hell'));
  });

  test.each<[string, Change, string, string?]>([
    [
      '2.5 for a type',
      (m) => m.set('tokenizer.ggml.token_type', WRITERS['f32']!([2.5, ...TYPES.slice(1)])),
      'token_type',
    ],
    ['7 for a type', (m) => m.set('tokenizer.ggml.token_type', WRITERS['u8']!([7, ...TYPES.slice(1)])), 'token_type'],
    ['−1 for a type', (m) => m.set('tokenizer.ggml.token_type', WRITERS['i8']!([-1, ...TYPES.slice(1)])), 'token_type'],
    [
      'no number for a type',
      (m) => m.set('tokenizer.ggml.token_type', { type: 'strings', value: tinyWords }),
      'token_type',
    ],
    ['too many types', (m) => m.set('tokenizer.ggml.token_type', { type: 'i32s', value: [...TYPES, 1] }), 'token_type'],
    [
      'a score that is no number',
      (m) => m.set('tokenizer.ggml.scores', WRITERS['f64']!(TYPES.map(() => Number.NaN))),
      'scores',
    ],
    ['1 for a flag', (m) => m.set('tokenizer.ggml.add_bos_token', { type: 'u32', value: 1 }), 'add_bos_token'],
    [
      'a merge without a space',
      (m) => m.set('tokenizer.ggml.merges', { type: 'strings', value: [...tinyMerges, 'x'] }),
      'merge 5',
    ],
    [
      '2.5 for the end',
      (m) => m.set('tokenizer.ggml.eos_token_id', { type: 'f32', value: 2.5 }),
      'eos_token_id',
      'bad-model',
    ],
  ])('with %s is refused by its key', async (_, change, key, code = 'bad-tokenizer') => {
    const error = await refused(loadModel(write(tinyGguf(random(), change))));
    expect(error.code).toBe(code);
    expect(error.message).toContain(key);
  });
});

test('what a model computes otherwise, such as ALiBi or looking ahead, is refused by name', async () => {
  for (const [key, value] of [
    ['llama.attention.max_alibi_bias', { type: 'f32', value: 8 }],
    ['llama.attention.causal', { type: 'bool', value: 0 }],
    ['llama.attention.sliding_window_pattern', { type: 'u32', value: 4 }],
    ['llama.attention.sliding_window_pattern', { type: 'raw', value: WINDOWS }],
  ] as const) {
    const error = await refused(loadModel(write(tinyGguf(random(), (m) => m.set(key, value)))));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  }
});

/** An array of one flag that is true. */
const WINDOWS = Buffer.concat([Buffer.from(Uint32Array.of(9, 7).buffer), u64(1), Buffer.of(1)]);

describe('zeros', () => {
  test.each([1, 31, 32, 4096])('%i more bytes of them behind the last tensor are harmless', async (bytes) => {
    const plain = tinyGguf(random());
    const { remarks } = await load(Buffer.concat([plain, Buffer.alloc(bytes)]));
    expect(remarks).toEqual([expect.stringMatching(/^[\d,]+ bytes? behind the last tensor are zeros/)]);
    const error = await refused(loadModel(write(Buffer.concat([plain, Buffer.alloc(bytes, 1)]))));
    expect([error.code, error.message]).toEqual(['bad-file', expect.stringContaining('not all zeros')]);
  });

  test('between tensors that are padded to more than the file says are harmless, and the last needs none', async () => {
    // The last two tensors have 512 bytes each.
    const wide = tinyGguf(random(), () => {}, { spacing: 1024 });
    const end = wide.findLastIndex((byte) => byte !== 0) + 1;
    const plain = await loadModel(write(tinyGguf(random())));
    for (const content of [wide, wide.subarray(0, end)]) {
      const model = await loadModel(write(content));
      expect(model.remarks[0]).toMatch(/^[\d,]+ bytes before tensor .+ are zeros that belong to no tensor$/);
      for (const name of ['embed', '0.down', 'head'])
        expect(model.weights.tensor(name).readFloat32()).toEqual(plain.weights.tensor(name).readFloat32());
      model.weights.close();
    }
    plain.weights.close();
    const dirty = Buffer.from(wide);
    dirty[end - 512 - 8] = 1;
    expect((await refused(loadModel(write(dirty)))).code).toBe('bad-file');
  });
});
