/**
 * Gemma 2: norms before and after each half whose gains are stored less one, GELU, scaled embeddings, a scale of
 * queries of its own, scores and logits that a hyperbolic tangent keeps below a cap, and every other layer, from the
 * first on, with a window.
 */
import { z } from 'zod';
import { f32, windowKeys } from '../gguf-entries.ts';
import { type HfConfig, parseKeys, perLayer, unsupportedKey, windowsByType } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';
import type { Family } from './family.ts';

/** Every so many layers, one sees all. */
const EVERY = 2;
const QUERY_SCALAR = 256;
const WINDOW = 4096;
const SCORE_CAP = 50;
const LOGIT_CAP = 30;
/** The only size whose queries are scaled by the width of the model; GGUF files do not say it otherwise. */
const LAYERS_27B = 46;

const cap = z.number().nullish();
const schema = z.looseObject({
  query_pre_attn_scalar: z.number().positive().nullish(),
  attn_logit_softcapping: cap,
  final_logit_softcapping: cap,
  use_bidirectional_attention: z.boolean().nullish(),
});

/** A key that is left out is what the class assumes; null means that nothing is capped. */
const given = (value: number | null | undefined, assumed: number): number | null =>
  value === undefined ? assumed : value;

const alternating = (layers: number, window: number): (number | null)[] =>
  perLayer(layers, (layer) => ((layer + 1) % EVERY === 0 ? null : window));

const common = ({ hiddenSize }: ModelConfig) => ({ postNorms: true, embeddingScale: Math.sqrt(hiddenSize) }) as const;

/** How files of Gemma 2 and 3 name and store the gains of norms. */
export const GEMMA_NORMS = {
  hfGainOffset: 1,
  hfParts: {
    'post_attention_layernorm.weight': 'attnPost',
    'pre_feedforward_layernorm.weight': 'mlpNorm',
    'post_feedforward_layernorm.weight': 'mlpPost',
  },
  ggufParts: { 'post_attention_norm.weight': 'attnPost', 'post_ffw_norm.weight': 'mlpPost' },
} as const satisfies Partial<Family>;

export const gemma2: Family = {
  name: 'gemma2',
  title: 'Gemma 2',
  modelTypes: ['gemma2'],
  architectures: ['gemma2'],
  defaults: { tiedEmbeddings: true, headDim: 256, activation: 'gelu_pytorch_tanh' },
  ggufActivation: 'gelu-tanh',
  ggufReads: ['attn_logit_softcapping', 'final_logit_softcapping', 'attention.sliding_window_pattern'],
  ...GEMMA_NORMS,
  hf(config: HfConfig, base) {
    const keys = parseKeys(schema, config);
    if (keys.use_bidirectional_attention === true) throw unsupportedKey('use_bidirectional_attention', true);
    const size = config.sliding_window ?? WINDOW;
    const isBiased = config.attention_bias === true;
    return {
      ...common(base),
      slidingWindow: windowsByType({ ...config, sliding_window: size }) ?? alternating(config.num_hidden_layers, size),
      qkvBias: isBiased,
      outputBias: isBiased,
      queryScale: Math.sqrt(base.headDim / (keys.query_pre_attn_scalar ?? QUERY_SCALAR)),
      scoreCap: given(keys.attn_logit_softcapping, SCORE_CAP),
      logitCap: given(keys.final_logit_softcapping, LOGIT_CAP),
    };
  },
  gguf(keys, base) {
    const { layers, hiddenSize, queryHeads, headDim, slidingWindow } = base;
    const isWindowed = keys.pattern('attention.sliding_window_pattern', layers, EVERY);
    return {
      ...common(base),
      slidingWindow: slidingWindow.map((size, layer) => (isWindowed(layer) ? (size ?? WINDOW) : null)),
      queryScale: layers === LAYERS_27B ? Math.sqrt((headDim * queryHeads) / hiddenSize) : 1,
      scoreCap: keys.optional('attn_logit_softcapping') ?? SCORE_CAP,
      logitCap: keys.optional('final_logit_softcapping') ?? LOGIT_CAP,
    };
  },
  ggufKeys: ({ slidingWindow, scoreCap, logitCap }) => ({
    ...windowKeys(slidingWindow, EVERY),
    attn_logit_softcapping: f32(scoreCap ?? 0),
    final_logit_softcapping: f32(logitCap ?? 0),
  }),
};
