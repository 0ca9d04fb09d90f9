// GPT-NeoX and Falcon, whose halves of a layer stand beside each other: small models with random weights, from a folder
// and from GGUF, against the formulas of their papers in float64, which read the tensors as the folder names them and
// share no code with the engine. (arXiv 2204.06745 §2 and 2311.16867 §3; the order of rows in the fused matrix is that
// of the classes in `transformers`.)
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Session } from '../../engine/session/session.ts';
import { convertModel } from '../../engine/transformer/convert/convert.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { seeded } from '../random.ts';
import { floats, safetensors, temporaryFolder, tinyTokenizerJson } from '../unit/engine/transformer/model-files.ts';
import { normalBelow } from '../unit/engine/transformer/plain-dense.ts';
import { distance, logitsOf, plus, type Rows } from './formulas.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

const VOCABULARY = 64;
const TOKENS = 40;
const POSITIONS = [0, 7, TOKENS - 1];
/** Float32 between steps that are summed in float64; weights in 8 bits with keys and values in halves. */
const [FLOAT32, EIGHT_BITS] = [1e-5, 0.06];

interface Shape {
  readonly type: 'gpt_neox' | 'falcon';
  readonly width: number;
  readonly heads: number;
  /** Heads that have a key of their own. */
  readonly groups: number;
  readonly layers: number;
  readonly inner: number;
  readonly rotated: number;
  readonly isParallel: boolean;
  /** The names of the norms that attention and the feed-forward half read. */
  readonly norms: readonly [string, string];
  readonly isBiased: boolean;
  readonly isTied: boolean;
  /** Keys of config.json beside those that all have. */
  readonly keys: Readonly<Record<string, unknown>>;
}

const NEOX: Shape = {
  ...{ type: 'gpt_neox', width: 96, heads: 6, groups: 6, layers: 3, inner: 160, rotated: 4, isParallel: true },
  ...{ norms: ['input_layernorm', 'post_attention_layernorm'], isBiased: true, isTied: false },
  keys: { rotary_pct: 0.25, rotary_emb_base: 10000, layer_norm_eps: 1e-5, intermediate_size: 160 },
};
const FALCON: Shape = {
  ...{ type: 'falcon', width: 128, heads: 4, groups: 1, layers: 2, inner: 512, rotated: 32, isParallel: true },
  ...{ norms: ['input_layernorm', 'input_layernorm'], isBiased: false, isTied: true },
  keys: { multi_query: true, parallel_attn: true, bias: false, alibi: false, new_decoder_architecture: false },
};
const GROUPED = { new_decoder_architecture: true, num_kv_heads: 2, bias: false, alibi: false } as const;

const SHAPES: Readonly<Record<string, Shape>> = {
  'GPT-NeoX': NEOX,
  'GPT-NeoX, one half after the other, all of a head rotated': {
    ...NEOX,
    ...{ isParallel: false, rotated: 16 },
    keys: { ...NEOX.keys, use_parallel_residual: false, rotary_pct: 1 },
  },
  'Falcon 7B: one key head, one norm': FALCON,
  'Falcon 40B: groups of heads, two norms': {
    ...FALCON,
    ...{ groups: 2, norms: ['ln_attn', 'ln_mlp'], isTied: false },
    keys: { ...GROUPED, tie_word_embeddings: false },
  },
  'Falcon 11B: groups of heads, one norm, biases': {
    ...FALCON,
    ...{ groups: 2, isBiased: true },
    keys: { ...GROUPED, bias: true, num_ln_in_parallel_attn: 1, ffn_hidden_size: 512 },
  },
};

interface Names {
  readonly top: string;
  readonly layer: string;
  readonly attention: string;
  readonly embed: string;
  readonly norm: string;
  readonly head: string;
}
const NAMES: Readonly<Record<Shape['type'], Names>> = {
  gpt_neox: {
    ...{ top: 'gpt_neox', layer: 'gpt_neox.layers', attention: 'attention', embed: 'embed_in' },
    ...{ norm: 'final_layer_norm', head: 'embed_out' },
  },
  falcon: {
    ...{ top: 'transformer', layer: 'transformer.h', attention: 'self_attention', embed: 'word_embeddings' },
    ...{ norm: 'ln_f', head: 'lm_head' },
  },
};

type Weights = ReadonlyMap<string, { readonly shape: readonly number[]; readonly values: Float32Array }>;

function randomWeights({ type, width, heads, groups, layers, inner, norms, isBiased, isTied }: Shape): Weights {
  const random = seeded(29);
  const weights = new Map<string, { shape: readonly number[]; values: Float32Array }>();
  const put = (name: string, shape: readonly number[], spread: number, middle = 0): void => {
    const count = shape.reduce((a, b) => a * b, 1);
    weights.set(name, {
      shape,
      values: Float32Array.from({ length: count }, () => middle + spread * (2 * random() - 1)),
    });
  };
  const matrix = (name: string, rows: number, columns: number): void => {
    put(`${name}.weight`, [rows, columns], 1.5 * Math.sqrt(3 / columns));
    if (isBiased) put(`${name}.bias`, [rows], 0.25);
  };
  const norm = (name: string): void => {
    put(`${name}.weight`, [width], 0.25, 1);
    put(`${name}.bias`, [width], 0.25);
  };
  const names = NAMES[type];
  // A mean that is not 0, which the norms have to take out.
  put(`${names.top}.${names.embed}.weight`, [VOCABULARY, width], 1, 0.5);
  for (let layer = 0; layer < layers; layer++) {
    const at = `${names.layer}.${layer}`;
    for (const name of new Set(norms)) norm(`${at}.${name}`);
    matrix(`${at}.${names.attention}.query_key_value`, (heads + 2 * groups) * (width / heads), width);
    matrix(`${at}.${names.attention}.dense`, width, width);
    matrix(`${at}.mlp.dense_h_to_4h`, inner, width);
    matrix(`${at}.mlp.dense_4h_to_h`, width, inner);
  }
  norm(`${names.top}.${names.norm}`);
  if (!isTied) put(`${names.head}.weight`, [VOCABULARY, width], 1.5 * Math.sqrt(3 / width));
  return weights;
}

function folderOf(name: string, shape: Shape, weights: Weights): string {
  const { type, width, heads, layers, keys } = shape;
  const config = {
    ...{ model_type: type, hidden_size: width, num_attention_heads: heads, num_hidden_layers: layers },
    ...{ vocab_size: VOCABULARY, max_position_embeddings: 256, bos_token_id: 0, eos_token_id: 1, ...keys },
  };
  const tensors = [...weights].map(([key, { shape: sizes, values }]) => [
    key,
    { dtype: 'F32', shape: sizes, bytes: floats([...values]) },
  ]);
  folder.write(`${name}/config.json`, JSON.stringify(config));
  folder.write(`${name}/tokenizer.json`, JSON.stringify(tinyTokenizerJson));
  folder.write(`${name}/model.safetensors`, safetensors(Object.fromEntries(tensors)));
  return join(folder.dir, name);
}

/** The formulas, one row of the text after the other. */
class Reference {
  readonly #shape: Shape;
  readonly #weights: Weights;

  constructor(shape: Shape, weights: Weights) {
    this.#shape = shape;
    this.#weights = weights;
  }

  logits(ids: readonly number[]): Rows {
    const { type, width, layers, isTied, norms, isParallel } = this.#shape;
    const { top, embed, norm, head, layer: stem, attention } = NAMES[type];
    const table = `${top}.${embed}.weight`;
    let x: Rows = ids.map((id) => [...this.#values(table).subarray(id * width, (id + 1) * width)]);
    for (let layer = 0; layer < layers; layer++) {
      const at = `${stem}.${layer}`;
      const mixed = this.#attend(
        this.#linear(this.#norm(x, `${at}.${norms[0]}`), `${at}.${attention}.query_key_value`),
      );
      const attended = this.#linear(mixed, `${at}.${attention}.dense`);
      const middle = plus(x, attended);
      const read = this.#norm(isParallel ? x : middle, `${at}.${norms[1]}`);
      const inner = this.#linear(read, `${at}.mlp.dense_h_to_4h`).map((row) =>
        row.map((value) => value * normalBelow(value)),
      );
      x = plus(middle, this.#linear(inner, `${at}.mlp.dense_4h_to_h`));
    }
    return this.#linear(this.#norm(x, `${top}.${norm}`), isTied ? `${top}.${embed}` : head);
  }

  #values(name: string): Float32Array {
    return this.#weights.get(name)!.values;
  }

  #linear(x: Rows, name: string): Rows {
    const [weights, bias] = [this.#values(`${name}.weight`), this.#weights.get(`${name}.bias`)?.values];
    const inputs = x[0]!.length;
    return x.map((row) =>
      Array.from({ length: weights.length / inputs }, (_, output) =>
        row.reduce((sum, value, i) => sum + value * weights[output * inputs + i]!, bias?.[output] ?? 0),
      ),
    );
  }

  #norm(x: Rows, name: string): Rows {
    const [gain, bias] = [this.#values(`${name}.weight`), this.#values(`${name}.bias`)];
    return x.map((row) => {
      const mean = row.reduce((a, b) => a + b, 0) / row.length;
      const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
      return row.map((value, i) => ((value - mean) / Math.sqrt(variance + 1e-5)) * gain[i]! + bias[i]!);
    });
  }

  /** Rows of groups, each of which has its queries, its key and its value. */
  #attend(fused: Rows): Rows {
    const { width, heads, groups } = this.#shape;
    const [size, queries] = [width / heads, heads / groups];
    const part = (row: number, group: number, at: number): number[] => {
      const from = (group * (queries + 2) + at) * size;
      return fused[row]!.slice(from, from + size);
    };
    return fused.map((_, row) =>
      Array.from({ length: heads }, (__, head) => {
        const group = Math.floor(head / queries);
        const query = this.#rotate(part(row, group, head % queries), row);
        const scores = Array.from({ length: row + 1 }, (___, at) => {
          const key = this.#rotate(part(at, group, queries), at);
          return query.reduce((sum, value, i) => sum + value * key[i]!, 0) / Math.sqrt(size);
        });
        const largest = Math.max(...scores);
        const powers = scores.map((score) => Math.exp(score - largest));
        const total = powers.reduce((a, b) => a + b, 0);
        const values = powers.map((_power, at) => part(at, group, queries + 1));
        return Array.from({ length: size }, (___, i) =>
          powers.reduce((sum, power, at) => sum + (power / total) * values[at]![i]!, 0),
        );
      }).flat(),
    );
  }

  /** Channels i and i + half of those that are rotated turn together. */
  #rotate(channels: readonly number[], position: number): number[] {
    const half = this.#shape.rotated / 2;
    const turned = [...channels];
    for (let i = 0; i < half; i++) {
      const angle = position * 10000 ** (-i / half);
      const [a, b] = [channels[i]!, channels[i + half]!];
      turned[i] = a * Math.cos(angle) - b * Math.sin(angle);
      turned[i + half] = b * Math.cos(angle) + a * Math.sin(angle);
    }
    return turned;
  }
}

const ids = Array.from({ length: TOKENS }, (_, i) => (i * 37 + 11) % VOCABULARY);

describe.each(Object.entries(SHAPES))('%s', (name, shape) => {
  const weights = randomWeights(shape);
  const expected = new Reference(shape, weights).logits(ids);

  test('from a folder and from GGUF, float32 and attention in float64', async () => {
    const from = folderOf(name, shape, weights);
    expect(distance(await logitsOf(from, ids, POSITIONS, true), expected, POSITIONS)).toBeLessThan(FLOAT32);
    const { path } = await convertModel(from, join(folder.dir, `${name}.gguf`));
    expect(distance(await logitsOf(path, ids, POSITIONS, true), expected, POSITIONS)).toBeLessThan(FLOAT32);
  });

  test('from a folder and from GGUF in 8 bits, our kernels, keys and values in halves', async () => {
    const from = folderOf(name, shape, weights);
    expect(distance(await logitsOf(from, ids, POSITIONS, false), expected, POSITIONS)).toBeLessThan(EIGHT_BITS);
    const { path, types } = await convertModel(from, join(folder.dir, `${name}-q8.gguf`), { type: 'Q8_0' });
    expect(types).toHaveProperty('Q8_0');
    expect(distance(await logitsOf(path, ids, POSITIONS, false), expected, POSITIONS)).toBeLessThan(EIGHT_BITS);
  });
});

test.each([
  ['neox', NEOX],
  ['falcon', FALCON],
])(
  '%s: a session answers as the formulas do, and refuses latents, which have no place for its norms',
  async (name, shape) => {
    const weights = randomWeights(shape);
    const runtime = await Runtime.open({ model: folderOf(name, shape, weights), dense: 'auto', threads: 1 });
    try {
      const { layers, hiddenSize } = runtime.model.config;
      const given = { log: null, thresholds: defaultThresholds(layers) };
      const session = Session.open(runtime, { ...given, exact: true, compareTokens: TOKENS });
      await session.read(ids);
      const hidden = session.hiddenRows();
      session.close();
      const found: Float32Array[] = [];
      for (const position of POSITIONS)
        found.push(await runtime.dense.logits(hidden.slice(position * hiddenSize, (position + 1) * hiddenSize), 1));
      expect(distance(found, new Reference(shape, weights).logits(ids), POSITIONS)).toBeLessThan(EIGHT_BITS);
      expect(() => Session.open(runtime, { ...given, latents: 'xq8', kvBudget: '50%' })).toThrow(
        'latents do not serve',
      );
    } finally {
      await runtime.close();
    }
  },
);

test('what is not served is refused by name', async () => {
  const refused = (keys: Readonly<Record<string, unknown>>) => {
    const shape = { ...FALCON, keys: { ...FALCON.keys, ...keys } };
    return expect(loadModel(folderOf('refused', shape, randomWeights(shape)))).rejects;
  };
  await refused({ alibi: true }).toMatchObject({ code: 'unsupported', message: expect.stringMatching(/alibi true/) });
  await refused({ parallel_attn: false }).toMatchObject({
    code: 'unsupported',
    message: expect.stringMatching(/parallel_attn/),
  });
  await refused({ model_type: 'bloom' }).toMatchObject({ code: 'unsupported', message: expect.stringMatching(/norm/) });
  // One norm where two were announced, and rows that are not those of so many groups.
  await refused({ ...GROUPED, num_kv_heads: 1 }).toMatchObject({ code: 'bad-model' });
  await refused({ multi_query: false }).toMatchObject({
    code: 'bad-model',
    message: expect.stringMatching(/query_key_value/),
  });
});
