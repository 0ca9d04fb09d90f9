// Model files that were made to cost time or memory: pipes and devices in the place of each file, sizes and counts far
// beyond those of real models, holes. Sparse files make them large without writing. All must be refused as KvErrors,
// before the work that they ask for: none of these tests would end in a reasonable time if they were not.

import { spawnSync } from 'node:child_process';
import { rmSync, statSync, symlinkSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterAll, describe, expect, test } from 'vitest';
import { addSettings, readSettings } from '../../../../engine/cli/settings.ts';
import { FileBytes } from '../../../../engine/transformer/bytes.ts';
import * as limits from '../../../../engine/transformer/limits.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { JSON_VALUES_MAX, type KvError, parseJson } from '../../../../native/index.ts';
import { refusedLater } from '../../../refusal.ts';
import {
  gguf,
  safetensors,
  temporaryFolder,
  tinyGguf,
  tinyHfConfig,
  tinySafetensors,
  tinyTokenizerJson,
  u64,
} from './model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

let folders = 0;
/** A sound model in a folder of its own. */
function model(): string {
  const name = `model${folders++}`;
  folder.write(`${name}/config.json`, JSON.stringify(tinyHfConfig));
  folder.write(`${name}/generation_config.json`, '{}');
  folder.write(`${name}/tokenizer.json`, JSON.stringify(tinyTokenizerJson));
  folder.write(`${name}/tokenizer_config.json`, '{}');
  folder.write(`${name}/chat_template.jinja`, '{{ messages[0].content }}');
  folder.write(
    `${name}/model.safetensors`,
    tinySafetensors(() => 0.25),
  );
  return join(folder.dir, name);
}

const FILES = {
  'config.json': limits.CONFIG_BYTES_MAX,
  'generation_config.json': limits.CONFIG_BYTES_MAX,
  'tokenizer.json': limits.TOKENIZER_BYTES_MAX,
  'tokenizer_config.json': limits.TOKENIZER_CONFIG_BYTES_MAX,
  'chat_template.jinja': 2 ** 19,
  'model.safetensors': limits.WEIGHT_BYTES_MAX,
} as const;
const SPECIAL: readonly (readonly [string, (path: string) => void])[] = [
  ['a pipe that nobody writes', (path) => expect(spawnSync('mkfifo', [path]).status).toBe(0)],
  ['a link to /dev/zero', (path) => symlinkSync('/dev/zero', path)],
  ['a link to itself', (path) => symlinkSync(path, path)],
];

test('the model that the following tests spoil is a sound one', async () => {
  (await loadModel(model())).weights.close();
});

describe.each(SPECIAL)('%s', (what, make) => {
  test.each(Object.keys(FILES))('in the place of %s is refused', async (file) => {
    const path = join(model(), file);
    rmSync(path);
    make(path);
    // To whoever looks, a link that leads nowhere is not there, which is fine where a file is optional.
    const isAbsent = what === 'a link to itself';
    if (isAbsent && /^(generation|tokenizer)_config|jinja$/.test(file)) return;
    const { code, message } = await refusedLater(() => loadModel(join(path, '..')));
    expect(isAbsent ? ['not-found', 'io'] : ['bad-file', 'bad-model', 'bad-tokenizer']).toContain(code);
    if (!isAbsent) expect(message).toContain('is not a regular file');
  });

  test('in the place of a GGUF file, a shard and its index', async () => {
    const path = join(folder.dir, `special${folders++}.gguf`);
    make(path);
    expect(['bad-file', 'io', 'not-found']).toContain((await refusedLater(() => loadModel(path))).code);
    const dir = model();
    rmSync(join(dir, 'model.safetensors'));
    make(join(dir, 'model.safetensors.index.json'));
    expect(['bad-file', 'io', 'not-found']).toContain((await refusedLater(() => loadModel(dir))).code);
    rmSync(join(dir, 'model.safetensors.index.json'));
    folder.write(
      join(dir.slice(folder.dir.length + 1), 'model.safetensors.index.json'),
      JSON.stringify({ weight_map: { a: 'a.safetensors' } }),
    );
    make(join(dir, 'a.safetensors'));
    expect(['bad-file', 'io', 'not-found']).toContain((await refusedLater(() => loadModel(dir))).code);
  });

  test('as --config', async () => {
    const path = join(folder.dir, `special${folders++}.toml`);
    make(path);
    const command = addSettings(new Command().exitOverride(), ['config']);
    command.action((...parameters: unknown[]) => void readSettings(parameters.at(-1) as Command, {}));
    const { code } = await refusedLater(() => command.parse(['node', 'palimpsest', '--config', path]));
    expect(['bad-config', 'io', 'not-found']).toContain(code);
  });
});

describe('a size that no real model has', () => {
  test.each(Object.entries(FILES))('%s', async (file, bytesMax) => {
    const path = join(model(), file);
    truncateSync(path, bytesMax + 1);
    const error = await refusedLater(() => loadModel(join(path, '..')));
    expect(error).toMatchObject({ values: { path, bytes: bytesMax + 1, bytesMax } });
  });

  test('the header of a safetensors file', async () => {
    const path = join(model(), 'model.safetensors');
    folder.write(path.slice(folder.dir.length + 1), u64(limits.TENSOR_INDEX_BYTES_MAX + 1));
    truncateSync(path, 2 ** 30);
    expect((await refusedLater(() => loadModel(join(path, '..')))).message).toContain('the header is said to have');
  });

  // A hole of 1 TiB behind the tensors was read to its end for the digest.
  test('a hole behind the last tensor of a GGUF file', async () => {
    const path = folder.write(
      'hole.gguf',
      tinyGguf(() => 0.25),
    );
    (await loadModel(path)).weights.close();
    truncateSync(path, statSync(path).size + 2 ** 40);
    expect((await refusedLater(() => loadModel(path))).message).toContain('bytes belong to no tensor');
  });

  test('a hole that a tensor is said to be', async () => {
    const path = folder.write('hollow.bin', 'x');
    truncateSync(path, 2 ** 40);
    if (statSync(path).blocks === 0) return; // This file system does not tell holes from bytes.
    const file = FileBytes.open(path);
    expect((await refusedLater(() => file.digest())).message).toContain('of which the disk holds');
    file.close();
  });
});

describe('a count that no real model has', () => {
  test('tensors of a safetensors file', async () => {
    const one = { dtype: 'F32', shape: [0], bytes: new Uint8Array(0) };
    const dir = model();
    const many = Object.fromEntries(Array.from({ length: limits.TENSORS_MAX + 1 }, (_, i) => [`t${i}`, one]));
    folder.write(join(dir.slice(folder.dir.length + 1), 'model.safetensors'), safetensors(many));
    expect((await refusedLater(() => loadModel(dir))).message).toContain(`${limits.TENSORS_MAX + 1} tensors`);
  });

  test.each([
    ['tensors', { tensorCount: limits.TENSORS_MAX + 1 }],
    ['metadata entries', { entryCount: limits.GGUF_ENTRIES_MAX + 1 }],
  ])('%s of a GGUF file', async (what, lie) => {
    const path = folder.write('many.gguf', gguf({ metadata: [], tensors: [], ...lie }));
    truncateSync(path, 2 ** 30);
    expect((await refusedLater(() => loadModel(path))).message).toContain(what);
  });

  test.each(['strings', 'i32s'] as const)('%s in a GGUF file', async (type) => {
    const value = { type, value: [] };
    const bytes = gguf({ metadata: [['tokenizer.ggml.merges', value]], tensors: [] });
    bytes.writeBigUInt64LE(BigInt(limits.MERGES_MAX + 1), bytes.indexOf('merges') + 6 + 8);
    const path = folder.write('long.gguf', bytes);
    truncateSync(path, 2 ** 30);
    expect((await refusedLater(() => loadModel(path))).message).toContain('are plausible');
  });

  test('words, merges, added tokens and values of JSON', async () => {
    const written = async (change: object): Promise<KvError> => {
      const dir = model();
      folder.write(
        join(dir.slice(folder.dir.length + 1), 'tokenizer.json'),
        JSON.stringify({ ...tinyTokenizerJson, ...change }),
      );
      return refusedLater(() => loadModel(dir));
    };
    const bpe = tinyTokenizerJson['model'] as object;
    const merges = Array.from({ length: limits.MERGES_MAX + 1 }, () => 'h e');
    expect((await written({ model: { ...bpe, merges } })).message).toContain('merges');
    const token = { id: 5, content: 'x' };
    const tokens = Array.from({ length: limits.ADDED_TOKENS_MAX + 1 }, () => token);
    expect((await written({ added_tokens: tokens })).message).toContain('added tokens');
    const values = Buffer.from(`[${'1,'.repeat(JSON_VALUES_MAX + 1)}1]`);
    const error = await refusedLater(() => parseJson(values, { what: 'x', code: 'bad-tokenizer' }));
    expect(error.message).toContain(`more than ${JSON_VALUES_MAX} values`);
    const config = { ...tinyHfConfig, vocab_size: limits.VOCABULARY_MAX + 1 };
    const dir = model();
    folder.write(join(dir.slice(folder.dir.length + 1), 'config.json'), JSON.stringify(config));
    expect((await refusedLater(() => loadModel(dir))).message).toContain('vocabSize');
  });
});
