// Tries MPT, whose scores lose a slope times the distance, against its formulas in float64: small random weights, from
// a Hugging Face folder and from GGUF, by the plain dense half and by ours, and in sessions.

import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Session } from '../../engine/session/session.ts';
import { alibiSlopes } from '../../engine/transformer/attention.ts';
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
const LAYERS = 2;
/** Float32 between steps that are summed in float64; weights in 8 bits with keys and values in halves. */
const [FLOAT32, EIGHT_BITS] = [1e-5, 0.06];

interface Shape {
  readonly width: number;
  readonly heads: number;
  readonly max: number;
  readonly isBiased: boolean;
  readonly isTied: boolean;
}
const PLAIN: Shape = { width: 128, heads: 4, max: 8, isBiased: false, isTied: true };
const SHAPES: Readonly<Record<string, Shape>> = {
  'without biases (7B)': PLAIN,
  'heads that are no power of two, slopes that fall faster (StoryWriter)': { ...PLAIN, width: 96, heads: 6, max: 16 },
  'biases everywhere, an output matrix of its own': { ...PLAIN, isBiased: true, isTied: false },
};

const ids = Array.from({ length: TOKENS }, (_, i) => (i * 37 + 11) % VOCABULARY);
const POSITIONS = [0, 7, TOKENS - 1];

type Weights = ReadonlyMap<string, { readonly shape: readonly number[]; readonly values: Float32Array }>;

function randomWeights({ width, isBiased, isTied }: Shape): Weights {
  const random = seeded(31);
  const weights = new Map<string, { shape: readonly number[]; values: Float32Array }>();
  const put = (name: string, shape: readonly number[], spread: number, middle = 0): void => {
    const values = Float32Array.from(
      { length: shape.reduce((a, b) => a * b, 1) },
      () => middle + spread * (2 * random() - 1),
    );
    weights.set(name, { shape, values });
  };
  const part = (name: string, shape: readonly number[], spread: number, middle = 0): void => {
    put(`${name}.weight`, shape, spread, middle);
    if (isBiased) put(`${name}.bias`, [shape[0]!], 0.25);
  };
  const matrix = (name: string, rows: number, columns: number): void =>
    part(name, [rows, columns], 1.5 * Math.sqrt(3 / columns));
  const norm = (name: string): void => part(name, [width], 0.25, 1);
  // A mean that is not 0, which the norms have to take out.
  put('transformer.wte.weight', [VOCABULARY, width], 1, 0.5);
  for (let layer = 0; layer < LAYERS; layer++) {
    const at = `transformer.blocks.${layer}`;
    norm(`${at}.norm_1`);
    matrix(`${at}.attn.Wqkv`, 3 * width, width);
    matrix(`${at}.attn.out_proj`, width, width);
    norm(`${at}.norm_2`);
    matrix(`${at}.ffn.up_proj`, 3 * width, width);
    matrix(`${at}.ffn.down_proj`, width, 3 * width);
  }
  norm('transformer.norm_f');
  if (!isTied) put('lm_head.weight', [VOCABULARY, width], 1.5 * Math.sqrt(3 / width));
  return weights;
}

function folderOf(name: string, shape: Shape, weights: Weights, attention: Record<string, unknown> = {}): string {
  const config = {
    ...{ model_type: 'mpt', d_model: shape.width, n_heads: shape.heads, n_layers: LAYERS, expansion_ratio: 3 },
    ...{ vocab_size: VOCABULARY, max_seq_len: 1024, no_bias: !shape.isBiased, tie_word_embeddings: shape.isTied },
    ...{ bos_token_id: 0, eos_token_id: 1, norm_type: 'low_precision_layernorm', logit_scale: null },
    attn_config: {
      alibi: true,
      alibi_bias_max: shape.max,
      attn_type: 'multihead_attention',
      clip_qkv: null,
      ...attention,
    },
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
function formula(shape: Shape, weights: Weights, tokens: readonly number[]): Rows {
  const { width, heads, max, isTied } = shape;
  const size = width / heads;
  const values = (name: string): Float32Array => weights.get(name)!.values;
  const linear = (x: Rows, name: string): Rows => {
    const [w, bias, inputs] = [values(`${name}.weight`), weights.get(`${name}.bias`)?.values, x[0]!.length];
    return x.map((row) =>
      Array.from({ length: w.length / inputs }, (_, output) =>
        row.reduce((sum, value, i) => sum + value * w[output * inputs + i]!, bias?.[output] ?? 0),
      ),
    );
  };
  const norm = (x: Rows, name: string): Rows => {
    const [gain, bias] = [values(`${name}.weight`), weights.get(`${name}.bias`)?.values];
    return x.map((row) => {
      const mean = row.reduce((a, b) => a + b, 0) / width;
      const spread = Math.sqrt(row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width + 1e-5);
      return row.map((value, i) => ((value - mean) / spread) * gain[i]! + (bias?.[i] ?? 0));
    });
  };
  const attend = (fused: Rows): Rows =>
    fused.map((own, row) =>
      Array.from({ length: heads }, (_, head) => {
        const part = (of: readonly number[], which: number): number[] =>
          of.slice(which * width + head * size, which * width + (head + 1) * size);
        const query = part(own, 0);
        const scores = fused.slice(0, row + 1).map((other, at) => {
          const dot = part(other, 1).reduce((sum, value, i) => sum + value * query[i]!, 0);
          return dot / Math.sqrt(size) - slopeOf(head, heads, max) * (row - at);
        });
        const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
        const total = powers.reduce((a, b) => a + b, 0);
        const mixed = new Array<number>(size).fill(0);
        for (const [at, power] of powers.entries())
          for (const [i, value] of part(fused[at]!, 2).entries()) mixed[i]! += (power / total) * value;
        return mixed;
      }).flat(),
    );
  const table = values('transformer.wte.weight');
  let x: Rows = tokens.map((id) => [...table.subarray(id * width, (id + 1) * width)]);
  for (let layer = 0; layer < LAYERS; layer++) {
    const at = `transformer.blocks.${layer}`;
    x = plus(x, linear(attend(linear(norm(x, `${at}.norm_1`), `${at}.attn.Wqkv`)), `${at}.attn.out_proj`));
    const inner = linear(norm(x, `${at}.norm_2`), `${at}.ffn.up_proj`);
    x = plus(
      x,
      linear(
        inner.map((row) => row.map((value) => value * normalBelow(value))),
        `${at}.ffn.down_proj`,
      ),
    );
  }
  return linear(norm(x, 'transformer.norm_f'), isTied ? 'transformer.wte' : 'lm_head');
}

/** As the paper has it: heads of the largest power of two below, then every second slope of twice as many. */
function slopeOf(head: number, heads: number, max: number): number {
  const whole = 2 ** Math.floor(Math.log2(heads));
  return head < whole ? 2 ** ((-max * (head + 1)) / whole) : 2 ** ((-max * (2 * (head - whole) + 1)) / (2 * whole));
}

test('slopes are those of the paper for every number of heads', () => {
  for (let heads = 1; heads <= 70; heads++) {
    const expected = Float32Array.from({ length: heads }, (_, head) => slopeOf(head, heads, 8));
    expect(alibiSlopes({ queryHeads: heads, alibiMax: 8 })).toEqual(expected);
  }
});

describe.each(Object.entries(SHAPES))('MPT %s', (name, shape) => {
  const weights = randomWeights(shape);
  const expected = formula(shape, weights, ids);

  test('from a folder and from GGUF, float32 and attention in float64', async () => {
    const from = folderOf(name, shape, weights);
    expect(distance(await logitsOf(from, ids, POSITIONS, true), expected, POSITIONS)).toBeLessThan(FLOAT32);
    const { path } = await convertModel(from, join(folder.dir, `${name}.gguf`));
    expect(distance(await logitsOf(path, ids, POSITIONS, true), expected, POSITIONS)).toBeLessThan(FLOAT32);
  });

  test('from a folder and from GGUF in 8 bits, our kernels, keys and values in halves', async () => {
    const from = folderOf(name, shape, weights);
    expect(distance(await logitsOf(from, ids, POSITIONS, false), expected, POSITIONS)).toBeLessThan(EIGHT_BITS);
    const { path } = await convertModel(from, join(folder.dir, `${name}-q8.gguf`), { type: 'Q8_0' });
    expect(distance(await logitsOf(path, ids, POSITIONS, false), expected, POSITIONS)).toBeLessThan(EIGHT_BITS);
  });
});

test('sessions answer as the formulas do, and refuse latents, which have no place for its norms', async () => {
  const weights = randomWeights(PLAIN);
  const runtime = await Runtime.open({ model: folderOf('session', PLAIN, weights), dense: 'auto', threads: 1 });
  try {
    const { hiddenSize } = runtime.model.config;
    const given = { log: null, thresholds: defaultThresholds(LAYERS) };
    const session = Session.open(runtime, { ...given, exact: true, compareTokens: TOKENS });
    await session.read(ids);
    const hidden = session.hiddenRows();
    session.close();
    const found: Float32Array[] = [];
    for (const position of POSITIONS)
      found.push(await runtime.dense.logits(hidden.slice(position * hiddenSize, (position + 1) * hiddenSize), 1));
    expect(distance(found, formula(PLAIN, weights, ids), POSITIONS)).toBeLessThan(EIGHT_BITS);
    expect(() => Session.open(runtime, { ...given, latents: 'xq8', kvBudget: '50%' })).toThrow(
      /latents needs? one rotary/,
    );
  } finally {
    await runtime.close();
  }
});

test.each([
  [{ alibi: false }, 'attn_config.alibi'],
  [{ clip_qkv: 6 }, 'attn_config.clip_qkv'],
  [{ qk_ln: true }, 'attn_config.qk_ln'],
  [{ prefix_lm: true }, 'attn_config.prefix_lm'],
  [{ softmax_scale: 0.5 }, 'attn_config.softmax_scale'],
  [{ attn_type: 'multiquery_attention' }, 'attn_config.attn_type'],
])('%j is refused by name', async (attention, key) => {
  const path = folderOf('refused', PLAIN, randomWeights(PLAIN), attention);
  await expect(loadModel(path)).rejects.toMatchObject({ code: 'unsupported', message: expect.stringContaining(key) });
});
