// Loads the same small model from a folder, from shards, from GGUF and from a llama2.c file, the real ones where they
// are, and broken ones; checks names, shapes, digests, and that nothing wrong gets through.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { inspectModel, inspectVocabulary } from '../../../../engine/transformer/inspect-model.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { RandomNumbers } from '../../../../engine/transformer/sampling/random.ts';
import type { LoadedModel } from '../../../../engine/transformer/types.ts';
import { KvError } from '../../../../native/index.ts';
import { refused } from '../../../refusal.ts';
import {
  floats,
  hasSharedData,
  hasSmollm,
  type RawValue,
  referenceModel,
  safetensors,
  sharedData,
  smollmPath,
  TINY,
  temporaryFolder,
  tinyGguf,
  tinyHfConfig,
  tinySafetensors,
  tinyTokenizerJson,
  tinyWeights,
  tinyWords,
} from './model-files.ts';

const SEED = 99;
const folder = temporaryFolder();
afterAll(() => folder.remove());
const random = (): (() => number) => {
  const numbers = new RandomNumbers(SEED);
  return () => numbers.uniform();
};
const weights = tinyWeights(random());

let folders = 0;
/** A Hugging Face folder; `change` replaces files, null leaves one out. */
function hfFolder(change: Readonly<Record<string, string | Uint8Array | null>> = {}): string {
  const name = `hf${folders++}`;
  const files: Record<string, string | Uint8Array | null> = {
    'config.json': JSON.stringify(tinyHfConfig),
    'tokenizer.json': JSON.stringify(tinyTokenizerJson),
    'model.safetensors': tinySafetensors(random()),
    ...change,
  };
  folder.write(`${name}/README`, '');
  for (const [file, content] of Object.entries(files)) if (content !== null) folder.write(`${name}/${file}`, content);
  return join(folder.dir, name);
}

const OURS: Readonly<Record<string, string>> = {
  embed: 'model.embed_tokens.weight',
  head: 'lm_head.weight',
  norm: 'model.norm.weight',
  '0.attnNorm': 'model.layers.0.input_layernorm.weight',
  '0.q': 'model.layers.0.self_attn.q_proj.weight',
  '0.k': 'model.layers.0.self_attn.k_proj.weight',
  '0.v': 'model.layers.0.self_attn.v_proj.weight',
  '0.o': 'model.layers.0.self_attn.o_proj.weight',
  '0.mlpNorm': 'model.layers.0.post_attention_layernorm.weight',
  '0.gate': 'model.layers.0.mlp.gate_proj.weight',
  '0.up': 'model.layers.0.mlp.up_proj.weight',
  '0.down': 'model.layers.0.mlp.down_proj.weight',
};

function mustHoldTheWeights(model: LoadedModel): void {
  for (const [ours, theirs] of Object.entries(OURS)) {
    const tensor = model.weights.tensor(ours);
    expect(tensor.name).toBe(ours);
    expect(tensor.shape).toEqual(weights.get(theirs)!.shape);
    expect([...tensor.readFloat32()]).toEqual(weights.get(theirs)!.values);
  }
  expect(model.weights.has('0.q.bias')).toBe(false);
  expect(() => model.weights.tensor('0.q.bias')).toThrow(KvError);
}

describe('the same model', () => {
  test('from a Hugging Face folder', async () => {
    const model = await loadModel(hfFolder());
    mustHoldTheWeights(model);
    expect(model.config).toMatchObject({
      architecture: 'llama',
      ropeInterleaved: false,
      tiedEmbeddings: false,
      headDim: TINY.headDim,
    });
    expect(model.tokenizer.encode('hello a')).toEqual([tinyWords.indexOf('hello'), tinyWords.indexOf('Ġa')]);
    expect(model.digest).toBe(createHash('sha256').update(tinySafetensors(random())).digest('hex'));
    model.weights.close();
    expect(() => model.weights.tensor('embed').readFloat32()).toThrow(/closed/);
  });

  test('from two shards', async () => {
    const names = [...weights.keys()];
    const part = (from: number, to: number): Buffer =>
      safetensors(
        Object.fromEntries(
          names
            .slice(from, to)
            .map((name) => [
              name,
              { dtype: 'F32', shape: weights.get(name)!.shape, bytes: floats(weights.get(name)!.values) },
            ]),
        ),
      );
    const weight_map = Object.fromEntries(
      names.map((name, i) => [name, i < 5 ? 'model-1.safetensors' : 'model-2.safetensors']),
    );
    const path = hfFolder({
      'model.safetensors': null,
      'model-1.safetensors': part(0, 5),
      'model-2.safetensors': part(5, names.length),
      'model.safetensors.index.json': JSON.stringify({ metadata: {}, weight_map }),
    });
    const model = await loadModel(path);
    mustHoldTheWeights(model);
    expect(model.digest).toMatch(/^[0-9a-f]{64}$/);
    model.weights.close();
  });

  test('from GGUF', async () => {
    const content = tinyGguf(random());
    const model = await loadModel(folder.write('tiny.gguf', content));
    mustHoldTheWeights(model);
    expect(model).toMatchObject({
      name: 'tiny',
      digest: createHash('sha256').update(content).digest('hex'),
      fileBytes: content.length,
    });
    expect(model.config.ropeInterleaved).toBe(true);
    expect(model.tokenizer.encode('hello a')).toEqual([tinyWords.indexOf('hello'), tinyWords.indexOf('Ġa')]);
    model.weights.close();
  });

  // It goes into the log and to the terminal: what a file declares must not move a cursor, fill pages, or tell where
  // its maker kept it.
  test.each([
    ['Tiny Llama', 'Tiny Llama'],
    ['org/Tiny Llama', 'Tiny Llama'],
    ['/models/secret/tiny', 'tiny'],
    ['C:\\Users\\somebody\\tiny', 'tiny'],
    ['ti\u001b[2J\u202eny\n', 'ti\\x1b[2J\\u{202e}ny'],
    ['x'.repeat(5000), 'x'.repeat(80)],
    [' ', null],
    ['/', null],
    [null, null],
  ])('from GGUF that calls itself %j', async (declared, name) => {
    const path = folder.write(
      'called.gguf',
      tinyGguf(random(), (metadata) => {
        if (declared === null) metadata.delete('general.name');
        else metadata.set('general.name', { type: 'string', value: declared });
      }),
    );
    const model = await loadModel(path);
    expect(model.name).toBe(name ?? `llama-${model.digest.slice(0, 8)}`);
    expect(JSON.stringify(model.summary)).not.toContain('called');
    model.weights.close();
  });

  test('with only an output matrix, which is then both ends', async () => {
    const { 'model.embed_tokens.weight': _, ...rest } = Object.fromEntries(
      [...weights].map(([name, { shape, values }]) => [name, { dtype: 'F32', shape, bytes: floats(values) }]),
    );
    const model = await loadModel(
      hfFolder({
        'model.safetensors': safetensors(rest),
        'config.json': JSON.stringify({ ...tinyHfConfig, tie_word_embeddings: true }),
      }),
    );
    expect([...model.weights.tensor('embed').readFloat32()]).toEqual(weights.get('lm_head.weight')!.values);
    expect(model.weights.has('head')).toBe(false);
    model.weights.close();
  });
});

describe('a folder', () => {
  test.each<[string, Readonly<Record<string, string | Uint8Array | null>>, string]>([
    ['without a configuration', { 'config.json': null }, 'not-found'],
    ['without weights', { 'model.safetensors': null }, 'not-found'],
    ['with PyTorch weights', { 'model.safetensors': null, 'pytorch_model.bin': '' }, 'unsupported'],
    ['without a tokenizer', { 'tokenizer.json': null }, 'not-found'],
    ['with another kind of tokenizer', { 'tokenizer.json': null, 'tokenizer.model': '' }, 'unsupported'],
    ['with a broken configuration', { 'config.json': '{' }, 'bad-model'],
    [
      'with a key twice in its configuration',
      { 'config.json': '{"model_type":"llama","model_type":"mistral"}' },
      'bad-model',
    ],
    [
      'with a configuration that would change prototypes',
      { 'config.json': '{"__proto__":{"model_type":"llama"}}' },
      'bad-model',
    ],
    ['with a broken tokenizer', { 'tokenizer.json': '[]' }, 'bad-tokenizer'],
    ['with a broken template', { 'tokenizer_config.json': '{"chat_template": 3}' }, 'bad-tokenizer'],
    [
      'of another shape than its weights',
      { 'config.json': JSON.stringify({ ...tinyHfConfig, intermediate_size: 32 }) },
      'bad-model',
    ],
    [
      'with fewer layers than its weights',
      { 'config.json': JSON.stringify({ ...tinyHfConfig, num_hidden_layers: 2 }) },
      'bad-model',
    ],
    [
      'with biases its weights have not',
      { 'config.json': JSON.stringify({ ...tinyHfConfig, attention_bias: true }) },
      'bad-model',
    ],
    [
      'with a tensor nobody computes with',
      {
        'model.safetensors': safetensors({
          'model.layers.0.router.weight': { dtype: 'F32', shape: [1], bytes: floats([1]) },
        }),
      },
      'unsupported',
    ],
  ])('%s is refused', async (_, change, code) => {
    expect((await refused(loadModel(hfFolder(change)))).code).toBe(code);
  });

  test('with a template has it: from a list, and from a file of its own', async () => {
    const listed = await loadModel(
      hfFolder({
        'tokenizer_config.json': JSON.stringify({
          chat_template: [
            { name: 'tool_use', template: 'hello' },
            { name: 'default', template: 'ha' },
            { name: 'rag', template: 'x' },
          ],
        }),
      }),
    );
    expect(listed.tokenizer.chatTemplate).toBe('ha');
    expect(listed.tokenizer.templateFor([])).toBe('ha');
    expect(listed.tokenizer.templateFor([{ name: 'now' }])).toBe('hello');
    expect(listed.tokenizer.chat([], { tools: [{ name: 'now' }] })).toEqual([tinyWords.indexOf('hello')]);
    listed.weights.close();
    const file = await loadModel(
      hfFolder({ 'tokenizer_config.json': '{"chat_template":"x"}', 'chat_template.jinja': 'hello' }),
    );
    expect(file.tokenizer.chat([])).toEqual([tinyWords.indexOf('hello')]);
    expect(file.tokenizer.templateFor([{ name: 'now' }])).toBe('hello');
    file.weights.close();
    const both = await loadModel(
      hfFolder({ 'chat_template.jinja': 'ha', 'additional_chat_templates/tool_use.jinja': 'hello' }),
    );
    expect([both.tokenizer.templateFor([]), both.tokenizer.templateFor([{ name: 'now' }])]).toEqual(['ha', 'hello']);
    both.weights.close();
  });
});

describe('a GGUF file', () => {
  test('with a template of its own for tools has it', async () => {
    const content = tinyGguf(random(), (metadata) => {
      metadata.set('tokenizer.chat_template', { type: 'string', value: 'ha' });
      metadata.set('tokenizer.chat_template.tool_use', { type: 'string', value: 'hello' });
    });
    const { tokenizer, weights } = await loadModel(folder.write('templates.gguf', content));
    expect([tokenizer.templateFor([]), tokenizer.templateFor([{ name: 'now' }])]).toEqual(['ha', 'hello']);
    weights.close();
  });

  test.each<[string, (metadata: Map<string, RawValue>) => void, string]>([
    [
      'of another architecture',
      (m) => m.set('general.architecture', { type: 'string', value: 'mamba' }),
      'unsupported',
    ],
    ['without a vocabulary', (m) => m.delete('tokenizer.ggml.tokens'), 'bad-tokenizer'],
    [
      'with more words than its embedding',
      (m) => m.set('tokenizer.ggml.tokens', { type: 'strings', value: Array.from({ length: 25 }, (_, i) => `${i}`) }),
      'bad-tokenizer',
    ],
    [
      'with types for fewer words',
      (m) => m.set('tokenizer.ggml.token_type', { type: 'i32s', value: [1] }),
      'bad-tokenizer',
    ],
    [
      'with a BOS outside its words',
      (m) => m.set('tokenizer.ggml.bos_token_id', { type: 'u32', value: 23 }),
      'bad-tokenizer',
    ],
    [
      'with merges that are none',
      (m) => m.set('tokenizer.ggml.merges', { type: 'strings', value: ['ab'] }),
      'bad-tokenizer',
    ],
    [
      'without scores for its kind',
      (m) => m.set('tokenizer.ggml.model', { type: 'string', value: 'llama' }),
      'bad-tokenizer',
    ],
    [
      'with a tokenizer of another kind',
      (m) => m.set('tokenizer.ggml.model', { type: 'string', value: 'bert' }),
      'unsupported',
    ],
    [
      'with a pre-tokenizer nobody knows',
      (m) => m.set('tokenizer.ggml.pre', { type: 'string', value: 'mystery' }),
      'unsupported',
    ],
    [
      'with a number for a template',
      (m) => m.set('tokenizer.chat_template', { type: 'u32', value: 1 }),
      'bad-tokenizer',
    ],
    ['with experts that it does not count', (m) => m.set('llama.expert_count', { type: 'u32', value: 8 }), 'bad-model'],
    [
      'of other widths than its weights',
      (m) => m.set('llama.feed_forward_length', { type: 'u32', value: 32 }),
      'bad-model',
    ],
  ])('%s is refused', async (_, change, code) => {
    expect((await refused(loadModel(folder.write('lying.gguf', tinyGguf(random(), change))))).code).toBe(code);
  });

  test('that is damaged in a weight loads, and says so when the weight is read', async () => {
    const content = tinyGguf(random());
    content.writeUInt32LE(0x7f800000, content.length - 4);
    const model = await loadModel(folder.write('infinite.gguf', content));
    expect(() => model.weights.tensor('0.down').readFloat32()).toThrow(/Infinity/);
    model.weights.close();
  });
});

describe('names', () => {
  test('that are none are refused with what to do', async () => {
    expect((await refused(loadModel('no-such-model'))).hint).toContain('reference');
    const missing = await refused(loadModel('smollm2-135m', { cacheDir: folder.dir }));
    expect(missing).toMatchObject({ code: 'not-found', hint: 'palimpsest fetch smollm2-135m' });
    expect((await refused(loadModel(folder.write('model.txt', 'x')))).code).toBe('unsupported');
    expect((await refused(loadModel(folder.dir))).code).toBe('not-found');
    expect((await refused(loadModel(''))).code).toBe('bad-argument');
  });

  test('reference: the model that comes with the package', async () => {
    const model = await loadModel('reference');
    expect(model).toMatchObject({
      name: 'reference',
      path: referenceModel,
      config: { layers: 6, hiddenSize: 256, headDim: 64, vocabSize: 4096 },
    });
    expect(model.digest).toBe(
      createHash('sha256')
        .update(readFileSync(join(referenceModel, 'model.safetensors')))
        .digest('hex'),
    );
    expect(model.weights.tensor('embed').readFloat32(4095).length).toBe(256);
    expect(model.tokenizer).toMatchObject({ addBos: false, bosId: 0, eosIds: [0] });
    model.weights.close();
  });
});

// The reader of the tokenizer knows nothing of files; whoever runs a model must be told which one it is.
test('an error of one section of a file names the file', async () => {
  const broken = tinyGguf(random(), (metadata) =>
    metadata.set('tokenizer.ggml.model', { type: 'string', value: 'unheard-of' }),
  );
  const path = folder.write('foreign-words.gguf', broken);
  const error = await refused(loadModel(path));
  expect(error).toMatchObject({ code: 'unsupported', values: { path } });
  const missing = tinyGguf(random(), (metadata) => metadata.delete('llama.block_count'));
  const other = folder.write('no-layers.gguf', missing);
  expect(JSON.stringify(await refused(loadModel(other))) + (await refused(loadModel(other))).message).toContain(other);
});

test('a .bin file of another kind is refused in one line', async () => {
  const path = folder.write('vectors.bin', Buffer.from('PALIMLOG'.repeat(40)));
  const error = await refused(loadModel(path));
  expect(error.code).toBe('bad-model');
  expect(error.message).toBe(`${path} is not a llama2.c model: its first bytes are not the sizes of one`);
  expect(JSON.stringify(error.values).length).toBeLessThan(2 * path.length + 150);
});

test('inspect tells what is in a vocabulary without weights', () => {
  const words = folder.write(
    'words.gguf',
    tinyGguf(random(), () => {}, { tensors: [] }),
  );
  expect(inspectVocabulary(words)).toMatchObject({
    kind: 'vocabulary',
    name: 'tiny',
    path: words,
    architecture: 'llama',
    // Words, and not the rows of an embedding that is not there.
    tokenizer: { vocabulary: 21, bosId: 0, eosIds: [1], chatTemplate: false },
  });
  expect(inspectVocabulary(folder.write('whole.gguf', tinyGguf(random())))).toBeNull();
  expect(inspectVocabulary(referenceModel)).toBeNull();
});

test('inspect tells what is in a file', async () => {
  expect(await inspectModel(folder.write('seen.gguf', tinyGguf(random())))).toMatchObject({
    kind: 'model',
    format: 'GGUF 3',
    parameters: 2 * 24 * 8 + 3 * 8 + 2 * 8 * 8 + 2 * 4 * 8 + 3 * 16 * 8,
    tensors: { F32: { count: 12, bytes: 4 * (2 * 24 * 8 + 3 * 8 + 2 * 8 * 8 + 2 * 4 * 8 + 3 * 16 * 8) } },
    tokenizer: { kind: 'byte-level BPE (gpt-2)', vocabulary: 24, bosId: 0, eosIds: [1] },
  });
});

describe('a llama2.c checkpoint', () => {
  test.skipIf(!hasSharedData)('is read with the vocabulary beside it (needs ../shared/data)', async () => {
    const model = await loadModel(join(sharedData, 'stories260k', 'stories260K.bin'));
    expect(model.config).toMatchObject({
      layers: 5,
      queryHeads: 8,
      kvHeads: 4,
      headDim: 8,
      vocabSize: 512,
      contextLength: 512,
      ropeInterleaved: true,
      tiedEmbeddings: true,
    });
    expect(model.summary.parameters).toBe(260_032);
    const story = 'Once upon a time, there was a little girl named Lily.';
    expect(model.tokenizer.decode(model.tokenizer.encode(story))).toBe(story);
    expect(model.tokenizer.encode('Once upon a time')).toEqual([403, 407, 261, 378]);
    model.weights.close();
  });

  test.each([
    ['of another length', [8, 16, 1, 2, 1, 24, 64], 100],
    ['of negative sizes', [-8, 16, 1, 2, 1, 24, 64], 100],
    ['of enormous sizes', [2 ** 30, 2 ** 30, 2 ** 30, 1, 1, 2 ** 30, 2 ** 30], 100],
    ['without heads', [8, 16, 1, 0, 0, 24, 64], 100],
    ['shorter than its header', [8, 16], 0],
  ])('%s is refused', async (_, header, more) => {
    const content = Buffer.concat([Buffer.from(Int32Array.from(header).buffer), Buffer.alloc(more)]);
    expect((await refused(loadModel(folder.write('odd.bin', content)))).code).toMatch(/^bad-(file|model)$/);
  });
});

test.skipIf(!hasSharedData)(
  'a checkpoint with one matrix for both ends, named as the output (needs ../shared/data)',
  async () => {
    const model = await loadModel(join(sharedData, 'tinystories656k'));
    expect(model.config).toMatchObject({ tiedEmbeddings: true, headDim: 16, eosIds: [2], bosId: 1 });
    expect(model.weights.tensor('embed').shape).toEqual([2048, 128]);
    expect(model.tokenizer.addBos).toBe(true);
    expect(model.tokenizer.decode(model.tokenizer.encode('Once upon a time, '))).toBe('Once upon a time, ');
    model.weights.close();
  },
);

test.skipIf(!hasSmollm)('SmolLM2 as GGUF (needs palimpsest fetch smollm2-135m)', async () => {
  const model = await loadModel(smollmPath);
  expect(model.config).toMatchObject({
    architecture: 'llama',
    layers: 30,
    queryHeads: 9,
    kvHeads: 3,
    headDim: 64,
    vocabSize: 49152,
    contextLength: 8192,
    ropeTheta: 100000,
    ropeInterleaved: true,
    tiedEmbeddings: true,
  });
  expect(model.digest).toBe('b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53');
  expect(model.summary).toMatchObject({ parameters: 134_515_008, storedTypes: { Q4_1: 210, F32: 61, Q8_0: 1 } });
  expect(model.weights.tensor('29.down').readFloat32(0, 2).length).toBe(2 * 1536);
  expect(model.tokenizer.addBos).toBe(false);
  model.weights.close();
});
