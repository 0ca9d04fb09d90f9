/** Mixtral: Mistral with experts, whose shares add up to 1. Its GGUF files say that they are Llama. */
import { z } from 'zod';
import { parseKeys, perLayer } from '../hf-keys.ts';
import type { Family } from './family.ts';

const schema = z.looseObject({ num_local_experts: z.int().nullish(), num_experts_per_tok: z.int().nullish() });
const EXPERTS = 8;
const EXPERTS_USED = 2;

export const mixtral: Family = {
  name: 'mixtral',
  title: 'Mixtral',
  modelTypes: ['mixtral'],
  architectures: [],
  defaults: { ropeTheta: 1e6, normEpsilon: 1e-5 },
  hfParts: {
    'block_sparse_moe.gate.weight': 'router',
    'block_sparse_moe.experts.*.w1.weight': 'gate',
    'block_sparse_moe.experts.*.w3.weight': 'up',
    'block_sparse_moe.experts.*.w2.weight': 'down',
    // These are the names that `transformers` has for them.
    'mlp.gate.weight': 'router',
    'mlp.experts.gate_up_proj': 'gateUps',
    'mlp.experts.down_proj': 'downs',
  },
  hf(given) {
    const { num_local_experts, num_experts_per_tok } = parseKeys(schema, given);
    return {
      slidingWindow: perLayer(given.num_hidden_layers, () => given.sliding_window ?? null),
      experts: {
        count: num_local_experts ?? EXPERTS,
        used: num_experts_per_tok ?? EXPERTS_USED,
        shareAmongChosen: true,
      },
    };
  },
  gguf: () => ({}),
};
