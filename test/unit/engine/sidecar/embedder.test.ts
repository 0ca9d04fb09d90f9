// Tries embedders of a user with real ONNX files that are made here: one of the bytes of a text and one of token ids,
// both means of the rows of a table, so that texts of the same words lie near each other. What it takes and gives is
// refused by name where it does not fit, and places that two of them said are not compared. Nothing shorter than a
// process with onnxruntime shows what such a file answers.
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { readEmbedder } from '../../../../engine/sidecar/embedder.ts';
import { TextHelpers } from '../../../../engine/sidecar/hint.ts';
import {
  type OnnxGraph,
  type OnnxNode,
  type OnnxValue,
  writeOnnxModel,
} from '../../../../engine/transformer/onnx-writer.ts';
import { hintDistance } from '../../../../memory/index.ts';
import { seeded } from '../../../random.ts';
import { refusal, refused } from '../../../refusal.ts';
import { entriesOf, MODEL } from '../on-reference.ts';

const DIM = 24;
const PATIENT = { limits: { startMs: 120_000, deadlineMs: 120_000 }, restMs: 0 };
const WORDS = ['[UNK]', '[CLS]', '[SEP]', 'bees', 'honey', 'hive', 'rain', 'cloud', 'storm'];
const BEES = Buffer.from('bees honey hive bees');
const MORE_BEES = Buffer.from('hive honey bees bees bees');
const WEATHER = Buffer.from('rain cloud storm rain');

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'palimpsest-embedder-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const open: TextHelpers[] = [];
afterEach(async () => {
  for (const helpers of open.splice(0)) await helpers.close();
});

/** Rows of a table by numbers. */
function tableGraph(rows: number, seed: number, input: OnnxValue, more: Partial<OnnxGraph> = {}): OnnxGraph {
  const random = seeded(seed);
  const nodes: OnnxNode[] = [
    { op: 'Cast', inputs: [input.name], outputs: ['rows'], attributes: { to: { int: 7 } } },
    { op: 'Gather', inputs: ['table', 'rows'], outputs: ['answer'] },
  ];
  const table = Float32Array.from({ length: rows * DIM }, () => random() - 0.5);
  return {
    name: 'table',
    nodes,
    initializers: [{ name: 'table', type: 'float32', shape: [rows, DIM], data: table }],
    inputs: [input],
    outputs: [{ name: 'answer', type: 'float32', shape: ['tokens', DIM] }],
    ...more,
  };
}

/** The mean of a row for each byte. */
function bytesGraph(seed: number): OnnxGraph {
  const graph = tableGraph(256, seed, { name: 'utf8', type: 'uint8', shape: ['bytes'] });
  const mean: OnnxNode = { op: 'ReduceMean', inputs: ['answer', 'axis'], outputs: ['mean'] };
  return {
    ...graph,
    nodes: [...graph.nodes, mean],
    initializers: [...graph.initializers, { name: 'axis', type: 'int64', shape: [1], data: BigInt64Array.of(0n) }],
    outputs: [{ name: 'mean', type: 'float32', shape: [1, DIM] }],
  };
}

const ids: OnnxValue = { name: 'input_ids', type: 'int64', shape: ['batch', 'tokens'] };
const tokensGraph = (seed: number): OnnxGraph =>
  tableGraph(WORDS.length, seed, ids, {
    inputs: [ids, { ...ids, name: 'attention_mask' }],
    outputs: [{ name: 'answer', type: 'float32', shape: ['batch', 'tokens', DIM] }],
  });

/** A tokenizer.json of whole words, as those of sentence models are. */
const TOKENIZER = JSON.stringify({
  added_tokens: WORDS.slice(0, 3).map((content, id) => ({ id, content, special: true })),
  normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, lowercase: true },
  pre_tokenizer: { type: 'BertPreTokenizer' },
  post_processor: {
    type: 'TemplateProcessing',
    single: [
      { SpecialToken: { id: '[CLS]', type_id: 0 } },
      { Sequence: { id: 'A', type_id: 0 } },
      { SpecialToken: { id: '[SEP]', type_id: 0 } },
    ],
    pair: [],
    special_tokens: {
      '[CLS]': { id: '[CLS]', ids: [1], tokens: ['[CLS]'] },
      '[SEP]': { id: '[SEP]', ids: [2], tokens: ['[SEP]'] },
    },
  },
  decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
  model: {
    type: 'WordPiece',
    unk_token: '[UNK]',
    continuing_subword_prefix: '##',
    max_input_chars_per_word: 100,
    vocab: Object.fromEntries(WORDS.map((word, id) => [word, id])),
  },
});

function written(name: string, graph: OnnxGraph, tokenizer: string | null = null): string {
  const path = join(folder, name, 'model.onnx');
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, writeOnnxModel(graph));
  if (tokenizer !== null) writeFileSync(join(folder, name, 'tokenizer.json'), tokenizer);
  return path;
}

function helpersOf(embedder: string): TextHelpers {
  const helpers = new TextHelpers({ ...PATIENT, embedder });
  open.push(helpers);
  return helpers;
}

const hintsOf = async (helpers: TextHelpers, texts: readonly Uint8Array[]) => {
  const hints = [];
  for (const text of texts) hints.push((await helpers.hintOf(text))!);
  return hints;
};

describe.each([
  ['of bytes', bytesGraph, null],
  ['of token ids', tokensGraph, TOKENIZER],
] as const)('an embedder %s', (name, graph, tokenizer) => {
  test('puts texts of the same words near each other, by signs and its digest', async () => {
    const helpers = helpersOf(written(name, graph(1), tokenizer));
    await helpers.check();
    const [bees, more, weather, again] = await hintsOf(helpers, [BEES, MORE_BEES, WEATHER, BEES]);
    expect(again).toEqual(bees);
    expect(bees!.place).toHaveLength(64);
    for (const x of bees!.place) expect(Math.abs(x)).toBe(1 / 8);
    expect(bees!.by).toMatch(/^[0-9a-f]{16}$/);
    const from = (hint: typeof bees): number => hintDistance({ ...bees!, share: 0 }, { ...hint!, share: 0 });
    expect(from(more)).toBeLessThan(from(weather));
  });
});

describe('places', () => {
  test('that two embedders said are not compared, nor with those of the package', async () => {
    const [one] = await hintsOf(helpersOf(written('one', bytesGraph(1))), [BEES]);
    const [other] = await hintsOf(helpersOf(written('other', bytesGraph(2))), [BEES]);
    expect(other!.by).not.toBe(one!.by);
    expect(other!.place).not.toEqual(one!.place);
    expect(hintDistance(one, other)).toBe(0);
    expect(hintDistance(one, { ...other!, by: one!.by! })).toBeGreaterThan(0);
    expect(hintDistance(one, { kind: one!.kind, share: 1, place: one!.place.map((x) => -x) })).toBe(0);
  });

  test('of the same file with another tokenizer neither', () => {
    const [one, other] = ['a', 'b'].map((name) => {
      const text = name === 'a' ? TOKENIZER : TOKENIZER.replace('storm', 'gale');
      return readEmbedder(written(name, tokensGraph(1), text)).digest;
    });
    expect(one).not.toBe(other);
  });
});

describe('what is refused', () => {
  const bytes: OnnxValue = { name: 'utf8', type: 'uint8', shape: ['bytes'] };
  test.each([
    [
      'an image',
      { inputs: [{ name: 'pixels', type: 'float32', shape: [1, 3, 224, 224] }] },
      'takes pixels float32 [1, 3, 224, 224]',
    ],
    ['bytes of one length', { inputs: [{ ...bytes, shape: [80] }] }, 'takes utf8 uint8 [80]'],
    ['two texts', { inputs: [bytes, { ...bytes, name: 'other' }] }, 'takes utf8 uint8 [?], other uint8 [?]'],
    ['tokens of one length', { inputs: [{ ...ids, shape: [1, 128] }] }, 'takes input_ids int64 [1, 128]'],
    ['no ids', { inputs: [{ ...ids, name: 'attention_mask' }] }, 'takes attention_mask int64 [?, ?]'],
    ['classes', { outputs: [{ name: 'answer', type: 'int64', shape: [1] }] }, 'answers with answer int64 [1]'],
    [
      'pictures',
      { outputs: [{ name: 'answer', type: 'float32', shape: [1, 3, 8, 8] }] },
      'answers with answer float32 [1, 3, 8, 8]',
    ],
  ] as const)('%s', (name, part, says) => {
    const path = written(name, { ...bytesGraph(1), ...(part as Partial<OnnxGraph>) }, TOKENIZER);
    const error = refusal(() => readEmbedder(path));
    expect(error.code).toBe('bad-model');
    expect(error.message).toContain(says);
    expect(error.hint).toContain('uint8 [bytes]');
  });

  test('answers that turn out to be no vector, when it is asked', async () => {
    // A row for each byte, which the file does not say.
    const graph = tableGraph(256, 1, { name: 'utf8', type: 'uint8', shape: ['bytes'] });
    const error = await refused(helpersOf(written('rows', graph)).check());
    expect(error.code).toBe('bad-model');
    expect(error.message).toContain(`answers answer float32 [45, ${DIM}]`);
  });

  test('a file that is not there, is no ONNX, or lacks its tokenizer', () => {
    expect(refusal(() => readEmbedder(join(folder, 'nowhere.onnx'))).code).toBe('not-found');
    const text = join(folder, 'text.onnx');
    writeFileSync(text, 'no model');
    expect(refusal(() => readEmbedder(text)).code).toBe('bad-model');
    expect(refusal(() => readEmbedder(written('bare', tokensGraph(1)))).code).toBe('not-found');
    expect(refusal(() => readEmbedder(written('wrong', tokensGraph(1), '{"model":{"type":"?"}}'))).code).toBe(
      'bad-tokenizer',
    );
  });
});

describe('an engine', () => {
  test('writes what its embedder said to the log', async () => {
    const stateDir = join(folder, 'state');
    const engine = await createEngine({
      model: MODEL,
      threads: 1,
      stateDir,
      embedder: written('engine', bytesGraph(3)),
    });
    const session = await engine.openSession({ tokensExpected: 400 });
    await session.generate('The bees kept to their hive while it rained. '.repeat(24), { maxTokens: 1 }).result;
    await session.close();
    await engine.close();
    const [close] = entriesOf(stateDir, session.id, 'close');
    expect(close!.body.hint).toMatchObject({ by: readEmbedder(written('engine', bytesGraph(3))).digest });
    expect(close!.body.hint!.place).toHaveLength(64);
  });

  test('is not made with one that does not fit, nor where nobody asks helpers', async () => {
    const rows = written('rows', tableGraph(256, 1, { name: 'utf8', type: 'uint8', shape: ['bytes'] }));
    const options = { model: MODEL, threads: 1, stateDir: null } as const;
    expect((await refused(createEngine({ ...options, embedder: rows }))).code).toBe('bad-model');
    expect((await refused(createEngine({ ...options, embedder: rows, helpers: false }))).code).toBe('bad-argument');
  });
});
