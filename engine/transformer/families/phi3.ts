/** Phi-3, 3.5 and 4: one matrix for q, k and v, one for gate and up, LongRoPE, and heads that are rotated in part. */
import { perLayer } from '../hf-keys.ts';
import type { Family } from './family.ts';

export const phi3: Family = {
  name: 'phi3',
  title: 'Phi-3 and Phi-4',
  modelTypes: ['phi3'],
  architectures: ['phi3'],
  defaults: { normEpsilon: 1e-5 },
  hfParts: { 'self_attn.qkv_proj.weight': 'qkv', 'mlp.gate_up_proj.weight': 'gateUp' },
  ggufParts: { 'attn_qkv.weight': 'qkv', 'ffn_up.weight': 'gateUp' },
  hf: (given) => ({ slidingWindow: perLayer(given.num_hidden_layers, () => given.sliding_window ?? null) }),
  gguf: () => ({}),
};
