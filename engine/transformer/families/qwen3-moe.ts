/** Qwen3 with experts in every layer. Layers without are refused; no published model has any. */
import { z } from 'zod';
import { badConfig } from '../config.ts';
import { GGUF_SOURCE, ggufExperts } from '../gguf-keys.ts';
import { biases, parseKeys, perLayer, unsupportedKey } from '../hf-keys.ts';
import type { Family } from './family.ts';

const whole = z.int().nullish();
const schema = z.looseObject({
  num_experts: whole,
  num_local_experts: whole,
  num_experts_per_tok: whole,
  moe_intermediate_size: whole,
  norm_topk_prob: z.boolean().nullish(),
  decoder_sparse_step: whole,
  mlp_only_layers: z.array(z.int()).max(1024).nullish(),
});
const EXPERTS = 128;
const EXPERTS_USED = 8;
const WIDTH = 768;
const WINDOW = 4096;

export const qwen3Moe: Family = {
  name: 'qwen3-moe',
  title: 'Qwen3 with experts',
  modelTypes: ['qwen3_moe'],
  architectures: ['qwen3moe'],
  ggufReads: ['expert_count', 'expert_feed_forward_length'],
  hfParts: {
    'mlp.gate.weight': 'router',
    'mlp.experts.*.gate_proj.weight': 'gate',
    'mlp.experts.*.up_proj.weight': 'up',
    'mlp.experts.*.down_proj.weight': 'down',
    // These are the names that `transformers` has for them.
    'mlp.experts.gate_up_proj': 'gateUps',
    'mlp.experts.down_proj': 'downs',
  },
  hf(given) {
    const keys = parseKeys(schema, given);
    if (keys.mlp_only_layers != null && keys.mlp_only_layers.length > 0)
      throw unsupportedKey('mlp_only_layers', keys.mlp_only_layers);
    if (keys.decoder_sparse_step != null && keys.decoder_sparse_step !== 1)
      throw unsupportedKey('decoder_sparse_step', keys.decoder_sparse_step);
    // Unlike those of Qwen3, all layers have the window.
    const window = given.use_sliding_window === true ? (given.sliding_window ?? WINDOW) : null;
    return {
      ...biases(given),
      mlpBias: false,
      qkNorm: 'head',
      slidingWindow: perLayer(given.num_hidden_layers, () => window),
      intermediateSize: keys.moe_intermediate_size ?? WIDTH,
      experts: {
        count: keys.num_experts ?? keys.num_local_experts ?? EXPERTS,
        used: keys.num_experts_per_tok ?? EXPERTS_USED,
        shareAmongChosen: keys.norm_topk_prob ?? false,
      },
    };
  },
  gguf(keys, { intermediateSize }) {
    const experts = ggufExperts(keys);
    if (experts === null) throw badConfig(GGUF_SOURCE, [`${keys.architecture}.expert_count is missing`]);
    // Where a file does not say how wide one is, llama.cpp divides the width of all that answer a token.
    return {
      experts,
      intermediateSize: keys.optional('expert_feed_forward_length') ?? Math.floor(intermediateSize / experts.used),
    };
  },
};
