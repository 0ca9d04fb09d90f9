// Gives configurations of models with experts in both notations and asks what they become, what their tensors are
// called, and what is refused.

import { describe, expect, test } from 'vitest';
import { expectedShapes } from '../../../../engine/transformer/config.ts';
import { familyOfType } from '../../../../engine/transformer/families/index.ts';
import type { GgufValue } from '../../../../engine/transformer/gguf.ts';
import { ggufNaming, hfNaming } from '../../../../engine/transformer/names.ts';
import { refusal } from '../../../refusal.ts';
import { base, ggufConfig, given, hfConfig } from './configs.ts';

describe('config.json', () => {
  test('mixtral: experts whose shares add up to 1, a window in all layers', () => {
    const mixtral = { ...base, model_type: 'mixtral' };
    const config = hfConfig({ ...mixtral, sliding_window: 512 });
    expect(config).toMatchObject({
      experts: { count: 8, used: 2, shareAmongChosen: true },
      slidingWindow: [512, 512, 512, 512],
      ropeTheta: 1e6,
    });
    const shapes = expectedShapes(config);
    expect([shapes.get('3.router'), shapes.get('3.gate.7'), shapes.get('0.down.0')]).toEqual([
      [8, 2048],
      [8192, 2048],
      [2048, 8192],
    ]);
    expect([shapes.has('0.gate'), shapes.has('0.gate.8')]).toEqual([false, false]);
    const some = hfConfig({ ...mixtral, num_local_experts: 4, num_experts_per_tok: 3 });
    expect(some.experts).toEqual({ count: 4, used: 3, shareAmongChosen: true });
  });

  test('qwen3_moe: the width of an expert, shares of all unless the file says otherwise', () => {
    const qwen = { ...base, model_type: 'qwen3_moe' };
    expect(hfConfig(qwen)).toMatchObject({
      experts: { count: 128, used: 8, shareAmongChosen: false },
      intermediateSize: 768,
      qkNorm: 'head',
      slidingWindow: [null, null, null, null],
    });
    const change = { num_experts: 16, num_experts_per_tok: 4, moe_intermediate_size: 96, norm_topk_prob: true };
    expect(hfConfig({ ...qwen, ...change, sliding_window: 512, use_sliding_window: true })).toMatchObject({
      experts: { count: 16, used: 4, shareAmongChosen: true },
      intermediateSize: 96,
      slidingWindow: [512, 512, 512, 512],
    });
  });

  test.each([
    ['9 of 8 experts', { model_type: 'mixtral', num_experts_per_tok: 9 }],
    ['experts.count', { model_type: 'mixtral', num_local_experts: 0 }],
    ['experts.count', { model_type: 'qwen3_moe', num_experts: 2 ** 31 }],
    ['experts.used', { model_type: 'qwen3_moe', num_experts_per_tok: 65 }],
    ['1024 experts in each of 65 layers', { model_type: 'mixtral', num_local_experts: 1024, num_hidden_layers: 65 }],
    ['num_experts', { model_type: 'qwen3_moe', num_experts: 'many' }],
  ])('experts: %s', (what, change) => {
    const error = refusal(() => hfConfig({ ...base, ...change }));
    expect(error.code).toBe('bad-model');
    expect(error.message).toContain(what);
  });

  test.each([
    ['mlp_only_layers', { model_type: 'qwen3_moe', mlp_only_layers: [0] }],
    ['decoder_sparse_step', { model_type: 'qwen3_moe', decoder_sparse_step: 2 }],
  ])('%s is named', (key, change) => {
    const error = refusal(() => hfConfig({ ...base, ...change }));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  });
});

describe('GGUF metadata', () => {
  test('experts of llama and qwen3moe, whose shares add up to 1 unless the file says otherwise', () => {
    expect(ggufConfig(given('llama')).experts).toBeNull();
    const mixtral = { 'llama.expert_count': 8, 'llama.expert_used_count': 2 };
    expect(ggufConfig(given('llama', mixtral))).toMatchObject({
      experts: { count: 8, used: 2, shareAmongChosen: true },
      intermediateSize: 8192,
    });
    const qwen = { 'qwen3moe.expert_count': 16, 'qwen3moe.expert_used_count': 4 };
    expect(ggufConfig(given('qwen3moe', qwen)).intermediateSize).toBe(2048);
    const more = { 'qwen3moe.expert_feed_forward_length': 768, 'qwen3moe.expert_weights_norm': false };
    expect(ggufConfig(given('qwen3moe', { ...qwen, ...more }))).toMatchObject({
      experts: { count: 16, used: 4, shareAmongChosen: false },
      intermediateSize: 768,
    });
    for (const [architecture, change] of [
      ['llama', { 'llama.expert_count': 8 }],
      ['qwen3moe', {}],
      ['qwen3moe', { ...qwen, 'qwen3moe.expert_weights_norm': 1 }],
      ['llama', { ...mixtral, 'llama.expert_used_count': 9 }],
    ] as const)
      expect(refusal(() => ggufConfig(given(architecture, change as Record<string, GgufValue>))).code).toBe(
        'bad-model',
      );
  });

  test.each([
    ['expert_shared_count', 'qwen3moe', { 'qwen3moe.expert_count': 8, 'qwen3moe.expert_shared_count': 1 }],
    ['expert_gating_func', 'llama', { 'llama.expert_count': 8, 'llama.expert_gating_func': 2 }],
    ['expert_weights_scale', 'llama', { 'llama.expert_count': 8, 'llama.expert_weights_scale': 2.5 }],
    ['expert_group_count', 'llama', { 'llama.expert_count': 8, 'llama.expert_group_count': 4 }],
    ['leading_dense_block_count', 'qwen3moe', { 'qwen3moe.leading_dense_block_count': 1 }],
  ])('%s that is not served is named', (key, architecture, change: Record<string, GgufValue>) => {
    const error = refusal(() => ggufConfig(given(architecture, change)));
    expect(error.code).toBe('unsupported');
    expect(error.message).toContain(key);
  });
});

test('tensor names of experts', () => {
  const [mixtral, qwen] = [familyOfType('mixtral'), familyOfType('qwen3_moe')].map((family) => hfNaming(family).nameOf);
  const layer = 'model.layers.2.';
  expect(
    [
      ...['gate.weight', 'experts.11.w1.weight', 'experts.0.w2.weight', 'experts.3.w3.weight'],
      ...['experts.03.w3.weight', 'experts.3.w4.weight', 'experts.*.w3.weight', 'experts.3.w3.weight.4.x'],
    ].map((name) => mixtral!(`${layer}block_sparse_moe.${name}`)),
  ).toEqual(['2.router', '2.gate.11', '2.down.0', '2.up.3', undefined, undefined, undefined, undefined]);
  expect(
    ['gate.weight', 'experts.127.gate_proj.weight', 'experts.0.up_proj.weight', 'experts.0.down_proj.weight'].map(
      (name) => qwen!(`${layer}mlp.${name}`),
    ),
  ).toEqual(['2.router', '2.gate.127', '2.up.0', '2.down.0']);
  expect(
    ['ffn_gate_inp.weight', 'ffn_up.5.weight', 'ffn_up_exps.weight'].map((name) =>
      ggufNaming().nameOf(`blk.1.${name}`),
    ),
  ).toEqual(['1.router', '1.up.5', '1.ups']);
});
