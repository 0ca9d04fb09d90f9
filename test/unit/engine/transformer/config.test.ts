// Gives configurations in both notations, of every served architecture and of some that are not, and asks what they
// become.

import { describe, expect, test } from 'vitest';
import { expectedShapes } from '../../../../engine/transformer/config.ts';
import type { GgufValue } from '../../../../engine/transformer/gguf.ts';
import { ggufNaming, hfNaming } from '../../../../engine/transformer/names.ts';
import { ropeFrequencies } from '../../../../engine/transformer/rope.ts';
import { refusal } from '../../../refusal.ts';
import { base, ggufConfig, given, hfConfig } from './configs.ts';

const { nameOf: hfName } = hfNaming();
const { nameOf: ggufName } = ggufNaming();

describe('config.json', () => {
  test('llama: what is left out takes its default', () => {
    expect(hfConfig(base)).toEqual({
      architecture: 'llama',
      layers: 4,
      hiddenSize: 2048,
      intermediateSize: 8192,
      queryHeads: 32,
      kvHeads: 8,
      headDim: 64,
      vocabSize: 128256,
      contextLength: 4096,
      normEpsilon: 1e-5,
      ropeTheta: 10000,
      ropeScaling: { kind: 'none' },
      rotaryDim: 64,
      ropeInterleaved: false,
      slidingWindow: [null, null, null, null],
      qkvBias: false,
      outputBias: false,
      mlpBias: false,
      qkNorm: 'none',
      tiedEmbeddings: false,
      preNorms: true,
      postNorms: false,
      layerNorms: false,
      normBias: false,
      parallel: false,
      oneNorm: false,
      gated: true,
      activation: 'silu',
      experts: null,
      layerRope: ['main', 'main', 'main', 'main'],
      localRopeTheta: null,
      queryScale: 1,
      embeddingScale: 1,
      logitScale: 1,
      alibiMax: null,
      scoreCap: null,
      logitCap: null,
      bosId: null,
      eosIds: [],
    });
    const { num_key_value_heads: _, ...multiHead } = base;
    expect(hfConfig(multiHead).kvHeads).toBe(32);
    expect(hfConfig({ ...base, head_dim: null, rope_scaling: null, sliding_window: null }).headDim).toBe(64);
  });

  test('llama: biases, head size, ends of text from both files', () => {
    const config = hfConfig(
      { ...base, head_dim: 128, attention_bias: true, mlp_bias: true, bos_token_id: 1, eos_token_id: 2 },
      { eos_token_id: [5, 2, 7] },
    );
    expect(config).toMatchObject({
      headDim: 128,
      qkvBias: true,
      outputBias: true,
      mlpBias: true,
      bosId: 1,
      eosIds: [5, 2, 7],
    });
    expect(expectedShapes(config).get('0.o')).toEqual([2048, 32 * 128]);
    expect(expectedShapes(config).get('0.o.bias')).toEqual([2048]);
  });

  test('mistral: one window for all layers', () => {
    expect(hfConfig({ ...base, model_type: 'mistral', sliding_window: 1024 }).slidingWindow).toEqual([
      1024, 1024, 1024, 1024,
    ]);
    expect(hfConfig({ ...base, model_type: 'mistral', sliding_window: null }).slidingWindow).toEqual([
      null,
      null,
      null,
      null,
    ]);
  });

  test('qwen2: bias on q, k, v; windows only when asked for, from a layer on', () => {
    const qwen = { ...base, model_type: 'qwen2', sliding_window: 512, max_window_layers: 3 };
    expect(hfConfig(qwen)).toMatchObject({
      qkvBias: true,
      outputBias: false,
      qkNorm: 'none',
      slidingWindow: [null, null, null, null],
    });
    expect(hfConfig({ ...qwen, use_sliding_window: true }).slidingWindow).toEqual([null, null, null, 512]);
    const layer_types = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'];
    expect(hfConfig({ ...qwen, use_sliding_window: true, layer_types }).slidingWindow).toEqual([512, null, 512, null]);
  });

  test('qwen3: norms on q and k, no bias', () => {
    const config = hfConfig({ ...base, model_type: 'qwen3', head_dim: 128 });
    expect(config).toMatchObject({ qkNorm: 'head', qkvBias: false, outputBias: false });
    expect(expectedShapes(config).get('0.qNorm')).toEqual([128]);
  });

  test.each([
    ['none', { rope_type: 'default' }, { kind: 'none' }, 4096],
    ['linear', { type: 'linear', factor: 4 }, { kind: 'linear', factor: 4 }, 4096],
    ['dynamic', { type: 'dynamic', factor: 2 }, { kind: 'ntk', factor: 2, originalContext: 4096 }, 8192],
    [
      'llama3',
      {
        rope_type: 'llama3',
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 2048,
      },
      { kind: 'llama3', factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalContext: 2048 },
      4096,
    ],
    [
      'yarn',
      { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 4096 },
      { kind: 'yarn', factor: 4, originalContext: 4096, betaFast: 32, betaSlow: 1, attentionFactor: null },
      16384,
    ],
    [
      'yarn with everything',
      {
        type: 'yarn',
        factor: 2,
        original_max_position_embeddings: 1024,
        beta_fast: 16,
        beta_slow: 2,
        attention_factor: 1.5,
      },
      { kind: 'yarn', factor: 2, originalContext: 1024, betaFast: 16, betaSlow: 2, attentionFactor: 1.5 },
      4096,
    ],
  ] as const)('rope: %s', (_, rope_scaling, ropeScaling, contextLength) => {
    expect(hfConfig({ ...base, rope_scaling })).toMatchObject({ ropeScaling, contextLength });
  });

  test('rope: the newer key holds base and scaling', () => {
    const config = hfConfig({ ...base, rope_parameters: { rope_type: 'linear', factor: 2, rope_theta: 500000 } });
    expect(config).toMatchObject({ ropeTheta: 500000, ropeScaling: { kind: 'linear', factor: 2 } });
  });

  test.each([
    ['model_type', { model_type: 'gemma' }],
    ['hidden_act', { hidden_act: 'relu' }],
    ['quantization_config', { quantization_config: { quant_method: 'gptq' } }],
    ['rope_type', { rope_scaling: { rope_type: 'proportional', factor: 2 } }],
    ['mscale', { rope_scaling: { rope_type: 'yarn', factor: 2, mscale: 1 } }],
    ['sliding_window', { sliding_window: 4096 }],
    ['layer_types', { model_type: 'qwen3', use_sliding_window: true, layer_types: ['chunked', 'x', 'x', 'x'] }],
  ])('%s that is not served is named', (key, change) => {
    const error = refusal(() => hfConfig({ ...base, ...change }));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  });

  test.each([
    ['no width', { hidden_size: undefined }],
    ['a text for a number', { num_hidden_layers: '4' }],
    ['no layers', { num_hidden_layers: 0 }],
    ['a billion layers', { num_hidden_layers: 1e9 }],
    ['no heads', { num_attention_heads: 0 }],
    ['heads that do not divide', { num_key_value_heads: 5 }],
    ['a width the heads do not divide', { hidden_size: 2050 }],
    ['an odd head', { head_dim: 63 }],
    ['a negative width', { hidden_size: -2048 }],
    ['a fractional vocabulary', { vocab_size: 10.5 }],
    ['an enormous vocabulary', { vocab_size: 2 ** 40 }],
    ['an epsilon of 0', { rms_norm_eps: 0 }],
    ['a negative base', { rope_theta: -1 }],
    ['a factor of 0', { rope_scaling: { type: 'linear', factor: 0 } }],
    ['a scaling without factor', { rope_scaling: { type: 'linear' } }],
    [
      'bands in the wrong order',
      { rope_scaling: { rope_type: 'llama3', factor: 8, low_freq_factor: 4, high_freq_factor: 1 } },
    ],
    ['an end of text outside the vocabulary', { eos_token_id: 128256 }],
    ['a negative token', { bos_token_id: -1 }],
    ['a window of 0', { model_type: 'mistral', sliding_window: 0 }],
    [
      'the wrong number of layer types',
      { model_type: 'qwen2', use_sliding_window: true, layer_types: ['full_attention'] },
    ],
  ])('%s is refused', (_, change) => {
    expect(refusal(() => hfConfig({ ...base, ...change })).code).toBe('bad-model');
  });

  test.each([null, 3, 'text', [], {}])('%j is no configuration', (value) => {
    expect(refusal(() => hfConfig(value)).code).toBe('bad-model');
  });
});

describe('families other than Llama', () => {
  test('gemma3: the keys of older and of newer files say the same', () => {
    const shared = {
      ...base,
      model_type: 'gemma3_text',
      head_dim: 256,
      sliding_window: 512,
      query_pre_attn_scalar: 168,
    };
    const older = hfConfig({
      ...shared,
      num_hidden_layers: 7,
      rope_theta: 1e6,
      rope_local_base_freq: 1e4,
      rope_scaling: { rope_type: 'linear', factor: 8 },
      sliding_window_pattern: 6,
    });
    const newer = hfConfig({
      ...shared,
      num_hidden_layers: 7,
      rope_parameters: {
        full_attention: { rope_type: 'linear', factor: 8, rope_theta: 1e6 },
        sliding_attention: { rope_type: 'default', rope_theta: 1e4 },
      },
      layer_types: [...new Array(5).fill('sliding_attention'), 'full_attention', 'sliding_attention'],
    });
    expect(older).toEqual(newer);
    expect(older).toMatchObject({
      activation: 'gelu-tanh',
      tiedEmbeddings: true,
      slidingWindow: [512, 512, 512, 512, 512, null, 512],
      layerRope: ['local', 'local', 'local', 'local', 'local', 'main', 'local'],
      ropeTheta: 1e6,
      localRopeTheta: 1e4,
      embeddingScale: Math.sqrt(2048),
      queryScale: Math.sqrt(256 / 168),
    });
  });

  test('gemma2: caps, windows and the scale of queries that its class assumes, or what the file says', () => {
    const gemma = { ...base, model_type: 'gemma2' };
    expect(hfConfig(gemma)).toMatchObject({
      activation: 'gelu-tanh',
      tiedEmbeddings: true,
      headDim: 256,
      preNorms: true,
      postNorms: true,
      qkNorm: 'none',
      slidingWindow: [4096, null, 4096, null],
      layerRope: ['main', 'main', 'main', 'main'],
      embeddingScale: Math.sqrt(2048),
      queryScale: 1,
      scoreCap: 50,
      logitCap: 30,
    });
    const own = {
      head_dim: 128,
      query_pre_attn_scalar: 144,
      sliding_window: 512,
      layer_types: ['full_attention', 'sliding_attention', 'sliding_attention', 'full_attention'],
    };
    expect(hfConfig({ ...gemma, ...own, attn_logit_softcapping: null, final_logit_softcapping: 20 })).toMatchObject({
      slidingWindow: [null, 512, 512, null],
      queryScale: Math.sqrt(128 / 144),
      scoreCap: null,
      logitCap: 20,
    });
    for (const cap of [0, -1, 1e9])
      expect(refusal(() => hfConfig({ ...gemma, attn_logit_softcapping: cap })).message).toContain('scoreCap');
  });

  test('phi3: LongRoPE under its three names, and the share of a head that is rotated', () => {
    const factors = { short_factor: new Array(24).fill(1), long_factor: new Array(24).fill(2) };
    const phi = {
      ...base,
      model_type: 'phi3',
      max_position_embeddings: 131072,
      original_max_position_embeddings: 4096,
    };
    const configs = ['longrope', 'su', 'yarn'].map((type) =>
      hfConfig({ ...phi, partial_rotary_factor: 0.75, rope_scaling: { type, ...factors } }),
    );
    expect(configs[0]).toMatchObject({
      rotaryDim: 48,
      ropeScaling: {
        kind: 'longrope',
        originalContext: 4096,
        attentionFactor: Math.sqrt(1 + Math.log(32) / Math.log(4096)),
      },
    });
    for (const config of configs) expect(config).toEqual(configs[0]);
    const [short, long] = [4096, 4097].map((tokens) => ropeFrequencies(configs[0]!, tokens).radians);
    expect(short![5]).toBeCloseTo(2 * long![5]!, 12);
    expect(refusal(() => hfConfig({ ...phi, rope_scaling: { type: 'longrope', ...factors } })).message).toContain(
      '24 factors for 32 pairs',
    );
  });

  test('smollm3: every fourth layer without a rotary embedding, or those that the file lists', () => {
    const smol = { ...base, model_type: 'smollm3' };
    expect(hfConfig(smol).layerRope).toEqual(['main', 'main', 'main', 'none']);
    expect(hfConfig({ ...smol, no_rope_layers: [0, 1, 0, 1] }).layerRope).toEqual(['none', 'main', 'none', 'main']);
  });

  test('granite: multipliers of nothing are refused', () => {
    expect(refusal(() => hfConfig({ ...base, model_type: 'granite', residual_multiplier: 0 })).code).toBe('bad-model');
  });

  test.each([
    ['qwen2_moe', 'experts'],
    ['deepseek_v3', 'experts'],
  ])('%s is refused with the reason and what is served', (model_type, reason) => {
    const error = refusal(() => hfConfig({ model_type }));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(reason);
    expect(error.hint).toContain('gemma3_text');
  });

  test.each([
    ['attn_logit_softcapping', { model_type: 'gemma3_text', attn_logit_softcapping: 50 }],
    ['use_bidirectional_attention', { model_type: 'gemma2', use_bidirectional_attention: true }],
    ['use_bidirectional_attention', { model_type: 'gemma3_text', use_bidirectional_attention: true }],
    ['hidden_act', { hidden_act: 'relu' }],
    ['sliding_window', { model_type: 'olmo2', sliding_window: 4096 }],
    ['layer_types', { model_type: 'gemma3_text', layer_types: ['chunked_attention', '', '', ''] }],
  ])('%s is named', (key, change) => {
    const error = refusal(() => hfConfig({ ...base, ...change }));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  });
});

describe('GGUF metadata', () => {
  test('llama: interleaved pairs, tied when there is no output matrix', () => {
    const config = ggufConfig(given('llama'));
    expect(config).toMatchObject({
      architecture: 'llama',
      layers: 2,
      headDim: 64,
      kvHeads: 8,
      vocabSize: 32000,
      ropeTheta: 500000,
      ropeInterleaved: true,
      tiedEmbeddings: true,
      bosId: 1,
      eosIds: [2],
    });
    expect(ggufConfig(given('llama', {}, { 'output.weight': [] })).tiedEmbeddings).toBe(false);
  });

  test('qwen2 and qwen3: half-split pairs; bias and norms are what tensors say', () => {
    expect(ggufConfig(given('qwen2', {}, { 'blk.0.attn_q.bias': [] }))).toMatchObject({
      architecture: 'qwen2',
      ropeInterleaved: false,
      qkvBias: true,
      outputBias: false,
    });
    const qwen3 = given(
      'qwen3',
      { 'qwen3.attention.key_length': 128, 'qwen3.attention.value_length': 128 },
      { 'blk.0.attn_q_norm.weight': [] },
    );
    expect(ggufConfig(qwen3)).toMatchObject({ ropeInterleaved: false, qkNorm: 'head', headDim: 128, rotaryDim: 128 });
  });

  test('gemma2: caps and windows of its keys, and the scale of queries of its largest size', () => {
    const head = { 'gemma2.attention.key_length': 128, 'gemma2.attention.value_length': 128 };
    const keys = { ...head, 'gemma2.attention.sliding_window': 512, 'gemma2.attn_logit_softcapping': 40 };
    expect(ggufConfig(given('gemma2', keys))).toMatchObject({
      activation: 'gelu-tanh',
      postNorms: true,
      slidingWindow: [512, null],
      queryScale: 1,
      scoreCap: 40,
      logitCap: 30,
    });
    const { queryScale, queryHeads, hiddenSize } = ggufConfig(given('gemma2', { ...head, 'gemma2.block_count': 46 }));
    expect(queryScale).toBe(Math.sqrt((128 * queryHeads) / hiddenSize));
    expect(refusal(() => ggufConfig(given('gemma2', { 'gemma2.final_logit_softcapping': 0 }))).code).toBe('bad-model');
  });

  test('gemma3: files of Ollama have other names for bases, no epsilon, and no word of how the embedding is stretched', () => {
    const file = given('gemma3', {
      'gemma3.rope.global.freq_base': 1e6,
      'gemma3.rope.local.freq_base': 2e4,
      'gemma3.attention.sliding_window': 512,
      'gemma3.context_length': 131072,
    });
    for (const key of ['rope.freq_base', 'attention.layer_norm_rms_epsilon']) file.metadata.delete(`gemma3.${key}`);
    const served = {
      ropeTheta: 1e6,
      localRopeTheta: 2e4,
      normEpsilon: 1e-6,
      ropeScaling: { kind: 'linear', factor: 8 },
    };
    expect(ggufConfig(file)).toMatchObject(served);
    // The smallest size is not stretched.
    file.metadata.set('gemma3.context_length', 32768);
    expect(ggufConfig(file).ropeScaling).toEqual({ kind: 'none' });
    file.metadata.set('gemma3.final_logit_softcapping', 30);
    expect(refusal(() => ggufConfig(file)).message).toContain('final_logit_softcapping');
  });

  test('a list of equal numbers is that number; of different ones, not served', () => {
    expect(ggufConfig(given('llama', { 'llama.attention.head_count_kv': Int32Array.of(4, 4) })).kvHeads).toBe(4);
    expect(
      refusal(() => ggufConfig(given('llama', { 'llama.attention.head_count_kv': Int32Array.of(4, 8) }))).code,
    ).toBe('unsupported');
  });

  test('rope: linear and yarn by name, the frequency bands of Llama 3 from their divisors', () => {
    expect(
      ggufConfig(given('llama', { 'llama.rope.scaling.type': 'linear', 'llama.rope.scaling.factor': 4 })).ropeScaling,
    ).toEqual({ kind: 'linear', factor: 4 });
    expect(
      ggufConfig(
        given('qwen2', {
          'qwen2.rope.scaling.type': 'yarn',
          'qwen2.rope.scaling.factor': 4,
          'qwen2.rope.scaling.original_context_length': 1024,
        }),
      ).ropeScaling,
    ).toEqual({ kind: 'yarn', factor: 4, originalContext: 1024, betaFast: 32, betaSlow: 1, attentionFactor: null });
    const scaling = { kind: 'llama3', factor: 32, lowFreqFactor: 1, highFreqFactor: 4, originalContext: 8192 } as const;
    const rope = { rotaryDim: 64, ropeTheta: 500000 };
    const [plain, scaled] = [
      ropeFrequencies({ ...rope, ropeScaling: { kind: 'none' } }, 1),
      ropeFrequencies({ ...rope, ropeScaling: scaling }, 1),
    ];
    const divisors = Array.from(plain.radians, (radians, pair) => Math.fround(radians / scaled.radians[pair]!));
    expect(ggufConfig(given('llama', {}, { 'rope_freqs.weight': divisors })).ropeScaling).toEqual(scaling);
    divisors[16]! *= 1.01;
    expect(refusal(() => ggufConfig(given('llama', {}, { 'rope_freqs.weight': divisors }))).code).toBe('unsupported');
  });

  test.each([
    ['architecture', 'gpt2', {}],
    ['expert_count', 'qwen3', { 'qwen3.expert_count': 8 }],
    ['value_length', 'llama', { 'llama.attention.value_length': 32 }],
    ['scaling.type', 'llama', { 'llama.rope.scaling.type': 'longrope' }],
    ['attn_logit_softcapping', 'gemma3', { 'gemma3.attn_logit_softcapping': 50 }],
    ['logit_scale', 'llama', { 'llama.logit_scale': 0.25 }],
    ['sliding_window', 'olmo2', { 'olmo2.attention.sliding_window': 4096 }],
  ])('%s that is not served is named', (key, architecture, change: Record<string, GgufValue>) => {
    const error = refusal(() => ggufConfig(given(architecture, change)));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  });

  test('missing and impossible numbers are refused', () => {
    const missing = given('llama');
    missing.metadata.delete('llama.block_count');
    expect(refusal(() => ggufConfig(missing)).message).toContain('llama.block_count');
    for (const change of [
      { 'llama.block_count': 2 ** 31 },
      { 'llama.block_count': -1 },
      { 'llama.attention.head_count': 0 },
      { 'llama.rope.freq_base': Number.NaN },
      { 'llama.embedding_length': 'wide' },
    ]) {
      expect(refusal(() => ggufConfig(given('llama', change as Record<string, GgufValue>))).code).toBe('bad-model');
    }
    const vocabulary = given('llama');
    vocabulary.tensors.clear();
    expect(refusal(() => ggufConfig(vocabulary)).code).toBe('bad-model');
  });
});

test('tensor names of both notations', () => {
  expect(
    [
      'model.embed_tokens.weight',
      'lm_head.weight',
      'model.norm.weight',
      'model.layers.11.self_attn.q_proj.bias',
      'model.layers.0.mlp.down_proj.weight',
      'layers.3.self_attn.k_norm.weight',
    ].map(hfName),
  ).toEqual(['embed', 'head', 'norm', '11.q.bias', '0.down', '3.kNorm']);
  expect(
    [
      'token_embd.weight',
      'output.weight',
      'output_norm.weight',
      'blk.11.attn_q.bias',
      'blk.0.ffn_down.weight',
      'blk.3.attn_k_norm.weight',
    ].map(ggufName),
  ).toEqual(['embed', 'head', 'norm', '11.q.bias', '0.down', '3.kNorm']);
  expect([hfName('model.layers.0.self_attn.rotary_emb.inv_freq'), ggufName('rope_freqs.weight')]).toEqual([null, null]);
  expect(
    [
      'constructor',
      'model.layers.01.mlp.up_proj.weight',
      'model.layers.0.toString',
      'model.layers.0.mlp.experts.0.up.weight',
    ].map(hfName),
  ).toEqual([undefined, undefined, undefined, undefined]);
});
